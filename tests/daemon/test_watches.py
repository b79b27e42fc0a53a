"""Timers and the watch over the loop's memory, on a clock of the test."""

from __future__ import annotations

from evoked.memory_watch import MemoryWatch
from evoked.timers import Timers


class World:
    """A watch with a limit of 100 bytes; used_bytes is what it measures."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.used_bytes = 50
        self.rebinds = 0
        self.frees_bytes = 0
        self.timers = Timers()
        MemoryWatch(
            lambda: self.used_bytes, self.rebind, self.timers, lambda: self.now_s, 100
        ).check()

    def rebind(self) -> None:
        self.rebinds += 1
        self.used_bytes -= self.frees_bytes

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            self.now_s += 0.05
            self.timers.run_due(self.now_s)


def test_below_the_limit_nothing_happens() -> None:
    """Memory below the limit leaves the socket alone."""
    world = World()
    world.run(10)
    assert world.rebinds == 0


def test_each_flood_is_answered() -> None:
    """Each time that memory exceeds the limit the socket is opened anew, once."""
    world = World()
    world.frees_bytes = 400
    for count in (1, 2, 3):
        world.used_bytes += 400
        world.run(3)
        assert world.rebinds == count


def test_what_is_not_the_sockets() -> None:
    """Memory that opening the socket does not give back is not fought every second; a flood on
    top of it is, and when it falls the old limit holds again."""
    world = World()
    world.used_bytes = 300
    world.run(20)
    assert world.rebinds == 1
    world.frees_bytes = 400
    world.used_bytes += 400
    world.run(3)
    assert (world.rebinds, world.used_bytes) == (2, 300)
    world.used_bytes = 60
    world.run(3)
    world.frees_bytes = 100
    world.used_bytes = 190
    world.run(3)
    assert world.rebinds == 3


def test_timers_run_in_order_and_once() -> None:
    """Timers run when due, earliest first, and a cancelled one never does."""
    timers, ran = Timers(), []
    for due_s in (3.0, 1.0, 2.0):
        timers.at(due_s, lambda due_s=due_s: ran.append(due_s))  # type: ignore[misc]
    cancelled = timers.at(1.5, lambda: ran.append(1.5))
    cancelled.cancel()
    cancelled.cancel()
    timers.run_due(2.5)
    timers.run_due(2.5)
    assert ran == [1.0, 2.0]
    assert timers.next_due_s() == 3.0


def test_cancelled_timers_are_forgotten() -> None:
    """However many are cancelled long before they are due, few are kept; the others still run."""
    timers, ran = Timers(), []
    timers.at(10.0, lambda: ran.append("kept"))
    for _ in range(10_000):
        timers.at(3600.0, lambda: ran.append("never")).cancel()
    assert len(timers) < 1000
    timers.run_due(4000.0)
    assert ran == ["kept"]
    assert timers.next_due_s() is None


def test_timer_that_makes_and_cancels_timers() -> None:
    """A callback may make timers that are due at once, and cancel others and itself."""
    timers, ran = Timers(), []
    later = timers.at(2.0, lambda: ran.append("later"))

    def first() -> None:
        own.cancel()
        later.cancel()
        timers.at(1.0, lambda: ran.append("made"))

    own = timers.at(1.0, first)
    timers.run_due(5.0)
    assert ran == ["made"]
