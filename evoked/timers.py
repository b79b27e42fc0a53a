"""Deadlines of the loop: a heap of callbacks. Cancelled ones leave it lazily, or all at once when
they are most of it: a grant may be held for an hour and released at once, thousands of times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

__all__ = ["Timer", "Timers"]

SWEEP_MIN: Final = 256


class Timer:
    """One pending callback. cancel() is idempotent."""

    __slots__ = ("_timers", "callback", "due_s")

    def __init__(self, timers: Timers, due_s: float, callback: Callable[[], None]) -> None:
        self._timers, self.due_s = timers, due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled()


class Timers:
    """Times are seconds of the caller's clock, so that a simulation can drive it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, due_s, callback)
        heapq.heappush(self._heap, (due_s, next(self._number), timer))
        return timer

    def cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > max(SWEEP_MIN, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_due_s(self) -> float | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_s: float) -> None:
        while self._heap and self._heap[0][0] <= now_s:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled -= 1
            else:
                callback()
