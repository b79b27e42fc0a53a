"""LRFU: a score between recency and frequency; the block with the lowest one leaves.

    score(t) = alpha x(t) + (1 - alpha) score(t - 1)      x = 1 when the block is accessed, else 0

per unit of the clock; of equals the least recently used leaves. alpha near 1 is LRU; alpha near 0
counts accesses. An alpha means nothing without its unit: give a half-life in clock units instead
(alpha 0.05 is 13.5 units). Kept as a key K with ln score = K + ln alpha - t lambda, lambda =
-ln(1 - alpha): between accesses the order of two keys does not change, so a heap is exact.

Sources: Lee et al., LRFU, IEEE Transactions on Computers 50(12), 2001, written as an exponential
moving average; the source documents of this project (alpha 0.05).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from evoke.core import scores
from evoke.policy.formula import CLOCKS, STATES, check_alpha, check_name

__all__ = ["Lrfu"]

DEFAULT_ALPHA: Final = 0.05


@dataclass(frozen=True)
class Lrfu:
    """alpha or half_life (in clock units); neither is alpha 0.05."""

    name: ClassVar[str] = "lrfu"
    scored: ClassVar[bool] = True

    alpha: float | None = None
    half_life: float | None = None
    clock: str = "request"
    state: str = "reset"
    chains: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA)
        check_name("clock", self.clock, CLOCKS)
        check_name("state", self.state, STATES)

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        return scores.Lrfu(known)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return scores.Scores(known, check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA))
