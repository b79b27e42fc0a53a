"""The daemon's two sockets: where they are, who is behind them, what arrives on the first."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from evoke.client.errors import BadArgument, Unavailable
from evoke.client.wire import FRAME_BYTES_MAX
from evoke.core import native

__all__ = [
    "Welcome",
    "open_control",
    "open_liveness",
    "read_packet",
    "send_memory",
    "socket_directory",
]

LIVENESS_VERSION: Final = 1
PATH_BYTES_MAX: Final = 107  # of a Unix socket's address
_SO_PEERPIDFD: Final = 77  # Linux 6.5; socket has no name for it
_PACKET_BYTES_MAX: Final = 4096
_PACKET_FDS_MAX: Final = 4
_QUEUE_FRAMES: Final = 4096


class Fd:
    """Owns a file descriptor."""

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class Welcome:
    """What the daemon says first, and who it is: `daemon` is its pidfd, if it has one for us."""

    boot: bytes
    token: bytes
    route: bytes
    table: native.TableView
    fences: native.FencePage
    daemon: Fd | None

    def daemon_died(self, wait_s: float) -> bool:
        """True when the process behind the socket is known to be gone; waits up to wait_s."""
        if self.daemon is None:
            return False
        poll = select.poll()
        poll.register(self.daemon.number, select.POLLIN)
        return bool(poll.poll(wait_s * 1e3))


def socket_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """The directory of the daemon's sockets: given, $EVOKE_SOCKET, or the place of this user."""
    chosen = given or os.environ.get("EVOKE_SOCKET")
    if chosen:
        return Path(chosen)
    if os.path.isdir("/run/evoked") and os.access("/run/evoked", os.X_OK, effective_ids=True):
        return Path("/run/evoked")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "evoked"
    return Path(f"/tmp/evoked-{os.getuid()}")


def open_liveness(directory: Path, deadline: float) -> tuple[socket.socket, Welcome]:
    """Connect and take the welcome. Unavailable says why there is none by the deadline
    (time.monotonic)."""
    path = str(directory / "session.sock")
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise BadArgument(f"socket_dir: {path} has over {PATH_BYTES_MAX} bytes")
    if str(directory).startswith("/tmp/evoked-") and directory.name == f"evoked-{os.getuid()}":
        _check_owner(directory)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        peer.connect(path)
        packet, fds = read_packet(peer)
        try:
            welcome = _welcome(peer, packet, fds)
        finally:
            for fd in fds:
                os.close(fd)
        peer.setblocking(False)
    except OSError as error:
        peer.close()
        raise Unavailable(f"{path}: {error.strerror or error}") from None
    except BaseException:
        peer.close()
        raise
    return peer, welcome


def read_packet(peer: socket.socket) -> tuple[list[Any], Sequence[int]]:
    """One packet: a msgpack array, and its descriptors. BlockingIOError when there is none yet,
    Unavailable when the other end is closed or talks nonsense."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0x4000_0000)
    data, fds, _, _ = socket.recv_fds(peer, _PACKET_BYTES_MAX, _PACKET_FDS_MAX, flags)
    try:
        if not data:
            raise Unavailable("the daemon closed the session")
        return msgspec.msgpack.decode(data, type=list[Any]), fds
    except (msgspec.DecodeError, RecursionError, Unavailable) as error:
        for fd in fds:
            os.close(fd)
        raise Unavailable(f"{error}") from None


def send_memory(peer: socket.socket, number: int, fd: int) -> None:
    """Pass a pool's memfd under a number. Unavailable when the socket takes nothing."""
    try:
        socket.send_fds(peer, [msgspec.msgpack.encode(["memory", number])], [fd])
    except OSError as error:
        raise Unavailable(f"liveness socket: {error.strerror or error}") from None


def open_control(
    context: zmq.Context[zmq.Socket[bytes]], directory: Path, route: bytes
) -> zmq.Socket[bytes]:
    """A DEALER of the session whose route it is. libzmq connects it in the background."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.ROUTING_ID, route)
    dealer.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
    dealer.setsockopt(zmq.SNDHWM, _QUEUE_FRAMES)
    dealer.setsockopt(zmq.RCVHWM, _QUEUE_FRAMES)
    dealer.setsockopt(zmq.RECONNECT_IVL, 20)  # ms; the daemon may close and bind this socket again
    dealer.connect(f"ipc://{directory / 'control.sock'}")
    return dealer


def _welcome(peer: socket.socket, packet: list[Any], fds: Sequence[int]) -> Welcome:
    match packet:
        case ["refused", str(sentence)]:
            raise Unavailable(f"refused: {sentence}")
        case ["welcome", int(version), bytes(boot), bytes(token), bytes(route)]:
            if version != LIVENESS_VERSION:
                raise Unavailable(f"the daemon speaks version {version}, not {LIVENESS_VERSION}")
        case _:
            raise Unavailable(f"no welcome but {packet!r:.80}")
    if len(fds) != 2:
        raise Unavailable(f"{len(fds)} descriptors with the welcome, not 2")
    try:
        table, fences = native.TableView(fds[0]), native.FencePage(fds[1])
    except ValueError as error:
        raise Unavailable(f"the welcome's memory: {error}") from None
    return Welcome(boot, token, route, table, fences, _pidfd_of(peer))


def _pidfd_of(peer: socket.socket) -> Fd | None:
    with contextlib.suppress(OSError):
        return Fd(peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    pid = struct.unpack("iII", credentials)[0]
    if pid <= 0:  # of a pid namespace that we do not see
        return None
    try:
        return Fd(os.pidfd_open(pid))
    except OSError:
        return None


def _check_owner(directory: Path) -> None:
    # Anybody may make this name in /tmp: only our own directory has our own daemon in it.
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(directory).st_uid != os.getuid():
            raise Unavailable(f"{directory}: belongs to another user")
