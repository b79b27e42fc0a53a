"""Columns of blocks in a memfd, shared with the process of a user's policy."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoke.policy.users import COLUMNS

__all__ = ["SharedColumns"]

_RANKS: np.dtype[Any] = np.dtype(np.float64)


class SharedColumns:
    """Room for `capacity` rows in the memory of `fd`, which stays the caller's. Each column starts
    at a multiple of 8 bytes; the ranks come last."""

    def __init__(self, fd: int, capacity: int) -> None:
        self.capacity = capacity
        self._map = mmap.mmap(fd, self.size_bytes(capacity))

    @staticmethod
    def size_bytes(capacity: int) -> int:
        return sum(_room(kind, capacity) for kind in (*COLUMNS.values(), _RANKS))

    def views(self, count: int) -> dict[str, NDArray[Any]]:
        """The first `count` rows of each column but the ranks."""
        found = {}
        at = 0
        for name, kind in COLUMNS.items():
            found[name] = np.frombuffer(self._map, kind, count, at)
            at += _room(kind, self.capacity)
        return found

    def ranks(self, count: int) -> NDArray[np.float64]:
        at = sum(_room(kind, self.capacity) for kind in COLUMNS.values())
        return np.frombuffer(self._map, np.float64, count, at)

    def close(self) -> None:
        """No view may be in use any more; BufferError otherwise."""
        self._map.close()


def _room(kind: np.dtype[Any], capacity: int) -> int:
    return -(-kind.itemsize * capacity // 8) * 8
