"""Agent sessions, replayed block by block against published counters."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from evoke.policy.sessions import COUNTERS, Session, load_sessions, replay

TRACE = Path(__file__).parent / "data/agent_session.jsonl.xz"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.open(TRACE, "rt")]


@pytest.fixture(scope="module")
def sessions(records: list[dict[str, Any]]) -> dict[str, Session]:
    return {session.name: session for session in load_sessions(records)}


def test_published_turns_are_equal(sessions: dict[str, Session]) -> None:
    """All six counters of all 105 published turns come out, to the unit."""
    rows = [row for session in sessions.values() for row in replay(session)]
    assert sum(row.published_equal is True for row in rows) == 105
    assert [row for row in rows if row.published_equal is False] == []


def test_derived_turns_are_equal(
    sessions: dict[str, Session], records: list[dict[str, Any]]
) -> None:
    """Turns without a published row have the counters of the trace's own model, too."""
    derived = {(r["session"], r["turn"]): r["derived"] for r in records if r["type"] == "turn"}
    rows = [row for session in sessions.values() for row in replay(session)]
    assert len(rows) == 127
    for row in rows:
        wanted = derived[row.session, row.turn]
        assert {n: getattr(row.counts, n) for n in COUNTERS} == {n: wanted[n] for n in COUNTERS}


def test_headline_figures(sessions: dict[str, Session]) -> None:
    """The figures that the acceptance case names."""
    case = {
        one["id"]: one
        for one in json.loads((TRACE.parent / "evoke-cases.json").read_text())["cases"]
    }["long_session_replay"]["expect"]
    everything = [row.counts for row in replay(sessions["gapfill/everything"])]
    aware = [row.counts for row in replay(sessions["gapfill/aware"])]
    last = everything[25]
    assert last.resident_end == case["everything_turn25"]["resident_end"]
    assert last.blocks_evicted == case["everything_turn25"]["evicted"]
    assert last.blocks_recovered == case["everything_turn25"]["spliced"]
    assert max(c.resident_end for c in aware) == case["aware_max_resident_end"]
    assert max(c.peak_resident for c in aware) == case["aware_peak_max"]
    assert max(c.peak_resident for c in everything) == case["everything_peak_max"]
    assert sum(c.blocks_recovered for c in aware) == case["aware_blocks_spliced_total"]
    first = everything[12]
    assert first.blocks_evicted == case["first_eviction_turn12"]["blocks"]
    assert first.tokens_evicted == case["first_eviction_turn12"]["tokens"]
    assert first.resident_end == case["first_eviction_turn12"]["resident_end"]


def test_own_rules_keep_the_budget(sessions: dict[str, Session]) -> None:
    """With splices last instead of exempt no turn of any session ends above its budget; the
    source's rules break it in five of them."""
    broken = set()
    for session in sessions.values():
        budget = session.rules.budget_tokens
        for row in replay(session, "last"):
            assert row.counts.resident_end <= budget
            assert row.counts.over_budget_tokens == 0
        if any(row.counts.resident_end > budget for row in replay(session)):
            broken.add(session.name)
    assert "gapfill/everything" in broken
    assert "loom_evict/A" in broken


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"type": "turn", "session": "x", "turn": 0}, "record 1: 'x'"),
        ({"type": "noise", "session": "x"}, "record 1: type"),
        ({"session": "x"}, "record 1: 'type'"),
        (
            {"type": "block", "session": "x", "turn": 0, "start": -1, "tokens": 1},
            "record 1: start: -1",
        ),
    ],
)
def test_bad_records_are_named(record: dict[str, Any], sentence: str) -> None:
    """A record that does not fit is a ValueError with its number and what is wrong."""
    with pytest.raises(ValueError, match=sentence):
        load_sessions([record])
