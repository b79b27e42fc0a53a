"""Watches the loop's own memory: libzmq keeps unfinished messages without bound and out of our
sight, and all that helps is to close the control socket and open it again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Final

import structlog

from evoke.core import native
from evoked.timers import Timers

__all__ = ["MemoryWatch", "memory_besides_bytes"]

CHECK_S: Final = 1.0
SETTLED_S: Final = 0.1  # libzmq gives back a closed socket's memory in a thread of its own


def memory_besides_bytes(arena: native.Arena, index: native.Index) -> int:
    """Resident anonymous memory of this process without the arena's pages and the index."""
    with open("/proc/self/statm") as file:
        fields = [int(field) * os.sysconf("SC_PAGE_SIZE") for field in file.read().split()]
    resident_bytes, shared_bytes = fields[1], fields[2]
    arena_bytes = 0 if arena.backing == "hugetlb" else arena.prefaulted_bytes
    return max(0, resident_bytes - shared_bytes - arena_bytes - index.metadata_bytes())


class MemoryWatch:
    """Calls rebind when memory exceeds the limit. What is still there afterwards was not libzmq's,
    and opening the socket once a second for it would only disturb: it is added to the limit."""

    def __init__(
        self,
        measure: Callable[[], int],
        rebind: Callable[[], None],
        timers: Timers,
        clock: Callable[[], float],
        limit_bytes: int,
    ) -> None:
        self._measure, self._rebind = measure, rebind
        self._timers, self._clock, self._limit_bytes = timers, clock, limit_bytes
        self._kept_bytes = 0
        self._log = structlog.get_logger()

    def check(self) -> None:
        """Once, and from then on every CHECK_S."""
        besides_bytes = self._measure()
        self._kept_bytes = min(self._kept_bytes, besides_bytes)
        if besides_bytes > self._limit_bytes + self._kept_bytes:
            self._log.error(
                "control socket re-bound",
                memory_bytes=besides_bytes,
                limit_bytes=self._limit_bytes + self._kept_bytes,
            )
            self._rebind()
            self._timers.at(self._clock() + SETTLED_S, self._settled)
        self._timers.at(self._clock() + CHECK_S, self.check)

    def _settled(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)
        besides_bytes = self._measure()
        self._kept_bytes = besides_bytes if besides_bytes > self._limit_bytes else 0
