"""Stores and fetches under way: their futures, and what a late one means for the slots."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.errors import EvokeError, Unavailable
from evoke.client.pending import Pending
from evoke.client.pool import Pool
from evoke.client.results import TransferResult

if TYPE_CHECKING:
    from evoke.client.client import Client

__all__ = ["Future", "Job", "start"]

REPLY_GRACE_S: Final = 0.05  # the daemon says LATE at the deadline; its answer needs a moment

R = TypeVar("R", bound=TransferResult)


@dataclass
class Job:
    """Blocks begin to end (exclusive) of a transfer, one request. `make` gets the namespace and the
    pool as the session numbers them, deadline_ms and a fence word; None: nothing is to be asked."""

    begin: int
    end: int
    make: Callable[[int, int, int, int], wire.Args] | None
    pending: Pending | None = None
    error: EvokeError | None = None


class Future(Generic[R]):
    """A store or a fetch. Its slots belong to the daemon until result() has returned."""

    def __init__(
        self, client: Client, pool: Pool, kind: type[R], jobs: Sequence[Job], deadline: float
    ) -> None:
        self._client, self._pool, self._kind, self._jobs = client, pool, kind, jobs
        self._deadline = deadline
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._result: R | None = None
        self._expired = False  # what it was to go by is of a daemon that is gone

    def done(self) -> bool:
        """True when result() would not wait. Never blocks."""
        self._client.link.check_usable()
        if self._connection is not None:
            self._connection.poll()
        late = time.monotonic() > self._deadline + REPLY_GRACE_S
        return late or all(job.pending is None or job.pending.done for job in self._jobs)

    def result(self, timeout: float | None = None) -> R:
        """What came of it, at the latest a moment after its own deadline.

        timeout: seconds to wait; TimeoutError when it is over before the transfer is, which then
        goes on. SlotsInDoubt when the daemon may still be copying although it was told to stop.
        """
        self._client.link.check_usable()
        until = self._deadline + REPLY_GRACE_S
        patience = until if timeout is None else min(until, time.monotonic() + timeout)
        with self._lock:
            if self._result is None:
                self._wait(patience, until)
                self._result = self._settle()
            result = self._result
        self._pool.check_usable()
        if result.error is not None and self._client.raise_errors:
            raise result.error
        return result

    def _wait(self, patience: float, until: float) -> None:
        for job in self._jobs:
            if job.pending is None or self._connection is None:
                continue
            if not self._connection.wait(job.pending, patience) and patience < until:
                raise TimeoutError("the transfer goes on")

    def _settle(self) -> R:
        codes = np.empty(sum(job.end - job.begin for job in self._jobs), np.uint8)
        error: EvokeError | None = None
        for job in self._jobs:
            codes[job.begin : job.end] = self._codes_of(job)
            error = error or job.error
        return self._kind(codes, error)

    def _codes_of(self, job: Job) -> NDArray[np.uint8] | int:
        pending, connection = job.pending, self._connection
        if pending is None or connection is None:
            return self._kind.EXPIRED if self._expired else self._kind.NO
        job.error = pending.error()
        if not pending.done or pending.lost:
            if not connection.give_up(pending):
                self._pool.put_in_doubt()
            return self._kind.LATE
        if job.error is not None:
            return self._kind.NO
        if not isinstance(pending.result, bytes) or len(pending.result) != job.end - job.begin:
            job.error = Unavailable("an answer that does not fit the request")
            connection.end(str(job.error))
            return self._kind.NO
        return np.frombuffer(pending.result, np.uint8)

    def send(self, verb: str, connection: Connection | None, boot: bytes) -> None:
        """Send the jobs; those that cannot be sent have failed."""
        self._connection = connection
        self._expired = connection is not None and boot not in (b"", connection.boot)
        handles = connection.handles if connection is not None else {}
        space, pool = handles.get(self._pool.space), handles.get(self._pool)
        for job in self._jobs:
            if job.make is None:
                continue
            if connection is None:
                job.error = Unavailable(self._client.link.absence)
            elif self._expired:
                job.error = Unavailable("the daemon that gave the grant is gone")
            elif space is None or pool is None:
                job.error = Unavailable("the namespace or the pool is not registered")
            else:
                word = connection.take_word(self._deadline)
                if word < 0:
                    job.error = Unavailable("too many transfers under way, or the session ended")
                    continue
                remaining_ms = math.ceil((self._deadline - time.monotonic()) * 1e3)
                args = job.make(space.number, pool, max(1, remaining_ms), word)
                job.pending = connection.send(verb, args, word)


def start(
    client: Client,
    pool: Pool,
    kind: type[R],
    verb: str,
    jobs: Sequence[Job],
    timeout_s: float,
    boot: bytes = b"",
) -> Future[R]:
    """Begin a transfer within the deadline; never raises for what the daemon does or does not.
    boot: of the daemon that gave the grant to go by."""
    deadline = time.monotonic() + timeout_s
    future = Future(client, pool, kind, jobs, deadline)
    connection = client.link.connection(deadline)
    if connection is not None:
        client.link.reports.flush()
    future.send(verb, connection, boot)
    return future
