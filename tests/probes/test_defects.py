"""A defect of ours behind a copy, or while one is begun: one answer, and nothing stays taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoke.client.namespace import Group, Namespace, Part
from evoke.client.wire import Code, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, Engine, chain, make_namespace
from tests.probes.test_probes import defective, end_after_a_defect, round_trip

TIER_BLOCKS = (2 << 20) // BLOCK

# Each raises once.
AFTER_THE_COPY = """
from evoked.events import Announcer

keys = Announcer.keys

def die(self, kind, *args):
    if kind != "{kind}":
        return keys(self, kind, *args)
    Announcer.keys = keys
    raise RuntimeError("a defect")

Announcer.keys = die
"""
AT_SUBMISSION = """
from evoked.transfers import Transfers

{verb} = Transfers.{verb}

def die(self, *args):
    Transfers.{verb} = {verb}
    raise RuntimeError("a defect")

Transfers.{verb} = die
"""


def nothing_stays_taken(engine: Engine) -> None:
    """What the failed request named can be stored, and the whole tier can change hands."""
    assert engine.peer.ok("audit")["findings"] == []
    status = engine.peer.status()
    assert (status["transfers"], status["counters"]["defects"]) == (0, 1)
    assert "1 requests met a defect" in status["health"]["reasons"][0]
    other = make_namespace()
    with_all = Engine(engine.peer, other, TIER_BLOCKS)
    assert with_all.store(chain(other, TIER_BLOCKS)) == [Stored.STORED] * TIER_BLOCKS
    assert with_all.usage()[0] == TIER_BLOCKS
    with_all.close()


@pytest.mark.parametrize(
    "source",
    [AFTER_THE_COPY.format(kind="stored"), AT_SUBMISSION.format(verb="store")],
    ids=["after", "submission"],
)
def test_store_meets_a_defect(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """The store is answered "internal" once; its places and the chain that it held are free."""
    defective(monkeypatch, tmp_path, source)
    daemon = start(host__capacity="2MiB")
    with daemon.engine(make_namespace()) as engine:
        keys = chain(engine.namespace, 8)
        assert engine.peer.call("store", *engine.store_args(keys))[0] == Code.INTERNAL
        assert engine.peer.call("ping")[0] == Code.OK  # no second answer came before it
        round_trip(engine, 7)
        nothing_stays_taken(engine)
    end_after_a_defect(daemon)


@pytest.mark.parametrize(
    "source",
    [AFTER_THE_COPY.format(kind="restored"), AT_SUBMISSION.format(verb="fetch")],
    ids=["after", "submission"],
)
def test_fetch_meets_a_defect(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """The fetch is answered "internal" once, and its blocks are not held."""
    defective(monkeypatch, tmp_path, source)
    daemon = start(host__capacity="2MiB")
    with daemon.engine(make_namespace()) as engine:
        keys = chain(engine.namespace, 8)
        assert engine.store(keys) == [Stored.STORED] * 8
        assert engine.peer.call("fetch", *engine.fetch_args(keys))[0] == Code.INTERNAL
        round_trip(engine, 7)
        nothing_stays_taken(engine)
    end_after_a_defect(daemon)


@pytest.mark.parametrize(
    "source",
    [AFTER_THE_COPY.format(kind="stored"), AT_SUBMISSION.format(verb="store")],
    ids=["after", "submission"],
)
@pytest.mark.parametrize("reserved", [False, True])
def test_rank_meets_a_defect(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, reserved: bool
) -> None:
    """Of an engine with ranks the parts that were being copied are dropped, and can be stored."""
    defective(monkeypatch, tmp_path, source)
    daemon = start(host__capacity="2MiB")
    part = Part(groups=(Group(layers=1, kv_heads=1, head_size=32),))
    namespace: Namespace = make_namespace(parts=(part, part), rank_parts=(0, 1))
    with (
        daemon.engine(namespace) as a,
        daemon.engine(namespace, join=a.peer.join, rank=1) as b,
    ):
        keys = chain(namespace, 8)
        grant = a.reserve(keys)[0] if reserved else 0

        def write(engine: Engine) -> tuple[Code, object]:
            if not reserved:
                return engine.peer.call("store", *engine.store_args(keys))
            packed = b"".join(number.to_bytes(4, "little") for number in range(8))
            return engine.peer.call("commit", grant, engine.pool, packed, packed, 5000, 0)

        codes = [write(a)[0], write(b)[0]]
        assert codes.count(Code.INTERNAL) == 1
        if reserved:
            a.peer.call("abort", grant)
        assert Stored.REFUSED not in a.store(keys) + b.store(keys)
        assert a.lookup(keys) == [1] * 8
        nothing_stays_taken(a)
    end_after_a_defect(daemon)
