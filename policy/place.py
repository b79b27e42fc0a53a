"""The stage `place`: which tier each block should be in, as a list of moves. Nothing is moved here.

A score puts a block into a band: at `keep` and above it belongs to the fastest tier, at `evict` and
above to the next one, below it to flash, or nowhere. Marks say when a tier has to give something
up. Within a chain a block is worth at least what the best of its descendants is, so that chains go
down, and leave, from their tails.

Source: EMA thresholds of the evoke source documents; in units that carry over between lengths and
half-lives (n x score, quantiles), since the absolute numbers do not (docs/policy.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEMOTE", "EVICT", "KEEP", "Bands", "Blocks", "Move", "Tier", "chain_values", "plan"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I8 = NDArray[np.int8]

EVICT: Final = 0
DEMOTE: Final = 1
KEEP: Final = 2
UNITS: Final = ("quantile", "n_score", "absolute")
NOWHERE: Final = -1


@dataclass(frozen=True)
class Bands:
    """ValueError names the option and its number."""

    units: str = "quantile"
    keep: float = 0.8
    evict: float = 0.2

    def __post_init__(self) -> None:
        if self.units not in UNITS:
            raise ValueError(f"units: {self.units!r}, known: {', '.join(UNITS)}")
        top = 1.0 if self.units == "quantile" else float("inf")
        if not 0 <= self.keep <= top:
            raise ValueError(f"keep: {self.keep} is not in [0, {top:g}]")
        if not 0 <= self.evict <= self.keep:
            raise ValueError(f"evict: {self.evict} is not in [0, keep = {self.keep}]")

    def limits(self, scores: F64) -> tuple[float, float]:
        """(evict, keep) as scores, given the scores of all blocks, at least one."""
        if self.units == "quantile":
            low, high = np.quantile(scores, (self.evict, self.keep), method="lower")
            return float(low), float(high)
        if self.units == "n_score":
            return self.evict / len(scores), self.keep / len(scores)
        return self.evict, self.keep

    def of(self, values: F64, scores: F64) -> I8:
        """The band of each value: EVICT, DEMOTE or KEEP. `scores` as in limits()."""
        if not len(scores):
            return np.zeros(len(values), np.int8)
        evict, keep = self.limits(scores)
        return ((values >= evict).astype(np.int8) + (values >= keep)).astype(np.int8)


@dataclass(frozen=True)
class Tier:
    """One tier, the fastest first in a list. `last`: what is below `evict` goes here (flash)."""

    name: str
    capacity_bytes: int
    used_bytes: int  # of all that lies in it, blocks that are not listed too
    low_percent: float = 90.0  # making room ends here
    high_percent: float = 95.0  # and begins above
    last: bool = False


@dataclass(frozen=True)
class Blocks:
    """Columns of equal length. `fixed`: protected, and stays where it is."""

    ids: I64
    tiers: I64  # position in the list of tiers
    sizes_bytes: I64
    scores: F64
    depths: I64  # position in the chain, the first block 0
    parents: I64  # row of the parent in these columns, -1: none
    fixed: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in ("tiers", "sizes_bytes", "scores", "depths", "parents", "fixed"):
            if len(getattr(self, name)) != len(self.ids):
                raise ValueError(f"{name}: {len(getattr(self, name))} of {len(self.ids)} blocks")
        if np.isnan(self.scores).any():
            raise ValueError(f"scores: NaN for block {self.ids[np.isnan(self.scores)][0]}")


@dataclass(frozen=True)
class Move:
    """Blocks, worst first, from one tier to another; `target` None: they leave altogether."""

    source: str
    target: str | None
    ids: tuple[int, ...]


def chain_values(blocks: Blocks, own: F64 | None = None) -> F64:
    """The largest number among each block and its descendants in the columns; own: the numbers,
    None: the scores."""
    values: F64 = (blocks.scores if own is None else own).copy()
    order = np.argsort(-blocks.depths, kind="stable")
    order = order[blocks.parents[order] >= 0]
    edges = np.flatnonzero(np.diff(blocks.depths[order])) + 1
    for rows in np.split(order, edges):  # the deepest first: each has its final value by then
        np.maximum.at(values, blocks.parents[rows], values[rows])
    return values


def plan(
    blocks: Blocks, tiers: Sequence[Tier], bands: Bands, *, always: bool = False
) -> list[Move]:
    """What has to move, the moves downward first, by tier.

    A tier above its high mark gives up its worst blocks until it is at its low mark: those below
    `evict` to the last tier, others to the next one; without such a tier they leave. always: blocks
    also go down to the tier of their band without need. Blocks of the band KEEP go up to the
    fastest tier, the best first, as long as it stays below its low mark. ValueError: a block names
    a tier that is not there.
    """
    if len(blocks.ids) and not 0 <= int(blocks.tiers.min()) <= int(blocks.tiers.max()) < len(tiers):
        raise ValueError(f"tiers: {int(blocks.tiers.max())}, there are {len(tiers)}")
    if not len(blocks.ids) or not tiers:
        return []
    return _Planner(blocks, tiers, bands).run(always)


class _Planner:
    def __init__(self, blocks: Blocks, tiers: Sequence[Tier], bands: Bands) -> None:
        self.blocks, self.tiers = blocks, tiers
        values = chain_values(blocks)
        self.bands = bands.of(values, blocks.scores)
        self.worst_first: I64 = np.lexsort((-blocks.depths, values))
        self.at = blocks.tiers.copy()
        self.used_bytes = [tier.used_bytes for tier in tiers]
        last = [number for number, tier in enumerate(tiers) if tier.last]
        self.evict_to = last[0] if last else NOWHERE
        memories = len(tiers) - len(last)
        self.demote_to = min(1, max(memories - 1, 0))

    def run(self, always: bool) -> list[Move]:
        for number in range(len(self.tiers)):
            if always:
                self._by_band(number)
            self._by_mark(number)
        self._up()
        return self._moves()

    def _movable(self, number: int) -> I64:
        rows = self.worst_first
        movable: I64 = rows[(self.at[rows] == number) & ~self.blocks.fixed[rows]]
        return movable

    def _down(self, rows: I64, wanted: I64, number: int) -> tuple[I64, I64]:
        """(rows, targets) of those that may go: who has a descendant that stays, here or in another
        tier, does not leave altogether but goes to the tier below, if there is one."""
        stays = self.blocks.fixed | ((self.at != number) & (self.at != NOWHERE))
        held = chain_values(self.blocks, stays.astype(np.float64))[rows] > 0
        below = number + 1 if number + 1 < len(self.tiers) else NOWHERE
        targets = np.where((wanted == NOWHERE) & held, below, wanted)
        goes = ~((targets == NOWHERE) & held)
        return rows[goes], targets[goes]

    def _shift(self, rows: I64, targets: I64, number: int) -> None:
        sizes = self.blocks.sizes_bytes[rows]
        self.used_bytes[number] -= int(sizes.sum())
        for target in range(len(self.tiers)):
            self.used_bytes[target] += int(sizes[targets == target].sum())
        self.at[rows] = targets

    def _by_band(self, number: int) -> None:
        rows = self._movable(number)
        wanted = np.choose(self.bands[rows], (self.evict_to, self.demote_to, 0))
        down = (wanted > number) | (wanted == NOWHERE)
        self._shift(*self._down(rows[down], wanted[down], number), number)

    def _by_mark(self, number: int) -> None:
        tier = self.tiers[number]
        if self.used_bytes[number] <= tier.capacity_bytes * tier.high_percent / 100:
            return
        excess = self.used_bytes[number] - tier.capacity_bytes * tier.low_percent / 100
        rows = self._movable(number)
        below = number + 1 if number + 1 < len(self.tiers) else NOWHERE
        evict_to = self.evict_to if self.evict_to > number else NOWHERE
        rows, targets = self._down(
            rows, np.where(self.bands[rows] == EVICT, evict_to, below), number
        )
        freed = np.cumsum(self.blocks.sizes_bytes[rows])
        count = int(np.searchsorted(freed, excess)) + 1
        self._shift(rows[:count], targets[:count], number)

    def _up(self) -> None:
        tier = self.tiers[0]
        room = tier.capacity_bytes * tier.low_percent / 100 - self.used_bytes[0]
        rows = self.worst_first[::-1]
        stayed = (self.at[rows] == self.blocks.tiers[rows]) & (self.at[rows] > 0)
        rows = rows[stayed & (self.bands[rows] == KEEP) & ~self.blocks.fixed[rows]]
        rows = rows[np.cumsum(self.blocks.sizes_bytes[rows]) <= room]
        self.used_bytes[0] += int(self.blocks.sizes_bytes[rows].sum())
        self.at[rows] = 0

    def _moves(self) -> list[Move]:
        moves = []
        rows = self.worst_first[self.at[self.worst_first] != self.blocks.tiers[self.worst_first]]
        for source in range(len(self.tiers)):
            for target in (NOWHERE, *range(len(self.tiers) - 1, -1, -1)):
                chosen = rows[(self.blocks.tiers[rows] == source) & (self.at[rows] == target)]
                if len(chosen):
                    name = None if target == NOWHERE else self.tiers[target].name
                    ids = tuple(self.blocks.ids[chosen].tolist())
                    moves.append(Move(self.tiers[source].name, name, ids))
        return sorted(moves, key=self._upward)

    def _upward(self, move: Move) -> bool:
        names = [tier.name for tier in self.tiers]
        return move.target is not None and names.index(move.target) < names.index(move.source)
