"""The product: victim by victim what the formula says when every block is looked at."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from evoke.core import scores

Evicted = list[int]


def literal(requests: list[list[int]], capacity: int, alpha: float, beta: float) -> Evicted:
    """Every resident's priority for every eviction, as the formula stands; ties: least recent."""
    decay = -math.log1p(-alpha)
    keys: dict[int, float] = {}
    used: dict[int, tuple[int, int]] = {}  # clock and number of the last access
    resident: set[int] = set()
    evicted: Evicted = []
    accesses = 0

    def rank(block: int, clock: int) -> tuple[float, int]:
        at_clock, number = used[block]
        idle = math.expm1(-beta * (clock - at_clock))
        return -(math.expm1(keys[block] - clock * decay) * idle), number

    for clock, request in enumerate(requests):
        for block in reversed(request):
            if block not in resident and len(resident) >= capacity:
                victim = min(resident, key=lambda other: rank(other, clock))
                resident.remove(victim)
                evicted.append(victim)
            gain = math.log(alpha) + clock * decay
            had = keys.get(block, -math.inf)
            high, low = max(had, gain), min(had, gain)
            keys[block] = high if low == -math.inf else high + math.log1p(math.exp(low - high))
            used[block] = (clock, accesses)
            resident.add(block)
            accesses += 1
    return evicted


@pytest.mark.parametrize("seed", range(10))
def test_victims_are_those_of_the_formula(seed: int) -> None:
    """100 random streams a seed leave their blocks in the order that the plain formula gives."""
    rng = random.Random(seed)
    for _ in range(100):
        blocks = rng.choice((4, 12, 40))
        requests = [
            rng.sample(range(blocks), rng.randint(1, min(6, blocks)))
            for _ in range(rng.randint(5, 60))
        ]
        capacity = rng.randint(1, blocks)
        alpha, beta = rng.choice((0.001, 0.05, 0.3, 0.9)), rng.choice((1e-5, 0.001, 0.1, 1.0))
        known = scores.Identities()
        score, order = scores.Scores(known, alpha, True), scores.Product(known, alpha, beta)
        ids = np.array([block for request in requests for block in request], np.uint32)
        starts = np.cumsum([0, *map(len, requests)]).astype(np.uint64)
        now_s = np.arange(len(requests), dtype=np.float64)
        victims = scores.Victims()
        stream = (ids, starts, now_s, blocks, capacity, True, "request", True, False, True)
        scores.simulate(*stream, known, score, order, victims)
        assert victims.ids.tolist() == literal(requests, capacity, alpha, beta)


def test_rescaled_counts_a_first_use_as_a_half() -> None:
    """One access gives a score of alpha: rescaled, what is left of 1 - score is a half."""
    known = scores.Identities()
    raw = scores.Product(known, 0.05, 0.001)
    rescaled = scores.Product(known, 0.05, 0.001, True)
    key, idle = math.log(0.05), 1 - math.exp(-0.05)
    assert math.isclose(raw.priority(key, 0.0, 0.0), 0.0, abs_tol=1e-15)
    decay = -math.log1p(-0.05)
    at_50 = key + 50 * decay  # a score of alpha at clock 50, last used at 0
    assert math.isclose(raw.priority(at_50, 0.0, 50.0), 0.95 * idle)
    assert math.isclose(rescaled.priority(at_50, 0.0, 50.0), 0.5 * idle)


@pytest.mark.parametrize(
    ("score", "idle", "priority"), [(0.059, 50, 0.045893), (0.02, 2000, 0.847371)]
)
def test_worked_example(score: float, idle: float, priority: float) -> None:
    """The source documents' example: block A stays, block B goes."""
    decay = -math.log1p(-0.05)
    order = scores.Product(scores.Identities(), 0.05, 0.001)
    found = order.priority(math.log(score) + idle * decay, 0.0, float(idle))
    assert round(found, 6) == priority


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, math.inf)])
def test_bad_constants_are_named(alpha: float, beta: float) -> None:
    """A constant out of range is refused, with its name and number."""
    with pytest.raises(ValueError, match=r"(alpha|beta): "):
        scores.Product(scores.Identities(), alpha, beta)
