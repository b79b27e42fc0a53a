"""Keeps a session with the daemon: connects as calls come in, and registers everything again.

After a failure to connect there is a pause, which grows; until it is over, calls fail at once. So
an engine without a daemon loses next to nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import zmq

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.errors import BadArgument, DaemonError, Forked, LayoutError, Unavailable
from evoke.client.pool import Pool
from evoke.client.reports import Reports
from evoke.client.space import Space

__all__ = ["Link"]

PAUSE_S: Final = 0.1  # after the first failure to connect; doubles
PAUSE_MAX_S: Final = 2.0
_SETUP_WAIT_S: Final = 10.0

_log = logging.getLogger("evoke")
_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Link:
    """Owns the session, and what is to be registered in every one. Thread-safe."""

    def __init__(self, directory: Path, hello: wire.Hello, timeout_s: float) -> None:
        self.absence = "not connected yet"  # why there is no session
        self.join_token = hello.join
        self._directory, self._hello, self._timeout_s = directory, hello, timeout_s
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._setup = threading.RLock()
        self._next_try_s = 0.0
        self._pause_s = PAUSE_S
        self._said_absent = False
        self._had_session = False
        self._needs_more_time = False  # the last caller's ran out: left to the background
        self._closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._spaces: dict[bytes, Space] = {}
        self._pools: list[Pool] = []
        self.reports = Reports(self._reconnect_when_idle)
        _links.add(self)

    # ------------------------------------------------------------ sessions

    def check_usable(self) -> None:
        """Forked in a child of the process that connected; BadArgument after close()."""
        if os.getpid() != self._pid:
            raise Forked(
                f"this client belongs to process {self._pid}; a forked child must connect() itself"
            )
        if self._closed:
            raise BadArgument("client: closed")

    def current(self) -> Connection | None:
        """The session, which may have ended. Never waits."""
        self.check_usable()
        return self._connection

    def connection(self, deadline: float) -> Connection | None:
        """A session; a new one if need be, and if it is time to try again. One thread tries, the
        others have none meanwhile."""
        self.check_usable()
        connection = self._living()
        if connection is not None:
            return connection
        if not self._needs_more_time and self._setup.acquire(blocking=False):
            try:
                connection = self._reconnect(deadline)
            finally:
                self._setup.release()
        if connection is None:
            self.reports.wake()  # a caller with less time than it takes finds a session next time
        return connection

    def close(self) -> None:
        """End the session. Slots are safe (or their pools in doubt) when this returns."""
        if self._closed or os.getpid() != self._pid:
            return
        self.reports.close()
        with self._setup:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                if not connection.ended and not connection.stop_all():
                    for pool in self._pools:
                        pool.put_in_doubt()
                connection.end("closed")
            if self._context is not None:
                self._context.term()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def drop_in_child(self) -> None:
        """Right after a fork, in the child: let go of what would keep the session open."""
        if self._connection is not None:
            self._connection.drop_in_child()

    # ------------------------------------------------------------ what is registered

    def add_space(self, namespace_id: bytes, make: Callable[[], Space]) -> Space:
        """The space of this id; a new one is registered now, or with the next session.
        DaemonError when the daemon refuses it."""
        with self._exclusive() as connection:
            space = self._spaces.get(namespace_id)
            if space is None:
                space = make()
                if connection is not None:
                    self._try(partial(self._register_space, connection, space, self._soon()))
                self._spaces[namespace_id] = space
        return space

    def add_pool(self, pool: Pool) -> None:
        """Register and prove a pool now; without a daemon, with the next session and unproven."""
        with self._exclusive() as connection:
            if connection is not None:
                self._try(partial(self._register_new_pool, connection, pool))
            self._pools.append(pool)

    def remove_pool(self, pool: Pool) -> None:
        """Unregister; nothing if it is not registered."""
        if self._closed:
            return
        with self._exclusive(reconnect=False) as connection:
            if pool in self._pools:
                self._pools.remove(pool)
            number = connection.handles.pop(pool, None) if connection is not None else None
            if connection is not None and number is not None:
                args = wire.UnregisterPool(number)
                self._try(partial(connection.call, "unregister_pool", args, self._soon()))

    @contextmanager
    def _exclusive(self, reconnect: bool = True) -> Iterator[Connection | None]:
        self.check_usable()
        if not self._setup.acquire(timeout=_SETUP_WAIT_S):
            raise Unavailable("another thread is connecting for too long")
        try:
            yield self._reconnect(self._soon()) if reconnect else self._living()
        finally:
            self._setup.release()

    def _soon(self) -> float:
        return time.monotonic() + self._timeout_s

    def _living(self) -> Connection | None:
        connection = self._connection
        return connection if connection is not None and connection.table() is not None else None

    def _try(self, action: Callable[[], object]) -> None:
        """The next session makes up for a lost one."""
        try:
            action()
        except Unavailable as error:
            _log.warning("evoke: %s; going on without cache", error)

    def _register_space(self, connection: Connection, space: Space, deadline: float) -> None:
        connection.handles[space] = space.register(connection, deadline)

    def _register_pool(self, connection: Connection, pool: Pool, deadline: float) -> int:
        handle = connection.handles.get(pool.space)
        if handle is None:
            raise Unavailable("the pool's namespace is not registered")
        try:
            return pool.register(connection, handle.number, deadline)
        except DaemonError as error:
            if error.code == wire.Code.BAD_ARGUMENT:
                raise LayoutError(f"register_pool: {error}") from None
            raise

    def _register_new_pool(self, connection: Connection, pool: Pool) -> None:
        number = self._register_pool(connection, pool, self._soon())
        pool.prove(connection, number)
        connection.handles[pool] = number

    # ------------------------------------------------------------ connecting (with self._setup)

    def _reconnect_when_idle(self) -> None:
        if not self._closed and self._setup.acquire(blocking=False):
            try:
                self._reconnect(self._soon())
            finally:
                self._setup.release()

    def _reconnect(self, deadline: float) -> Connection | None:
        living = self._living()
        if living is not None or self._closed:
            return living
        if self._connection is not None:
            self._say_absent(self._connection.end_reason)
            self._connection = None
        began = time.monotonic()
        if began < self._next_try_s:
            return None
        try:
            self._connection = self._open(min(deadline, began + self._timeout_s))
        except (Unavailable, DaemonError, OSError, zmq.ZMQError) as error:
            now = time.monotonic()
            self._needs_more_time = deadline <= now < began + self._timeout_s
            # A daemon that hangs costs at most half of the time.
            self._next_try_s = now + max(self._pause_s, now - began)
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
            self._say_absent(str(error))
            return None
        self._had_session, self._needs_more_time = True, False
        self._pause_s = PAUSE_S
        if self._said_absent:
            self._said_absent = False
            _log.warning("evoke: the daemon in %s is back", self._directory)
        return self._connection

    def _open(self, deadline: float) -> Connection:
        if self._context is None:
            self._context = zmq.Context(1)
        connection = self._say_hello(deadline)
        try:
            self.join_token = connection.join_token
            for space in self._spaces.values():
                self._restore(partial(self._register_space, connection, space, deadline))
            for pool in self._pools:
                self._restore(partial(self._restore_pool, connection, pool, deadline))
        except BaseException:
            connection.end("not everything could be registered")
            raise
        return connection

    def _say_hello(self, deadline: float) -> Connection:
        """A session, of the same engine as before if the daemon has or makes it."""
        assert self._context is not None
        hello = msgspec.structs.replace(self._hello, join=self.join_token)
        try:
            return Connection(self._directory, self._context, hello, deadline)
        except DaemonError as error:
            if error.code != wire.Code.NOT_FOUND or not self._had_session:
                raise
            level = logging.WARNING if self._hello.join else logging.INFO
            _log.log(level, "evoke: %s; the engine's processes must join anew", error)
            hello = msgspec.structs.replace(self._hello, join=b"")
            return Connection(self._directory, self._context, hello, deadline)

    def _restore_pool(self, connection: Connection, pool: Pool, deadline: float) -> None:
        if pool.space in connection.handles:
            connection.handles[pool] = self._register_pool(connection, pool, deadline)

    def _restore(self, action: Callable[[], None]) -> None:
        # What the new daemon refuses stays a miss; the rest works.
        try:
            action()
        except (DaemonError, BadArgument) as error:
            _log.warning("evoke: not registered again: %s", error)

    def _say_absent(self, reason: str) -> None:
        self.absence = reason
        if not self._said_absent:
            self._said_absent = True
            _log.warning(
                "evoke: no daemon in %s (%s); going on without cache", self._directory, reason
            )


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.drop_in_child()


@atexit.register
def _close_all() -> None:
    for link in list(_links):
        link.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
