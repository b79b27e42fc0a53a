"""Blocks on their way in, part by part. A block is visible only when all its parts are committed.

A pending block is owned by a reservation, or (stores of several ranks) by the book below until it
is complete, its deadline passes, or one of its writers dies. Until then nobody can see it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from evoke.client.wire import Stored
from evoke.core import native
from evoked.counters import Counters
from evoked.events import Announcer
from evoked.sessions import Instance, NamespaceEntry, Session
from evoked.tiers import Balance, Tier
from evoked.timers import Timer, Timers

__all__ = ["COUNTED", "OUTCOMES", "PartState", "Parts", "PendingBlock"]

OUTCOMES: Final = {
    native.FAULT: Stored.FAULT,
    native.LATE: Stored.LATE,
    native.CANCELLED: Stored.LATE,
}
COUNTED: Final = {
    Stored.STORED: "blocks_stored",
    Stored.PRESENT: "blocks_present",
    Stored.REFUSED: "blocks_refused",
    Stored.FAULT: "peer_faults",
    Stored.LATE: "blocks_late",
}


class PartState(enum.Enum):
    EMPTY = 0
    COPYING = 1
    DONE = 2


class PendingBlock:
    """One block that is not complete. `refs[p]` is NO_REF while part p has no place."""

    __slots__ = (
        "chain_index",
        "committed",
        "dropped",
        "entry",
        "generation",
        "key",
        "parent",
        "ranks",
        "refs",
        "reserved",
        "states",
        "sums",
        "timer",
        "writers",
    )

    def __init__(
        self,
        entry: NamespaceEntry,
        key: bytes,
        chain_index: int,
        parent: bytes,
        *,
        reserved: bool = False,
    ) -> None:
        parts = len(entry.namespace.parts)
        self.entry, self.key, self.chain_index, self.parent = entry, key, chain_index, parent
        self.generation = entry.generation
        self.reserved = reserved
        self.refs = [native.NO_REF] * parts
        self.sums = [0] * parts
        self.states = [PartState.EMPTY] * parts
        self.writers: set[Session] = set()
        self.ranks: set[int] = set()  # that committed their part of a reserved block
        self.timer: Timer | None = None
        self.dropped = self.committed = False

    @property
    def over(self) -> bool:
        """Nothing can come any more: not even a rank whose part another one has committed."""
        missing = self.committed and len(self.ranks) < len(self.entry.namespace.rank_parts)
        return self.dropped and not missing


class Parts:
    """Completes and drops pending blocks; keeps the book of those that several ranks store."""

    def __init__(
        self,
        index: native.Index,
        tier: Tier,
        balance: Balance,
        counters: Counters,
        timers: Timers,
        clock: Callable[[], float],
        incomplete_ms: int,
        announcer: Announcer,
    ) -> None:
        self._announcer = announcer
        self._index, self._tier, self._balance, self._counters = index, tier, balance, counters
        self._timers, self._clock, self._incomplete_ms = timers, clock, incomplete_ms
        self._book: dict[tuple[bytes, int, bytes], PendingBlock] = {}

    def __len__(self) -> int:
        return len(self._book)

    def join(
        self, session: Session, entry: NamespaceEntry, key: bytes, chain_index: int, parent: bytes
    ) -> PendingBlock:
        """The instance's pending block of this key, made when there is none."""
        assert session.instance is not None
        name = (session.instance.join, entry.number, key)
        block = self._book.get(name)
        if block is not None and not entry.accepts(block.generation):
            self._drop_booked(name)  # begun before a flush: it can never be committed
            block = None
        if block is None:
            block = self._book[name] = PendingBlock(entry, key, chain_index, parent)
            due_s = self._clock() + self._incomplete_ms / 1000
            block.timer = self._timers.at(due_s, lambda: self._drop_booked(name))
        block.writers.add(session)
        return block

    def give_place(self, block: PendingBlock, part: int, ref: int) -> None:
        block.refs[part] = ref
        block.entry.tenant.pending_bytes += block.entry.part_bytes(part)

    def finish(self, block: PendingBlock, part: int, outcome: int, checksum: int) -> Stored:
        """A part's copy ended. Its place is given back unless it was copied and still wanted, or
        is reserved: then the copy may be tried again."""
        assert block.states[part] is PartState.COPYING
        block.states[part] = PartState.EMPTY
        if block.dropped or not block.entry.accepts(block.generation):
            self.drop(block)  # after a flush nobody may try again
            self._counters.add("blocks_dropped")
            return Stored.LATE
        if outcome != native.COPIED:
            if not block.reserved:
                self._free_part(block, part)
            return OUTCOMES[outcome]
        block.states[part] = PartState.DONE
        block.sums[part] = checksum
        if any(state is not PartState.DONE for state in block.states):
            return Stored.INCOMPLETE
        return self._insert(block)

    def _insert(self, block: PendingBlock) -> Stored:
        """Commit: index insert and visibility are one step."""
        lengths = [part.part_bytes for part in block.entry.namespace.parts]
        row = self._index.insert(
            block.entry.number,
            block.key,
            block.chain_index,
            block.parent,
            np.array(block.refs, np.uint64),
            np.array(lengths, np.uint32),
            np.array(block.sums, np.uint64),
            self._tier.number,
        )
        block.committed = True
        if row == native.NO_ROW:
            self.drop(block)
            return Stored.PRESENT
        for part in range(len(block.refs)):
            self._take_place(block, part)
        self.drop(block)
        self._counters.add("bytes_stored", sum(lengths))
        self._announcer.keys("stored", block.entry, (block.key,), self._tier.name)
        return Stored.STORED

    def drop(self, block: PendingBlock) -> None:
        """Give back every place that no copy is writing; the rest follow when their copy ends."""
        block.dropped = True
        if block.timer is not None:
            block.timer.cancel()
        for part, state in enumerate(block.states):
            if state is not PartState.COPYING:
                self._free_part(block, part)

    def _free_part(self, block: PendingBlock, part: int) -> None:
        ref = self._take_place(block, part)
        if ref != native.NO_REF:
            self._balance.free(np.array([ref], np.uint64))

    def _take_place(self, block: PendingBlock, part: int) -> int:
        """The part's place, which the block has no longer; NO_REF where it had none."""
        ref, block.refs[part] = block.refs[part], native.NO_REF
        if ref != native.NO_REF:
            block.entry.tenant.pending_bytes -= block.entry.part_bytes(part)
        return ref

    @contextmanager
    def let_go(
        self, session: Session, blocks: list[tuple[int, PendingBlock]], part: int
    ) -> Iterator[None]:
        """When what is inside fails, the blocks whose part was to be copied are dropped."""
        try:
            yield
        except BaseException:
            for _, block in blocks:
                if block.states[part] is PartState.COPYING:
                    block.states[part] = PartState.EMPTY
                    self.drop(block)
                self.settle(session, block)
            raise

    def _drop_booked(self, name: tuple[bytes, int, bytes]) -> None:
        block = self._book.pop(name, None)
        if block is not None and not block.dropped:
            self._counters.add("blocks_dropped")
            self.drop(block)

    def settle(self, session: Session, block: PendingBlock) -> None:
        """Take a block that ended, or that holds nothing any more, out of the book."""
        assert session.instance is not None
        idle = all(state is PartState.EMPTY for state in block.states)
        if block.dropped or idle:
            name = (session.instance.join, block.entry.number, block.key)
            if self._book.get(name) is block:
                del self._book[name]
            if not block.dropped:
                self.drop(block)

    def session_ended(self, session: Session, instance: Instance) -> None:
        """What a dead writer had begun is never completed."""
        for name, block in list(self._book.items()):
            if name[0] == instance.join and session in block.writers:
                self._drop_booked(name)
        for grant in instance.grants.values():
            blocks = grant.details.values() if isinstance(grant.details, dict) else ()
            for block in blocks:
                if session in block.writers and not block.dropped:
                    self._counters.add("blocks_dropped")
                    self.drop(block)
