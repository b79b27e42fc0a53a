"""Pins and reservations: what the daemon keeps for an engine until it is given back or expires."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from evoke.client import wire
from evoke.client.errors import BadArgument, EvokeError
from evoke.client.keys import Chain
from evoke.client.pool import Pool
from evoke.client.results import FetchResult, StoreResult
from evoke.client.transfers import Job, start

if TYPE_CHECKING:
    from evoke.client.space import Space

__all__ = ["Granted", "Pin", "Reservation", "Share", "cut"]


@dataclass(frozen=True)
class Share:
    """Blocks begin to end (exclusive), by index in the sequence, of one grant of the daemon."""

    begin: int
    end: int
    grant: int


def cut(begin: int, end: int, at: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
    """Ranges that one request can name, broken at the given places as well."""
    edges = sorted({begin, end, *(edge for edge in at if begin < edge < end)})
    for low, high in itertools.pairwise(edges):
        for start_at in range(low, high, wire.KEYS_MAX):
            yield start_at, min(start_at + wire.KEYS_MAX, high)


@dataclass(frozen=True)
class Granted:
    """What the daemon said to a pin or a reserve, of all its requests."""

    boot: bytes
    shares: tuple[Share, ...]
    codes: NDArray[np.uint8]
    error: EvokeError | None = None


class _Grant:
    """Common to both: owned by the instance, given back once."""

    _verb = ""

    def __init__(self, space: Space, granted: Granted) -> None:
        self._space, self.boot, self.shares = space, granted.boot, granted.shares
        self.codes, self.error = granted.codes, granted.error
        self._lock = threading.Lock()
        self._ended = False

    def export(self) -> bytes:
        """For the other processes of this engine, which use it through Space.shared_pin()."""
        rows = [(share.begin, share.end, share.grant) for share in self.shares]
        return msgspec.msgpack.encode((self.boot, rows))

    def _end(self, name: str) -> None:
        """BadArgument the second time. A daemon that is gone has nothing to give back."""
        with self._lock:
            if self._ended:
                raise BadArgument(f"{name}: was given back before")
            self._ended = True
        for share in self.shares:
            if share.grant:
                self._space.client.ask(self._verb, wire.Grant(share.grant), boot=self.boot)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended:
            self._end("grant")


class Pin(_Grant):
    """Blocks that stay fetchable until release() or the deadline. `codes[i]` is the wire.Fetched
    of block i at the time; `error` says why nothing was pinned."""

    _verb = "unpin"

    @property
    def leading(self) -> int:
        """Leading blocks that are pinned."""
        return FetchResult(self.codes).leading

    def release(self) -> None:
        """Give the blocks back. BadArgument the second time."""
        self._end("pin")

    def __enter__(self) -> Pin:
        return self

    def grant_of(self, index: int) -> int:
        """Number of the grant that holds block `index` of the sequence; 0 for none."""
        return next((s.grant for s in self.shares if s.begin <= index < s.end), 0)


class Reservation(_Grant):
    """Room for blocks. `codes[i]` is the wire.Stored of block i: STORED means that it has room."""

    _verb = "abort"

    def __init__(self, space: Space, chain: Chain, granted: Granted) -> None:
        super().__init__(space, granted)
        self.chain = chain

    @property
    def granted(self) -> NDArray[np.uint32]:
        """Positions in the chain for which there is room."""
        return np.flatnonzero(self.codes == wire.Stored.STORED).astype(np.uint32)

    def commit(
        self, pool: Pool, positions: Any, slots: Any, timeout_s: float | None = None
    ) -> StoreResult:
        """Copy slots[i] to the room of positions[i]; codes are in the order of `positions`, which
        are positions in the chain, ascending. A block may be committed once."""
        packed = pool.pack_slots(slots, distinct=False)
        order = np.asarray(positions, dtype=np.int64)
        self._check(order, len(packed) // 4)
        absolute = order + self.chain.first
        jobs = []
        for share in self.shares:
            begin, end = np.searchsorted(absolute, [share.begin, share.end]).tolist()
            if begin < end:
                local = (absolute[begin:end] - share.begin).astype("<u4").tobytes()
                jobs.append(self._job(share, begin, end, local, packed[begin * 4 : end * 4]))
        client = self._space.client
        seconds = client.seconds(timeout_s)
        return start(client, pool, StoreResult, "commit", jobs, seconds, self.boot).result()

    def abort(self) -> None:
        """Give back the room that was not committed. BadArgument the second time."""
        self._end("reservation")

    def __enter__(self) -> Reservation:
        return self

    def _check(self, order: NDArray[np.int64], slots: int) -> None:
        if order.ndim != 1 or len(order) != slots:
            raise BadArgument(f"positions: {order.shape} for {slots} slots")
        if len(order) and (order[0] < 0 or order[-1] >= len(self.chain)):
            raise BadArgument(f"positions: {order[0]} to {order[-1]} of {len(self.chain)} blocks")
        if bool(np.any(np.diff(order) <= 0)):
            raise BadArgument("positions: not ascending")

    def _job(self, share: Share, begin: int, end: int, positions: bytes, slots: bytes) -> Job:
        make: Callable[[int, int, int, int], wire.Args] | None = None
        if share.grant:

            def make(_: int, pool: int, deadline_ms: int, word: int) -> wire.Args:
                return wire.Commit(share.grant, pool, positions, slots, deadline_ms, word)

        return Job(begin, end, make)
