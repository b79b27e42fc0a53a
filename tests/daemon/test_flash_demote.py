"""Demotion: what memory would give up next is on flash before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from evoke.core import native, spill
from evoke.policy.classics import Lru
from evoke.policy.ranking import Ranking
from evoked.flash import Saved
from evoked.flash_demote import Demoter, DemotionRules
from tests.core.flash import ID, MEMORY, MIB, bytes_of, key
from tests.daemon.test_flash_tier import LENGTH, Host

BLOCKS = 10


class Memory:
    """An index of one chain of blocks in memory, above a flash tier."""

    def __init__(self, path: Path, **rules: Any) -> None:
        self.host = Host(path, capacity=4 * MIB)
        self.host.open()
        self.index = native.Index(buckets=64)
        self.number, _ = self.index.add_namespace(1)
        policy = Ranking(self.index, Lru(chains=True), 4 * MIB)
        policy.add_namespace(self.number, ID, LENGTH)
        self.freed: list[int] = []
        self.used_percent = 100
        namespaces = cast(Any, {self.number: SimpleNamespace(id=ID)})
        self.demoter = Demoter(
            self.index,
            policy,
            self.host.tier,
            namespaces,
            DemotionRules(**rules),
            used_percent=lambda: self.used_percent,
            free=lambda refs: self.freed.extend(refs.tolist()),
        )
        contents = [bytes_of(number, LENGTH) for number in range(BLOCKS)]
        self.host.memory.memory[: BLOCKS * LENGTH] = np.concatenate(contents)
        self.refs = np.array([MEMORY << 56 | i * LENGTH for i in range(BLOCKS)], np.uint64)
        sums = np.array([native.xxh3_64(content) for content in contents], np.uint64)
        keys = b"".join(map(key, range(BLOCKS)))
        lengths = np.full(BLOCKS, LENGTH, np.uint32)
        self.rows = self.index.insert_many(
            self.number, keys, 0, bytes(32), self.refs, lengths, sums, 1
        )

    def demote(self) -> None:
        while self.demoter.tick():
            self.host.until(lambda: self.demoter.under_way == 0)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    memory = Memory(tmp_path, ahead_blocks=4, started_max=3)
    yield memory
    assert memory.host.tier.close()


def on_flash(memory: Memory) -> list[int]:
    return [number for number in range(BLOCKS) if memory.host.place(number) is not None]


def test_what_would_leave_next_is_saved_once(memory: Memory) -> None:
    """The blocks that memory would give up next are on flash with their bytes, links and parents;
    they are still in memory; a second round copies nothing."""
    memory.demote()
    assert on_flash(memory) == [6, 7, 8, 9]
    assert memory.index.is_visible(memory.rows).all()
    assert memory.demoter.tick() == 0
    assert memory.host.counters["flash_blocks_written"] == 4
    memory.index.erase(memory.rows[6:])
    assert [memory.host.fetch(number) for number in range(6, 10)] == [spill.DONE] * 4
    memory.host.tier.touch(ID, b"".join(map(key, range(BLOCKS))))
    place = memory.host.place(9)
    assert place is not None
    assert memory.host.store().entry(place.slot)["parent"] is not None


def test_a_block_that_is_copied_is_held(memory: Memory) -> None:
    """While a block is copied its memory stays, even when it is erased; then it is given back."""
    memory.host.store().inject("write", 0, 50, 1)
    assert memory.demoter.save(int(memory.rows[9])) is Saved.STARTED
    assert memory.index.row(int(memory.rows[9]))["holds"] == 1
    assert len(memory.index.erase(memory.rows[9:])) == 0
    memory.host.until(lambda: memory.demoter.under_way == 0)
    assert memory.freed == [int(memory.refs[9])]
    assert memory.host.fetch(9) == spill.DONE


def test_nothing_is_copied_while_memory_has_room(memory: Memory) -> None:
    """Below the watermark flash is spared."""
    memory.used_percent = 69
    assert memory.demoter.tick() == 0
    memory.used_percent = 70
    assert memory.demoter.tick() == 3
    memory.host.until(lambda: memory.demoter.under_way == 0)


def test_a_write_that_fails_leaves_the_block_in_memory(memory: Memory) -> None:
    """A failed copy is no loss: the row is there, held by nobody, and is saved later."""
    memory.host.store().inject("write", 5, 0, 1)
    assert memory.demoter.save(int(memory.rows[9])) is Saved.STARTED
    memory.host.until(lambda: memory.demoter.under_way == 0)
    assert memory.index.row(int(memory.rows[9]))["holds"] == 0
    assert on_flash(memory) == []
    memory.host.now_s += 60.0
    memory.host.tier.tick()
    memory.host.until(lambda: memory.host.tier.directories[0].ok)
    memory.demote()
    assert on_flash(memory) == [6, 7, 8, 9]
