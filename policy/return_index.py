"""return_index: chains give up their tails where keeping them has been worth the least.

Only a resident block without a resident child may leave. Leaves are told apart by class: how the
block was last used. For each class and bin of age since that use the policy counts how many blocks
came back in the bin and how many outlived it, and so knows the chance q[k] to come back in bin k of
those that reach it. With w[k] the width of the bin in seconds and S the share still waiting,

    index[k] = max over j >= k of  sum S[i] q[i] / sum S[i] w[i] (1 - q[i] / 2)   (i = k..j)
               S[k] = 1, S[i + 1] = S[i] (1 - q[i])

is the most hits per block-second to be had from now on, over any horizon; by the byte-second where
blocks differ in size. The oldest leaf of the class with the lowest index leaves; the newest
request's own leaf leaves instead when its index is lower still: a newcomer may be refused.

Classes (a tail is the last block of its request):
- `age`: tail or body
- `gap`: also the seconds since the request that this one continues
- `count-new`: also the block's earlier uses, and how many blocks of its request were new
- `shadow`: three caches that hold keys only run beside the real one; the set of classes with the
  most prefix hits of late is used (half-life 300 requests, changed for a lead of 1 %)

Sources: our own research; pool adjacent violators (Ayer et al., Annals of Mathematical Statistics
26, 1955) for the fall of q with age; hits by the block-second over the best horizon is the form of
Gittins' index (J. R. Statist. Soc. B 41, 1979). What was measured, and where it loses:
docs/policy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from evoke.core import scores
from evoke.policy.formula import check_above, check_name, unscored

__all__ = ["CLASSES", "ReturnIndex"]

CLASSES: Final = ("age", "gap", "count-new", "shadow")


@dataclass(frozen=True)
class ReturnIndex:
    """classes: one of CLASSES. memory_requests: what was counted so many requests ago weighs half.

    Ages are of the requests' seconds, whatever the clock of the scores.
    """

    name: ClassVar[str] = "return_index"
    scored: ClassVar[bool] = False
    clock: ClassVar[str] = "second"
    state: ClassVar[str] = "keep"
    chains: ClassVar[bool] = True

    classes: str = "shadow"
    memory_requests: float = 500_000.0

    def __post_init__(self) -> None:
        check_name("classes", self.classes, CLASSES)
        check_above("memory_requests", self.memory_requests, 1.0)

    def order(self, known: scores.Identities, capacity: int, /) -> scores.ReturnIndex:
        return scores.ReturnIndex(known, capacity, self.classes, self.memory_requests)

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return unscored(known)
