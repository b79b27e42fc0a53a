"""The control socket: reads frames, checks who sent them, and answers each exactly once."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
import zmq

from evoke.client.wire import Args, Code, WireError, decode_request, encode_reply
from evoke.core import native
from evoked.counters import Counters
from evoked.sessions import Session

__all__ = [
    "DEFERRED",
    "Handler",
    "Refusal",
    "Replier",
    "Server",
    "SocketAccess",
    "bind_renamed",
    "lock_directory",
]

FRAMES_PER_TURN: Final = 128
TURN_S: Final = 0.02  # after which the other sockets and timers have their turn
HIGH_WATER_FRAMES: Final = 1000
FRAME_BYTES_MAX: Final = 1 << 20
SURPLUS_FRAMES_MAX: Final = 1000  # of one message: reading more would hold up the loop
READABLE: Final = int(zmq.POLLIN)
HELD_S: Final = 1.0  # how long a reply waits for a peer that a re-bind made connect again
HELD_BYTES_MAX: Final = 16 << 20
HELD_RETRY_S: Final = 0.02


class _Deferred:
    """The type of DEFERRED."""


DEFERRED: Final = _Deferred()  # a handler's result when the reply comes later


class Refusal(Exception):
    """A request that is answered with an error: `field` and `sentence` go to the peer."""

    def __init__(self, code: Code, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}")
        self.code, self.field, self.sentence = code, field, sentence


@dataclass(frozen=True, kw_only=True)
class SocketAccess:
    """Who may open a socket: without a gid its owner only, else as `mode` says for that group."""

    mode: int
    gid: int | None

    def apply(self, path: str) -> None:
        if self.gid is not None:
            os.chown(path, -1, self.gid)
        os.chmod(path, self.mode if self.gid is not None else self.mode & 0o700)


class Replier(Protocol):
    """Answers a request; ended sessions and request id 0 are ignored."""

    def reply(self, session: Session, number: int, code: Code, result: Any) -> None: ...

    def end_session(self, session: Session, reason: str) -> None:
        """The session ends, after the replies that were given before; once."""


class Handler(Protocol):
    def __call__(self, session: Session, request: int, args: Any, /) -> Any: ...


def lock_directory(directory: str) -> int:
    """fd of control.lock, held for the daemon's life. BlockingIOError names the holder's pid."""
    path = os.path.join(directory, "control.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise BlockingIOError(f"{directory} is served by pid {holder or 'unknown'}") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def bind_renamed(socket: zmq.Socket[bytes], path: str, binds: int, access: SocketAccess) -> None:
    """Bind to an ipc path that was bound `binds` times before. A closed socket removes the file of
    its own name, later and in another thread: it must not find the next one's there."""
    own = f"{path.removesuffix('.sock')}.{binds % 10}"
    socket.bind(f"ipc://{own}")
    access.apply(own)
    os.rename(own, path)


class Server:
    """One ROUTER over ipc. `sessions` maps routing ids to sessions; the owner keeps it."""

    def __init__(
        self,
        path: str,
        counters: Counters,
        *,
        boot: bytes,
        access: SocketAccess,
        requests_per_s: int,
        clock: Callable[[], float],
        on_broken: Callable[[Session, str], None],
    ) -> None:
        self._path, self._counters, self._boot, self._access = path, counters, boot, access
        self._requests_per_s, self._clock, self._on_broken = requests_per_s, clock, on_broken
        self._log = structlog.get_logger()
        if not native.guard_accept():
            self._log.warning(
                "too many connections to the control socket would end this daemon",
                reason="this libzmq's calls of accept() cannot be guarded",
            )
        self.context = zmq.Context()
        self.handlers: dict[str, Handler] = {}
        self.sessions: dict[bytes, Session] = {}
        self.stopping = False
        self._binds = 0
        self._rebound_s = float("-inf")
        self._held: deque[tuple[Session, bytes]] = deque()
        self._held_bytes = 0
        self.socket = self._bind()

    def _bind(self) -> zmq.Socket[bytes]:
        router = self.context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        router.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
        router.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
        router.setsockopt(zmq.LINGER, 0)
        bind_renamed(router, self._path, self._binds, self._access)
        self._binds += 1
        return router

    def rebind(self) -> None:
        """Give back what libzmq holds for unfinished messages. Sessions live on; clients' DEALERs
        connect again by themselves, replies wait a second for them, and requests that were in the
        socket are lost (their callers see their deadline)."""
        self._counters.add("socket_rebinds")
        self.socket.close(0)
        self.socket = self._bind()
        self._rebound_s = self._clock()

    # ------------------------------------------------------------------ replies that wait
    def retry_due_s(self) -> float | None:
        """When retry() should run next; None when no reply waits."""
        return self._clock() + HELD_RETRY_S if self._held else None

    def retry(self) -> None:
        """Send what waits for peers that have connected again; end those that have not in time."""
        late = self._clock() > self._rebound_s + HELD_S
        for _ in range(len(self._held)):
            session, frame = self._held.popleft()
            if session.ended or self._send(session.route, frame):
                self._held_bytes -= len(frame)
            elif late:
                self._held_bytes -= len(frame)
                self._broken(session)
            else:
                self._held.append((session, frame))

    def _deliver(self, session: Session, frame: bytes) -> None:
        """A reply that can neither be queued nor wait ends the session."""
        if self._send(session.route, frame):
            return
        waits = self._clock() <= self._rebound_s + HELD_S
        if waits and self._held_bytes + len(frame) <= HELD_BYTES_MAX:
            self._counters.add("replies_held")
            self._held.append((session, frame))
            self._held_bytes += len(frame)
        else:
            self._broken(session)

    def _broken(self, session: Session) -> None:
        self._counters.add("replies_dropped")
        self._on_broken(session, "a reply could not be queued")

    def receive(self) -> int:
        """Reads and handles what lies ready, up to a bound; how many frames that was."""
        end_s = self._clock() + TURN_S
        for count in range(FRAMES_PER_TURN):
            if self._clock() > end_s:
                return count
            try:
                frames = self._read()
            except zmq.Again:
                return count
            if len(frames) > SURPLUS_FRAMES_MAX:
                self._log.error("control socket re-bound", frames=len(frames))
                self.rebind()
                return count
            self._handle(frames)
            events = self.socket.getsockopt(zmq.EVENTS)  # cheaper than zmq.Again
            assert isinstance(events, int)
            if not events & READABLE:
                return count + 1
        return FRAMES_PER_TURN

    def _read(self) -> list[zmq.Frame]:
        """One message, or the beginning of one that has too many frames. zmq.Again: none."""
        frames = [self.socket.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more and len(frames) <= SURPLUS_FRAMES_MAX:
            frames.append(self.socket.recv(zmq.NOBLOCK, copy=False))
        return frames

    def _handle(self, frames: list[zmq.Frame]) -> None:
        self._counters["requests"] += 1
        route = frames[0].bytes
        try:
            if len(frames) != 2:
                sentence = f"{len(frames) - 1} frames in a message, expected 1"
                raise WireError(Code.BAD_FRAME, "frame", sentence)
            request, args = decode_request(frames[1].bytes)
        except WireError as error:
            if error.code == Code.BAD_FRAME:
                self._counters.add("bad_frames")
            self._refuse(route, error.request, error.code, error.field, error.sentence)
            return
        session = self.sessions.get(route)
        if session is None or session.token != request.token:
            self._counters.add("bad_tokens")
            sentence = "no session of this token lives on this connection"
            self._refuse(route, request.request, Code.BAD_TOKEN, "token", sentence)
            return
        self._dispatch(session, frames[1], request.request, request.verb, args)

    def end_session(self, session: Session, reason: str) -> None:
        if not session.ended:
            self._on_broken(session, reason)

    def _dispatch(
        self, session: Session, frame: zmq.Frame, number: int, verb: str, args: Args
    ) -> None:
        try:
            if self.stopping:
                raise Refusal(Code.STOPPING, "", "the daemon is stopping")
            if not session.allow(self._clock(), self._requests_per_s):
                self._counters.add("rate_limited")
                limit = self._requests_per_s
                raise Refusal(Code.BUSY, "", f"over limits.session_requests_per_s = {limit}")
            if verb == "hello":
                _agree(session, frame)
            elif session.instance is None:
                raise Refusal(Code.BAD_TOKEN, "token", "say hello first")
            result = self.handlers[verb](session, number, args)
        except Refusal as refusal:
            self._refuse(session.route, number, refusal.code, refusal.field, refusal.sentence)
            return
        except Exception:  # the loop's edge: a defect of ours must not take the daemon down
            self._counters.add("defects")
            self._log.exception("defect in a handler", verb=verb, session=session.number)
            self._refuse(session.route, number, Code.INTERNAL, verb, "a defect of the daemon")
            return
        if result is not DEFERRED:
            self.reply(session, number, Code.OK, result)

    def reply(self, session: Session, number: int, code: Code, result: Any) -> None:
        """Request id 0 asks for no reply. A reply that cannot be queued ends the session."""
        if not session.ended and number != 0:
            self._deliver(session, encode_reply(number, self._boot, code, result))

    def _refuse(self, route: bytes, number: int, code: Code, field: str, sentence: str) -> None:
        self._counters.add("refused_requests")
        frame = encode_reply(number, self._boot, code, [field, sentence])
        session = self.sessions.get(route)
        if session is not None:
            self._deliver(session, frame)
        elif not self._send(route, frame):
            self._counters.add("replies_dropped")

    def _send(self, route: bytes, frame: bytes) -> bool:
        try:
            self.socket.send_multipart((route, frame), zmq.NOBLOCK)
        except zmq.ZMQError:  # unknown route, or its queue is full
            return False
        return True

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()
        if os.path.exists(self._path):
            os.unlink(self._path)


def _agree(session: Session, frame: zmq.Frame) -> None:
    """libzmq's own word on the peer, where it gives one, must not contradict the kernel's."""
    try:
        address = frame.get("Peer-Address")
    except zmq.ZMQError:
        return
    parts = str(address).split(":")
    if len(parts) != 4 or not all(part.lstrip("-").isdigit() for part in parts[1:]):
        return
    uid, pid = int(parts[1]), int(parts[3])
    if uid != session.peer.uid or pid != session.peer.pid:
        sentence = f"uid {uid} pid {pid} is not the process of this session"
        raise Refusal(Code.BAD_TOKEN, "token", sentence)
