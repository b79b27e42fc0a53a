"""Builds the parts in order, runs the one loop that owns all state, and stops in order."""

from __future__ import annotations

import gc
import grp
import os
import resource
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, Final

import structlog
import zmq

from evoke.client.wire import Code
from evoke.config import Config
from evoke.core import native
from evoked.counters import Counters
from evoked.events import Events
from evoked.learned import LearnedFile, state_dir
from evoked.liveness import Liveness
from evoked.memory_watch import MemoryWatch, memory_besides_bytes
from evoked.notify import Notifier
from evoked.server import Refusal, Server, SocketAccess, lock_directory
from evoked.sessions import Session
from evoked.watcher import Watcher
from evoked.works import Works

__all__ = ["Daemon", "StartError"]

POLL_MS_MAX: Final = 10_000
STOP_COPIES_S: Final = 5.0
FDS_RESERVED: Final = 40  # what the daemon itself has open, and memories on their way in
FDS_PER_SESSION: Final = 4  # liveness connection, pidfd, fence page, control connection


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


class Daemon:
    """start(), run() until stop() or a signal, then close()."""

    def __init__(self, config: Config, directory: str, parent_fd: int | None, boot: bytes) -> None:
        self.config, self.directory = config, directory
        self.boot = boot
        self.counters = Counters()
        self._log = structlog.get_logger()
        self._parent_fd = parent_fd
        self.notifier = Notifier()
        self._gid = _group(config.access.group)
        self._stop_reason = ""
        self._reload_wanted = False
        self.liveness: Liveness
        self._epoll = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._watcher = Watcher(self._epoll)

    # ------------------------------------------------------------------ start
    def start(self) -> None:
        """Serves when it returns. StartError when it cannot."""
        os.umask(0o077)
        self._directory()
        config = self.config
        self.arena = self._make_arena()
        speeds = native.self_test()
        kernel = native.kernel_name()
        self.engine = native.CopyEngine(config.daemon.workers or default_workers())
        self._build_sockets({"kernel": kernel, "gbps": round(speeds[kernel] / 1e9, 2)})
        for fd in (self.engine.eventfd, self._signal_fd(), self._parent_fd):
            if fd is not None:
                self._epoll.register(fd, select.EPOLLIN)
        self._watch_memory()
        self._watchdog()
        gc.collect()
        gc.freeze()
        self.notifier.ready(f"serving {self.directory}")

    def _directory(self) -> None:
        try:
            if not os.path.isdir(self.directory):
                os.makedirs(self.directory, mode=0o700)
                if self._gid is not None:
                    os.chown(self.directory, -1, self._gid)
                    os.chmod(self.directory, 0o750)
            self._lock_fd = lock_directory(self.directory)
        except OSError as error:
            raise StartError(str(error)) from None

    def _make_arena(self) -> native.Arena:
        host = self.config.host
        try:
            arena = native.Arena(host.capacity_bytes, host.backing, host.lock)
            available_bytes = native.memory_available_bytes()
            if arena.capacity_bytes > available_bytes:
                raise MemoryError(f"{available_bytes} bytes are available now")
            threads = host.prefault_threads or len(os.sched_getaffinity(0))
            self.notifier.during(
                lambda: arena.prefault(threads),
                lambda: (
                    f"faulting in the host tier: {arena.prefaulted_bytes >> 20} of "
                    f"{arena.capacity_bytes >> 20} MiB"
                ),
            )
        except MemoryError as error:
            sentence = f"host.capacity: {host.capacity_bytes} bytes cannot be had: {error}"
            raise StartError(sentence) from None
        return arena

    def _build_sockets(self, copy: dict[str, Any]) -> None:
        config = self.config
        access = SocketAccess(mode=config.access.socket_mode, gid=self._gid)
        self.server = Server(
            os.path.join(self.directory, "control.sock"),
            self.counters,
            boot=self.boot,
            access=access,
            requests_per_s=config.limits.session_requests_per_s,
            clock=time.monotonic,
            on_broken=self.end_session,
        )
        self.works = Works(
            config,
            self.server,
            self.engine,
            self.arena,
            self.counters,
            clock=time.monotonic,
            boot=self.boot,
            sessions=lambda: list(self.liveness.sessions.values()),
            copy=copy,
            watcher=self._watcher,
        )
        place = state_dir(config.daemon.state_dir, embedded=self._parent_fd is not None)
        works = self.works
        try:
            self.learned = LearnedFile(place, works.balance.policy, self.counters, works.timers)
        except OSError as error:
            raise StartError(f"daemon.state_dir: {error}") from None
        self.liveness = Liveness(
            os.path.join(self.directory, "session.sock"),
            self._epoll,
            self.counters,
            boot=self.boot,
            access=access,
            uids=frozenset(config.access.uids),
            sessions_max=self._sessions_max(),
            sessions_per_user=config.limits.sessions_per_user,
            table_fd=self.works.index.table_fd,
            on_open=self._open_session,
            on_end=self.end_session,
        )
        events_path = os.path.join(self.directory, "events.sock")
        self.events = Events(events_path, self.server.context, access)
        self.works.publish_to(self.events)
        self.server.handlers.update(self.works.handlers)
        self.server.handlers["register_pool"] = self._register_pool
        self._table_epoch = self.works.index.table_epoch

    def _sessions_max(self) -> int:
        """limits.sessions, or fewer where the limit of descriptors leaves no room for them."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        wanted = self.config.limits.sessions
        if hard == resource.RLIM_INFINITY:
            return wanted
        room = max(1, (hard - FDS_RESERVED) // FDS_PER_SESSION)
        if room < wanted:
            self._log.warning("limits.sessions is beyond RLIMIT_NOFILE", sessions=room, nofile=hard)
        return min(wanted, room)

    def _signal_fd(self) -> int:
        """A signal wakes the loop through a socket pair."""
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda n, _: self.stop(signal.Signals(n).name))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "_reload_wanted", True))
        return self._wake_read.fileno()

    # ------------------------------------------------------------------ the loop
    def stop(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason

    def run(self) -> str:
        """Until stop(); returns the reason."""
        poller = zmq.Poller()
        poller.register(self._epoll.fileno(), zmq.POLLIN)
        control, events = self.server.socket, self.events.socket
        poller.register(control, zmq.POLLIN)
        poller.register(events, zmq.POLLIN)
        while not self._stop_reason:
            control = _follow(poller, control, self.server.socket)
            events = _follow(poller, events, self.events.socket)
            for source, _ in poller.poll(self._wait_ms()):
                if source is control:
                    self.server.receive()
                elif source is events:
                    self.events.handle()
                else:
                    self._events()
            if self._reload_wanted:
                self._reload_wanted = False
                self.works.policies.reload_configured()
            self.works.timers.run_due(time.monotonic())
            self.server.retry()
            self.works.balance.policy.follow_when_many()
            self._publish()
        return self._stop_reason

    def _wait_ms(self) -> int:
        dues_s = (self.works.timers.next_due_s(), self.server.retry_due_s())
        due_s = min((due_s for due_s in dues_s if due_s is not None), default=None)
        if due_s is None:
            return POLL_MS_MAX
        return max(0, min(POLL_MS_MAX, int((due_s - time.monotonic()) * 1000) + 1))

    def _events(self) -> None:
        # New sessions last: a stale event must not meet a number that was given out again.
        for fd, _ in sorted(self._epoll.poll(0), key=lambda event: self.liveness.listens(event[0])):
            if fd == self.engine.eventfd:
                self.works.transfers.complete()
            elif fd == self._parent_fd:
                self.stop("parent ended")
            elif fd == self._wake_read.fileno():
                self._wake_read.recv(64)
            elif not self._watcher.handle(fd):
                self.liveness.handle(fd)

    def _watch_memory(self) -> None:
        MemoryWatch(
            lambda: memory_besides_bytes(self.arena, self.works.index),
            self._rebind,
            self.works.timers,
            time.monotonic,
            self.config.limits.loop_memory_bytes,
        ).check()

    def _rebind(self) -> None:
        self.server.rebind()
        self.events.rebind()

    def _publish(self) -> None:
        if self.works.index.table_epoch != self._table_epoch:
            self._table_epoch = self.works.index.table_epoch
            self.liveness.publish_table(self._table_epoch)

    def _watchdog(self) -> None:
        """A sign of life from the loop, and only while every thread is well."""
        if not self.notifier.watchdog_s:
            return
        if self.works.admin.health()["state"] != "red":
            self.notifier.alive()
        self.works.timers.at(time.monotonic() + self.notifier.watchdog_s, self._watchdog)

    # ------------------------------------------------------------------ sessions
    def _open_session(self, session: Session) -> None:
        self.server.sessions[session.route] = session

    def _register_pool(self, session: Session, number: int, args: Any) -> Any:
        """The memory was sent before the request, on a socket that may be read after it."""
        self.liveness.read(session)
        if session.ended:
            raise Refusal(Code.BAD_TOKEN, "token", "this session has just ended")
        return self.works.registry.register_pool(session, number, args)

    def end_session(self, session: Session, reason: str) -> None:
        """Everything that a session owned is given back before this returns, or, where a copy is
        still using it, when that copy ends."""
        if session.ended:
            return
        self.counters.add("sessions_ended")
        self._log.info("session ended", session=session.number, pid=session.peer.pid, why=reason)
        del self.server.sessions[session.route]
        self.liveness.forget(session)
        self.works.session_ended(session)

    # ------------------------------------------------------------------ stop
    def close(self) -> None:
        """Ordered: no new requests, running copies end (bounded), sessions, sockets, memory."""
        self._log.info("stopping", why=self._stop_reason)
        self.notifier.stopping(self._stop_reason)
        self.server.stopping = True
        end_s = time.monotonic() + STOP_COPIES_S
        while len(self.works.transfers) and time.monotonic() < end_s:
            select.select([self.engine.eventfd], [], [], 0.1)
            self.works.transfers.complete()
        for session in list(self.liveness.sessions.values()):
            self.end_session(session, "daemon stops")
        self.works.policies.close()
        self.learned.close()
        self.liveness.close()
        self.events.close()
        self.server.close()
        self.engine.close()
        self.works.transfers.complete()
        self.works.index.close()
        self.arena.close()
        self._epoll.close()
        signal.set_wakeup_fd(-1)
        self._wake_read.close()
        self._wake_write.close()
        if self._parent_fd is not None:  # embedded: the directory is ours alone
            Path(self.directory, "control.lock").unlink(missing_ok=True)
            try:
                os.rmdir(self.directory)
            except OSError as error:
                self._log.warning("directory stays", directory=self.directory, why=str(error))
        os.close(self._lock_fd)
        self.notifier.close()


def _follow(
    poller: zmq.Poller, old: zmq.Socket[bytes], new: zmq.Socket[bytes]
) -> zmq.Socket[bytes]:
    """Poll the socket that took the place of a re-bound one."""
    if old is not new:
        poller.unregister(old)
        poller.register(new, zmq.POLLIN)
    return new


def _group(name: str) -> int | None:
    """gid, or None where the group does not exist or is not ours to give."""
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        return None
    return gid if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()) else None


def default_workers() -> int:
    """min(4, cores / 2), at least 1: copying is bound by memory, not by cores."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))
