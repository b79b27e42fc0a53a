"""The client: one engine process's way to the daemon, for the life of the process."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.embedded import Embedded
from evoke.client.errors import BadArgument, DaemonError, EvokeError, Unavailable
from evoke.client.link import Link
from evoke.client.memory import PoolMemory
from evoke.client.namespace import Namespace
from evoke.client.sockets import socket_directory
from evoke.client.space import Space

__all__ = ["Answer", "Client", "connect"]

TIMEOUT_MAX_S: Final = wire.DEADLINE_MS_MAX / 1e3


def connect(
    socket_dir: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    join: bytes = b"",
    rank: int = 0,
    timeout_s: float = 2.0,
    raise_errors: bool = False,
    config: Mapping[str, object] | None = None,
) -> Client:
    """A client of the daemon in socket_dir, or in the usual place ($EVOKE_SOCKET, /run/evoked ...).

    "embedded": of a private daemon, which lives no longer than the client and this process and
    takes a moment to start (a minute at most); `config` sets its configuration, as
    {"host.capacity": "2GiB"}.
    name: for people who look at the daemon's status. join: another process's Client.join_token, to
    belong to the same engine; rank: this process's, among the engine's. timeout_s: for every call
    that names none. A daemon that is absent is no error: unless raise_errors is set, what fails is
    a miss, and calls connect later.
    """
    embedded = None
    if socket_dir == "embedded":
        embedded = Embedded(config or {}, must_start=raise_errors)
        directory = embedded.directory
    elif config is not None:
        raise BadArgument('config: only connect("embedded") starts a daemon to configure')
    else:
        directory = socket_directory(socket_dir)
    try:
        client = Client(
            directory,
            name=name,
            join=join,
            rank=rank,
            timeout_s=timeout_s,
            raise_errors=raise_errors,
            embedded=embedded,
        )
    except BaseException:
        if embedded is not None:
            embedded.close()
        raise
    try:
        connection = client.link.connection(time.monotonic() + timeout_s)
        if connection is None and raise_errors:
            raise Unavailable(client.link.absence)
    except BaseException:
        client.close()
        raise
    return client


@dataclass(frozen=True)
class Answer:
    """Result of a request, or why there is none; `boot`: which daemon said so."""

    result: Any = None
    error: EvokeError | None = None
    boot: bytes = b""


class Client:
    """Made by connect(). Thread-safe; of no use in a forked child (Forked)."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str | None = None,
        join: bytes = b"",
        rank: int = 0,
        timeout_s: float = 2.0,
        raise_errors: bool = False,
        embedded: Embedded | None = None,
    ) -> None:
        if not 0 <= rank < wire.RANKS_MAX:
            raise BadArgument(f"rank: {rank}, allowed 0 to {wire.RANKS_MAX - 1}")
        if len(join) not in (0, wire.TOKEN_BYTES):
            raise BadArgument(f"join: {len(join)} bytes, allowed 0 and {wire.TOKEN_BYTES}")
        self.rank, self.raise_errors = rank, raise_errors
        self.sequences = itertools.count()  # numbers of observed sequences
        self._timeout_s = timeout_s
        self._timeout_s = self.seconds(timeout_s)
        self._embedded = embedded
        text = (name or os.path.basename(sys.argv[0]) or "python")[:256]
        self.link = Link(directory, wire.Hello(join, rank, text), self._timeout_s)

    # ------------------------------------------------------------ for callers

    @property
    def connected(self) -> bool:
        """True while a daemon is there. Costs a system call."""
        connection = self.link.current()
        return connection is not None and connection.table() is not None

    @property
    def join_token(self) -> bytes:
        """For the other processes of this engine: connect(join=...). Empty before there is one."""
        return self.link.join_token

    @property
    def boot_id(self) -> bytes:
        """Of the daemon; empty when there is none."""
        connection = self.link.current()
        return connection.boot if connection is not None and not connection.ended else b""

    def namespace(self, namespace: Namespace | None = None, **fields: Any) -> Space:
        """Register a namespace, given as such or by its fields. The same one gives the same Space.

        DaemonError when the daemon refuses it for good; when it is absent, the namespace is
        registered as soon as there is one.
        """
        wanted = namespace if namespace is not None else Namespace(**fields)
        if self.rank >= len(wanted.rank_parts):
            raise BadArgument(f"rank: {self.rank}, rank_parts has {len(wanted.rank_parts)}")
        return self.link.add_space(wanted.id, lambda: Space(self, wanted))

    def pool_memory(self, pool_bytes: int, *, huge: bool = False) -> PoolMemory:
        """Memory for pools: shared with the daemon once a pool in it is registered."""
        self.link.check_usable()
        return PoolMemory(pool_bytes, huge=huge)

    def ping(self, timeout_s: float | None = None) -> int:
        """The daemon's uptime in ms. DaemonError or Unavailable."""
        return int(self.call("ping", wire.Empty(), timeout_s))

    def status(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The daemon's own account of itself. DaemonError or Unavailable."""
        status = self.call("status", wire.Empty(), timeout_s)
        if not isinstance(status, dict):
            raise Unavailable(f"no status but {status!r:.80}")
        return status

    def flush(
        self, space: Space | None = None, weights_epoch: str = "", timeout_s: float | None = None
    ) -> tuple[int, int]:
        """Drop blocks: of a namespace or of all that this client may, of an epoch or of all.
        (blocks, bytes). DaemonError or Unavailable."""
        args = wire.Flush(space.id if space is not None else b"", weights_epoch)
        blocks, flushed_bytes = self.call("flush", args, timeout_s)
        return int(blocks), int(flushed_bytes)

    def call(self, verb: str, args: wire.Args, timeout_s: float | None = None) -> Any:
        """Result of any verb of evoke.client.wire. DaemonError or Unavailable, always raised."""
        deadline = time.monotonic() + self.seconds(timeout_s)
        connection = self.link.connection(deadline)
        if connection is None:
            raise Unavailable(self.link.absence)
        self.link.reports.flush()
        return connection.call(verb, args, deadline)

    def close(self) -> None:
        """End the session, and an embedded daemon. Slots are safe when this returns."""
        self.link.close()
        if self._embedded is not None:
            self._embedded.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ for the rest of the package

    def seconds(self, timeout_s: float | None) -> float:
        """The timeout, or the client's."""
        seconds = self._timeout_s if timeout_s is None else timeout_s
        if not 0.001 <= seconds <= TIMEOUT_MAX_S:
            raise BadArgument(f"timeout_s: {seconds}, allowed 0.001 to {TIMEOUT_MAX_S}")
        return seconds

    def ask(self, verb: str, args: wire.Args, boot: bytes = b"") -> Answer:
        """A request whose failure is a value, unless the client was told to raise."""
        return self._raise_if_told(self._ask(verb, lambda _: args, None, boot))

    def ask_space(
        self,
        space: Space,
        verb: str,
        make: Callable[[int], wire.Args],
        timeout_s: float | None,
        boot: bytes = b"",
    ) -> Answer:
        """ask() with the number that the session has for the namespace."""

        def made(connection: Connection) -> wire.Args:
            handle = connection.handles.get(space)
            if handle is None:
                raise Unavailable("the namespace is not registered")
            return make(handle.number)

        return self._raise_if_told(self._ask(verb, made, timeout_s, boot))

    # ------------------------------------------------------------ requests

    def _ask(
        self,
        verb: str,
        make: Callable[[Connection], wire.Args],
        timeout_s: float | None,
        boot: bytes,
    ) -> Answer:
        deadline = time.monotonic() + self.seconds(timeout_s)
        connection = self.link.connection(deadline)
        if connection is None:
            return Answer(error=Unavailable(self.link.absence))
        if boot and connection.boot != boot:
            return Answer(error=Unavailable("the daemon that gave the grant is gone"))
        self.link.reports.flush()
        try:
            result = connection.call(verb, make(connection), deadline)
        except (DaemonError, Unavailable) as error:
            return Answer(error=error, boot=connection.boot)
        return Answer(result, boot=connection.boot)

    def _raise_if_told(self, answer: Answer) -> Answer:
        if answer.error is not None and self.raise_errors:
            raise answer.error
        return answer
