"""Counts on public traces, equal to those of a simulator that shares no line with this one."""

from __future__ import annotations

import json
import lzma
import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evoke.policy.lrfu import Lrfu
from evoke.policy.simulate import simulate
from evoke.policy.spec import make_formula
from evoke.policy.thresholds import Thresholds
from evoke.policy.traces import Trace, read_jsonl

DATA = Path(__file__).resolve().parent.parent / "data" / "traces"
with lzma.open(DATA / "oracle.json.xz") as file:
    ORACLE: dict[str, Any] = json.load(file)
FORMULAS = {"LRU": "lru", "FIFO": "fifo", "LFU": "lfu", "EMA": "lrfu", "PROD": "product"}
TRACES: dict[str, Trace] = {}


def trace_of(name: str) -> Trace:
    if name not in TRACES:
        with lzma.open(DATA / f"{name}.jsonl.xz") as lines:
            TRACES[name] = read_jsonl(lines)
    return TRACES[name]


def grouped() -> dict[tuple[str, str, bool], list[list[Any]]]:
    groups = defaultdict(list)
    for name, oracle in ORACLE.items():
        for row in oracle["rows"]:
            groups[name, row[0], row[4]].append(row)
    return groups


GROUPS = grouped()


def difference(trace: Trace, row: list[Any]) -> str | None:
    """What is wrong; None when the row comes out to the digit."""
    policy, alpha, beta, clock, keep, reverse, capacity, *expected = row
    given = {"alpha": alpha, "beta": beta, "clock": clock, "state": "keep" if keep else "reset"}
    formula = FORMULAS[policy]
    allowed = {"lru": (), "fifo": (), "lfu": ("state",), "product": ("alpha", "beta", "state")}
    keys = allowed.get(formula, ("alpha", "clock", "state"))
    made = make_formula(formula, {key: given[key] for key in keys})
    counts = simulate(trace, made, capacity, "tail-first" if reverse else "list")
    assert counts.accesses == trace.accesses
    found = [counts.hits, counts.prefix_hits, counts.evictions]
    return None if found == expected else f"{row}: {found}"


@pytest.mark.parametrize(("name", "policy", "keep"), GROUPS)
def test_counts_equal_the_oracle(name: str, policy: str, keep: bool) -> None:
    """Hits, prefix hits and evictions of every row are exactly those of the other simulator."""
    trace = trace_of(name)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda row: difference(trace, row), GROUPS[name, policy, keep])
    assert [wrong for wrong in found if wrong] == []


@pytest.mark.parametrize("row", ORACLE["mooncake_conversation"]["thresholds"])
def test_tiers_of_thresholds_equal_the_oracle(row: list[Any]) -> None:
    """Hits by tier and occupancies are exactly those of the other simulator; where keep is alpha,
    rounding decides who is in the first tier right after one access, and its mean is left out."""
    alpha, keep, evict, kept, hot, cold, miss, prefix, mean, most, hot_mean = row
    state = "keep" if kept else "reset"
    trace = trace_of("mooncake_conversation")
    counts = Thresholds(alpha=alpha, keep=keep, evict=evict, state=state).simulate(trace)
    assert (counts.hot, counts.cold, counts.prefix_hits) == (hot, cold, prefix)
    assert counts.accesses == hot + cold + miss
    assert (counts.resident_mean, counts.resident_max) == (mean, most)
    if keep != alpha:
        assert counts.resident_hot_mean == hot_mean


@pytest.mark.parametrize("name", ORACLE)
def test_the_traces_are_those_of_the_oracle(name: str) -> None:
    """Accesses and distinct blocks are those that the oracle counted; ids stand for prefixes."""
    trace = trace_of(name)
    known = ORACLE[name]
    assert (trace.accesses, trace.identities) == (known["accesses"], known["distinct_blocks"])
    assert trace.broken_prefix() is None


def test_a_half_life_is_an_alpha() -> None:
    """A half-life of ln 2 / -ln(1 - alpha) clock units gives the counts of alpha."""
    trace = trace_of("mooncake_conversation")
    half_life = math.log(2) / -math.log1p(-0.05)
    by_alpha, by_half_life = Lrfu(alpha=0.05, state="keep"), Lrfu(half_life=half_life, state="keep")
    counts = simulate(trace, by_alpha, 1827, "list")
    assert simulate(trace, by_half_life, 1827, "list") == counts
