"""The liveness socket: clients connect here first; a session lives as long as its connection.

Packets are small msgpack arrays (docs/protocol.md, "Liveness socket"); file descriptors travel
beside them. Nothing here blocks: a peer that does not read its packets is ended.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from evoke.client.wire import VERSION
from evoked.counters import Counters
from evoked.peers import PeerRefused, identify
from evoked.server import SocketAccess
from evoked.sessions import Session

__all__ = ["Liveness"]

PACKET_BYTES_MAX: Final = 4096
MEMORIES_WAITING_MAX: Final = 16

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, int])


class Liveness:
    """Accepts, names and welcomes peers; reports the end of each through `on_end`."""

    def __init__(
        self,
        path: str,
        epoll: select.epoll,
        counters: Counters,
        *,
        boot: bytes,
        access: SocketAccess,
        uids: frozenset[int],
        sessions_max: int,
        sessions_per_user: int,
        table_fd: Callable[[], int],
        on_open: Callable[[Session], None],
        on_end: Callable[[Session, str], None],
    ) -> None:
        self._epoll, self._counters, self._boot = epoll, counters, boot
        self._uids, self._sessions_max = uids, sessions_max
        self._sessions_per_user = sessions_per_user
        self._table_fd, self._on_open, self._on_end = table_fd, on_open, on_end
        self._log = structlog.get_logger()
        self._by_fd: dict[int, Session] = {}
        self.sessions: dict[int, Session] = {}
        self._next = 1
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        if os.path.exists(path):
            os.unlink(path)  # ours: control.lock is held
        self._listener.bind(path)
        access.apply(path)
        self._listener.listen(128)
        self._path = path
        self._spare_fd: int | None = _spare_fd()
        epoll.register(self._listener.fileno(), select.EPOLLIN)

    def listens(self, fd: int) -> bool:
        return fd == self._listener.fileno()

    def handle(self, fd: int) -> None:
        """An fd of this socket, a session or a pidfd is readable."""
        if fd == self._listener.fileno():
            self._accept()
            return
        session = self._by_fd.get(fd)
        if session is None:
            return  # ended earlier in the same round of events
        if fd == session.peer.pidfd:
            self._on_end(session, "process ended")
        else:
            self.read(session)

    def read(self, session: Session) -> None:
        """Takes all packets that lie ready; ends the session at end of file or nonsense."""
        while not session.ended:
            try:
                data, fds, flags, _ = socket.recv_fds(
                    session.connection, PACKET_BYTES_MAX, 2, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            except OSError as error:
                self._on_end(session, f"liveness socket: {error.strerror}")
                return
            reason = self._packet(session, data, fds, flags)
            if reason:
                for fd in fds:
                    os.close(fd)
                self._on_end(session, reason)

    def _packet(self, session: Session, data: bytes, fds: list[int], flags: int) -> str:
        """Empty when taken, else why the session ends."""
        if not data and not fds:
            return "closed"
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) != 1:
            return f"liveness packet with {len(fds)} descriptors, flags {flags}"
        try:
            word, number = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError, OverflowError):
            return "liveness packet is not [text, number]"
        if word != "memory" or not 0 <= number <= 0xFFFFFFFF or number in session.memories:
            return f"liveness packet {word[:20]!r} {number}"
        if len(session.memories) == MEMORIES_WAITING_MAX:
            return f"more than {MEMORIES_WAITING_MAX} memories were sent and not registered"
        kind = stat.S_IFMT(os.fstat(fds[0]).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFCHR, stat.S_IFIFO):
            # It could be, or hold, this very connection, whose end would then never be seen.
            return "liveness packet with a descriptor that is no memory"
        session.memories[number] = fds[0]
        return ""

    def _accept(self) -> None:
        for _ in range(64):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._log.warning("accept failed", reason=error.strerror)
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._turn_away():
                    return
                continue
            connection.setblocking(False)
            try:
                self._open(connection)
            except (PeerRefused, OSError) as error:
                self._counters.add("sessions_refused")
                self._log.warning("session refused", reason=str(error))
                self._refuse(connection, str(error))

    def _turn_away(self) -> bool:
        """Without a free descriptor the listener would stay ready for ever and the loop would
        spin: one descriptor is kept to tell the peer so. False when it was lost."""
        if self._spare_fd is not None:
            os.close(self._spare_fd)
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._counters.add("sessions_refused")
            self._refuse(connection, "the daemon has no descriptors left")
        except OSError:
            pass  # nobody waits any more, or another thread took the descriptor
        try:
            self._spare_fd = _spare_fd()
        except OSError:
            self._spare_fd = None
        return self._spare_fd is not None

    def _refuse(self, connection: socket.socket, sentence: str) -> None:
        try:
            connection.send(_encoder.encode(("refused", sentence[:200])))
        except OSError:
            self._log.info("refused peer had gone")
        connection.close()

    def _open(self, connection: socket.socket) -> None:
        if len(self.sessions) >= self._sessions_max:
            raise PeerRefused(f"{len(self.sessions)} sessions, limits.sessions reached")
        peer = identify(connection)
        if self._uids and peer.uid not in self._uids and peer.uid not in (0, os.geteuid()):
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            raise PeerRefused(f"uid {peer.uid} is not in access.uids")
        own = sum(session.peer.uid == peer.uid for session in self.sessions.values())
        if own >= self._sessions_per_user and peer.uid not in (0, os.geteuid()):
            if peer.pidfd is not None:
                os.close(peer.pidfd)
            limit = self._sessions_per_user
            raise PeerRefused(f"uid {peer.uid} has limits.sessions_per_user = {limit} sessions")
        session = Session(self._next, connection, peer)
        self._next += 1
        welcome = _encoder.encode(("welcome", VERSION, self._boot, session.token, session.route))
        try:
            socket.send_fds(connection, [welcome], [self._table_fd(), session.fence_fd])
        except OSError:
            session.close()
            raise
        self.sessions[session.number] = session
        self._watch(session)
        self._on_open(session)
        self._counters.add("sessions_opened")
        self._log.info("session opened", session=session.number, pid=peer.pid, uid=peer.uid)

    def _watch(self, session: Session) -> None:
        fds = [session.connection.fileno()]
        if session.peer.pidfd is not None:
            fds.append(session.peer.pidfd)
        for fd in fds:
            self._by_fd[fd] = session
            self._epoll.register(fd, select.EPOLLIN)

    def forget(self, session: Session) -> None:
        """Stop watching, before the session's fds are closed."""
        del self.sessions[session.number]
        for fd in (session.connection.fileno(), session.peer.pidfd):
            if fd is not None:
                del self._by_fd[fd]
                self._epoll.unregister(fd)

    def publish_table(self, epoch: int) -> None:
        """Hand a resized look-up table to everybody; who does not read its packets is ended."""
        packet = _encoder.encode(("table", epoch))
        for session in list(self.sessions.values()):
            try:
                socket.send_fds(session.connection, [packet], [self._table_fd()])
            except OSError as error:
                self._on_end(session, f"does not read its liveness socket: {error.strerror}")

    def close(self) -> None:
        self._epoll.unregister(self._listener.fileno())
        self._listener.close()
        if self._spare_fd is not None:
            os.close(self._spare_fd)
        if os.path.exists(self._path):
            os.unlink(self._path)


def _spare_fd() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
