"""Answers that are awaited, and the fence words that make it safe to stop waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final

from evoke.client import wire
from evoke.client.errors import DaemonError, Unavailable
from evoke.client.sockets import Welcome

__all__ = ["FenceWords", "Pending"]

_DEATH_WAIT_S: Final = 1.0
_COPY_WAIT_MS: Final = 1000


class Pending:
    """An answer that is awaited. What it is to be read for is valid once `done` is True."""

    __slots__ = ("code", "done", "event", "lost", "request", "result", "word")

    def __init__(self, word: int = -1) -> None:
        self.request = 0
        self.word = word  # the fence word that is free again when this is answered
        self.done = False
        self.lost = False  # not sent, or the session ended first
        self.code = 0
        self.result: Any = None
        self.event: threading.Event | None = None

    def error(self) -> DaemonError | Unavailable | None:
        """Why it failed, if it did."""
        if not self.done:
            return Unavailable("no answer in time")
        if self.lost:
            return Unavailable("the session ended")
        if self.code == wire.Code.OK:
            return None
        match self.result:
            case [str(field), str(sentence)]:
                return DaemonError(self.code, field, sentence)
        return DaemonError(self.code, "", f"{self.result!r:.80}")


class FenceWords:
    """The words of a session's fence page. A word is used again only after its request was
    answered. All but stop() are called with the connection's lock held."""

    def __init__(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._free = list(range(wire.FENCE_WORDS - 1, -1, -1))
        self._waiters: deque[Pending] = deque()
        self._given_up: set[int] = set()

    def take(self, waiter: Pending) -> None:
        """Completes the waiter with a word as its result, now or when one is free."""
        if self._free:
            waiter.result, waiter.done = self._free.pop(), True
        else:
            self._waiters.append(waiter)

    def forget(self, waiter: Pending) -> None:
        """The waiter has not got a word, and no longer wants one."""
        self._waiters.remove(waiter)

    def release(self, word: int) -> Pending | None:
        """The word's request was answered, or never sent. The waiter that has it now, if any, is
        to be completed."""
        self._given_up.discard(word)
        if not self._waiters:
            self._free.append(word)
            return None
        waiter = self._waiters.popleft()
        waiter.result = word
        return waiter

    def give_up(self, word: int) -> int:
        """Nobody waits for the word's request any more; how many such words there are."""
        self._given_up.add(word)
        return len(self._given_up)

    def take_waiters(self) -> list[Pending]:
        """All that wait; the session is over."""
        waiters = list(self._waiters)
        self._waiters.clear()
        return waiters

    def stop(self, word: int) -> bool:
        """Let no copy of the word's request start. True when none runs, or after a bounded wait
        none runs any more; False when the slots may still be touched."""
        return self._welcome.fences.cancel(word, _COPY_WAIT_MS)

    def stop_after_end(self, word: int) -> bool:
        """stop() for a session that is over: the daemon may have died in the middle of a copy,
        whose count then stays for ever though nobody copies."""
        give_up_at = time.monotonic() + _DEATH_WAIT_S
        while not self._welcome.fences.cancel(word, 0):
            if self._welcome.daemon_died(0.05):
                return True
            if time.monotonic() > give_up_at:
                return False
        return True
