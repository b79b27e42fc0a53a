"""Deadlines of the loop: a heap of callbacks, cancelled lazily."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

__all__ = ["Timer", "Timers"]


class Timer:
    """One pending callback. cancel() is idempotent."""

    __slots__ = ("callback", "due_s")

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """Times are seconds of the caller's clock, so that a simulation can drive it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()

    def at(self, due_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(due_s, callback)
        heapq.heappush(self._heap, (due_s, next(self._number), timer))
        return timer

    def next_due_s(self) -> float | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_s: float) -> None:
        while self._heap and self._heap[0][0] <= now_s:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
