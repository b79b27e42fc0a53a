"""Tiers: memories (later files) of stored blocks behind one interface, and making room in them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evoke.config import PolicyConfig
from evoke.core import native
from evoke.policy.ranking import Ranking
from evoked.counters import Counters
from evoked.events import Announcer
from evoked.user_policies import UserRanks

__all__ = ["HOST", "Balance", "HostTier", "Tier"]

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
NO_ROWS: Final = np.empty(0, np.uint32)
NO_REFS: Final = np.empty(0, np.uint64)

HOST = 1  # the tier's number in the published table and in wire.Fetched
REF_MEMORY_SHIFT = 56
REF_MAX = (1 << 64) - 1
EXTENTS_TRIED = 16
VICTIMS_LOOKED_AT = 256


class Tier(Protocol):
    """Gives out places for blocks. `refs` name places for the copy engine, whatever the tier."""

    name: str
    number: int
    capacity_bytes: int

    def allocate(self, block_bytes: int, count: int) -> U64:
        """Places for up to count blocks, fewer when there is no room now."""

    def free(self, refs: U64) -> None: ...

    def can_ever_hold(self, block_bytes: int) -> bool: ...

    def foreign_extents(self, block_bytes: int) -> list[tuple[int, int, int]]:
        """(begin, end, places in use) of regions that hold other block sizes; refs."""

    def describe(self) -> dict[str, Any]:
        """For status: sizes, backing, fragmentation."""


class HostTier:
    """Pinned host DRAM: one arena."""

    name = "host"
    number = HOST

    def __init__(self, arena: native.Arena, memory: int) -> None:
        self._arena = arena
        self._high = np.uint64(memory << REF_MEMORY_SHIFT)
        self._low_mask = np.uint64((1 << REF_MEMORY_SHIFT) - 1)
        self.memory = memory
        self.capacity_bytes = arena.capacity_bytes

    def allocate(self, block_bytes: int, count: int) -> U64:
        refs: U64 = self._arena.allocate(block_bytes, count) | self._high
        return refs

    def free(self, refs: U64) -> None:
        self._arena.free(refs & self._low_mask)

    def can_ever_hold(self, block_bytes: int) -> bool:
        return self._arena.can_ever_hold(block_bytes)

    def foreign_extents(self, block_bytes: int) -> list[tuple[int, int, int]]:
        high = int(self._high)
        rounded = -(-block_bytes // 4096) * 4096
        return [
            (begin, begin + extent["bytes"], extent["blocks_used"])
            for extent in self._arena.extents()
            if extent["block_bytes"] != rounded
            for begin in (high | extent["offset"],)
        ]

    def describe(self) -> dict[str, Any]:
        stats = self._arena.stats()
        return {
            "backing": self._arena.backing,
            "locked": self._arena.locked,
            "allocated_bytes": stats["allocated_bytes"],
            "wasted_bytes": stats["wasted_bytes"],
            "largest_free_run_bytes": stats["largest_free_run_bytes"],
        }


class Balance:
    """Makes room in the allocation path: asks the policy whom to give up, and does it."""

    def __init__(
        self,
        tier: Tier,
        index: native.Index,
        policy: Ranking,
        counters: Counters,
        announcer: Announcer,
    ) -> None:
        self._tier, self._index, self._counters = tier, index, counters
        self._announcer = announcer
        self.policy = policy
        self.capacity_bytes = tier.capacity_bytes

    takes_users = False

    def swap(self, config: PolicyConfig) -> UserRanks | None:
        """See policies.PolicyHolder."""
        score = config.score
        self.policy.swap(
            config.priority.built,
            score.weight,
            keep=score.state == "keep",
            remembered_factor=score.remembered_factor,
        )
        return None

    def place(self, block_bytes: int, count: int) -> U64:
        """Places for up to count blocks, evicting for them; fewer when nothing more may leave."""
        refs = self._tier.allocate(block_bytes, count)
        if len(refs) == count or not self._tier.can_ever_hold(block_bytes):
            return refs
        missing = count - len(refs)
        try:
            self.evict(self.policy.victims(missing, missing * block_bytes))
        except BaseException:  # of the policy: the request fails, the places are not lost
            self.free(refs)
            raise
        refs = np.concatenate([refs, self._tier.allocate(block_bytes, missing)])
        tries = itertools.count(1)  # each walks all rows: few for the whole request
        while len(refs) < count and self._reclaim_extent(block_bytes, tries):
            more = self._tier.allocate(block_bytes, count - len(refs))
            refs = np.concatenate([refs, more])
        return refs

    def _reclaim_extent(self, block_bytes: int, tries: Iterator[int]) -> bool:
        """Empty the region of another block size that holds the least recent block; False when
        none of those looked at can be emptied. What is below its blocks in chains goes with it."""
        regions = sorted(self._tier.foreign_extents(block_bytes))
        tried: set[int] = set()
        for ref in self._oldest_refs():
            region = bisect_right(regions, (ref, REF_MAX, 0)) - 1
            if region < 0 or ref >= regions[region][1] or region in tried:
                continue
            if next(tries) > EXTENTS_TRIED:
                return False
            rows = self._region_rows(*regions[region])
            if len(rows):
                self.evict(rows)
                return True
            tried.add(region)
        return False

    def _oldest_refs(self) -> Iterator[int]:
        for row in self.policy.victims(VICTIMS_LOOKED_AT, 0):
            for part in range(self._index.row(int(row))["parts"]):
                yield int(self._index.part(np.array([row], np.uint32), part)[0][0])

    def _region_rows(self, begin: int, end: int, places: int) -> U32:
        """What has to leave to empty a region; nothing when something in it is held, or is no
        block yet."""
        inside = self._index.rows_in(begin, end)
        _, parts, staying = self._index.facts(inside)
        if places > int(parts.sum()) or staying.any():
            return inside[:0]
        return self._index.descendants(inside)

    def evict(self, rows: U32) -> None:
        if len(rows):
            self._counters.add("blocks_evicted", len(rows))
            self.remove(rows, "evicted")

    def remove(self, rows: U32, kind: str) -> None:
        """Unpublish, and give back the memory that nobody holds. kind: see events.EventSink."""
        self._announcer.rows(kind, rows, self._tier.name)
        self.free(self._index.erase(rows))

    def free(self, refs: U64) -> None:
        if len(refs):
            self._tier.free(refs)

    @contextmanager
    def let_go(self, refs: U64 = NO_REFS, *, held: U32 = NO_ROWS) -> Iterator[None]:
        """What fails inside must not leave places taken, or rows held, for ever."""
        try:
            yield
        except BaseException:
            self.free(self._index.unhold(held))
            self.free(refs)
            raise
