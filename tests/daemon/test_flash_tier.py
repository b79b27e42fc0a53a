"""The flash tier of the daemon: saving, fetching, making room, budgets and health."""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.core import native, spill
from evoked import flash_directory
from evoked.counters import Counters
from evoked.flash import Block, FlashRules, FlashTier, Place, Saved
from evoked.flash_directory import FlashDirectory
from tests.core.flash import ID, MEMORY, MIB, Flash, bytes_of, key

LENGTH = 65536
LENGTHS = np.array([LENGTH], np.uint32)


class Host:
    """A flash tier, with a clock that stands still, and the memory above it."""

    def __init__(self, path: Path, directories: int = 1, capacity: int = 2 * MIB) -> None:
        self.memory = Flash(path)
        self.capacity = capacity
        self.paths = [path / str(number) for number in range(directories)]
        self.counters = Counters()
        self.now_s = 1000.0
        self.gone: list[bytes] = []
        for directory in self.paths:
            directory.mkdir(exist_ok=True)

    def open(self, **rules: Any) -> FlashTier:
        directories = [self.directory(path) for path in self.paths]
        self.tier = FlashTier(directories, FlashRules(**rules), self.counters, lambda: self.now_s)
        self.tier.on_gone = lambda namespace_id, keys: self.gone.append(keys)
        self.until(self.is_ready)
        return self.tier

    def directory(self, path: Path) -> FlashDirectory:
        memories = [(MEMORY, self.memory.memory.ctypes.data, self.memory.memory.size)]

        def open_store() -> spill.Store:
            return spill.Store(str(path), self.capacity, memories, segment_bytes=MIB)

        return FlashDirectory(str(path), open_store, self.counters)

    def is_ready(self) -> bool:
        stats = [d.store.stats() for d in self.tier.directories if d.store is not None]
        return all(s["segments_ready"] == s["segments"] for s in stats)

    def until(self, what: Callable[[], bool], seconds: float = 60) -> None:
        """Runs the loop until then."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, self.tier.describe()
            select.select([self.tier.fd], [], [], 0.02)
            self.tier.complete()

    def save(self, number: int, wanted: Saved = Saved.STARTED, uses: int = 0) -> bool:
        content = bytes_of(number, LENGTH)
        self.memory.memory[:LENGTH] = content
        ended: list[bool] = []
        sums = np.array([native.xxh3_64(content)], np.uint64)
        refs = np.array([MEMORY << 56], np.uint64)
        parent = key(number - 1) if number else b""
        block = Block(ID, key(number), parent, number, refs, LENGTHS, sums, uses)
        assert self.tier.save(block, ended.append) is wanted
        if wanted is not Saved.STARTED:
            return False
        self.until(lambda: bool(ended))
        return ended[0]

    def place(self, number: int) -> Place | None:
        return self.tier.places(ID, key(number))[0]

    def fetch(self, number: int, deadline_ms: int = 0) -> int | None:
        """The outcome; None when there is nothing to read. DONE: the right bytes came."""
        place = self.place(number)
        if place is None:
            return None
        said: list[str | int] = []
        refs = np.array([MEMORY << 56 | 8 * MIB], np.uint64)
        self.memory.memory[8 * MIB :] = 0
        started = self.tier.fetch(
            place,
            refs,
            LENGTHS,
            deadline_ms,
            lambda outcome, sums: said.append(outcome),
            lambda: said.append("ended"),
        )
        assert started
        self.until(lambda: "ended" in said)
        assert len(said) == 2
        outcome = said[0]
        assert isinstance(outcome, int)
        if outcome == spill.DONE:
            content = self.memory.memory[8 * MIB : 8 * MIB + LENGTH]
            assert np.array_equal(content, bytes_of(number, LENGTH))
        return outcome

    def store(self, number: int = 0) -> spill.Store:
        store = self.tier.directories[number].store
        assert store is not None
        return store


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    assert host.tier.close()


def test_a_saved_block_comes_back_and_is_saved_once(host: Host) -> None:
    """What was saved is fetched with its bytes; saving it again copies nothing."""
    host.open()
    assert host.place(1) is None
    assert host.save(1)
    host.save(1, Saved.PRESENT)
    assert host.fetch(1) == spill.DONE
    assert host.counters["flash_blocks_written"] == host.counters["flash_blocks_read"] == 1
    assert host.counters["flash_bytes_written"] == LENGTH


def test_a_restart_makes_a_namespace_visible(host: Host) -> None:
    """After a stop and a start the keys are told as soon as the namespace is named."""
    host.open()
    for number in range(5):
        assert host.save(number)
    host.tier.close()
    host.open()
    assert sorted(host.tier.register(ID)) == sorted(b"".join(map(key, range(5))))
    assert host.tier.register(bytes(32)) == b""
    assert host.fetch(3) == spill.DONE


def test_room_is_made_from_the_tail(host: Host) -> None:
    """A full directory takes new blocks; the least recent leave, tail first, and are told."""
    host.open()
    slots = host.store().segment_bytes // (LENGTH + 4096) * 2
    for number in range(slots):
        assert host.save(number)
    host.tier.touch(ID, b"".join(map(key, range(slots))))
    assert host.save(1000)
    assert host.gone == [key(slots - 1)]
    assert host.place(slots - 1) is None
    assert host.fetch(0) == spill.DONE
    assert host.counters["flash_blocks_evicted"] == 1


def test_several_directories_share(tmp_path: Path) -> None:
    """Blocks go to several directories, and are found in any."""
    host = Host(tmp_path, directories=2)
    host.open()
    host.store(0).inject("write", 0, 30, 1)
    refs = np.array([MEMORY << 56], np.uint64)
    sums = np.array([native.xxh3_64(host.memory.memory[:LENGTH])], np.uint64)
    ended: list[bool] = []
    for number in range(4):
        block = Block(ID, key(number), b"", 0, refs, LENGTHS, sums)
        assert host.tier.save(block, ended.append) is Saved.STARTED
    host.until(lambda: len(ended) == 4)
    places = host.tier.places(ID, b"".join(map(key, range(4))))
    assert {place.directory for place in places if place} == {0, 1}
    assert host.tier.close()


def test_write_budgets_hold(host: Host) -> None:
    """Above the bytes of a second or of a day nothing is written; later it is."""
    host.open(write_bytes_per_s=LENGTH, write_bytes_per_day=3 * LENGTH)
    assert host.save(0)
    host.save(1, Saved.OVER_BUDGET)
    host.now_s += 1.0
    assert host.save(1)
    host.now_s += 1.0
    assert host.save(2)
    host.now_s += 60.0
    host.save(3, Saved.OVER_BUDGET)
    host.now_s += 86_400.0
    assert host.save(3)
    assert host.counters["flash_over_budget"] == 2


def test_blocks_that_nobody_used_are_not_written(host: Host) -> None:
    """With a least number of uses, what was used less often is refused."""
    host.open(uses_min=1)
    host.save(0, Saved.REFUSED)
    assert host.save(0, uses=1)
    assert host.counters["flash_refused"] == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_device_that_fails_degrades_and_recovers(host: Host, error: int) -> None:
    """A failed write is told, the tier says why and takes no more; what it has is still read. When
    the device works again so does the tier, by itself."""
    host.open()
    assert host.save(0)
    host.store().inject("write", error, 0, 1)
    assert not host.save(1)
    directory = host.tier.directories[0]
    assert directory.reason is not None
    assert directory.reason.startswith("write: ")
    host.save(1, Saved.DEGRADED)
    assert host.fetch(0) == spill.DONE
    host.now_s += flash_directory.PROBE_S
    host.tier.tick()
    host.until(lambda: directory.ok)
    assert host.save(1)
    assert host.counters["flash_degraded"] == 1


def test_a_stalled_device_is_a_miss_by_the_deadline(host: Host) -> None:
    """A read that is late is answered at its deadline, its places are kept until it has ended, and
    until a probe succeeds every block is a miss."""
    host.open()
    assert host.save(0)
    host.store().inject("read", 0, 300, 1)
    assert host.fetch(0, deadline_ms=30) == spill.LATE
    assert host.tier.directories[0].reason == "stalled"
    assert host.place(0) is None
    host.now_s += flash_directory.PROBE_S
    host.tier.tick()
    host.until(lambda: host.tier.directories[0].ok)
    assert host.fetch(0) == spill.DONE


def test_a_removed_directory_comes_back_empty(host: Host) -> None:
    """A directory that was removed degrades; when it is there again it is opened anew."""
    host.open()
    assert host.save(0)
    moved = host.paths[0].with_name("moved")
    host.paths[0].rename(moved)
    directory = host.tier.directories[0]
    host.now_s += 60.0
    host.tier.tick()
    host.until(lambda: not directory.ok)
    host.now_s += 60.0
    host.tier.tick()  # it cannot be opened
    host.until(lambda: directory.store is None)
    host.paths[0].mkdir()

    def opened() -> bool:
        host.now_s += 60.0
        host.tier.tick()
        return directory.ok and host.is_ready()

    host.until(opened)
    assert host.place(0) is None
    assert host.save(0)


def test_damage_is_a_miss_and_counted(host: Host) -> None:
    """A block whose bytes were damaged is told as such once, then it is absent."""
    host.open()
    assert host.save(0)
    place = host.place(0)
    assert place is not None
    entry = host.store().entry(place.slot)
    with (host.paths[0] / f"segment-{entry['segment']:05d}").open("r+b") as file:
        file.seek(entry["offset"] + 4096 + 7)
        file.write(b"rot")
    assert host.fetch(0) == spill.CORRUPT
    assert host.place(0) is None
    assert host.counters["integrity_failures"] == 1


def test_a_namespace_is_forgotten_for_good(host: Host) -> None:
    """Forgotten blocks are gone, are told, and do not come back after a restart."""
    host.open()
    assert host.save(0)
    assert host.tier.forget(ID) == 1
    assert host.gone == [key(0)]
    host.tier.close()
    host.open()
    assert host.tier.register(ID) == b""
