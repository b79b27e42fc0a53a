"""The copy engine: batches of blocks between a peer's pool and tier memory."""

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evoke.core import native

U32 = np.ndarray[Any, np.dtype[np.uint32]]
U64 = np.ndarray[Any, np.dtype[np.uint64]]
Make = Callable[..., Any]


def numbers(count: int) -> U32:
    return np.arange(count, dtype=np.uint32)


@pytest.mark.parametrize("item_bytes", [0, 32768, 256, 64, 66, 6, 1])
def test_store_then_fetch_is_lossless(
    item_bytes: int, workers: int, make_peer: Make, make_tier: Make
) -> None:
    """Stored blocks are the slots in stored order with their sums, and fetch puts them back."""
    block_bytes = (64 << 10) // (item_bytes or 1) * (item_bytes or 1)
    peer = make_peer(block_bytes, 24, item_bytes)
    tier = make_tier(block_bytes, 24, workers)
    want = peer.fill(1)
    slots = np.random.default_rng(2).permutation(24).astype(np.uint32)
    ticket = tier.engine.store(peer.pool, slots, tier.refs)
    ((got, outcomes, sums),) = tier.wait()
    assert (got, outcomes.tolist()) == (ticket, [native.COPIED] * 24)
    assert np.array_equal(tier.memory, want[slots])
    assert sums.tolist() == [native.xxh3_64(block) for block in tier.memory]
    before = peer.bytes.copy()
    peer.bytes[:] = 0
    ticket = tier.engine.fetch(peer.pool, slots, tier.refs, sums, True)
    ((got, outcomes, again),) = tier.wait()
    assert (got, outcomes.tolist()) == (ticket, [native.COPIED] * 24)
    assert np.array_equal(again, sums)
    assert np.array_equal(peer.bytes, before)


def test_fetch_finds_a_changed_bit(peer: Any, tier: Any) -> None:
    """With verify a block that differs from its sum is CORRUPT and the others are COPIED."""
    peer.fill(1)
    tier.engine.store(peer.pool, numbers(16), tier.refs)
    ((_, _, sums),) = tier.wait()
    tier.memory[5, 1234] ^= 1
    tier.engine.fetch(peer.pool, numbers(16), tier.refs, sums, True)
    ((_, outcomes, found),) = tier.wait()
    assert np.flatnonzero(outcomes == native.CORRUPT).tolist() == [5]
    assert found[5] == native.xxh3_64(tier.memory[5])
    tier.engine.fetch(peer.pool, numbers(16), tier.refs, sums, False)
    ((_, outcomes, _),) = tier.wait()
    assert not outcomes.any()


def test_sums_are_of_the_bytes_written(workers: int, make_peer: Make, make_tier: Make) -> None:
    """A peer that changes its slots during a store cannot make bytes and sum disagree."""
    peer, tier = make_peer(1 << 20, 8, 256), make_tier(1 << 20, 8, workers)
    stop = threading.Event()

    def scribble() -> None:
        value = 0
        while not stop.is_set():
            value = (value + 1) % 256
            peer.bytes[:] = value

    thread = threading.Thread(target=scribble)
    thread.start()
    for _ in range(10):
        tier.engine.store(peer.pool, numbers(8), tier.refs)
        ((_, outcomes, sums),) = tier.wait()
        assert not outcomes.any()
        assert sums.tolist() == [native.xxh3_64(block) for block in tier.memory]
    stop.set()
    thread.join()


def test_move_copies_and_verifies(tier: Any) -> None:
    """Moved blocks are equal; one whose source has another sum is CORRUPT."""
    block_bytes = 1000
    source = np.random.default_rng(1).integers(0, 256, (4, block_bytes), dtype=np.uint8)
    target = np.zeros_like(source)
    numbered = [tier.engine.add_memory(m.ctypes.data, m.size) for m in (source, target)]
    refs = [
        np.uint64(n << 56) + np.arange(4, dtype=np.uint64) * np.uint64(block_bytes)
        for n in numbered
    ]
    sums = np.array([native.xxh3_64(block) for block in source], np.uint64)
    sums[2] ^= np.uint64(1)
    tier.engine.move(refs[0], refs[1], block_bytes, sums)
    ((_, outcomes, found),) = tier.wait()
    assert outcomes.tolist() == [native.COPIED, native.COPIED, native.CORRUPT, native.COPIED]
    assert np.array_equal(source, target)
    assert found[2] == sums[2] ^ np.uint64(1)


def test_empty_jobs_complete(peer: Any, tier: Any) -> None:
    """A job without blocks completes like any other."""
    none = np.zeros(0, np.uint64)
    ticket = tier.engine.store(peer.pool, numbers(0), none)
    ((got, outcomes, sums),) = tier.wait()
    assert (got, outcomes.size, sums.size) == (ticket, 0, 0)


def test_bad_requests_move_nothing(peer: Any, tier: Any) -> None:
    """A bad slot, ref, length or number is a ValueError that names it, before anything moves."""
    engine, refs = tier.engine, tier.refs
    peer.fill(1)
    before = peer.bytes.copy()
    sums = np.zeros(16, np.uint64)
    beyond, elsewhere = refs.copy(), refs.copy()
    beyond[7] += np.uint64(12 * (1 << 16))
    elsewhere[7] |= np.uint64(1 << 56)
    slots = numbers(16)
    bad = slots.copy()
    bad[3] = 16

    def store(some_slots: U32, some_refs: U64) -> Any:
        return engine.store(peer.pool, some_slots, some_refs)

    def fetch(some_slots: U32, some_refs: U64) -> Any:
        return engine.fetch(peer.pool, some_slots, some_refs, sums, False)

    for call in (store, fetch):
        with pytest.raises(ValueError, match=r"slots\[3\]: 16"):
            call(bad, refs)
        with pytest.raises(ValueError, match=r"refs\[7\]: offset"):
            call(slots, beyond)
        with pytest.raises(ValueError, match=r"refs\[7\]: memory 1"):
            call(slots, elsewhere)
        with pytest.raises(ValueError, match="refs: 15 entries for 16"):
            call(slots, refs[1:])
        with pytest.raises(ValueError, match="refs"):
            call(slots, np.full(16, native.NO_REF, np.uint64))
    bad[3] = 4
    with pytest.raises(ValueError, match="slots: 4 is named twice"):
        engine.fetch(peer.pool, bad, refs, sums, False)
    with pytest.raises(ValueError, match="sums: 15 entries"):
        engine.fetch(peer.pool, slots, refs, sums[1:], False)
    with pytest.raises(ValueError, match="deadline_ms"):
        engine.store(peer.pool, slots, refs, deadline_ms=-1)
    with pytest.raises(ValueError, match="length_bytes"):
        engine.move(refs, refs, 0, sums)
    with pytest.raises(ValueError, match=r"target_refs\[7\]"):
        engine.move(refs, beyond, 1 << 16, sums)
    with pytest.raises(TypeError):
        engine.store(peer.pool, slots.astype(np.int64), refs)
    assert engine.in_flight() == 0
    assert not tier.memory.any()
    assert np.array_equal(peer.bytes, before)


def test_pools_that_are_too_small_are_refused() -> None:
    """A memfd below pool_bytes, or a pool below its layout's, is a ValueError."""
    fd = os.memfd_create("small", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    layout = native.Layout([(0, 4096, [], 4096)], 2, 8192)
    with pytest.raises(ValueError, match="fd: 4096 bytes"):
        native.Pool(fd, 8192, layout)
    with pytest.raises(ValueError, match="layout"):
        native.Pool(fd, 4096, layout)
    os.close(fd)
    with pytest.raises(ValueError, match="not open"):
        native.Pool(fd, 8192, layout)


def test_small_jobs_pass_a_large_one(make_peer: Make, make_tier: Make) -> None:
    """A job of one block is not held up by the hundred blocks of an earlier job."""
    peer, tier = make_peer(1 << 20, 128), make_tier(1 << 20, 128, 1)
    large = tier.engine.store(peer.pool, numbers(128), tier.refs)
    small = tier.engine.store(peer.pool, numbers(1), tier.refs[:1])
    results = tier.wait(2)
    assert [ticket for ticket, _, _ in results] == [small, large]


def test_eventfd_is_readable_exactly_while_results_wait(peer: Any, tier: Any) -> None:
    """The eventfd is silent before a job ends, readable after it, silent once results are taken."""

    def readable(timeout_s: float) -> bool:
        return bool(select.select([tier.engine.eventfd], [], [], timeout_s)[0])

    assert not readable(0)
    assert tier.engine.take_completed() == []
    for _ in range(3):
        tier.engine.store(peer.pool, numbers(16), tier.refs)
    assert readable(10)
    taken = len(tier.engine.take_completed())
    while taken < 3:
        assert readable(10)
        taken += len(tier.engine.take_completed())
    assert not readable(0.01)


def test_counts_and_heartbeats(peer: Any, tier: Any) -> None:
    """Stats count what was copied each way; an idle worker's heartbeat is 0."""
    sums = np.zeros(16, np.uint64)
    tier.engine.store(peer.pool, numbers(16), tier.refs)
    tier.wait()
    tier.engine.fetch(peer.pool, numbers(8), tier.refs[:8], sums[:8], False)
    tier.wait()
    stats = tier.engine.stats()
    assert (stats["bytes_stored"], stats["bytes_fetched"]) == (16 << 16, 8 << 16)
    assert (stats["bytes_moved"], stats["blocks"], stats["faults"]) == (0, 24, 0)
    assert stats["cpu_ns"] > 0
    until = time.monotonic() + 5
    while tier.engine.heartbeats() != [0.0] and time.monotonic() < until:
        time.sleep(0.001)
    assert tier.engine.heartbeats() == [0.0]
    tier.engine.close()
    assert tier.engine.stats()["cpu_ns"] >= stats["cpu_ns"]


def test_worker_counts_are_checked() -> None:
    """An engine has 1 to 256 workers."""
    for count in (0, -1, 257):
        with pytest.raises(ValueError, match="workers"):
            native.CopyEngine(count)
