"""Policies that people write: the contract, and such a policy as a formula. docs/policy-authors.md.

An author's class is named `Policy`, takes its options as keyword arguments, and has one method:

    rank(blocks)    one finite number for each row of `blocks`; the lowest leaves first

It is asked now and then, not at every eviction; between two times the ranks stand, and a block that
has come or was used since leaves after all others. Whatever the ranks, chains leave from their
tails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evoke.core import scores
from evoke.policy.formula import CLOCKS, STATES, check_alpha, check_name

__all__ = ["COLUMNS", "Blocks", "UserFormula", "UserPolicy", "checked_ranks", "make_policy"]

# Name and type of each column, as evoke.core.scores.Ranked.columns() makes them.
COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "ids": np.dtype(np.uint32),
    "log_score": np.dtype(np.float64),
    "idle": np.dtype(np.float64),
    "count": np.dtype(np.uint16),
    "role": np.dtype(np.uint8),
    "priority": np.dtype(np.uint8),
    "tail": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Blocks:
    """All blocks of a tier, one a row, in no order that means anything. Read-only.

    - ids: a number that stays while the block is remembered
    - log_score: ln of the LRFU score now ([score] of policy.toml)
    - idle: clock units since the last access
    - count: accesses, at most 65,535; also those before an eviction
    - role: position in evoke.policy.relevance.ROLES; priority: in sixteenths, 16 is 1.0
    - tail: may leave now; another block has a child in the tier, or is held
    """

    ids: NDArray[np.uint32]
    log_score: NDArray[np.float64]
    idle: NDArray[np.float64]
    count: NDArray[np.uint16]
    role: NDArray[np.uint8]
    priority: NDArray[np.uint8]
    tail: NDArray[np.bool_]
    clock: float
    now_s: float

    def __len__(self) -> int:
        return len(self.ids)


class UserPolicy(Protocol):
    def rank(self, blocks: Blocks, /) -> Any: ...


def make_policy(kind: Any, options: dict[str, Any]) -> UserPolicy:
    """An object of the author's class. ValueError: it is no class with rank(), or refuses the
    options."""
    if not callable(kind) or not callable(getattr(kind, "rank", None)):
        raise ValueError(f"Policy: {kind!r} is no class with a method rank(blocks)")
    try:
        made: UserPolicy = kind(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Policy: {error}") from error
    return made


def checked_ranks(ranks: Any, count: int) -> NDArray[np.float64]:
    """As float64. ValueError: not one finite number for each block."""
    try:
        numbers = np.ascontiguousarray(ranks, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rank: {error}") from None
    if numbers.shape != (count,):
        raise ValueError(f"rank: shape {numbers.shape} for {count} blocks")
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise ValueError(f"rank: {numbers[wrong[0]]} in row {wrong[0]} is not finite")
    return numbers


@dataclass(frozen=True)
class UserFormula:
    """A user's policy in the place of a formula (evoke.policy.formula), called in this process:
    for the simulator, and for the trial before a reload. ValueError, out of the run: bad ranks."""

    name: ClassVar[str] = "user"
    scored: ClassVar[bool] = True

    make: Callable[[], UserPolicy]
    alpha: float = 0.05
    clock: str = "request"
    state: str = "keep"
    chains: bool = True
    every: int = 1  # requests between two calls

    def __post_init__(self) -> None:
        check_alpha(self.alpha, None, self.alpha)
        check_name("clock", self.clock, CLOCKS)
        check_name("state", self.state, STATES)
        if self.every < 1:
            raise ValueError(f"every: {self.every} is below 1")

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        policy = self.make()
        view = self.scores(known)

        def tick(clock: float, now_s: float) -> None:
            columns = order.columns(known, view, clock)
            blocks = read_only(columns, clock, now_s)
            if len(blocks):
                order.set_ranks(blocks.ids, checked_ranks(policy.rank(blocks), len(blocks)))

        order = scores.Ranked(known, self.every, tick)
        return order

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return scores.Scores(known, self.alpha)


def read_only(columns: dict[str, NDArray[Any]], clock: float, now_s: float) -> Blocks:
    for values in columns.values():
        values.flags.writeable = False
    return Blocks(**columns, clock=clock, now_s=now_s)
