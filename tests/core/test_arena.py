"""The arena: extents, accounting, pre-faulting."""

import ctypes
import pathlib
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from numpy.typing import NDArray

from evoke.core import native

MIB = 1 << 20
GRANULE = 2 * MIB
SIZES = [1, 4096, 4097, 20_480, 368_640, 2 * MIB, 2 * MIB + 4096, 5 * MIB, 17 * MIB]
F_GET_SEALS = 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1, 2, 4


def offsets(*values: int) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


class ArenaAgainstModel(RuleBasedStateMachine):
    """Random allocations and frees of mixed sizes agree with a dict offset -> size."""

    blocks = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.arena = native.Arena(64 * MIB, "4k")
        self.sizes: dict[int, int] = {}

    @rule(target=blocks, size=st.sampled_from(SIZES), count=st.integers(0, 600))
    def allocate(self, size: int, count: int) -> list[int]:
        got = [int(offset) for offset in self.arena.allocate(size, count)]
        assert len(got) <= count
        assert all(offset % 4096 == 0 for offset in got)
        if len(got) < count:
            stride = -(-size // 4096) * 4096
            assert self.arena.stats()["largest_free_run_bytes"] < stride
        for offset in got:
            assert offset not in self.sizes
            self.sizes[offset] = size
        return got

    @rule(got=consumes(blocks))
    def free_all(self, got: list[int]) -> None:
        self.arena.free(offsets(*got))
        for offset in got:
            del self.sizes[offset]

    @rule(target=blocks, got=consumes(blocks), data=st.data())
    def free_some(self, got: list[int], data: st.DataObject) -> list[int]:
        cut = data.draw(st.integers(0, len(got)))
        self.arena.free(offsets(*got[:cut]))
        for offset in got[:cut]:
            del self.sizes[offset]
        return got[cut:]

    @rule(got=blocks, wrong=st.integers(0, 80 * MIB))
    def free_wrong(self, got: list[int], wrong: int) -> None:
        if wrong in self.sizes:
            return
        with pytest.raises(ValueError, match=r"offsets\[.*no block is allocated"):
            self.arena.free(offsets(*got, wrong))
        if got:
            with pytest.raises(ValueError, match=r"offsets\["):
                self.arena.free(offsets(*got, got[0]))

    @invariant()
    def blocks_are_apart(self) -> None:
        end = 0
        for offset in sorted(self.sizes):
            assert offset >= end
            end = offset + self.sizes[offset]
        assert end <= 64 * MIB

    @invariant()
    def accounts_agree(self) -> None:
        stats = self.arena.stats()
        assert stats["allocated_bytes"] == sum(self.sizes.values())
        assert stats["blocks"] == len(self.sizes)
        extents = self.arena.extents()
        assert stats["extent_bytes"] == sum(extent["bytes"] for extent in extents)
        assert stats["extent_bytes"] + stats["free_granule_bytes"] == stats["capacity_bytes"]
        assert sum(extent["blocks_used"] for extent in extents) == len(self.sizes)
        assert all(extent["blocks_used"] > 0 for extent in extents)
        assert stats["wasted_bytes"] == sum(
            extent["bytes"] - extent["blocks"] * extent["block_bytes"] for extent in extents
        )

    def teardown(self) -> None:
        self.arena.free(offsets(*self.sizes))
        stats = self.arena.stats()
        assert stats["allocated_bytes"] == stats["extent_bytes"] == stats["blocks"] == 0
        assert stats["largest_free_run_bytes"] == stats["capacity_bytes"]
        self.arena.close()


ArenaAgainstModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestArenaAgainstModel = ArenaAgainstModel.TestCase


@pytest.mark.parametrize("block_bytes", [4096, 368_640, 1_000_000])
def test_tiny_arena_is_filled(block_bytes: int) -> None:
    """A 4 MiB arena holds as many small blocks as fit, or one less per extent."""
    arena = native.Arena(4 * MIB, "4k")
    got = arena.allocate(block_bytes, 10_000)
    stride = -(-block_bytes // 4096) * 4096
    assert len(got) >= 2 * (GRANULE // stride)
    assert len(np.unique(got)) == len(got)
    assert len(arena.allocate(block_bytes, 1)) == 0
    arena.free(got[::2])
    assert len(arena.allocate(block_bytes, 10_000)) == len(got[::2])


@given(stride_pages=st.integers(1, 40_000))
@settings(max_examples=200, deadline=None)
def test_extents_waste_little(stride_pages: int) -> None:
    """In an empty 8 GiB arena an extent wastes at most 1/32 and is at most 64 MiB and a block."""
    block_bytes = stride_pages * 4096
    arena = native.Arena(8 << 30, "4k")
    (offset,) = arena.allocate(block_bytes, 1)
    (extent,) = arena.extents()
    assert extent["offset"] == offset == 0
    assert (extent["bytes"] - extent["blocks"] * block_bytes) * 32 <= extent["bytes"]
    assert extent["bytes"] <= 64 * MIB + block_bytes + GRANULE
    arena.close()


def test_no_extent_crosses_a_gib() -> None:
    """Blocks of 300 MiB lie three to a GiB, whole, and one over 1 GiB can never be held."""
    arena = native.Arena(3 << 30, "4k")
    got = arena.allocate(300 * MIB, 100)
    assert len(got) == 9
    assert all(int(o) >> 30 == (int(o) + 300 * MIB - 1) >> 30 for o in got)
    arena.free(got)
    assert arena.stats()["largest_free_run_bytes"] == 1 << 30
    assert sorted(arena.allocate(300 * MIB, 100)) == sorted(got)
    assert arena.can_ever_hold(1 << 30)
    assert not arena.can_ever_hold((1 << 30) + 1)
    assert len(arena.allocate((1 << 30) + 1, 1)) == 0


def test_can_ever_hold_knows_the_capacity() -> None:
    """A block as large as the arena fits; one byte more, or none, does not."""
    arena = native.Arena(4 * MIB, "4k")
    assert arena.can_ever_hold(4 * MIB)
    assert not arena.can_ever_hold(4 * MIB + 1)
    assert not arena.can_ever_hold(0)
    assert len(arena.allocate(4 * MIB, 3)) == 1


def test_fragmented_arena_takes_short_runs() -> None:
    """Where no run of the ideal length is left, shorter ones hold blocks until nothing fits."""
    arena = native.Arena(64 * MIB, "4k")
    pairs = np.sort(arena.allocate(3 * MIB, 20)).reshape(-1, 2)
    assert len(arena.allocate(2 * MIB, 100)) == 2
    arena.free(pairs[::2].flatten())
    assert arena.stats()["largest_free_run_bytes"] == 6 * MIB
    assert len(arena.allocate(5 * MIB, 100)) == 5
    arena.free(pairs[1::2].flatten())
    assert len(arena.allocate(4096, 10_000)) == 5 * 3 * 512


def test_bytes_are_kept() -> None:
    """What is written at an offset is still there when other blocks have come and gone."""
    arena = native.Arena(8 * MIB, "4k")
    kept = arena.allocate(5000, 40)
    for number, offset in enumerate(kept):
        ctypes.memset(arena.address + int(offset), number, 5000)
    arena.free(arena.allocate(3 * MIB, 2))
    for number, offset in enumerate(kept):
        assert ctypes.string_at(arena.address + int(offset), 5000) == bytes([number]) * 5000


def test_address_and_capacity_are_rounded() -> None:
    """The mapping starts at a multiple of 2 MiB and its capacity is one."""
    arena = native.Arena(3 * MIB)
    assert arena.capacity_bytes == 4 * MIB
    assert arena.address % GRANULE == 0
    assert arena.backing in ("hugetlb", "thp", "4k")


def test_prefault_touches_everything() -> None:
    """After prefault by three threads every page is resident and progress says all bytes."""
    arena = native.Arena(48 * MIB, "4k")
    before = resident_bytes()
    arena.prefault(3)
    assert arena.prefaulted_bytes == arena.capacity_bytes
    assert resident_bytes() - before > 40 * MIB


def test_prefault_shows_progress_and_can_be_ended() -> None:
    """Another thread sees the count rise during prefault, and close() ends it with a ValueError."""
    arena = native.Arena(2 << 30, "4k")
    seen: list[int] = []
    errors: list[Exception] = []

    def prefault() -> None:
        try:
            arena.prefault(1)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=prefault)
    thread.start()
    until = time.monotonic() + 30
    while len(seen) < 3 and time.monotonic() < until:
        done = arena.prefaulted_bytes
        if done and done not in seen:
            seen.append(done)
    arena.close()
    thread.join()
    assert len(seen) == 3
    assert seen[-1] < 2 << 30
    assert "closed" in str(errors[0]) or "Operation canceled" in str(errors[0])


def test_lock_that_is_refused_is_an_answer() -> None:
    """An ordinary user over RLIMIT_MEMLOCK gets an arena that says locked is False."""
    program = (
        "import os, resource\n"
        "from evoke.core import native\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))\n"
        "os.getuid() or os.setuid(65534)\n"
        "arena = native.Arena(8 << 20, '4k', lock=True)\n"
        "arena.prefault(1)\n"
        "print(arena.locked, arena.prefaulted_bytes)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["False", str(8 << 20)]


def test_lock_within_the_limit_succeeds() -> None:
    """An arena below RLIMIT_MEMLOCK (or of root) is locked after prefault, not before."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert soft == resource.RLIM_INFINITY or soft >= 4 * MIB
    arena = native.Arena(2 * MIB, "4k", lock=True)
    assert not arena.locked
    arena.prefault(1)
    assert arena.locked


def test_memory_that_is_refused_is_a_memory_error() -> None:
    """An arena beyond what can be mapped is a MemoryError with the bytes asked."""
    with pytest.raises(MemoryError, match=str(1 << 55)):
        native.Arena(1 << 55)


@pytest.mark.parametrize(
    ("capacity", "backing", "message"),
    [(0, "auto", "capacity_bytes: 0"), (MIB, "huge", "backing: 'huge'")],
)
def test_bad_arena_arguments(capacity: int, backing: str, message: str) -> None:
    """A bad argument is a ValueError with its name and value."""
    with pytest.raises(ValueError, match=message):
        native.Arena(capacity, backing)


def test_closed_arena_refuses() -> None:
    """After close every call that needs the memory is a ValueError; closing again is fine."""
    arena = native.Arena(2 * MIB)
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.allocate(4096, 1)
    with pytest.raises(ValueError, match="closed"):
        arena.free(offsets())
    with pytest.raises(ValueError, match="closed"):
        arena.prefault(1)


def resident_bytes() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
