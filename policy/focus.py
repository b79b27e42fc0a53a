"""What a conversation is about now: a running mean of its messages' embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Focus"]


@dataclass
class Focus:
    """The first message sets it; one whose cosine with it is below snap_below, or that is said to
    begin a task, replaces it; any other is mixed in: keep x old + (1 - keep) x new.

    Source: EVOKE (keep 0.7, snap 0.3). Blocks and messages must be embedded by the same model.
    """

    keep: float = 0.7
    snap_below: float = 0.3
    vector: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.keep < 1:
            raise ValueError(f"keep: {self.keep} is not in [0, 1)")
        if not -1 <= self.snap_below <= 1:
            raise ValueError(f"snap_below: {self.snap_below} is not in [-1, 1]")

    def observe(self, message: Any, boundary: bool = False) -> str:
        """What the message did: set, blend, snap, or forced (boundary). ValueError: not a finite
        vector as long as those before; nothing has changed then."""
        new = np.array(message, np.float64)
        size = new.size if self.vector is None else self.vector.size
        if new.ndim != 1 or new.size != size or not np.isfinite(new).all():
            raise ValueError(f"message: shape {new.shape}, expected {size} finite numbers")
        if self.vector is None:
            action = "set"
        elif boundary:
            action = "forced"
        else:
            action = "snap" if _cosine(self.vector, new) < self.snap_below else "blend"
        if action == "blend":
            assert self.vector is not None
            new = self.keep * self.vector + (1.0 - self.keep) * new
        self.vector = new
        return action


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    lengths = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / lengths if lengths > 0 else 0.0
