"""The flash tier: blocks below host memory, in one or several directories.

What is on flash is known by its own catalog (evoke.core.spill), not by rows of the index: rows are
of blocks in memory. A block may be in both. The seam for the verbs, all of it on the loop:

- save() copies a block of memory down in the background; whoever calls holds its row until `done`.
  A row may be dropped from memory without a copy once holds() says that its block is here.
- places() finds what memory has not; fetch() reads a block into places of a tier above, after which
  the caller inserts a row with the sums it was given (promotion), or serves a miss.
- register(id) after a restart tells which keys of a namespace are here: publish them as tier FLASH,
  and on_gone says which to take back.
- tick() each second, complete() when `fd` is readable, close() at the stop.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evoke.core import spill
from evoked.counters import Counters
from evoked.flash_directory import FlashDirectory, Read, Write

__all__ = ["FLASH", "Block", "FlashRules", "FlashTier", "Place", "Saved"]

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

FLASH: Final = 3  # the tier's number in the published table
DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True)
class FlashRules:
    write_bytes_per_s: int = 0  # 0: no limit
    write_bytes_per_day: int = 0  # 0: no limit
    uses_min: int = 0  # a block that was used less often after its store is not written
    transfers_max: int = 8  # writes of a directory that have not ended
    deadline_ms: int = 2000  # of a write; a read has its caller's


class Block(NamedTuple):
    """A block in memory. refs, lengths and sums have one value for each part."""

    namespace_id: bytes
    key: bytes
    parent: bytes  # b"": none
    chain_index: int
    refs: U64
    lengths: U32
    sums: U64
    uses: int = 0
    state: bytes = b""


class Place(NamedTuple):
    directory: int
    slot: int


class Saved(Enum):
    STARTED = "started"
    PRESENT = "present"  # here, or being written
    REFUSED = "refused"  # not used often enough
    OVER_BUDGET = "over_budget"
    BUSY = "busy"  # enough is under way
    NO_ROOM = "no_room"
    DEGRADED = "degraded"


class Budget:
    """Bytes per second, of one second's depth, and bytes per day."""

    def __init__(self, rules: FlashRules) -> None:
        self._rules = rules
        self._left_bytes = float(rules.write_bytes_per_s)
        self._at_s: float | None = None
        self._day_s = 0.0
        self.day_bytes = 0

    def take(self, length_bytes: int, now_s: float) -> bool:
        """False, and nothing taken, when a limit is reached. One block may overdraw the second."""
        rules = self._rules
        if self._at_s is None:
            self._at_s = self._day_s = now_s
        if now_s - self._day_s >= DAY_S:
            self._day_s, self.day_bytes = now_s, 0
        earned = (now_s - self._at_s) * rules.write_bytes_per_s
        self._at_s = now_s
        self._left_bytes = min(float(rules.write_bytes_per_s), self._left_bytes + earned)
        if rules.write_bytes_per_s and self._left_bytes <= 0:
            return False
        if rules.write_bytes_per_day and self.day_bytes + length_bytes > rules.write_bytes_per_day:
            return False
        self._left_bytes -= length_bytes
        self.day_bytes += length_bytes
        return True


class FlashTier:
    """Owned by the loop."""

    name: Final = "flash"
    number: Final = FLASH

    def __init__(
        self,
        directories: list[FlashDirectory],
        rules: FlashRules,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.directories, self.rules = directories, rules
        self._counters, self._clock = counters, clock
        self._budget = Budget(rules)
        self._numbers: list[dict[bytes, int]] = [{} for _ in directories]
        self._epoll = select.epoll()
        # Told (namespace id, packed keys) of blocks that are here no more.
        self.on_gone: Callable[[bytes, bytes], None] = lambda namespace_id, keys: None
        self.on_open: Callable[[], None] = lambda: None  # a directory was opened again
        for number, directory in enumerate(directories):
            self._epoll.register(directory.fd, select.EPOLLIN)
            directory.on_open = partial(self._opened, number)

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    @property
    def capacity_bytes(self) -> int:
        stores = (d.store for d in self.directories)
        return sum(s.segment_bytes * len(s.segments()) for s in stores if s is not None)

    def _opened(self, number: int) -> None:
        self._numbers[number].clear()
        self.on_open()

    # ------------------------------------------------------------------ namespaces and keys
    def _number(self, directory: int, namespace_id: bytes) -> tuple[spill.Store, int] | None:
        store = self.directories[directory].store
        if store is None:
            return None
        numbers = self._numbers[directory]
        if namespace_id not in numbers:
            numbers[namespace_id] = store.add_namespace(namespace_id)
        return store, numbers[namespace_id]

    def register(self, namespace_id: bytes) -> bytes:
        """Packed keys of the blocks that can be read now."""
        found = []
        for number, directory in enumerate(self.directories):
            at = self._number(number, namespace_id)
            if at is not None and directory.readable:
                found.append(at[0].blocks_of(at[1])[1])
        return b"".join(found)

    def places(self, namespace_id: bytes, keys: bytes) -> list[Place | None]:
        """Where each block is, among the directories that can be read now."""
        places: list[Place | None] = [None] * (len(keys) // 32)
        for number, directory in enumerate(self.directories):
            at = self._number(number, namespace_id)
            if at is None or not directory.readable:
                continue
            for i, slot in enumerate(at[0].find(at[1], keys).tolist()):
                if slot != spill.NO_SLOT and places[i] is None:
                    places[i] = Place(number, slot)
        return places

    def holds(self, namespace_id: bytes, keys: bytes) -> list[bool]:
        return [place is not None for place in self.places(namespace_id, keys)]

    def touch(self, namespace_id: bytes, keys: bytes) -> None:
        """One request used these blocks of one chain, listed in chain order."""
        for number in range(len(self.directories)):
            at = self._number(number, namespace_id)
            if at is None:
                continue
            store, namespace = at
            store.link(namespace, keys)
            slots = store.find(namespace, keys)
            store.touch(slots[slots != spill.NO_SLOT])

    def forget(self, namespace_id: bytes) -> int:
        """Erases a namespace's blocks; how many. sync() makes it last."""
        erased = 0
        for number in range(len(self.directories)):
            at = self._number(number, namespace_id)
            if at is not None:
                slots, _ = at[0].blocks_of(at[1])
                erased += len(slots)
                self._erase(at[0], slots)
        return erased

    # ------------------------------------------------------------------ down
    def save(self, block: Block, done: Callable[[bool], None]) -> Saved:
        """Starts to write a block. done(written) only after STARTED, when its places are free."""
        if self.holds(block.namespace_id, block.key)[0]:
            return Saved.PRESENT
        if block.uses < self.rules.uses_min:
            self._counters.add("flash_refused")
            return Saved.REFUSED
        ready = [(len(d), n) for n, d in enumerate(self.directories) if d.ok]
        if not ready:
            return Saved.DEGRADED
        under_way, number = min(ready)
        if under_way >= self.rules.transfers_max:
            return Saved.BUSY
        length_bytes = int(block.lengths.sum())
        if not self._budget.take(length_bytes, self._clock()):
            self._counters.add("flash_over_budget")
            return Saved.OVER_BUDGET
        at = self._number(number, block.namespace_id)
        assert at is not None
        ticket = self._start_write(*at, block)
        if not ticket and self._make_room(at[0], block.lengths):
            ticket = self._start_write(*at, block)
        if not ticket:
            return Saved.NO_ROOM
        self.directories[number].start(ticket, Write(length_bytes, done))
        return Saved.STARTED

    def _start_write(self, store: spill.Store, namespace: int, block: Block) -> int:
        return store.write(
            namespace,
            block.key,
            block.parent,
            block.chain_index,
            block.refs,
            block.lengths,
            block.sums,
            block.state,
            self.rules.deadline_ms,
        )

    def _make_room(self, store: spill.Store, lengths: U32) -> bool:
        """One slot of the block's size: its least recent block, else the segment with the least
        recent block of all, leaves."""
        page = spill.PAGE_BYTES
        block_bytes = sum(-(-length // page) * page for length in lengths.tolist())
        if block_bytes + page > store.segment_bytes:
            return False
        victims = store.victims(1, 0, block_bytes)
        if not len(victims):
            oldest = store.victims(1)
            if not len(oldest):
                return False
            victims = store.slots_in(store.entry(int(oldest[0]))["segment"])
        self._counters.add("flash_blocks_evicted", len(victims))
        self._erase(store, victims)
        return True

    def _erase(self, store: spill.Store, slots: U32) -> None:
        gone: dict[int, list[bytes]] = {}
        for slot in slots.tolist():
            entry = store.entry(slot)
            gone.setdefault(entry["namespace"], []).append(entry["key"])
        store.erase(slots)
        for namespace, keys in gone.items():
            self.on_gone(store.namespace_id(namespace), b"".join(keys))

    # ------------------------------------------------------------------ up
    def fetch(
        self,
        place: Place,
        refs: U64,
        lengths: U32,
        deadline_ms: int,
        done: Callable[[int, U64], None],
        ended: Callable[[], None],
    ) -> bool:
        """Starts to read a block into places of a tier above. done(outcome, sums) once, by the
        deadline; ended() once, when the places are free to be used for something else. False when
        the block cannot be read now; nothing is called then."""
        directory = self.directories[place.directory]
        store = directory.store
        if store is None or not directory.readable:
            return False
        ticket = store.read(place.slot, refs, lengths, True, deadline_ms)
        if not ticket:
            return False
        directory.start(ticket, Read(int(lengths.sum()), done, ended))
        return True

    # ------------------------------------------------------------------ the loop
    def complete(self) -> None:
        for directory in self.directories:
            directory.complete()

    def tick(self) -> None:
        for directory in self.directories:
            directory.tick(self._clock())

    def sync(self) -> None:
        """Asks for everything to be made durable."""
        for store in self._stores():
            store.sync()

    def _stores(self) -> Iterable[spill.Store]:
        return [d.store for d in self.directories if d.store is not None]

    def describe(self) -> dict[str, Any]:
        """For status."""
        return {
            "capacity_bytes": self.capacity_bytes,
            "written_today_bytes": self._budget.day_bytes,
            "directories": [directory.describe() for directory in self.directories],
        }

    def close(self, wait_ms: int = 5000) -> bool:
        """False: see FlashDirectory.close."""
        ended = [directory.close(wait_ms) for directory in self.directories]
        self._epoll.close()
        return all(ended)
