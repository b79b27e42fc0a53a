"""The copy engine when peers, deadlines or the daemon's end interfere."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evoke.core import native

U32 = np.ndarray[Any, np.dtype[np.uint32]]
Make = Callable[..., Any]


def punch_hole(fd: int, offset: int, length: int) -> None:
    keep_size_and_punch = 3
    libc = ctypes.CDLL(None, use_errno=True)
    offsets = (ctypes.c_long(offset), ctypes.c_long(length))
    assert libc.fallocate(fd, keep_size_and_punch, *offsets) == 0, os.strerror(ctypes.get_errno())


def numbers(count: int) -> U32:
    return np.arange(count, dtype=np.uint32)


def test_late_blocks_are_not_started(make_peer: Make, make_tier: Make) -> None:
    """Blocks that were not started before the deadline are LATE and leave their slots alone."""
    peer, tier = make_peer(1 << 20, 32), make_tier(1 << 20, 32, 1)
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


def test_lost_memory_is_an_outcome(workers: int, make_peer: Make, make_tier: Make) -> None:
    """Blocks in a truncated part of a pool are FAULT, the others and other jobs are copied."""
    torn, whole = make_peer(1 << 16, 16), make_peer(1 << 16, 16)
    tier = make_tier(1 << 16, 32, workers)
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


def test_pages_that_the_peer_never_touched_stay_away(make_peer: Make, make_tier: Make) -> None:
    """A copy from or to a hole of a pool is a FAULT and brings no page in: it would be ours."""
    peer = make_peer(1 << 16, 16)
    tier = make_tier(1 << 16, 16, 1)
    assert peer.pool.guards_holes
    peer.fill(1)
    tier.engine.store(peer.pool, numbers(16), tier.refs)
    ((_, outcomes, sums),) = tier.wait()
    assert not outcomes.any()
    whole_blocks = os.fstat(peer.fd).st_blocks
    punch_hole(peer.fd, 4 << 16, 2 << 16)
    tier.engine.store(peer.pool, numbers(16), tier.refs)
    tier.engine.fetch(peer.pool, numbers(16), tier.refs, sums, False)
    for _, outcomes, _ in tier.wait(2):
        assert outcomes.tolist() == [0] * 4 + [native.FAULT] * 2 + [0] * 10
    assert os.fstat(peer.fd).st_blocks == whole_blocks - (2 << 16) // 512


def test_memory_lost_during_copies(make_peer: Make, make_tier: Make) -> None:
    """Truncating a pool again and again under load harms neither workers nor other peers' jobs."""
    torn, whole = make_peer(1 << 18, 32, 256), make_peer(1 << 18, 32)
    engines = [make_tier(1 << 18, 64, 2) for _ in range(2)]
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


def test_a_pool_outlives_its_close_while_a_job_runs(make_peer: Make, make_tier: Make) -> None:
    """Closing a pool, twice even, lets running jobs end and refuses new ones."""
    peer, tier = make_peer(1 << 20, 32), make_tier(1 << 20, 32, 1)
    want = peer.fill(1)
    tier.engine.store(peer.pool, numbers(32), tier.refs)
    peer.pool.close()
    peer.pool.close()
    ((_, outcomes, _),) = tier.wait()
    assert not outcomes.any()
    assert np.array_equal(tier.memory, want)
    with pytest.raises(ValueError, match="pool is closed"):
        tier.engine.store(peer.pool, numbers(1), tier.refs[:1])


def test_close_gives_every_job_back(make_peer: Make, make_tier: Make) -> None:
    """After close each job has come back, what was not started as CANCELLED, and none is taken."""
    peer, tier = make_peer(1 << 20, 64), make_tier(1 << 20, 64, 2)
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


def test_workers_take_no_signals(peer: Any, tier: Any) -> None:
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
