"""Readers of the published table while the daemon writes it."""

import ctypes
import fcntl
import inspect
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from evoke.core import native

HOST, CXL, FLASH = 1, 2, 3
HEADER_BYTES = 4096
BUCKET_BYTES = 64
ADD_SEALS, SEALS = 1033, 1 | 2 | 4 | 16  # SEAL, SHRINK, GROW, FUTURE_WRITE

# A key whose tag under this secret names these two buckets of 1024, which lie on different pages.
BUCKETS, FIRST, SECOND = 1024, 230, 539
SECRET = bytes(16)
KEY = bytes([0]).ljust(32, b"\0")
TAG = bytes.fromhex("e6a8ff0b0c5f2d3b1bda99bc669d4e6f")


def random_keys(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(32 * count)


def insert(index: native.Index, namespace: int, keys: bytes, tier: int = HOST) -> None:
    count = len(keys) // 32
    rows = index.insert_many(
        namespace,
        keys,
        0,
        b"",
        np.arange(count, dtype=np.uint64),
        np.full(count, 100, np.uint32),
        np.zeros(count, np.uint64),
        tier,
    )
    assert (rows != native.NO_ROW).all()


@pytest.fixture
def index() -> Iterator[native.Index]:
    index = native.Index(buckets=1)
    yield index
    index.close()


def churn(index: native.Index, namespace: int, moving: bytes, go_on: Callable[[], bool]) -> None:
    """Insert and erase `moving` over and over."""
    while go_on():
        insert(index, namespace, moving)
        index.erase(index.find(namespace, moving))


def lost_keys(view: native.TableView, secret: bytes, keys: bytes, missed: Iterable[int]) -> int:
    """How many of the missed keys stay missed for 50 ms (a writer may be interrupted)."""
    lost = 0
    for at in missed:
        until = time.monotonic() + 0.05
        while not view.lookup(secret, keys[32 * at : 32 * at + 32])[0]:
            if time.monotonic() > until:
                lost += 1
                break
            time.sleep(0.001)
    return lost


def test_threads_read_while_the_daemon_writes(index: native.Index) -> None:
    """Under churn and growth a key that stays is never lost, an absent key never hit."""
    namespace, secret = index.add_namespace(1)
    staying, moving, absent = random_keys(3000, 1), random_keys(3000, 2), random_keys(3000, 3)
    insert(index, namespace, staying)
    stop = threading.Event()
    fds: list[int] = [os.dup(index.table_fd())]
    counts = {"lookups": 0, "missed": 0, "lost": 0, "wrong": 0, "bad_tiers": 0}

    def read() -> None:
        view = native.TableView(fds[-1])
        while not stop.is_set():
            tiers = view.lookup(secret, staying + moving)
            counts["lookups"] += 1
            if view.superseded():
                view = native.TableView(fds[-1])
                continue
            missed = np.flatnonzero(tiers[:3000] == 0).tolist()
            counts["missed"] += len(missed)
            counts["lost"] += 0 if view.superseded() else lost_keys(view, secret, staying, missed)
            counts["bad_tiers"] += int(np.count_nonzero(tiers[3000:] > HOST))
            counts["wrong"] += int(np.count_nonzero(view.lookup(secret, absent)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    seed = 100
    deadline: list[float] = []
    for _ in range(12):
        deadline.append(time.monotonic() + 0.1)
        churn(index, namespace, moving, lambda: time.monotonic() < deadline[-1])
        epoch = index.table_epoch
        while len(index) < 60_000 and index.table_epoch == epoch:
            insert(index, namespace, random_keys(2000, seed))
            seed += 1
        fds.append(os.dup(index.table_fd()))
    stop.set()
    for reader in readers:
        reader.join()
    for fd in fds:
        os.close(fd)
    index.check()
    assert counts["lookups"] > 50
    assert counts["wrong"] == counts["bad_tiers"] == counts["lost"] == 0
    assert counts["missed"] <= 3 * counts["lookups"]  # of 3000 keys each


READER = """
import sys, time, numpy as np
from collections.abc import Iterable
from evoke.core import native
@lost_keys@
view = native.TableView(int(sys.argv[1]))
secret = bytes.fromhex(sys.argv[2])
staying = np.random.default_rng(1).bytes(32 * 1000)
moving = np.random.default_rng(2).bytes(32 * 1000)
absent = np.random.default_rng(3).bytes(32 * 1000)
print("ready", flush=True)
lookups = missed = lost = wrong = changes = 0
was = None
until = time.monotonic() + 30
while (lookups < 1000 or changes < 20) and time.monotonic() < until:
    misses = np.flatnonzero(view.lookup(secret, staying) == 0).tolist()
    missed += len(misses)
    lost += lost_keys(view, secret, staying, misses)
    wrong += int(np.count_nonzero(view.lookup(secret, absent)))
    now = int(np.count_nonzero(view.lookup(secret, moving)))
    changes += now != was
    was = now
    lookups += 1
print(lookups, missed, lost, wrong, changes)
"""


def test_a_process_reads_while_the_daemon_writes() -> None:
    """Another process sees changes at once, hits what stays and never what is absent."""
    index = native.Index(buckets=1024)
    namespace, secret = index.add_namespace(1)
    insert(index, namespace, random_keys(1000, 1))
    fd = index.table_fd()
    program = READER.replace("@lost_keys@", inspect.getsource(lost_keys))
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(fd), secret.hex()],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        churn(index, namespace, random_keys(1000, 2), lambda: process.poll() is None)
        output, _ = process.communicate(timeout=60)
    lookups, missed, lost, wrong, changes = map(int, output.split())
    assert lookups >= 1000
    assert changes >= 20
    assert wrong == lost == 0
    assert missed <= lookups  # of 1000 keys each
    index.check()


def test_closing_during_a_lookup_is_safe(index: native.Index) -> None:
    """close() in one thread while another looks up ends in answers or a ValueError."""
    namespace, secret = index.add_namespace(1)
    keys = random_keys(20_000)
    insert(index, namespace, keys)
    for _ in range(20):
        view = native.TableView(index.table_fd())
        answers: list[bool] = []

        def read(view: native.TableView = view, answers: list[bool] = answers) -> None:
            try:
                while True:
                    answers.append(bool((view.lookup(secret, keys) == HOST).all()))
            except ValueError:
                return

        thread = threading.Thread(target=read)
        thread.start()
        while not answers and thread.is_alive():
            time.sleep(0.0005)
        view.close()
        thread.join(timeout=30)
        assert answers
        assert all(answers)


class HandMadeTable:
    """A table with one key, which may be in either of its buckets; its words can be set."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("table", os.MFD_ALLOW_SEALING)
        size = HEADER_BYTES + BUCKETS * BUCKET_BYTES
        os.ftruncate(self.fd, size)
        self.mapping = mmap.mmap(self.fd, size)
        fcntl.fcntl(self.fd, ADD_SEALS, SEALS)
        self.mapping[:32] = struct.pack("<8sIIQQ", b"EVKTABLE", 1, HEADER_BYTES, BUCKETS, 1)
        self.words = np.frombuffer(self.mapping, np.uint32)
        self.first, self.second = ((HEADER_BYTES + BUCKET_BYTES * n) // 4 for n in (FIRST, SECOND))
        for word in (self.first, self.second):
            self.mapping[4 * word + 16 : 4 * word + 32] = TAG

    def forget_page(self, word: int) -> Callable[[], object]:
        """What unmaps the page of a word for readers: their next look at it is a page fault."""
        inode = str(os.fstat(self.fd).st_ino)
        (start,) = [
            int(line.split("-")[0], 16)
            for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
            if line.split()[1] == "r--s" and line.split()[4] == inode
        ]
        address = ctypes.c_void_p(start + 4 * word // mmap.PAGESIZE * mmap.PAGESIZE)
        madvise = ctypes.CDLL(None).madvise
        length = ctypes.c_long(mmap.PAGESIZE)
        return lambda: madvise(address, length, mmap.MADV_DONTNEED)

    def close(self) -> None:
        del self.words
        self.mapping.close()
        os.close(self.fd)


@pytest.fixture
def hand_made() -> Iterator[HandMadeTable]:
    table = HandMadeTable()
    yield table
    table.close()


def test_bucket_in_writing_is_a_miss(hand_made: HandMadeTable) -> None:
    """A daemon that died within a bucket leaves a miss, at once, and no look-up hangs."""
    view = native.TableView(hand_made.fd)
    words, first, second = hand_made.words, hand_made.first, hand_made.second
    words[first + 1] = CXL << 30
    assert view.lookup(SECRET, KEY).tolist() == [CXL]
    words[first] = 7
    start = time.monotonic()
    assert not view.lookup(SECRET, KEY * 1000).any()
    assert time.monotonic() - start < 1
    words[second + 1] = FLASH << 30
    assert view.lookup(SECRET, KEY).tolist() == [FLASH]
    words[second] = 9
    assert view.lookup(SECRET, KEY).tolist() == [0]


def test_entry_that_moves_is_never_missed(hand_made: HandMadeTable) -> None:
    """A key that moves while a reader is between its two buckets is hit all the same."""
    view = native.TableView(hand_made.fd)
    first, second = hand_made.first, hand_made.second
    hand_made.words[first + 1] = HOST << 30
    # Places and values of single stores, which numpy makes in this order within nanoseconds: to
    # the second bucket and back (new place, its version, old place, its version), with pauses. The
    # long one lets a slow reader come to an end within its 8 attempts.
    pause = [(100, 0)] * 100
    there = [(second + 1, HOST << 30), (second, 0), (first + 1, 0), (first, 0)]
    back = [(first + 1, HOST << 30), (first, 0), (second + 1, 0), (second, 0)]
    places = np.array([*there, *pause, *back, *pause] * 4 + pause * 30)
    at, values = places[:, 0], places[:, 1].astype(np.uint32)
    for version in (first, second):
        values[at == version] = np.arange(2, 18, 2)
    forget = hand_made.forget_page(second)
    misses: list[int] = []

    def read() -> None:
        for _ in range(1500):
            misses.append(int(np.count_nonzero(view.lookup(SECRET, KEY * 10_000) != HOST)))

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        forget()
        hand_made.words[at] = values
    reader.join()
    # Of 15 million; a reader that is interrupted in each of its 8 attempts does give up. Without
    # the second look at the first bucket's version it is hundreds.
    assert sum(misses) <= 40
