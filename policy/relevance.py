"""Relevance: a blend of coherence with the task, recency and attention, with floors by role.

    raw   = (c coherence + r recency + a attention) / (sum of the weights of present signals)
    value = (floor + (1 - floor) raw) x priority            score = min(value, 1); a sink's is 1
    coherence = (cos(embedding, focus) + 1) / 2, 0.5 where either is unknown
    recency   = exp(-decay x distance)

`distance` is in tokens from the block's end to the end of the sequence where the daemon manages a
sequence, and in clock units since the last access where it ranks a tier. Floors rescale: a hard
maximum would tie all cold blocks of a role. Blocks are ranked by `value`, not by the capped score,
and of equal values the most distant goes first, then the lowest number: in double precision the
recency term vanishes beside 0.3 after some 3,700 tokens, but the distance does not. A capped score
makes nothing unevictable.

Source: the EVOKE source document (coherence 0.60 + recency 0.40; attention variant 0.5, 0.3, 0.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from evoke.core import scores

__all__ = ["ROLES", "Relevance", "coherence", "recency", "windowed"]

F64 = NDArray[np.float64]

# Position = number in the column `role` of evoke.core.scores.Identities.
ROLES: Final = ("none", "system", "document", "user", "assistant", "tool")
UNKNOWN_COHERENCE: Final = 0.5


def recency(distance: Any, decay: float) -> F64:
    """exp(-decay x distance); distance >= 0 in tokens or clock units, half-life ln 2 / decay."""
    return np.asarray(np.exp(-decay * np.asarray(distance, np.float64)))


def coherence(embeddings: Any, focus: Any) -> F64:
    """(cos + 1) / 2 of each row with the focus; 0.5 for a zero row and where focus is None."""
    rows = np.atleast_2d(np.asarray(embeddings, np.float64))
    if focus is None:
        return np.full(len(rows), UNKNOWN_COHERENCE)
    wanted = np.asarray(focus, np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted)
    cosines = np.divide(rows @ wanted, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    return np.asarray((np.clip(cosines, -1.0, 1.0) + 1.0) / 2.0)


def windowed(masses: Any, decay: float = 0.95, window_steps: int = 64) -> F64:
    """Mean over the newest window_steps rows (oldest first), the newest weighing 1, the one before
    it `decay`, and so on. masses: steps, or steps x blocks."""
    rows = np.asarray(masses, np.float64)[-window_steps:]
    weights = decay ** np.arange(len(rows) - 1, -1, -1)
    return np.asarray(np.tensordot(weights, rows, axes=(0, 0)) / weights.sum())


@dataclass(frozen=True)
class Relevance:
    """ValueError names the option and its number. Floors are of roles without one: 0."""

    name: ClassVar[str] = "relevance"
    scored: ClassVar[bool] = True
    clock: ClassVar[str] = "request"
    state: ClassVar[str] = "keep"
    chains: ClassVar[bool] = True

    coherence: float = 0.6
    recency: float = 0.4
    attention: float = 0.0
    decay: float = 0.01
    alpha: float = 0.2
    user_floor: float = 0.6
    assistant_floor: float = 0.5
    system_floor: float = 0.0
    document_floor: float = 0.0
    tool_floor: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not math.isfinite(number) or number < 0:
                raise ValueError(f"{field.name}: {number} is not a number of at least 0")
            if field.name.endswith("_floor") and number > 1:
                raise ValueError(f"{field.name}: {number} is above 1")
        if not self.coherence + self.recency + self.attention > 0:
            raise ValueError("recency: 0, and so are coherence and attention")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha: {self.alpha} is not between 0 and 1")

    def floor(self, role: str) -> float:
        """Of a name in ROLES; another is a ValueError."""
        if role not in ROLES:
            raise ValueError(f"role: {role!r}, known: {', '.join(ROLES)}")
        return float(getattr(self, f"{role}_floor", 0.0))

    def blend(self, signals: Mapping[str, Any]) -> F64:
        """Weighted mean of the signals that are present (`coherence`, `recency`, `attention`),
        each one number per block; NaN marks a block that lacks one. ValueError: there is none."""
        total: Any = 0.0
        weights: Any = 0.0
        for signal, values in signals.items():
            weight = {"coherence": self.coherence, "recency": self.recency}.get(
                signal, self.attention
            )
            numbers = np.asarray(values, np.float64)
            present = ~np.isnan(numbers)
            total = total + weight * np.where(present, numbers, 0.0)
            weights = weights + weight * present
        if not signals or np.any(np.asarray(weights) <= 0):
            raise ValueError("signals: a block has none that weighs anything")
        return np.asarray(total / weights)

    def value(self, raw: Any, floors: Any = 0.0, priority: Any = 1.0) -> F64:
        """Of blended numbers: what blocks are ranked by; not capped."""
        rescaled = np.asarray(floors) + (1.0 - np.asarray(floors)) * np.asarray(raw, np.float64)
        return np.asarray(rescaled * priority)

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        """Ranks a tier by it: attention is the LRFU score, distance the clock units since the last
        access."""
        floors = [self.floor(role) for role in ROLES]
        return scores.Relevance(
            known, self.coherence, self.recency, self.attention, self.decay, self.alpha, floors
        )

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        return scores.Scores(known, self.alpha, True)
