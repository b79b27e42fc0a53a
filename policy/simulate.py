"""Runs a formula over a trace: what it would have had in a tier of so many blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoke.core import scores
from evoke.policy.formula import Formula
from evoke.policy.traces import Trace

__all__ = ["TOUCHES", "Counts", "simulate"]

# Order in which a request touches its blocks; the daemon's is tail-first.
TOUCHES: Final = ("list", "tail-first")
# Of formula.CLOCKS: a trace names neither turns nor decode steps.
TRACE_CLOCKS: Final = ("request", "access", "second")


@dataclass(frozen=True)
class Counts:
    """prefix_hits: leading blocks that were resident when their request began."""

    accesses: int
    hits: int
    prefix_hits: int
    evictions: int


def simulate(trace: Trace, formula: Formula, capacity_blocks: int, touch: str) -> Counts:
    """Starts empty; every block has size 1; every miss is admitted, unless the formula refuses it.
    ValueError: the capacity is below 1, or the formula evicts tails only and the trace's ids do not
    stand for prefixes."""
    if capacity_blocks < 1:
        raise ValueError(f"capacity: {capacity_blocks} is not at least 1 block")
    if touch not in TOUCHES:
        raise ValueError(f"touch: {touch!r} is none of {', '.join(TOUCHES)}")
    if formula.clock not in TRACE_CLOCKS:
        known_clocks = ", ".join(TRACE_CLOCKS)
        raise ValueError(f"clock: {formula.clock!r} is not in a trace, which has {known_clocks}")
    if formula.chains and (sentence := trace.broken_prefix()):
        raise ValueError(f"policy {formula.name} needs ids that stand for prefixes; {sentence}")
    known = scores.Identities()
    counts = scores.simulate(
        trace.ids,
        trace.starts,
        trace.now_s,
        trace.identities,
        capacity_blocks,
        touch == "tail-first",
        formula.clock,
        formula.state == "keep",
        formula.chains,
        formula.scored,
        known,
        formula.scores(known),
        formula.order(known, capacity_blocks),
    )
    return Counts(**counts)
