"""The contract of a user's policy, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.core import scores
from evoke.policy.classics import Lru
from evoke.policy.formula import Formula
from evoke.policy.users import Blocks, UserFormula, checked_ranks, make_policy
from evoked.policy_files import user_formula

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/policy_short_chats.py"


class ByIdleness:
    def rank(self, blocks: Blocks) -> Any:
        return -blocks.idle


class ByScore:
    def rank(self, blocks: Blocks) -> Any:
        return blocks.log_score


class Broken:
    """Answers well until a given call."""

    def __init__(self, call: int, answer: Any) -> None:
        self.left, self.answer = call, answer

    def rank(self, blocks: Blocks) -> Any:
        self.left -= 1
        return self.answer if self.left < 0 else np.zeros(len(blocks))


def run(formula: Formula, seed: int, capacity: int = 12) -> dict[str, int]:
    rng = np.random.default_rng(seed)
    requests = [chat * 100 + np.arange(int(rng.integers(1, 8))) for chat in rng.zipf(1.5, 200) % 10]
    starts = np.cumsum([0, *map(len, requests)]).astype(np.uint64)
    known = scores.Identities()
    return scores.simulate(
        np.concatenate(requests).astype(np.uint32),
        starts,
        np.arange(len(requests), dtype=np.float64),
        1000,
        capacity,
        True,
        formula.clock,
        True,
        formula.chains,
        formula.scored,
        known,
        formula.scores(known),
        formula.order(known, capacity),
    )


@pytest.mark.parametrize("seed", range(5))
def test_ranks_by_idleness_are_lru(seed: int) -> None:
    """A policy that ranks by idle time keeps exactly what LRU keeps: blocks used since the last
    ranking go last, and equals by recency."""
    mine = run(UserFormula(ByIdleness, chains=False), seed)
    assert mine == run(Lru(), seed)
    assert mine["evictions"] > 100


def test_columns_are_what_they_say() -> None:
    """Each row has the block's own score, idle time, count and whether it is a tail; the arrays
    cannot be written to."""
    seen: list[Blocks] = []

    class Watch:
        def rank(self, blocks: Blocks) -> Any:
            seen.append(blocks)
            return np.zeros(len(blocks))

    formula = UserFormula(Watch, alpha=0.5)
    known = scores.Identities()
    scores.simulate(
        np.array([0, 1, 0, 2], np.uint32),
        np.array([0, 2, 3, 4], np.uint64),
        np.array([5.0, 6.0, 7.0]),
        3,
        10,
        True,
        "request",
        True,
        True,
        True,
        known,
        formula.scores(known),
        formula.order(known, 10),
    )
    last = seen[-1]
    assert (last.clock, last.now_s) == (2.0, 7.0)
    assert dict(zip(last.ids.tolist(), last.idle.tolist(), strict=True)) == {0: 1.0, 1: 2.0}
    assert dict(zip(last.ids.tolist(), last.count.tolist(), strict=True)) == {0: 2, 1: 1}
    assert dict(zip(last.ids.tolist(), last.tail.tolist(), strict=True)) == {0: False, 1: True}
    wanted = {0: 0.5 * 0.25 + 0.5 * 0.5, 1: 0.5 * 0.25}
    for block, log_score in zip(last.ids.tolist(), last.log_score.tolist(), strict=True):
        assert np.exp(log_score) == pytest.approx(wanted[block])
    with pytest.raises(ValueError, match="read-only"):
        last.idle[0] = 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (np.zeros(1), r"rank: shape \(1,\) for"),
        (np.full(12, np.nan), "rank: nan in row 0 is not finite"),
        (np.full(12, -np.inf), "rank: -inf in row 0 is not finite"),
        (None, "rank:"),
        ("x", "rank:"),
    ],
)
def test_nonsense_ends_the_run(answer: Any, reason: str) -> None:
    """Another number of ranks, or one that is not finite, is an error that names it."""
    with pytest.raises(ValueError, match=reason):
        run(UserFormula(lambda: Broken(100, answer)), 0)


def test_ranks_of_unknown_blocks_are_refused() -> None:
    """An id that was never seen changes no rank."""
    known = scores.Identities()
    known.grow(3)
    order = scores.Ranked(known)
    order.grow(3)
    for block in range(3):
        order.admit(block)
    order.set_ranks(np.array([0, 1, 2], np.uint32), np.array([3.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="ids: 7 is not known"):
        order.set_ranks(np.array([0, 7], np.uint32), np.array([0.0, 0.0]))
    with pytest.raises(ValueError, match="ranks: 1 for 2 blocks"):
        order.set_ranks(np.array([0, 1], np.uint32), np.array([0.0]))
    with pytest.raises(ValueError, match="ranks: block 0 has nan"):
        order.set_ranks(np.array([1, 0], np.uint32), np.array([0.0, np.nan]))
    assert order.worst(0.0) == 1
    with pytest.raises(ValueError, match="every: 0"):
        scores.Ranked(known, 0)


def test_example_runs_in_the_simulator() -> None:
    """The file of the documentation is a formula by its path, with options of the author and of the
    run; what cannot be used is an error with a sentence."""
    found = user_formula(f"file:{EXAMPLE}:once_idle=3,alpha=0.5,every=2")
    assert (found.alpha, found.every) == (0.5, 2)
    counts = run(found, 1)
    assert 0 < counts["hits"] < counts["accesses"]
    for spec, reason in (
        ("file:none.py", "cannot be read: No such file"),
        (f"file:{EXAMPLE}:once_idle=-1", "once_idle: -1 is below 0"),
        (f"file:{EXAMPLE}:depth=1", "unexpected keyword argument 'depth'"),
        (f"file:{EXAMPLE}:alpha=2", "alpha: 2 is not between 0 and 1"),
        (f"file:{EXAMPLE}:every=0", "every: 0 is below 1"),
        (f"file:{EXAMPLE}:once_idle", "is not key=value"),
        ("file:policy.txt", r"is not file:PATH\.py"),
    ):
        with pytest.raises(ValueError, match=reason):
            user_formula(spec)


def test_a_class_and_its_options_are_checked() -> None:
    """What is no policy, and options that it does not take, are errors with a sentence."""
    with pytest.raises(ValueError, match="no class with a method rank"):
        make_policy(3, {})
    with pytest.raises(ValueError, match="takes no arguments"):
        make_policy(ByScore, {"depth": 3})
    assert checked_ranks([1, 2], 2).tolist() == [1.0, 2.0]
