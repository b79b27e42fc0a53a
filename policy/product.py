"""The product: a block leaves when its score is low and its last use is long ago.

    priority(t) = (1 - score(t)) * (1 - e^(-beta idle(t)))      the highest leaves first

of equals the least recently used. The score is LRFU's (evoke.policy.lrfu). With raw scores and a
small beta it orders almost like LRU, as one access lifts a score only to alpha and 1 - score hardly
differs between blocks; `rescaled` puts alpha / (score + alpha) in its place, a half for a block
just used for the first time. Exact: a search bounded by the least key and the least last access.

Sources: the source documents of this project (alpha 0.05, beta 0.001); the rescaled form is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from evoke.core import scores
from evoke.policy.formula import CLOCKS, STATES, check_above, check_alpha, check_name

__all__ = ["Product"]

DEFAULT_ALPHA: Final = 0.05


@dataclass(frozen=True)
class Product:
    """alpha or half_life in clock units (neither is alpha 0.05); beta per unit of idleness."""

    name: ClassVar[str] = "product"
    scored: ClassVar[bool] = True

    alpha: float | None = None
    half_life: float | None = None
    beta: float = 0.001
    rescaled: bool = False
    clock: str = "request"
    state: str = "reset"
    chains: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA)
        check_above("beta", self.beta)
        check_name("clock", self.clock, CLOCKS)
        check_name("state", self.state, STATES)

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        alpha = check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA)
        return scores.Product(known, alpha, self.beta, self.rescaled)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        alpha = check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA)
        return scores.Scores(known, alpha, weighted=True)
