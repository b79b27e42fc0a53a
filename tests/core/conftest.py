"""Peers with pools and engines with tier memory, for the tests of copying."""

import mmap
import os
import select
import time
from collections.abc import Callable, Iterator
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
        self.bytes[:] = 0  # the peer's pages, not the copy's
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


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    """Peer's constructor; what it made is closed after the test."""
    made: list[Peer] = []

    def make(block_bytes: int, slots: int, item_bytes: int = 0) -> Peer:
        made.append(Peer(block_bytes, slots, item_bytes))
        return made[-1]

    yield make
    for peer in made:
        peer.close()


@pytest.fixture
def make_tier() -> Iterator[Callable[..., Tier]]:
    """Tier's constructor; the engines it made are closed after the test."""
    made: list[Tier] = []

    def make(block_bytes: int, blocks: int, workers: int) -> Tier:
        made.append(Tier(block_bytes, blocks, workers))
        return made[-1]

    yield make
    for tier in made:
        tier.engine.close()


@pytest.fixture
def peer(make_peer: Callable[..., Peer]) -> Peer:
    return make_peer(1 << 16, 16)


@pytest.fixture
def tier(make_tier: Callable[..., Tier]) -> Tier:
    return make_tier(1 << 16, 16, 1)


@pytest.fixture(params=[1, 2])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)
