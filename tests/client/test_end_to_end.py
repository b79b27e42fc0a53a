"""The client against the daemon itself, in processes of their own."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.client import Client, Fetched, Group, Part, Stored, Unavailable, connect
from tests.client.conftest import Connect, Engine
from tests.client.peer import make_namespace
from tests.daemon.peer import DaemonProcess

Start = Callable[[], DaemonProcess]


@pytest.fixture
def start(socket_dir: Path) -> Iterator[Start]:
    """start(): a daemon in socket_dir/s; a second call starts it again."""
    daemons: list[DaemonProcess] = []

    def make() -> DaemonProcess:
        daemons.append(DaemonProcess(socket_dir, {}))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def joined(socket_dir: Path) -> Iterator[Connect]:
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        clients.append(connect(socket_dir / "s", **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


STORE = """
import sys
from evoke.client import connect
from tests.client.conftest import Engine
with connect(sys.argv[1], raise_errors=True) as client:
    engine = Engine(client)
    engine.fill(seed=7)
    print(engine.space.store(engine.pool, engine.chain(10), range(10)).stored)
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_blocks_outlive_the_process_that_stored_them(
    socket_dir: Path, start: Start, joined: Connect
) -> None:
    """What one process stored and left, another finds and fetches bit by bit; the look-ups of
    both are counted."""
    daemon = start()
    assert run(STORE, str(socket_dir / "s")) == "10\n"
    engine = Engine(joined(raise_errors=True))
    chain = engine.chain(12)
    assert engine.space.lookup(chain) == 10
    wanted = engine.fill(seed=7)
    engine.array[:] = 0
    result = engine.space.fetch(engine.pool, chain, range(12))
    assert result.codes.tolist() == [Fetched.HOST] * 10 + [Fetched.MISS] * 2
    np.testing.assert_array_equal(engine.array[:10], wanted[:10])
    assert not engine.array[10:].any()
    lookups = engine.client.status()["lookups"]
    assert (lookups["asked"], lookups["hit_host"], lookups["missed"]) == (12, 10, 2)
    engine.client.close()
    daemon.stop()


def test_killed_daemon_is_survived_and_its_successor_used(
    start: Start, joined: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Under a working client the daemon is killed: misses within the deadline, never an error.
    Started again, it is used again with the same memory."""
    daemon = start()
    engine = Engine(joined())
    wanted, chain = engine.fill(), engine.chain(8)
    stop = threading.Event()
    slowest = [0.0]

    def work() -> None:
        while not stop.is_set():
            begin = time.monotonic()
            engine.space.store(engine.pool, chain, range(8))
            engine.space.fetch(engine.pool, chain, range(8, 16))
            engine.space.lookup(chain)
            slowest[0] = max(slowest[0], time.monotonic() - begin)

    threads = [threading.Thread(target=work)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        daemon.kill()
        time.sleep(0.3)
        assert engine.space.lookup(chain) == 0
        start()
        deadline = time.monotonic() + 10
        while engine.space.lookup(chain) != 8:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    engine.pool.check_usable()
    engine.array[8:] = 0
    assert engine.space.fetch(engine.pool, chain, range(8, 16)).leading == 8
    np.testing.assert_array_equal(engine.array[8:], wanted[:8])
    assert slowest[0] < 4.0
    texts = [r.getMessage() for r in caplog.records if r.name == "evoke"]
    assert ["back" in text for text in texts] == [False, True]


def test_stopped_daemon_costs_the_timeout_only(start: Start, joined: Connect) -> None:
    """A daemon that is frozen costs a call its timeout, and is used again when it thaws."""
    daemon = start()
    engine = Engine(joined())
    chain = engine.chain(2)
    os.kill(daemon.pid, signal.SIGSTOP)
    begin = time.monotonic()
    result = engine.space.store(engine.pool, chain, [0, 1], timeout_s=0.3)
    assert time.monotonic() - begin < 2.0
    assert result.codes.tolist() == [Stored.LATE] * 2
    os.kill(daemon.pid, signal.SIGCONT)
    deadline = time.monotonic() + 10
    while engine.space.store(engine.pool, chain, [0, 1], timeout_s=1).readable < 2:
        assert time.monotonic() < deadline
    assert engine.space.fetch(engine.pool, chain, [2, 3]).leading == 2


def test_threads_of_one_client_do_not_mix_their_blocks(start: Start, joined: Connect) -> None:
    """Threads that store and fetch at the same time each get their own bytes back."""
    start()
    engine = Engine(joined(raise_errors=True))
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(40):
            chain = engine.chain(2, seed=1000 * number + turn)
            mine = range(4 * number, 4 * number + 4)
            engine.array[mine[0] : mine[2]] = 1000 * number + turn
            engine.space.store(engine.pool, chain, mine[:2])
            engine.space.fetch(engine.pool, chain, mine[2:])
            if not (engine.array[mine[2] : mine[3] + 1] == 1000 * number + turn).all():
                failures.append(f"thread {number} turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_ranks_complete_a_block_together(start: Start, joined: Connect) -> None:
    """A block of two parts is visible when both ranks of one engine have stored theirs, and each
    fetches its own; a pin of one rank holds for the other."""
    start()
    part = Part(groups=(Group(layers=2, kv_heads=1, head_size=8),))
    namespace = make_namespace(parts=(part, part), rank_parts=(0, 1))
    first = joined(raise_errors=True)
    second = joined(raise_errors=True, join=first.join_token, rank=1)
    ranks = []
    for client in (first, second):
        space = client.namespace(namespace)
        memory = client.pool_memory(4 * part_bytes(namespace))
        array = memory.array((4, 2, 2, 4, 1, 8), np.float32)
        pool = space.register_pool(memory, array, "slot layer kv token head element")
        array[:] = np.random.default_rng(client.rank).random(array.shape)
        ranks.append((space, array, pool))
    (one, one_array, one_pool), (two, two_array, two_pool) = ranks
    chain = one.keys(list(range(8)))
    assert one.store(one_pool, chain, [0, 1]).codes.tolist() == [Stored.INCOMPLETE] * 2
    assert one.lookup(chain) == two.lookup(chain) == 0
    assert two.store(two_pool, chain, [0, 1]).codes.tolist() == [Stored.STORED] * 2
    assert one.lookup(chain) == two.lookup(chain) == 2
    with one.pin(chain, 30) as pin:
        shared = two.shared_pin(pin.export())
        assert two.fetch(two_pool, chain, [2, 3], pin=shared).leading == 2
        shared.release()
        assert one.fetch(one_pool, chain, [2, 3], pin=pin).leading == 2
    for array in (one_array, two_array):
        np.testing.assert_array_equal(array[2:], array[:2])
    assert not np.array_equal(one_array, two_array)


def part_bytes(namespace: Any) -> int:
    return int(namespace.parts[0].part_bytes)


# ---------------------------------------------------------------- embedded

PARENT = """
import sys
from evoke.client import connect
client = connect("embedded", config={"host.capacity": "16MiB"}, raise_errors=True)
print(client.status()["pid"], client.link._directory, flush=True)
sys.stdin.read()
"""


def test_embedded_daemon_serves_and_ends_with_its_client() -> None:
    """connect("embedded") brings a private daemon with the given configuration; close() ends it and
    removes its directory."""
    config = {"host.capacity": "16MiB", "daemon.workers": 1}
    with connect("embedded", config=config, raise_errors=True) as client:
        engine = Engine(client)
        wanted = engine.fill()
        assert engine.space.store(engine.pool, engine.chain(4), range(4)).stored == 4
        assert engine.space.fetch(engine.pool, engine.chain(4), range(8, 12)).leading == 4
        np.testing.assert_array_equal(engine.array[8:12], wanted[:4])
        status = client.status()
        assert status["tiers"][0]["capacity_bytes"] == 16 << 20
        directory = client.link._directory
        assert directory.is_dir()
        daemon = os.pidfd_open(status["pid"])
    assert _ended(daemon)
    assert not directory.exists()


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_embedded_daemon_never_outlives_its_parent(how: str) -> None:
    """However the process that started it ends, the embedded daemon ends as well."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    directory = ""
    try:
        pid, directory = parent.stdout.readline().split()
        daemon = os.pidfd_open(int(pid))
        if how == "kill":
            parent.kill()
        else:
            parent.stdin.close()
        assert _ended(daemon)
        assert parent.wait(10) == (-signal.SIGKILL if how == "kill" else 0)
        assert how == "kill" or not os.path.exists(directory)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        parent.stdin.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_embedded_daemon_that_cannot_start_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A bad configuration is an exception if exceptions are wanted, else an absent daemon."""
    config = {"host.capacity": "a lot"}
    with pytest.raises(Unavailable, match="ended with status"):
        connect("embedded", config=config, raise_errors=True)
    with connect("embedded", config=config) as client:
        assert not client.connected
    assert any("ended with status" in record.getMessage() for record in caplog.records)


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        return bool(poll.poll(10_000))
    finally:
        os.close(pidfd)


def test_ranks_find_each_other_again_after_a_restart(start: Start, joined: Connect) -> None:
    """The processes of an engine are one engine in the next daemon as well, whoever comes first."""
    daemon = start()
    first = joined(raise_errors=True)
    second = joined(raise_errors=True, join=first.join_token, rank=1)
    daemon.kill()
    start()
    for client in (second, first):
        deadline = time.monotonic() + 5
        while not client.connected:
            assert time.monotonic() < deadline
            client.link.connection(time.monotonic() + 1)
    sessions = first.status()["sessions"]
    assert len({row["instance"] for row in sessions}) == 1
    assert sorted(row["rank"] for row in sessions) == [0, 1]
