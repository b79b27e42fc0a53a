"""Bands, marks and the plan of moves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoke.policy.place import DEMOTE, EVICT, KEEP, Bands, Blocks, Move, Tier, chain_values, plan

FOUR = ("hbm", "host", "cxl", "flash")


def columns(scores: Any, **others: Any) -> Blocks:
    """Blocks of one byte in the first tier, each a chain of its own, unless `others` say more."""
    count = len(scores)
    given: dict[str, Any] = {
        "ids": np.arange(count),
        "tiers": np.zeros(count, np.int64),
        "sizes_bytes": np.ones(count, np.int64),
        "depths": np.zeros(count, np.int64),
        "parents": np.full(count, -1),
        "fixed": np.zeros(count, np.bool_),
    }
    given |= {name: np.asarray(values) for name, values in others.items()}
    return Blocks(scores=np.asarray(scores, np.float64), **given)


def tiers(*names: str, capacity: int = 100, used: tuple[int, ...] = ()) -> list[Tier]:
    return [
        Tier(name, capacity, used[number] if used else 0, last=name == "flash")
        for number, name in enumerate(names)
    ]


def test_worked_thresholds() -> None:
    """The source's three scores: 0.122 is kept, 0.05 demoted, 0.0005 evicted, also exactly at the
    thresholds."""
    bands = Bands("absolute", keep=0.1, evict=0.02)
    scores = np.array([0.122, 0.05, 0.0005, 0.1, 0.02])
    assert bands.of(scores, scores).tolist() == [KEEP, DEMOTE, EVICT, KEEP, DEMOTE]


def test_worked_thresholds_move() -> None:
    """With the source's rule (always) the three blocks go to HBM, host and flash."""
    blocks = columns([0.122, 0.05, 0.0005], tiers=[1, 0, 0])
    moves = plan(blocks, tiers(*FOUR), Bands("absolute", keep=0.1, evict=0.02), always=True)
    assert moves == [
        Move("hbm", "flash", (2,)),
        Move("hbm", "host", (1,)),
        Move("host", "hbm", (0,)),
    ]


@pytest.mark.parametrize("units", ["quantile", "n_score"])
@pytest.mark.parametrize("alpha", [0.2, 0.05])
def test_bands_carry_over_between_lengths(units: str, alpha: float) -> None:
    """The same numbers choose the same shares of a context of 240 and of 8,192 blocks, while the
    source's absolute numbers evict nearly all of the longer one."""
    bands = Bands(units, *((0.9, 0.5) if units == "quantile" else (1.0, 0.15)))
    absolute = Bands("absolute", 0.1, 0.02)
    shares, kept = [], []
    for count in (240, 8192):
        # Many steps of attention over blocks with a heavy tail, each row summing to 1.
        weights = np.random.default_rng(1).lognormal(0, 1.7, count)
        row = weights / weights.sum()
        scores = row * -math.expm1(200 * math.log1p(-alpha))
        found = bands.of(scores, scores)
        shares.append([float(np.mean(found == band)) for band in (KEEP, EVICT)])
        kept.append(float(np.mean(absolute.of(scores, scores) != EVICT)))
    assert shares[0] == pytest.approx(shares[1], abs=0.1)
    assert kept[0] > 4 * kept[1]


def test_nothing_moves_without_need() -> None:
    """Below its mark a tier gives nothing up, whatever the bands say."""
    blocks = columns([0.5, 0.0, 0.2])
    assert plan(blocks, tiers("hbm", "flash", used=(95, 0)), Bands()) == []


def test_pressure_takes_the_worst_down_to_the_low_mark() -> None:
    """Above 95 of 100 bytes blocks leave until 90 are used: below `evict` to flash, others to the
    next tier."""
    scores = np.linspace(0, 1, 96)
    moves = plan(columns(scores), tiers(*FOUR, used=(96, 0, 0, 0)), Bands(evict=0.03))
    assert moves == [Move("hbm", "flash", (0, 1)), Move("hbm", "host", (2, 3, 4, 5))]


def test_pressure_cascades() -> None:
    """What a tier gives down counts in the tier below, which makes room in its turn; below the last
    tier blocks leave altogether."""
    where = [0] * 96 + [1] * 93
    scores = np.concatenate([np.linspace(0.5, 1, 96), np.linspace(0.2, 0.4, 93)])
    blocks = columns(scores, tiers=where)
    moves = plan(blocks, tiers("host", "cxl", used=(96, 93)), Bands(keep=0.9, evict=0.0))
    assert moves == [
        Move("host", "cxl", (0, 1, 2, 3, 4, 5)),
        Move("cxl", None, (96, 97, 98, 99, 100, 101, 102, 103, 104)),
    ]


def test_protected_blocks_stay() -> None:
    """A fixed block is not moved, and the next worst goes in its place."""
    fixed = np.arange(96) < 3
    moves = plan(columns(np.arange(96), fixed=fixed), tiers("host", used=(96,)), Bands())
    assert moves == [Move("host", None, (3, 4, 5, 6, 7, 8))]


def test_kept_blocks_go_up_while_there_is_room() -> None:
    """The best blocks of the band KEEP go up first, and never above the low mark."""
    blocks = columns(np.arange(10.0), tiers=[1] * 10)
    bands = Bands(keep=0.5, evict=0.1)
    assert plan(blocks, tiers("hbm", "host", used=(88, 10)), bands) == [
        Move("host", "hbm", (8, 9)),
    ]


def test_chains_leave_tail_first() -> None:
    """Of a chain whose first block scores lowest the last blocks leave first."""
    blocks = columns(
        [0.0, 0.1, 0.2, 0.3], depths=[0, 1, 2, 3], parents=[-1, 0, 1, 2], sizes_bytes=[24] * 4
    )
    assert chain_values(blocks).tolist() == [0.3] * 4
    assert plan(blocks, tiers("host", used=(96,)), Bands()) == [Move("host", None, (3,))]


def test_bad_columns_are_refused() -> None:
    """A NaN score, columns of unequal length or an unknown tier are errors with their number."""
    with pytest.raises(ValueError, match="scores: NaN for block 1"):
        columns([0.0, math.nan])
    with pytest.raises(ValueError, match="depths: 1 of 2 blocks"):
        columns([0.0, 0.0], depths=[0])
    with pytest.raises(ValueError, match="tiers: 3, there are 2"):
        plan(columns([0.0], tiers=[3]), tiers("hbm", "host"), Bands())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("quantiles", 0.8, 0.2), "units: 'quantiles'"),
        (("quantile", 1.1, 0.2), r"keep: 1.1 is not in \[0, 1\]"),
        (("absolute", 0.1, 0.2), "evict: 0.2"),
        (("absolute", math.nan, 0.2), "keep: nan"),
    ],
)
def test_bad_bands_are_refused(options: tuple[Any, ...], reason: str) -> None:
    """Bands that cross or are out of range name the option."""
    with pytest.raises(ValueError, match=reason):
        Bands(*options)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Blocks, list[Tier], bool]:
    names = draw(st.sampled_from([("host",), ("host", "flash"), ("host", "cxl"), FOUR]))
    count = draw(st.integers(1, 40))
    parents: list[int] = []
    depths: list[int] = []
    for row in range(count):
        parent = draw(st.integers(-1, row - 1))
        parents.append(parent)
        depths.append(0 if parent < 0 else depths[parent] + 1)
    where = [draw(st.integers(0, len(names) - 1)) for _ in range(count)]
    fixed = [draw(st.booleans()) and draw(st.booleans()) for _ in range(count)]
    scores = [draw(st.integers(0, 9)) / 10 for _ in range(count)]
    blocks = columns(scores, parents=parents, depths=depths, tiers=where, fixed=fixed)
    used = tuple(where.count(number) for number in range(len(names)))
    capacity = draw(st.integers(1, 40))
    return blocks, tiers(*names, capacity=capacity, used=used), draw(st.booleans())


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_plan_is_sound(case: tuple[Blocks, list[Tier], bool]) -> None:
    """Each block moves at most once and from where it is, protected ones never; a block that leaves
    takes all of its descendants along; a tier above its mark keeps nothing that could go down."""
    blocks, levels, always = case
    names = [tier.name for tier in levels]
    where: dict[int, int | None] = dict(enumerate(blocks.tiers.tolist()))
    moved: set[int] = set()
    for move in plan(blocks, levels, Bands(keep=0.8, evict=0.3), always=always):
        for block in move.ids:
            assert block not in moved
            moved.add(block)
            assert where[block] == names.index(move.source)
            where[block] = None if move.target is None else names.index(move.target)
    assert not moved & set(np.flatnonzero(blocks.fixed).tolist())
    for block, parent in enumerate(blocks.parents.tolist()):
        if parent >= 0 and where[parent] is None:
            assert where[block] is None
    for number, tier in enumerate(levels[:-1]):
        held = [block for block, at in where.items() if at == number]
        if len(held) > tier.capacity_bytes * 0.95:
            assert all(blocks.fixed[block] for block in held)
