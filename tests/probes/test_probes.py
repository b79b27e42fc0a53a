"""Probes that have brought other cache services down, turned on this one. Those that need no more
than a request are in tests/daemon."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start, assert_idle
from tests.daemon.peer import (
    BLOCK,
    DaemonProcess,
    Engine,
    Peer,
    chain,
    eventually,
    in_child,
    make_namespace,
)

TIER_BLOCKS = (2 << 20) // BLOCK

RAISING_VERB = """
from evoked.reads import Reads

def touch(self, session, number, args):
    return 1 // 0

Reads.touch = touch
"""
POLICY_THAT_DIES_ONCE = """
from evoke.policy.ranking import Ranking

victims = Ranking.victims

def die(self, *args):
    Ranking.victims = victims
    raise RuntimeError("the policy died")

Ranking.victims = die
"""


def defective(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    """Daemons that are started from now on have the defect."""
    (tmp_path / "sitecustomize.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def end_after_a_defect(daemon: DaemonProcess) -> None:
    """An orderly stop would demand a clean log."""
    assert_idle(daemon, "yellow")
    daemon.kill()


def round_trip(engine: Engine, seed: int) -> None:
    keys = chain(engine.namespace, 8, seed)
    wanted = engine.fill(seed)
    assert engine.store(keys) == [Stored.STORED] * 8
    engine.bytes[:] = 0
    assert engine.fetch(keys) == [Fetched.HOST] * 8
    assert (engine.blocks[:8] == wanted[:8]).all()


def test_handler_that_raises(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A defect in a verb is answered as such and logged; the session and all others go on."""
    defective(monkeypatch, tmp_path, RAISING_VERB)
    daemon = start()
    with daemon.engine(make_namespace()) as engine, daemon.peer() as other:
        key = chain(engine.namespace, 1)
        for _ in range(100):
            assert engine.peer.call("touch", engine.handle, key, 0)[0] == Code.INTERNAL
        round_trip(engine, 1)
        assert other.call("ping")[0] == Code.OK
    assert "ZeroDivisionError" in daemon.log()
    end_after_a_defect(daemon)


def test_policy_that_dies(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A policy that raises when room is needed fails that store, and no block, place or later
    store."""
    defective(monkeypatch, tmp_path, POLICY_THAT_DIES_ONCE)
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace()
    with daemon.engine(namespace, TIER_BLOCKS) as engine:
        keys = chain(namespace, TIER_BLOCKS + 8)
        full, more = keys[: TIER_BLOCKS * 32], keys[TIER_BLOCKS * 32 :]
        assert engine.store(full) == [Stored.STORED] * TIER_BLOCKS
        args = engine.store_args(more, first=TIER_BLOCKS, parent=full[-32:])
        assert engine.peer.call("store", *args)[0] == Code.INTERNAL
        assert engine.lookup(full) == [Fetched.HOST] * TIER_BLOCKS
        round_trip(engine, 2)
        # Nothing stayed held for the request that failed: everything can leave.
        other = chain(namespace, TIER_BLOCKS, seed=3)
        assert engine.store(other) == [Stored.STORED] * TIER_BLOCKS
        assert engine.peer.ok("audit")["findings"] == []
    end_after_a_defect(daemon)


def reserve_and_vanish(daemon: DaemonProcess, seed: int) -> str:
    """In a child: holds as much of the tier as there is, then is killed."""
    peer = Peer(daemon.directory)
    engine = Engine(peer, make_namespace(f"vanish-{seed}"), 16)
    keys = chain(engine.namespace, TIER_BLOCKS, seed)
    assert engine.store(keys[:512]) == [Stored.STORED] * 16
    engine.pin(keys[:512], hold_ms=3_600_000)
    grant, _ = engine.reserve(keys[512:], first=16, parent=keys[480:512], hold_ms=3_600_000)
    assert grant
    peer.send("store", *engine.store_args(chain(engine.namespace, 16, seed + 1000)))
    os.kill(os.getpid(), signal.SIGKILL)
    return "still here"


def test_reserve_and_vanish(start: Start) -> None:
    """Engines that reserve the whole tier and are killed leave room for the next, each time; and
    no mapping, descriptor, grant or shared memory."""
    daemon = start(host__capacity="2MiB")
    shared_memory = set(os.listdir("/dev/shm"))
    with daemon.peer() as first:
        first.ok("ping")
        fds = daemon.fds()  # with those of one session, three
    for seed in range(10):
        assert in_child(lambda seed=seed: reserve_and_vanish(daemon, seed)) == ""  # type: ignore[misc]
        assert eventually(lambda: daemon.fds() < fds, 1.0)
    assert eventually(lambda: daemon.pool_mappings() == 0)
    assert set(os.listdir("/dev/shm")) <= shared_memory
    with daemon.engine(make_namespace(), TIER_BLOCKS) as engine:
        keys = chain(engine.namespace, TIER_BLOCKS)
        assert engine.store(keys) == [Stored.STORED] * TIER_BLOCKS
        assert engine.peer.status()["grants"] == 0
