"""Least recently used, tail first.

A request touches its blocks last to first and then their ancestors, so that within a chain the
later block is always the older one and leaves first: a hole never makes the rest unreachable.
"""

from __future__ import annotations

from evoke.core import native
from evoke.policy.base import Rows

__all__ = ["Lru"]


class Lru:
    """The order is the recency list of the index itself; nothing is kept here."""

    name = "lru"

    def __init__(self, index: native.Index) -> None:
        self._index = index

    def touched(self, rows: Rows) -> None:
        self._index.touch(rows)

    def victims(self, count: int, bytes_wanted: int) -> Rows:
        return self._index.victims(count, bytes_wanted)
