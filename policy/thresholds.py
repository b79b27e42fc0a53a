"""Thresholds: tiers by score alone, without a capacity.

    score >= keep: first tier    evict <= score < keep: second tier    below: gone

The score is LRFU's (evoke.policy.lrfu) with the request as its clock. One access lifts a new block
to alpha, so a threshold means something only beside it: with evict >= alpha nothing is ever kept,
with keep > alpha a block needs several accesses for the first tier. After n accesses in a row a
score is 1 - (1 - alpha)^n.

For simulations: a daemon's tiers have capacities. When blocks cross is known at their accesses (a
calendar queue), so nothing is swept. Source: the source documents of this project (keep 0.10,
evict 0.02).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evoke.core import scores
from evoke.policy.formula import STATES, check_alpha, check_name
from evoke.policy.lrfu import DEFAULT_ALPHA
from evoke.policy.traces import Trace

__all__ = ["ThresholdCounts", "Thresholds"]


@dataclass(frozen=True)
class ThresholdCounts:
    """Where blocks were just before they were accessed, and how many there were after requests."""

    accesses: int
    hot: int
    cold: int
    prefix_hits: int
    evictions: int  # times that a block fell below `evict`
    resident_mean: float
    resident_max: int
    resident_hot_mean: float


@dataclass(frozen=True)
class Thresholds:
    """ValueError names the option and its number."""

    name: ClassVar[str] = "thresholds"

    alpha: float | None = None
    half_life: float | None = None
    keep: float = 0.10
    evict: float = 0.02
    state: str = "reset"

    def __post_init__(self) -> None:
        self._alpha()
        for name in ("keep", "evict"):
            number = getattr(self, name)
            if not 0 < number < 1:
                raise ValueError(f"{name}: {number} is not between 0 and 1")
        if self.evict > self.keep:
            raise ValueError(f"evict: {self.evict} is above keep: {self.keep}")
        check_name("state", self.state, STATES)

    def _alpha(self) -> float:
        return check_alpha(self.alpha, self.half_life, DEFAULT_ALPHA)

    def simulate(self, trace: Trace) -> ThresholdCounts:
        keep_state = self.state == "keep"
        rules = self._alpha(), self.keep, self.evict, keep_state
        counts = scores.simulate_thresholds(trace.ids, trace.starts, trace.identities, *rules)
        return ThresholdCounts(
            accesses=trace.accesses,
            hot=counts["hot"],
            cold=counts["cold"],
            prefix_hits=counts["prefix_hits"],
            evictions=counts["gone"],
            resident_mean=counts["resident_sum"] / trace.requests,
            resident_max=counts["resident_max"],
            resident_hot_mean=counts["resident_hot_sum"] / trace.requests,
        )
