"""A copy engine without threads: it moves bytes between pools and the arena block by block, in any
order, when the simulation says so; late, cancelled, faulting and stalling as the seed has it.

Each function has the contract of the one of native.CopyEngine.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from evoke.core import native
from evoked.tiers import REF_MEMORY_SHIFT, U32, U64
from evoked.transfers import U8

__all__ = ["Job", "SimEngine"]

OFFSET_MASK = (1 << REF_MEMORY_SHIFT) - 1
GARBAGE = np.uint64(0xBAD0_BAD0_BAD0_BAD0)
Words = NDArray[np.uint64]


@dataclass(eq=False)
class Job:
    """One batch of blocks. `todo` are the blocks without an outcome yet."""

    ticket: int
    verb: str
    pool: Words  # slots x words
    slots: list[int]
    refs: list[int]
    sums: U64
    verify: bool
    due_s: float
    fence: tuple[native.FencePage, int]
    outcomes: U8
    todo: list[int] = field(default_factory=list)


class SimEngine:
    """`faults` is the share of blocks that find the peer's memory gone."""

    eventfd = -1

    def __init__(self, rng: random.Random, clock: Callable[[], float], faults: float) -> None:
        self._rng, self._clock, self._faults = rng, clock, faults
        self._memory: Words = np.empty(0, np.uint64)
        self._next_ticket = 1
        self.pools: dict[native.Pool, Words] = {}  # the simulation enters what it registers
        self.running: list[Job] = []  # in the order of their submission
        self.finished: list[Job] = []  # not seen by the loop yet
        self.cancelled: set[tuple[native.FencePage, int]] = set()

    # ------------------------------------------------------------------ what the daemon calls
    def add_memory(self, address: int, length_bytes: int) -> int:
        words = (ctypes.c_uint64 * (length_bytes // 8)).from_address(address)
        self._memory = np.ctypeslib.as_array(words)
        return 0

    def store(
        self,
        pool: native.Pool,
        slots: U32,
        refs: U64,
        deadline_ms: int,
        fence: native.FencePage,
        word: int,
    ) -> int:
        sums = np.zeros(len(slots), np.uint64)
        return self._submit("store", pool, slots, refs, sums, False, deadline_ms, (fence, word))

    def fetch(
        self,
        pool: native.Pool,
        slots: U32,
        refs: U64,
        sums: U64,
        verify: bool,
        deadline_ms: int,
        fence: native.FencePage,
        word: int,
    ) -> int:
        assert len(set(slots.tolist())) == len(slots)
        page = (fence, word)
        return self._submit("fetch", pool, slots, refs, sums, verify, deadline_ms, page)

    def take_completed(self) -> list[tuple[int, U8, U64]]:
        done, self.finished = self.finished, []
        return [(job.ticket, job.outcomes, job.sums) for job in done]

    def heartbeats(self) -> list[float]:
        return [0.0]

    def stats(self) -> dict[str, int]:
        return {"blocks": 0}

    # ------------------------------------------------------------------ what the simulation calls
    def work(self, blocks: int) -> None:
        """Copy so many blocks of running jobs."""
        for _ in range(blocks):
            if not self.running:
                return
            job = self._rng.choice(self.running)
            number = job.todo.pop(self._rng.randrange(len(job.todo)))
            job.outcomes[number] = self._outcome(job, number)
            if not job.todo:
                self.running.remove(job)
                self.finished.append(job)

    def place(self, ref: int, words: int) -> Words:
        """The memory that a ref names."""
        begin = (ref & OFFSET_MASK) // 8
        assert begin + words <= len(self._memory)
        return self._memory[begin : begin + words]

    def jobs(self) -> list[Job]:
        """All that the loop has not seen the end of."""
        return self.running + self.finished

    # ------------------------------------------------------------------
    def _submit(
        self,
        verb: str,
        pool: native.Pool,
        slots: U32,
        refs: U64,
        sums: U64,
        verify: bool,
        deadline_ms: int,
        page: tuple[native.FencePage, int],
    ) -> int:
        assert len(slots) == len(refs) == len(sums) > 0
        words = self.pools[pool]
        assert all(slot < len(words) for slot in slots.tolist())
        for ref in refs.tolist():
            self.place(ref, words.shape[1])
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self.running.append(
            Job(
                ticket=ticket,
                verb=verb,
                pool=words,
                slots=slots.tolist(),
                refs=refs.tolist(),
                sums=sums.copy(),
                verify=verify,
                due_s=self._clock() + deadline_ms / 1000,
                fence=page,
                outcomes=np.full(len(slots), 255, np.uint8),
                todo=list(range(len(slots))),
            )
        )
        return ticket

    def _outcome(self, job: Job, number: int) -> int:
        if job.fence in self.cancelled:
            return native.CANCELLED
        if self._clock() > job.due_s:
            return native.LATE
        slot = job.pool[job.slots[number]]
        place = self.place(job.refs[number], len(slot))
        source, target = (slot, place) if job.verb == "store" else (place, slot)
        if self._rng.random() < self._faults:
            target[: len(target) // 2] = GARBAGE
            return native.FAULT
        target[:] = source
        checksum = native.xxh3_64(target)
        if job.verb == "store":
            job.sums[number] = checksum
        elif job.verify and checksum != int(job.sums[number]):
            return native.CORRUPT
        return native.COPIED
