"""The order `relevance` of a tier against a literal model."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from evoke.core import scores
from evoke.policy.relevance import ROLES, Relevance, recency


def literal(
    formula: Relevance, requests: list[list[int]], capacity: int, keep_state: bool
) -> tuple[int, int, int]:
    """(hits, prefix hits, evictions): the definition, valuing every resident at each eviction."""
    lam, log_alpha = -math.log1p(-formula.alpha), math.log(formula.alpha)
    key: dict[int, float] = {}
    last: dict[int, tuple[int, int]] = {}
    resident: set[int] = set()
    hits = prefix = evictions = seq = 0

    def value(block: int, now: int) -> float:
        total = formula.coherence * 0.5
        total += formula.recency * math.exp(-formula.decay * (now - last[block][0]))
        weight = formula.coherence + formula.recency
        if formula.attention > 0:
            total += formula.attention * math.exp(key[block] - log_alpha + log_alpha - now * lam)
            weight += formula.attention
        return total / weight

    for now, blocks in enumerate(requests):
        prefix += next((i for i, b in enumerate(blocks) if b not in resident), len(blocks))
        for block in blocks:
            if block in resident:
                hits += 1
            elif len(resident) == capacity:
                victim = min(resident, key=lambda b: (value(b, now), *last[b]))
                resident.remove(victim)
                evictions += 1
                if not keep_state:
                    key.pop(victim)
            added = log_alpha + now * lam
            if block in key:
                high, low = max(key[block], added), min(key[block], added)
                added = high + math.log1p(math.exp(low - high))
            key[block] = added
            last[block] = (now, seq)
            seq += 1
            resident.add(block)
    return hits, prefix, evictions


def simulated(
    formula: Relevance, requests: list[list[int]], capacity: int, keep_state: bool
) -> tuple[int, int, int]:
    known = scores.Identities()
    counts = scores.simulate(
        np.array([b for r in requests for b in r], np.uint32),
        np.cumsum([0] + [len(r) for r in requests]).astype(np.uint64),
        np.arange(len(requests), dtype=np.float64),
        1 + max(b for r in requests for b in r),
        capacity,
        False,
        "request",
        keep_state,
        False,
        True,
        known,
        formula.scores(known),
        formula.order(known, capacity),
    )
    return counts["hits"], counts["prefix_hits"], counts["evictions"]


def test_order_is_the_definition() -> None:
    """1,000 random traces: the same hits, prefix hits and evictions as the literal model."""
    rng = random.Random(4)
    for _ in range(1000):
        formula = Relevance(
            coherence=rng.choice([0.0, 0.3, 0.6]),
            recency=rng.choice([0.2, 0.4]),
            attention=rng.choice([0.0, 0.5]),
            decay=rng.choice([0.0, 0.01, 0.5]),
            alpha=rng.choice([0.05, 0.2, 0.9]),
        )
        blocks = rng.randrange(4, 12)
        requests = [
            rng.sample(range(blocks), rng.randrange(1, 4)) for _ in range(rng.randrange(5, 40))
        ]
        capacity = rng.randrange(3, blocks)
        keep = rng.random() < 0.5
        assert simulated(formula, requests, capacity, keep) == literal(
            formula, requests, capacity, keep
        )


def test_vanished_recency_still_orders() -> None:
    """After an idle time that the sum cannot show, the least recent block goes."""
    requests = [[0], [1], [2]] + [[3]] * 200 + [[4], [1, 2]]
    formula = Relevance(decay=1.0)
    assert simulated(formula, requests, 4, True)[0] == 199 + 2


def test_roles_priorities_and_coherence_rank() -> None:
    """Floors rescale by role, priority multiplies, coherence moves a block: the victims are those
    of the Python formula, in its order."""
    rng = random.Random(5)
    formula = Relevance(decay=0.1)
    for _ in range(200):
        count = rng.randrange(2, 12)
        known = scores.Identities()
        known.grow(count)
        order = formula.order(known, count)
        assert isinstance(order, scores.Relevance)
        order.grow(count)
        near = np.array([rng.random() for _ in range(count)], np.float32)
        order.set_coherence(np.arange(count, dtype=np.uint32), near)
        roles = [rng.randrange(len(ROLES)) for _ in range(count)]
        priorities = [rng.choice([4, 16, 32]) for _ in range(count)]
        for block in range(count):
            known.set_role(block, roles[block], priorities[block])
            known.note(block, float(block), block)
            order.admit(block)
        raw = formula.blend(
            {"coherence": near.astype(np.float64), "recency": recency(20.0 - np.arange(count), 0.1)}
        )
        floors = [formula.floor(ROLES[role]) for role in roles]
        values = formula.value(raw, floors, np.array(priorities) / 16)
        wanted = np.lexsort((np.arange(count), values))
        assert order.victims(count, 20.0).tolist() == wanted.tolist()


def test_held_blocks_stay() -> None:
    """A held block is no victim, whatever its value."""
    known = scores.Identities()
    known.grow(2)
    order = Relevance().order(known, 2)
    order.grow(2)
    for block in (0, 1):
        known.note(block, 0.0, block)
        order.admit(block)
    order.hold(0)
    assert order.victims(2, 1.0).tolist() == [1]


def test_coherence_of_unknown_blocks_is_refused() -> None:
    """Coherence of an identity that the order does not know is a ValueError that names it."""
    known = scores.Identities()
    order = Relevance().order(known, 2)
    assert isinstance(order, scores.Relevance)
    with pytest.raises(ValueError, match="ids: 0"):
        order.set_coherence(np.array([0], np.uint32), np.array([0.9], np.float32))


@pytest.mark.parametrize(
    ("option", "number", "sentence"),
    [
        ("coherence", -0.1, "coherence: -0.1"),
        ("decay", math.nan, "decay: nan"),
        ("user_floor", 1.5, "user_floor: 1.5"),
        ("alpha", 1.0, "alpha: 1.0"),
    ],
)
def test_bad_options_are_named(option: str, number: float, sentence: str) -> None:
    """An option out of range is a ValueError that names it and its number."""
    with pytest.raises(ValueError, match=sentence):
        Relevance(**{option: number})
