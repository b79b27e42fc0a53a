"""Reports of look-ups: complete, once per request, in batches, in time, and bounded."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from evoke.client import BadArgument, wire
from tests.client.conftest import Connect, Engine
from tests.client.peer import ScriptedDaemon, make_namespace


def reports(daemon: ScriptedDaemon) -> list[Any]:
    return [r for verb, args in daemon.requests if verb == "asked" for r in args.reports]


def wait_for(daemon: ScriptedDaemon, count: int, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while len(reports(daemon)) < count:
        assert time.monotonic() < deadline, reports(daemon)
        time.sleep(0.002)


def test_lookup_is_reported_soon(engine: Engine, daemon: ScriptedDaemon) -> None:
    """An engine that only looks up has its look-ups reported within 100 ms, with their hits."""
    chain = engine.chain(5)
    engine.space.store(engine.pool, chain[:2], [0, 1])
    begin = time.monotonic()
    assert engine.space.lookup(chain) == 2
    wait_for(daemon, 1)
    assert time.monotonic() - begin < 0.25  # 100 ms and what a busy machine adds
    (report,) = reports(daemon)
    assert (report.keys, report.first, report.hits) == (chain.keys, 0, 2)
    engine.space.lookup(chain[1:])
    wait_for(daemon, 2)
    assert (reports(daemon)[1].first, reports(daemon)[1].hits) == (1, 1)


def test_next_request_takes_the_reports_along(engine: Engine, daemon: ScriptedDaemon) -> None:
    """A request that follows a look-up is preceded by its report."""
    engine.space.lookup(engine.chain(1))
    engine.client.ping()
    assert [verb for verb, _ in daemon.requests[-2:]] == ["asked", "ping"]


def test_request_is_reported_once(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Look-ups with the same number are one report, with the first's hits; without a number each
    is one of its own."""
    chain = engine.chain(3)
    for _ in range(5):
        engine.space.lookup(chain, ask=41)
    engine.space.store(engine.pool, chain, range(3))
    engine.space.lookup(chain, ask=41)
    engine.space.lookup(chain, ask=42)
    engine.space.lookup(chain)
    engine.space.lookup(chain)
    engine.client.ping()
    got = reports(daemon)
    assert [(r.hits, r.ask) for r in got[:2]] == [(0, 41), (3, 42)]
    assert len({r.ask for r in got}) == len(got) == 4
    for ask in (-1, 1 << 62):
        with pytest.raises(BadArgument, match="ask"):
            engine.space.lookup(chain, ask=ask)


def test_batches_fit_their_frames(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Many and long reports are sent in several frames, each within the limits of the wire."""
    long, short = engine.chain(8000), engine.chain(1)
    for _ in range(8):
        engine.space.lookup(long)
    for _ in range(wire.REPORTS_MAX + 5):
        engine.space.lookup(short)
    engine.client.ping()
    frames = [args.reports for verb, args in daemon.requests if verb == "asked"]
    assert len(reports(daemon)) == 8 + wire.REPORTS_MAX + 5
    assert all(len(frame) <= wire.REPORTS_MAX for frame in frames)
    assert all(sum(len(r.keys) for r in frame) < 1 << 20 for frame in frames)


def test_long_chain_is_reported_in_pieces(
    engine: Engine, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of more keys than a request may have is reported piece by piece, none dropped as a
    repetition, and hits add up."""
    monkeypatch.setattr(wire, "KEYS_MAX", 3)
    chain = engine.chain(8)
    engine.space.store(engine.pool, chain[:4], range(4))
    engine.space.lookup(chain, ask=7)
    engine.client.ping()
    got = [(r.first, len(r.keys) // 32, r.hits) for r in reports(daemon)]
    assert got == [(0, 3, 3), (3, 3, 1), (6, 2, 0)]
    assert len({r.ask for r in reports(daemon)}) == 3


def test_oldest_reports_are_dropped_and_counted(
    engine: Engine, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More look-ups than can be kept lose the oldest reports, which are counted."""
    monkeypatch.setattr("evoke.client.reports.REPORTS_MAX", 10)
    for ask in range(25):
        engine.space.lookup(engine.chain(1), ask=ask)
    engine.client.ping()
    assert [r.ask for r in reports(daemon)][-10:] == list(range(15, 25))
    assert engine.client.link.reports.dropped + len(reports(daemon)) == 25


def test_close_sends_what_is_left(daemon: ScriptedDaemon, joined: Connect) -> None:
    """The last look-ups before close() are reported."""
    client = joined()
    space = client.namespace(make_namespace())
    space.lookup(space.keys(list(range(4))))
    client.close()
    wait_for(daemon, 1)


def test_idle_client_costs_nothing(engine: Engine, daemon: ScriptedDaemon) -> None:
    """With nothing to report the background thread sleeps without a timeout."""
    engine.space.lookup(engine.chain(1))
    wait_for(daemon, 1)
    time.sleep(0.2)
    (thread,) = [t for t in threading.enumerate() if t.name == "evoke-reports"]
    before = _switches(thread)
    time.sleep(0.5)
    assert _switches(thread) == before


def _switches(thread: threading.Thread) -> int:
    """How often the thread was scheduled."""
    with open(f"/proc/self/task/{thread.native_id}/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows["voluntary_ctxt_switches"]) + int(rows["nonvoluntary_ctxt_switches"])
