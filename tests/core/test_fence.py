"""Fences: after a cancel that answered True, no byte of the request is copied any more."""

import mmap
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evoke.core import native

U8 = np.ndarray[Any, np.dtype[np.uint8]]
BLOCK_BYTES = 1 << 16
SLOTS = 64


class Page:
    """A fence page and the raw words that any process with the descriptor can write."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.page = native.FencePage(fd)
        self.map = mmap.mmap(fd, 4096)
        self.words = np.frombuffer(self.map, np.uint32)

    def close(self) -> None:
        self.page.close()
        del self.words
        self.map.close()
        os.close(self.fd)


class Side:
    """A pool, an arena of the same size and an engine between them."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("test-pool", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, SLOTS * BLOCK_BYTES)
        self.map = mmap.mmap(self.fd, SLOTS * BLOCK_BYTES, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes: U8 = np.frombuffer(self.map, np.uint8)
        layout = native.Layout([(0, BLOCK_BYTES, [], BLOCK_BYTES)], SLOTS, SLOTS * BLOCK_BYTES)
        self.pool = native.Pool(self.fd, SLOTS * BLOCK_BYTES, layout)
        self.arena = np.full(SLOTS * BLOCK_BYTES, 7, np.uint8)
        self.engine = native.CopyEngine(1)
        self.engine.add_memory(self.arena.ctypes.data, self.arena.size)
        self.slots = np.arange(SLOTS, dtype=np.uint32)
        self.refs = np.arange(SLOTS, dtype=np.uint64) * np.uint64(BLOCK_BYTES)

    def fetch(self, page: native.FencePage | None, word: int = 0) -> None:
        sums = np.zeros(SLOTS, np.uint64)
        self.engine.fetch(
            self.pool, self.slots, self.refs, sums, False, fence=page, fence_word=word
        )

    def outcomes(self) -> U8:
        select.select([self.engine.eventfd], [], [], 10)
        ((_, outcomes, _),) = self.engine.take_completed()
        return outcomes

    def close(self) -> None:
        self.engine.close()
        self.pool.close()
        del self.bytes
        self.map.close()
        os.close(self.fd)


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(native.FencePage.make())
    yield made
    made.close()


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side()
    yield made
    made.close()


def test_a_page_cannot_be_cut(page: Page) -> None:
    """A page made for a client is sealed, so that neither side can take it from the other."""
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(page.fd, 8192)


def test_armed_words_let_copies_through(side: Side, page: Page) -> None:
    """A job with an armed word is copied, and its word counts no copy afterwards."""
    page.page.arm(5)
    side.fetch(page.page, 5)
    assert (side.outcomes() == native.COPIED).all()
    assert (side.bytes == 7).all()
    assert page.words.tolist() == [0] * 1024


def test_cancelled_before_the_start(side: Side, page: Page) -> None:
    """No block starts once its word was cancelled; arming the word again lets jobs pass."""
    assert page.page.cancel(3, 0)
    side.fetch(page.page, 3)
    assert (side.outcomes() == native.CANCELLED).all()
    assert not side.bytes.any()
    page.page.arm(3)
    side.fetch(page.page, 3)
    assert (side.outcomes() == native.COPIED).all()


def test_words_are_independent(side: Side, page: Page) -> None:
    """Cancelling one word stops only the jobs that named it."""
    page.page.cancel(1, 0)
    side.fetch(page.page, 2)
    assert (side.outcomes() == native.COPIED).all()


def test_nothing_is_written_after_a_cancel(side: Side, page: Page) -> None:
    """Once cancel answered True the pool does not change, however the threads interleave."""
    for round_number in range(60):
        side.arena[:] = round_number + 1
        page.page.arm(0)
        side.fetch(page.page)
        time.sleep(0.0002 * (round_number % 7) / 7)
        assert page.page.cancel(0, 5000)
        seen = side.bytes.copy()
        outcomes = side.outcomes()
        assert np.array_equal(side.bytes, seen)
        copied = side.bytes.reshape(SLOTS, BLOCK_BYTES)[outcomes == native.COPIED]
        assert (copied == round_number + 1).all()
        assert set(outcomes) <= {native.COPIED, native.CANCELLED}


def test_cancel_waits_for_the_copy_that_runs(page: Page) -> None:
    """While a copy is active cancel waits, at most as long as told, and arm is refused."""
    page.words[9] = 2
    began = time.monotonic()
    assert not page.page.cancel(9, 50)
    assert 0.045 < time.monotonic() - began < 5
    assert page.words[9] == 3
    with pytest.raises(ValueError, match="active"):
        page.page.arm(9)

    def leave() -> None:
        page.words[9] = 1

    timer = threading.Timer(0.05, leave)
    timer.start()
    assert page.page.cancel(9, 10_000)
    timer.join()
    page.page.arm(9)
    assert page.words[9] == 0


def test_words_out_of_the_page_are_refused(side: Side, page: Page) -> None:
    """A word beyond the 64 is a ValueError for client and daemon alike."""
    for word in (-1, 64, 2**40):
        with pytest.raises(ValueError, match="word"):
            page.page.arm(word)
        with pytest.raises(ValueError, match="word"):
            page.page.cancel(word, 0)
        with pytest.raises(ValueError, match="word"):
            side.fetch(page.page, word)


def test_garbage_hurts_only_its_own_job(side: Side, page: Page) -> None:
    """Whatever a client writes into its page, its job ends and the jobs of others are copied."""
    for garbage in (0xFFFFFFFF, 0xFFFFFFFE, 0x80000001, 12345):
        page.words[:] = garbage
        side.fetch(page.page, 0)
        want = native.CANCELLED if garbage & 1 else native.COPIED
        assert (side.outcomes() == want).all()
        side.fetch(None)
        assert (side.outcomes() == native.COPIED).all()


def test_a_page_taken_away_faults_its_own_job(side: Side) -> None:
    """A page cut to nothing makes its job a FAULT; the worker goes on with other jobs."""
    fd = os.memfd_create("test-fence", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    page = native.FencePage(fd)
    os.ftruncate(fd, 0)
    side.fetch(page)
    assert (side.outcomes() == native.FAULT).all()
    assert not side.bytes.any()
    side.fetch(None)
    assert (side.outcomes() == native.COPIED).all()
    page.close()
    os.close(fd)


def test_only_memfds_of_a_page_are_mapped() -> None:
    """A pipe, a closed descriptor and a short memfd are ValueErrors that name fd."""
    reader, writer = os.pipe()
    short = os.memfd_create("short", os.MFD_CLOEXEC)
    os.ftruncate(short, 4095)
    for fd in (reader, short, 100_000):
        with pytest.raises(ValueError, match="fd"):
            native.FencePage(fd)
    for fd in (reader, writer, short):
        os.close(fd)


def test_a_closed_page_is_refused(side: Side, page: Page) -> None:
    """After close, which may be repeated, the page can be used for nothing."""
    page.page.close()
    page.page.close()
    with pytest.raises(ValueError, match="fence is closed"):
        page.page.arm(0)
    with pytest.raises(ValueError, match="fence is closed"):
        side.fetch(page.page)
