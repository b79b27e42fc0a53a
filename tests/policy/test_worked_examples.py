"""The worked numbers of the source documents come out of this code to the digit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evoke.core import scores
from evoke.policy.product import Product

SIGNALS = [0.45, 0.12, 0.30, 0.08, 0.35]  # of one block, step by step


def _log_score(made: scores.Scores, clock: float) -> float:
    return float(made.log_scores(np.zeros(1, np.uint32), clock)[0])


def one_step(alpha: float, old: float, signal: float) -> float:
    """The score after a step with `signal` of a block whose score was `old`."""
    known = scores.Identities()
    known.grow(1)
    made = scores.Scores(known, alpha)
    if old > 0:
        made.touch(0, old / alpha, 0.0, 0)
    made.touch(0, signal, 1.0, 1)
    return math.exp(_log_score(made, 1.0))


def test_a_score_over_five_steps() -> None:
    """alpha 0.05 from 0: without rounding in between."""
    known = scores.Identities()
    known.grow(1)
    made = scores.Scores(known, 0.05)
    found = []
    for step, signal in enumerate(SIGNALS, 1):
        made.touch(0, signal, float(step), step)
        found.append(round(math.exp(_log_score(made, float(step))), 6))
    assert found == [0.0225, 0.027375, 0.041006, 0.042956, 0.058308]


def test_a_score_over_five_steps_as_the_source_rounds() -> None:
    """The same with three decimals kept after every step, halves up, as in the source's table."""
    score = 0.0
    found = []
    for signal in SIGNALS:
        score = math.floor(one_step(0.05, score, signal) * 1000 + 0.5 + 1e-9) / 1000
        found.append(score)
    assert found == [0.023, 0.028, 0.042, 0.044, 0.059]


@pytest.mark.parametrize(
    ("old", "signal", "new"),
    [
        (0.0, 0.04, 0.008),
        (0.008, 0.05, 0.0164),
        (0.042, 0.03, 0.0396),
        (0.11, 0.04, 0.096),
        (0.14, 0.05, 0.122),
        (0.0, 0.002, 0.0004),
    ],
)
def test_single_updates(old: float, signal: float, new: float) -> None:
    """alpha 0.2: one step from a known score."""
    assert one_step(0.2, old, signal) == pytest.approx(new, abs=1e-15)


@pytest.mark.parametrize(("alpha", "half_life"), [(0.05, 13.5134), (0.2, 3.1063)])
def test_half_lives(alpha: float, half_life: float) -> None:
    """After its half-life without an access a score is half of what it was."""
    known = scores.Identities()
    known.grow(1)
    made = scores.Scores(known, alpha)
    made.touch(0, 1.0, 0.0, 0)
    assert math.exp(_log_score(made, half_life)) == pytest.approx(alpha / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("score", "idle_steps", "priority"), [(0.059, 50, 0.045893), (0.02, 2000, 0.847371)]
)
def test_priorities_of_the_product(score: float, idle_steps: int, priority: float) -> None:
    """beta 0.001: the block that was idle for long leaves before the one with the higher score."""
    order = Product(beta=0.001).order(scores.Identities(), 1)
    assert isinstance(order, scores.Product)
    now = 5000.0
    key = math.log(score) - now * math.log1p(-0.05)
    assert round(order.priority(key, now - idle_steps, now), 6) == priority
