"""The contract of a policy: one policy, one file; daemon and simulator drive the same object.

Rows are numbers of index entries (u32). A policy is told what happened and asked whom it would
give up; it never moves or removes anything itself.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Policy", "Rows"]

Rows = NDArray[np.uint32]


class Policy(Protocol):
    """Learns from accesses and names victims."""

    @property
    def name(self) -> str: ...

    def asked(self, namespace: int, keys: bytes, now_s: float) -> None:
        """A request asked for the blocks of these keys, in chain order, stored or not."""

    def touched(self, rows: Rows) -> None:
        """An access of resident blocks, in chain order, that no request reports."""

    def victims(self, count: int, bytes_wanted: int, namespace: int = -1) -> Rows:
        """Blocks to give up, worst first, until `count` of them and `bytes_wanted` bytes are
        reached; fewer when no more may leave. Never a held block, never a block with a resident
        child that is not named before it. namespace: only of this one. Chooses only."""
