"""The copy engine: batches of blocks between a peer's pool and tier memory."""

import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evoke.core import native

U8 = np.ndarray[Any, np.dtype[np.uint8]]
U32 = np.ndarray[Any, np.dtype[np.uint32]]
U64 = np.ndarray[Any, np.dtype[np.uint64]]
Result = tuple[int, U8, U64]


class Peer:
    """A pool in an unsealed memfd, so that the test can take its memory away."""

    def __init__(self, block_bytes: int, slots: int, item_bytes: int = 0) -> None:
        """Blocks are one run, or with item_bytes scattered runs of that many bytes."""
        self.size = block_bytes * slots
        self.fd = os.memfd_create("test-pool", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size)
        self.map = mmap.mmap(self.fd, self.size)
        self.bytes: U8 = np.frombuffer(self.map, np.uint8)
        run = item_bytes or block_bytes
        runs = block_bytes // run
        layout = native.Layout([(0, run, [(runs, run * slots)], run)], slots, self.size)
        self.view = self.bytes.reshape(runs, slots, run).transpose(1, 0, 2)
        self.pool = native.Pool(self.fd, self.size, layout)

    def fill(self, seed: int) -> U8:
        """Random bytes in the pool; the stored form of its slots."""
        self.bytes[:] = np.random.default_rng(seed).integers(0, 256, self.size, dtype=np.uint8)
        return np.array(self.view, order="C").reshape(self.view.shape[0], -1)

    def close(self) -> None:
        self.pool.close()
        del self.bytes, self.view, self.map  # unmapped with the last view that a test holds
        os.close(self.fd)


class Tier:
    """An engine and one memory of blocks."""

    def __init__(self, block_bytes: int, blocks: int, workers: int) -> None:
        self.memory = np.zeros((blocks, block_bytes), np.uint8)
        self.engine = native.CopyEngine(workers)
        self.number = self.engine.add_memory(self.memory.ctypes.data, self.memory.size)
        base = np.uint64(self.number << 56)
        self.refs: U64 = base + np.arange(blocks, dtype=np.uint64) * np.uint64(block_bytes)

    def wait(self, jobs: int = 1) -> list[Result]:
        results: list[Result] = []
        until = time.monotonic() + 60
        while len(results) < jobs:
            ready, _, _ = select.select([self.engine.eventfd], [], [], until - time.monotonic())
            assert ready, "no completion within 60 s"
            results += self.engine.take_completed()
        return results


def numbers(count: int) -> U32:
    return np.arange(count, dtype=np.uint32)


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer(1 << 16, 16)
    yield made
    made.close()


@pytest.fixture
def tier() -> Iterator[Tier]:
    made = Tier(1 << 16, 16, 1)
    yield made
    made.engine.close()


@pytest.mark.parametrize("item_bytes", [0, 32768, 256, 64, 66, 6, 1])
def test_store_then_fetch_is_lossless(item_bytes: int, workers: int) -> None:
    """Stored blocks are the slots in stored order with their sums, and fetch puts them back."""
    block_bytes = (64 << 10) // (item_bytes or 1) * (item_bytes or 1)
    peer = Peer(block_bytes, 24, item_bytes)
    tier = Tier(block_bytes, 24, workers)
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
    tier.engine.close()
    peer.close()


def test_fetch_finds_a_changed_bit(peer: Peer, tier: Tier) -> None:
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


def test_sums_are_of_the_bytes_written(workers: int) -> None:
    """A peer that changes its slots during a store cannot make bytes and sum disagree."""
    peer, tier = Peer(1 << 20, 8, 256), Tier(1 << 20, 8, workers)
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
    tier.engine.close()
    peer.close()


def test_move_copies_and_verifies(tier: Tier) -> None:
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


def test_empty_jobs_complete(peer: Peer, tier: Tier) -> None:
    """A job without blocks completes like any other."""
    none = np.zeros(0, np.uint64)
    ticket = tier.engine.store(peer.pool, numbers(0), none)
    ((got, outcomes, sums),) = tier.wait()
    assert (got, outcomes.size, sums.size) == (ticket, 0, 0)


def test_bad_requests_move_nothing(peer: Peer, tier: Tier) -> None:
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

    def store(some_slots: U32, some_refs: U64) -> int:
        return engine.store(peer.pool, some_slots, some_refs)

    def fetch(some_slots: U32, some_refs: U64) -> int:
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


def test_late_blocks_are_not_started() -> None:
    """Blocks that were not started before the deadline are LATE and leave their slots alone."""
    peer, tier = Peer(1 << 20, 32), Tier(1 << 20, 32, 1)
    tier.memory[:] = 9
    sums = np.zeros(32, np.uint64)
    tier.engine.fetch(peer.pool, numbers(32), tier.refs, sums, False, deadline_ms=1)
    ((_, outcomes, found),) = tier.wait()
    late = outcomes == native.LATE
    assert late.any()
    assert set(outcomes) <= {native.COPIED, native.LATE}
    assert not found[late].any()
    slots = peer.bytes.reshape(32, -1)
    assert not slots[late].any()
    assert (slots[~late] == 9).all()
    tier.engine.fetch(peer.pool, numbers(32), tier.refs, sums, False, deadline_ms=2**62)
    ((_, outcomes, _),) = tier.wait()
    assert not outcomes.any()
    tier.engine.close()
    peer.close()


def test_lost_memory_is_an_outcome(workers: int) -> None:
    """Blocks in a truncated part of a pool are FAULT, the others and other jobs are copied."""
    torn, whole = Peer(1 << 16, 16), Peer(1 << 16, 16)
    tier = Tier(1 << 16, 32, workers)
    want = torn.fill(1), whole.fill(2)
    os.ftruncate(torn.fd, 10 << 16)
    tickets = [
        tier.engine.store(torn.pool, numbers(16), tier.refs[:16]),
        tier.engine.store(whole.pool, numbers(16), tier.refs[16:]),
    ]
    results = {ticket: outcomes for ticket, outcomes, _ in tier.wait(2)}
    assert results[tickets[0]].tolist() == [native.COPIED] * 10 + [native.FAULT] * 6
    assert not results[tickets[1]].any()
    assert np.array_equal(tier.memory[:10], want[0][:10])
    assert np.array_equal(tier.memory[16:], want[1])
    sums = np.zeros(16, np.uint64)
    tier.engine.fetch(torn.pool, numbers(16), tier.refs[16:], sums, False)
    ((_, outcomes, _),) = tier.wait()
    assert outcomes.tolist() == [native.COPIED] * 10 + [native.FAULT] * 6
    assert tier.engine.stats()["faults"] == 12
    tier.engine.close()
    whole.close()
    torn.close()


def test_memory_lost_during_copies() -> None:
    """Truncating a pool again and again under load harms neither workers nor other peers' jobs."""
    torn, whole = Peer(1 << 18, 32, 256), Peer(1 << 18, 32)
    engines = [Tier(1 << 18, 64, 2) for _ in range(2)]
    want = whole.fill(3)
    stop = threading.Event()

    def tear() -> None:
        while not stop.is_set():
            os.ftruncate(torn.fd, torn.size // 2)
            os.ftruncate(torn.fd, torn.size)

    thread = threading.Thread(target=tear)
    thread.start()
    faults = 0
    until = time.monotonic() + 20
    rounds = 0
    while rounds < 30 or (faults == 0 and time.monotonic() < until):
        rounds += 1
        for tier in engines:
            tier.engine.store(torn.pool, numbers(32), tier.refs[:32])
            tier.engine.store(whole.pool, numbers(32), tier.refs[32:])
        for tier in engines:
            by_ticket = sorted(tier.wait(2), key=lambda result: result[0])
            assert set(by_ticket[0][1]) <= {native.COPIED, native.FAULT}
            faults += int((by_ticket[0][1] == native.FAULT).sum())
            assert not by_ticket[1][1].any()
            assert np.array_equal(tier.memory[32:], want)
            tier.memory[:] = 0
    stop.set()
    thread.join()
    assert faults > 0
    for tier in engines:
        tier.engine.close()
    torn.close()
    whole.close()


def test_other_faults_keep_their_handler() -> None:
    """A fault outside a guarded copy still reaches the handler that was there before."""
    program = (
        "import ctypes, faulthandler; faulthandler.enable()\n"
        "from evoke.core import native; engine = native.CopyEngine(1)\n"
        "ctypes.string_at(1)\n"
    )
    words = [sys.executable, "-c", program]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "Segmentation fault" in run.stderr
    assert "ctypes" in run.stderr


def test_a_pool_outlives_its_close_while_a_job_runs() -> None:
    """Closing a pool, twice even, lets running jobs end and refuses new ones."""
    peer, tier = Peer(1 << 20, 32), Tier(1 << 20, 32, 1)
    want = peer.fill(1)
    tier.engine.store(peer.pool, numbers(32), tier.refs)
    peer.pool.close()
    peer.pool.close()
    ((_, outcomes, _),) = tier.wait()
    assert not outcomes.any()
    assert np.array_equal(tier.memory, want)
    with pytest.raises(ValueError, match="pool is closed"):
        tier.engine.store(peer.pool, numbers(1), tier.refs[:1])
    tier.engine.close()
    peer.close()


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


def test_close_gives_every_job_back() -> None:
    """After close each job has come back, what was not started as CANCELLED, and none is taken."""
    peer, tier = Peer(1 << 20, 64), Tier(1 << 20, 64, 2)
    want = peer.fill(1)
    tickets = [tier.engine.store(peer.pool, numbers(64), tier.refs) for _ in range(8)]
    tier.engine.close()
    results = tier.engine.take_completed()
    assert sorted(ticket for ticket, _, _ in results) == tickets
    assert set(np.concatenate([outcomes for _, outcomes, _ in results])) <= {
        native.COPIED,
        native.CANCELLED,
    }
    assert any((outcomes == native.CANCELLED).any() for _, outcomes, _ in results)
    for _, outcomes, _ in results:
        copied = outcomes == native.COPIED
        assert np.array_equal(tier.memory[copied], want[copied])
    assert tier.engine.in_flight() == 0
    with pytest.raises(RuntimeError, match="closed"):
        tier.engine.store(peer.pool, numbers(1), tier.refs[:1])
    tier.engine.close()
    peer.close()


def test_small_jobs_pass_a_large_one() -> None:
    """A job of one block is not held up by the hundred blocks of an earlier job."""
    peer, tier = Peer(1 << 20, 128), Tier(1 << 20, 128, 1)
    large = tier.engine.store(peer.pool, numbers(128), tier.refs)
    small = tier.engine.store(peer.pool, numbers(1), tier.refs[:1])
    results = tier.wait(2)
    assert [ticket for ticket, _, _ in results] == [small, large]
    tier.engine.close()
    peer.close()


def test_eventfd_is_readable_exactly_while_results_wait(peer: Peer, tier: Tier) -> None:
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


def test_counts_and_heartbeats(peer: Peer, tier: Tier) -> None:
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


def test_workers_take_no_signals(peer: Peer, tier: Tier) -> None:
    """Workers block all signals but the synchronous faults, which the process handles elsewhere."""
    tier.engine.store(peer.pool, numbers(1), tier.refs[:1])
    tier.wait()  # a thread blocks everything until it has started
    masks = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        if fields["Name"].startswith("evoke-copy"):
            masks.append(int(fields["SigBlk"], 16))
    assert masks
    for mask in masks:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            assert mask >> (number - 1) & 1
        for number in (signal.SIGSEGV, signal.SIGBUS):
            assert not mask >> (number - 1) & 1


def test_worker_counts_are_checked() -> None:
    """An engine has 1 to 256 workers."""
    for count in (0, -1, 257):
        with pytest.raises(ValueError, match="workers"):
            native.CopyEngine(count)
