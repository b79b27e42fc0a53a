"""A worker that the kernel holds in the middle of a copy holds nobody else: no lock is held there.

Tier memory is registered with userfaultfd: a worker that touches a missing page sleeps in the
kernel until the test fills it. Where the kernel refuses userfaultfd, so does this test.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest

from evoke.core import native

Make = Callable[..., Any]

BLOCK_BYTES = 1 << 16
USERFAULTFD, USER_MODE_ONLY = 323, 1  # the system call's number on x86-64
UFFD_API, REGISTER_MISSING = 0xAA, 1
IOCTL_API, IOCTL_REGISTER, IOCTL_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04


class Missing:
    """Pages whose first touch sleeps until `fill`."""

    def __init__(self, size: int) -> None:
        self.size = size
        flags = os.O_CLOEXEC | os.O_NONBLOCK
        self.fd = ctypes.CDLL(None).syscall(USERFAULTFD, flags | USER_MODE_ONLY)
        assert self.fd >= 0, "userfaultfd is refused here"
        self.map = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = np.frombuffer(self.map, np.uint8)
        self.address = self.view.ctypes.data
        fcntl.ioctl(self.fd, IOCTL_API, struct.pack("QQQ", UFFD_API, 0, 0))
        where = struct.pack("QQQQ", self.address, size, REGISTER_MISSING, 0)
        fcntl.ioctl(self.fd, IOCTL_REGISTER, where)

    def touched(self) -> bool:
        """Whether somebody sleeps at a page."""
        return bool(select.select([self.fd], [], [], 30)[0])

    def fill(self) -> None:
        """With zeros, all of it; sleepers go on."""
        fcntl.ioctl(self.fd, IOCTL_ZEROPAGE, struct.pack("QQQq", self.address, self.size, 0, 0))

    def close(self) -> None:
        os.close(self.fd)
        del self.view


@pytest.fixture
def missing() -> Iterator[Missing]:
    pages = Missing(BLOCK_BYTES)
    try:
        yield pages
    finally:
        pages.close()


def in_time(call: Callable[[], Any]) -> Any:
    """What call returns, in a thread of its own: one that meets a held lock never comes back."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(20)


def test_nothing_waits_for_a_stalled_copy(
    missing: Missing, make_peer: Make, make_tier: Make
) -> None:
    """While one worker sleeps inside a copy, requests are taken, other workers copy, results are
    given out and every question is answered; then the copy itself ends well."""
    peer, tier = make_peer(BLOCK_BYTES, 8), make_tier(BLOCK_BYTES, 8, 2)
    want = peer.fill(1)
    engine = tier.engine
    number = engine.add_memory(missing.address, missing.size)
    slots = np.arange(8, dtype=np.uint32)
    stalled_ref = np.array([number << 56], np.uint64)
    try:
        stalled = engine.store(peer.pool, slots[:1], stalled_ref)
        assert missing.touched()
        for _ in range(4):
            in_time(partial(engine.store, peer.pool, slots, tier.refs))
            ((_, outcomes, sums),) = in_time(tier.wait)
            assert not outcomes.any()
            in_time(partial(engine.fetch, peer.pool, slots, tier.refs, sums, True))
            ((_, outcomes, _),) = in_time(tier.wait)
            assert not outcomes.any()
        assert np.array_equal(tier.memory, want)
        other = np.zeros(BLOCK_BYTES, np.uint8)
        assert in_time(partial(engine.add_memory, other.ctypes.data, other.size)) > number
        assert in_time(engine.in_flight) == 1
        assert max(in_time(engine.heartbeats)) > 0, "the watchdog must see it"
        assert in_time(engine.stats)["blocks"] == 4 * 16
        assert in_time(engine.take_completed) == []
        in_time(peer.pool.close)
    finally:
        missing.fill()
    ((ticket, outcomes, _),) = tier.wait()
    assert (ticket, outcomes.tolist()) == (stalled, [native.COPIED])
    assert np.array_equal(missing.view, want[0])
