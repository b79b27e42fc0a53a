"""The classics: first in first out, least recently used, least frequently used.

    fifo  the block that came first leaves, whatever was accessed
    lru   the block whose last access is the longest ago leaves
    lfu   the block with the fewest accesses leaves; of equals the least recently used one

With `state = "keep"` counts go on where they stood when the block left; with "reset" they begin
again at 1. Sources: textbook forms; LFU's tie rule as in libCacheSim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evoke.core import scores
from evoke.policy.formula import STATES, check_name, unscored

__all__ = ["Fifo", "Lfu", "Lru"]


@dataclass(frozen=True)
class Fifo:
    name: ClassVar[str] = "fifo"
    scored: ClassVar[bool] = False
    clock: ClassVar[str] = "request"
    state: ClassVar[str] = "reset"

    chains: bool = False

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        return scores.Fifo(known)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return unscored(known)


@dataclass(frozen=True)
class Lru:
    name: ClassVar[str] = "lru"
    scored: ClassVar[bool] = False
    clock: ClassVar[str] = "request"
    state: ClassVar[str] = "reset"

    chains: bool = False

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        return scores.Lru(known)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return unscored(known)


@dataclass(frozen=True)
class Lfu:
    name: ClassVar[str] = "lfu"
    scored: ClassVar[bool] = False
    clock: ClassVar[str] = "request"

    state: str = "reset"
    chains: bool = False

    def __post_init__(self) -> None:
        check_name("state", self.state, STATES)

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        return scores.Lfu(known)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return unscored(known)
