"""Reported attention becomes scores: sums, absent blocks, accesses, refusals."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.core import scores

ALPHA = 0.2


def ids(count: int) -> NDArray[np.uint32]:
    return np.arange(count, dtype=np.uint32)


def halves(values: list[float]) -> bytes:
    return np.array(values, np.float16).tobytes()


class Columns:
    """Known identities with their scores, and one sequence over all of them."""

    def __init__(self, count: int, absent: str = "freeze", knee: float = 12.0) -> None:
        self.known = scores.Identities()
        self.known.grow(count)
        self.scores = scores.Scores(self.known, ALPHA, True)
        self.sequence = scores.SequenceSignal(ALPHA, knee, absent)
        self.sequence.assign(0, ids(count))
        self.ids = ids(count)
        self.clock = 0.0

    def fold(self, steps: float) -> int:
        self.clock += steps
        return self.sequence.fold(self.clock, steps, 0, self.known, self.scores)

    def now(self) -> NDArray[np.float64]:
        return np.exp(self.scores.log_scores(self.ids, self.clock))


def test_scores_are_the_moving_average() -> None:
    """1,000 random reports of 1 to 8 steps, folded at random times: the scores are the literal
    recurrence within single precision."""
    rng = random.Random(7)
    columns = Columns(6)
    literal = np.zeros(6)
    waiting = 0
    for _ in range(1000):
        x = np.array([rng.choice([0.0, rng.random()]) for _ in range(6)], np.float16)
        steps = rng.randrange(1, 9)
        keep = (1 - ALPHA) ** steps
        literal = keep * literal + (1 - keep) * x.astype(np.float64)
        columns.sequence.report(x, 1, steps)
        waiting += steps
        if rng.random() < 0.3:
            columns.fold(waiting)
            waiting = 0
            assert columns.now() == pytest.approx(literal, rel=1e-4, abs=1e-9)
            assert not columns.sequence.pending


def test_every_half_float_from_0_to_1() -> None:
    """All 15,361 of them are read exactly, denormal ones included."""
    codes = np.arange(0x3C01, dtype=np.uint16)
    columns = Columns(len(codes))
    columns.sequence.report(codes, 1, 1)
    columns.fold(1)
    wanted = ALPHA * codes.view(np.float16).astype(np.float64)
    assert columns.now() == pytest.approx(wanted, rel=2e-6, abs=0)


def test_a_second_channel_lifts() -> None:
    """x is the first channel, or another one less knee / n where that is more."""
    columns = Columns(4, knee=1.0)  # knee / n = 0.25
    columns.sequence.report(halves([0.1, 0.1, 0.1, 0.1, 0.0, 0.25, 0.5, 1.0]), 2, 1)
    columns.fold(1)
    assert columns.now() / ALPHA == pytest.approx([0.1, 0.1, 0.25, 0.75], rel=1e-3)


@pytest.mark.parametrize(
    ("absent", "factor"), [("decay", (1 - ALPHA) ** 10), ("freeze", 1.0), ("reset", 0.0)]
)
def test_absent_blocks(absent: str, factor: float) -> None:
    """A block that a report lacks decays, waits or is forgotten, whether it was folded before or
    not; the others go on."""
    for fold_between in (True, False):
        columns = Columns(2, absent)
        columns.sequence.report(halves([0.5, 0.5]), 1, 8)
        before = 0.5 * (1 - (1 - ALPHA) ** 8)
        if fold_between:
            columns.fold(8)
        columns.sequence.report(halves([0.25, 0.0]), 1, 10, present=b"\x01")
        columns.fold(10 if fold_between else 18)
        now = columns.now()
        assert now[1] == pytest.approx(before * factor, rel=1e-5)
        keep = (1 - ALPHA) ** 10
        assert now[0] == pytest.approx(before * keep + (1 - keep) * 0.25, rel=1e-5)


def test_accesses_are_uniform_shares() -> None:
    """Mass of at least 1/n is an access; numbers are given to the last block first, so that equals
    leave tail-first."""
    columns = Columns(4)
    columns.sequence.report(halves([0.5, 0.24, 0.25, 0.01]), 1, 1)
    assert columns.fold(1) == 2


def test_blocks_that_are_not_known_are_skipped() -> None:
    """A block without an identity takes part in the report and changes no column."""
    columns = Columns(2)
    columns.sequence.assign(1, np.array([0xFFFFFFFF, 1], np.uint32))
    assert len(columns.sequence) == 3
    columns.sequence.report(halves([0.0, 0.9, 0.1]), 1, 1)
    columns.fold(1)
    assert columns.now() / ALPHA == pytest.approx([0.0, 0.1], abs=1e-4)


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-0.5, "-0.5"), (1.5, "1.5")]
)
def test_bad_masses_are_refused(value: float, text: str) -> None:
    """NaN, infinity, negative numbers and those above 1 are refused with channel, block and number;
    nothing has changed."""
    columns = Columns(3)
    masses = [0.1] * 6
    masses[4] = value
    with pytest.raises(ValueError, match=rf"signal: channel 1 block 1 is {text}"):
        columns.sequence.report(halves(masses), 2, 1)
    assert not columns.sequence.pending
    columns.fold(1)
    assert columns.now().tolist() == [0.0, 0.0, 0.0]


def test_sizes_are_checked() -> None:
    """Numbers that do not fit the sequence, gaps and unknown identities are ValueErrors."""
    columns = Columns(3)
    with pytest.raises(ValueError, match="signal: 2 numbers"):
        columns.sequence.report(halves([0.1, 0.1]), 1, 1)
    with pytest.raises(ValueError, match="present: 2 bytes"):
        columns.sequence.report(halves([0.1] * 3), 1, 1, present=b"\x07\x00")
    with pytest.raises(ValueError, match="first: 5, the sequence has 3 blocks"):
        columns.sequence.assign(5, ids(1))
    columns.sequence.assign(3, np.array([9], np.uint32))
    with pytest.raises(ValueError, match="known: 3 identities, the sequence names 9"):
        columns.fold(1)
    with pytest.raises(ValueError, match="absent: 'never'"):
        scores.SequenceSignal(ALPHA, absent="never")
