"""clairvoyant: the bound of all policies, for recorded streams only.

After each request keep, of the residents and the request's blocks, those whose next use is
nearest; of equals the nearer to the root. Every reuse is an interval between two requests, and a
place in the cache holds one interval at a time: dropping the farthest end is optimal (Belady, IBM
Systems Journal 5(2), 1966; here nothing has to be admitted). An ancestor is never used later than
its descendant, so that no hole is left and prefix hits are hits: no policy that is counted at the
start of a request gets more, whether or not it admits everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evoke.core import scores
from evoke.policy.formula import unscored

__all__ = ["Clairvoyant"]


@dataclass(frozen=True)
class Clairvoyant:
    name: ClassVar[str] = "clairvoyant"
    scored: ClassVar[bool] = False
    clock: ClassVar[str] = "request"
    state: ClassVar[str] = "keep"
    chains: ClassVar[bool] = True

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        return scores.Clairvoyant(known)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return unscored(known)
