"""Readers of the published table while the daemon writes it."""

import fcntl
import inspect
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from evoke.core import native

HOST, CXL, FLASH = 1, 2, 3
HEADER_BYTES = 4096
BUCKET_BYTES = 64
ADD_SEALS, SEALS = 1033, 1 | 2 | 4 | 16  # SEAL, SHRINK, GROW, FUTURE_WRITE

# A key whose tag under this secret names bucket 0, then bucket 1, of two.
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


def churn(index: native.Index, namespace: int, until: float, moving: bytes) -> int:
    """Insert and erase `moving` over and over; grow now and then. How often."""
    rounds = 0
    while time.monotonic() < until:
        insert(index, namespace, moving)
        index.erase(index.find(namespace, moving))
        rounds += 1
    return rounds


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
    for _ in range(12):
        churn(index, namespace, time.monotonic() + 0.1, moving)
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
until = time.monotonic() + 1.5
while time.monotonic() < until:
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
        churn(index, namespace, time.monotonic() + 1.5, random_keys(1000, 2))
        output, _ = process.communicate(timeout=60)
    lookups, missed, lost, wrong, changes = map(int, output.split())
    assert lookups > 20
    assert changes > 2
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
    """A table of two buckets with one key, which may be in either; its words can be set."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("table", os.MFD_ALLOW_SEALING)
        size = HEADER_BYTES + 2 * BUCKET_BYTES
        os.ftruncate(self.fd, size)
        self.mapping = mmap.mmap(self.fd, size)
        fcntl.fcntl(self.fd, ADD_SEALS, SEALS)
        self.mapping[:32] = struct.pack("<8sIIQQ", b"EVKTABLE", 1, HEADER_BYTES, 2, 1)
        for bucket in (0, 1):
            at = HEADER_BYTES + BUCKET_BYTES * bucket + 16
            self.mapping[at : at + 16] = TAG
        self.words = np.frombuffer(self.mapping, np.uint32)
        first = HEADER_BYTES // 4
        self.buckets = [self.words[first + 16 * n : first + 16 * n + 4] for n in (0, 1)]

    def close(self) -> None:
        del self.words, self.buckets
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
    first, second = hand_made.buckets
    first[1] = CXL << 30
    assert view.lookup(SECRET, KEY).tolist() == [CXL]
    first[0] = 7
    start = time.monotonic()
    assert not view.lookup(SECRET, KEY * 1000).any()
    assert time.monotonic() - start < 1
    second[1] = FLASH << 30
    assert view.lookup(SECRET, KEY).tolist() == [FLASH]
    second[0] = 9
    assert view.lookup(SECRET, KEY).tolist() == [0]


def test_entry_that_moves_is_never_missed(hand_made: HandMadeTable) -> None:
    """A key that moves between its two buckets without end is hit by all of 15 million look-ups."""
    view = native.TableView(hand_made.fd)
    first, second = HEADER_BYTES // 4, HEADER_BYTES // 4 + 16
    hand_made.words[first + 1] = HOST << 30
    # Places and values of single stores, which numpy makes in this order within nanoseconds: to
    # the second bucket and back (new place, its version, old place, its version), with pauses.
    unused = [(100, 0)] * 30
    there = [(second + 1, HOST << 30), (second, 0), (first + 1, 0), (first, 0)]
    back = [(first + 1, HOST << 30), (first, 0), (second + 1, 0), (second, 0)]
    places = np.array([*there, *unused, *back, *unused] * 500)
    at, values = places[:, 0], places[:, 1].astype(np.uint32)
    for version in (first, second):
        values[at == version] = np.arange(2, 2002, 2)
    misses: list[int] = []

    def read() -> None:
        for _ in range(150):
            misses.append(int(np.count_nonzero(view.lookup(SECRET, KEY * 100_000) != HOST)))

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        hand_made.words[at] = values
    reader.join()
    assert sum(misses) == 0
