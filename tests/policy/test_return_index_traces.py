"""The return index on the beginnings of two recorded streams, beside the bound and the classics."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evoke.core import scores
from evoke.policy.clairvoyant import Clairvoyant
from evoke.policy.classics import Lru
from evoke.policy.formula import Formula
from evoke.policy.return_index import CLASSES, ReturnIndex
from evoke.policy.simulate import simulate
from evoke.policy.traces import Trace, read_jsonl

STREAMS = ("conversation", "agentic")
SHARES = (0.02, 0.1, 0.5)


@cache
def stream(name: str) -> Trace:
    """The recorded requests."""
    with lzma.open(Path(__file__).parent / "data" / f"{name}_head.jsonl.xz") as lines:
        return read_jsonl(lines)


def prefix_hits(name: str, formula: Formula, share: float) -> int:
    """Of a cache that holds this share of the stream's blocks."""
    trace = stream(name)
    return simulate(trace, formula, int(share * trace.identities), "tail-first").prefix_hits


def victims(name: str, formula: Formula, capacity: int) -> scores.Victims:
    """Who left, in order."""
    trace, known, left = stream(name), scores.Identities(), scores.Victims()
    scores.simulate(
        trace.ids,
        trace.starts,
        trace.now_s,
        trace.identities,
        capacity,
        tail_first=True,
        clock="second",
        keep_state=True,
        chains=True,
        scored=False,
        known=known,
        scores=formula.scores(known),
        order=formula.order(known, capacity),
        victims=left,
    )
    return left


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", STREAMS)
def test_no_set_of_classes_gets_more_than_the_bound(name: str, share: float) -> None:
    """The clairvoyant cache is ahead of every set of classes, and of LRU."""
    bound = prefix_hits(name, Clairvoyant(), share)
    formulas: list[Formula] = [*map(ReturnIndex, CLASSES), Lru()]
    for formula in formulas:
        assert 0 < prefix_hits(name, formula, share) <= bound


@pytest.mark.parametrize("name", STREAMS)
def test_a_small_cache_gets_more_than_by_recency(name: str) -> None:
    """At a tenth of the blocks the default is ahead of LRU."""
    assert prefix_hits(name, ReturnIndex(), 0.1) > prefix_hits(name, Lru(), 0.1)


@pytest.mark.parametrize("name", STREAMS)
def test_residents_are_whole_prefixes_after_every_request(name: str) -> None:
    """The parent of a resident block is resident, and the cache is never over its capacity."""
    trace = stream(name)
    capacity = trace.identities // 20
    left = victims(name, ReturnIndex(), capacity)
    starts, left_starts = trace.starts.astype(int), left.starts.astype(int)
    parent = np.full(trace.identities, -1)
    resident = np.zeros(trace.identities, bool)
    for i in range(trace.requests):
        ids = trace.ids[starts[i] : starts[i + 1]]
        parent[ids[1:]] = ids[:-1]
        resident[ids] = True
        gone = left.ids[left_starts[i] : left_starts[i + 1]]
        assert resident[gone].all()
        resident[gone] = False
        parents = parent[np.flatnonzero(resident)]
        assert resident[parents[parents >= 0]].all()
        assert resident.sum() <= capacity


@pytest.mark.parametrize("name", STREAMS)
def test_two_runs_are_the_same(name: str) -> None:
    """The same stream makes the same blocks leave in the same order."""
    capacity = stream(name).identities // 20
    first, second = (victims(name, ReturnIndex(), capacity) for _ in range(2))
    assert len(first.ids) > 0
    assert np.array_equal(first.ids, second.ids)
