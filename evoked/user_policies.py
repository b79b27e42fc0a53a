"""Policies of users in the daemon: tried before they rank, asked in ticks, and left at once when
they are late, dead or talk nonsense."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evoke.config import ConfigError, PolicyConfig
from evoke.core import scores
from evoked.policy_files import read_source
from evoked.policy_process import PolicyProcess
from evoked.timers import Timer, Timers
from evoked.watcher import Watcher

__all__ = ["OrderRanks", "Sample", "UserPolicies", "UserRanks"]

TICK_S: Final = 0.1
LOAD_S: Final = 20.0  # a new Python, numpy, and what the author imports
TRIAL_S: Final = 10.0
SAMPLE_REQUESTS: Final = 256
SAMPLE_BLOCKS: Final = 16_384
KEY: Final = "priority.formula"


class UserRanks(Protocol):
    """Where the ranks of a user's policy hold."""

    def columns(self) -> tuple[dict[str, NDArray[Any]], float, float] | None:
        """(columns as evoke.policy.users.COLUMNS, clock, seconds); None: nothing was asked for
        since the last time, so that the ranks still hold."""

    def set_ranks(self, ids: NDArray[np.uint32], ranks: NDArray[np.float64]) -> None:
        """ValueError, and nothing changes: an unknown id, a rank that is not finite. Blocks that
        have left since are no error."""


class OrderRanks:
    """UserRanks in an order of the core. `now`: (clock, seconds)."""

    def __init__(
        self,
        order: scores.Ranked,
        known: scores.Identities,
        view: scores.Scores,
        now: Callable[[], tuple[float, float]],
    ) -> None:
        self._order, self._known, self._view, self._now = order, known, view, now
        self._asked = True

    def asked(self) -> None:
        """A request has touched blocks: the ranks are out of date."""
        self._asked = True

    def columns(self) -> tuple[dict[str, NDArray[Any]], float, float] | None:
        if not self._asked:
            return None
        self._asked = False
        clock, now_s = self._now()
        return self._order.columns(self._known, self._view, clock), clock, now_s

    def set_ranks(self, ids: NDArray[np.uint32], ranks: NDArray[np.float64]) -> None:
        self._order.set_ranks(ids, ranks)


class Sample:
    """The last requests, for the trial of a policy; before there are any, a made-up run of chats
    that share a first block. Ids are numbered afresh: no key is kept."""

    def __init__(self) -> None:
        self._requests: deque[tuple[NDArray[np.uint32], float]] = deque(maxlen=SAMPLE_REQUESTS)
        self._blocks = 0

    def add(self, ids: NDArray[np.uint32], now_s: float) -> None:
        """Of one request, in chain order."""
        if not 0 < len(ids) <= SAMPLE_BLOCKS // 4:
            return
        if len(self._requests) == SAMPLE_REQUESTS:
            self._blocks -= len(self._requests[0][0])
        self._requests.append((ids.copy(), now_s))
        self._blocks += len(ids)
        while self._blocks > SAMPLE_BLOCKS:
            self._blocks -= len(self._requests.popleft()[0])

    def packed(self) -> tuple[tuple[bytes, bytes, bytes], int]:
        """(ids, starts and seconds as PolicyProcess.trial takes them, number of blocks)."""
        requests = list(self._requests) or _made_up()
        ids = np.concatenate([ids for ids, _ in requests])
        known, dense = np.unique(ids, return_inverse=True)
        starts = np.cumsum([0, *(len(ids) for ids, _ in requests)], dtype=np.uint64)
        now_s = np.array([now_s for _, now_s in requests], np.float64)
        packed = (dense.astype(np.uint32).tobytes(), starts.tobytes(), now_s.tobytes())
        return packed, len(known)


def _made_up() -> list[tuple[NDArray[np.uint32], float]]:
    rng = np.random.default_rng(0)
    chats: list[list[int]] = [[0] for _ in range(8)]
    requests = []
    for number in range(128):
        chat = chats[int(rng.integers(len(chats)))]
        chat.extend(range(1 + 4 * number, 5 + 4 * number))
        requests.append((np.array(chat, np.uint32), float(number)))
    return requests


class UserPolicies:
    """prepare() tries a policy; adopt() lets it rank. on_failed(reason): the one that ranked has
    been ended."""

    def __init__(
        self,
        directory: str,
        deadline_s: float,
        watcher: Watcher,
        timers: Timers,
        clock: Callable[[], float],
        on_failed: Callable[[str], None],
    ) -> None:
        self._directory, self._deadline_s = directory, deadline_s
        self._watcher, self._timers, self._clock = watcher, timers, clock
        self._on_failed = on_failed
        self.sample = Sample()
        self._trying: PolicyProcess | None = None
        self._active: PolicyProcess | None = None
        self._ranks: UserRanks | None = None
        self._tick_timer: Timer | None = None
        self._waits: Callable[[str], None] | None = None

    @property
    def busy(self) -> bool:
        """A policy is being tried; there is one trial at a time."""
        return self._trying is not None

    def prepare(self, config: PolicyConfig, done: Callable[[str], None]) -> None:
        """done("") when the policy has ranked the recorded sample, done(reason) when it cannot be
        used; later, not from here. ConfigError: its file cannot be used."""
        assert not self.busy
        source = self._source(config.priority.formula)
        process = PolicyProcess(self._watcher, self._timers, self._clock, self._trial_failed)
        self._trying, self._waits = process, done
        packed, blocks = self.sample.packed()

        def loaded() -> None:
            capacity = max(1, blocks // 4)
            process.trial(packed, capacity, config.score.weight, TRIAL_S, tried)

        def tried() -> None:
            self._waits = None
            done("")

        process.load(source, dict(config.priority.options), LOAD_S, loaded)

    def _source(self, formula: str) -> tuple[str, str, str]:
        kind, _, name = formula.partition(":")
        try:
            text = read_source(self._directory, name) if kind == "file" else ""
        except OSError as error:
            raise ConfigError(f"{name}: cannot be read: {error.strerror}", key=KEY) from error
        except ValueError as error:
            raise ConfigError(str(error), key=KEY) from error
        return kind, name, text

    def _trial_failed(self, reason: str) -> None:
        self._trying = None
        waits, self._waits = self._waits, None
        if waits is not None:
            waits(reason)

    def discard(self) -> None:
        """The prepared policy is not wanted."""
        if self._trying is not None:
            process, self._trying, self._waits = self._trying, None, None
            process.end()

    def adopt(self, ranks: UserRanks) -> None:
        """The prepared policy ranks from now on, in the place of another."""
        assert self._trying is not None
        self.stop()
        self._active, self._trying = self._trying, None
        self._active.on_end = self._failed
        self._ranks = ranks
        self._tick()

    def stop(self) -> None:
        """No user's policy ranks any more."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._active is not None:
            process, self._active, self._ranks = self._active, None, None
            process.end()

    def _tick(self) -> None:
        process, ranks = self._active, self._ranks
        if process is None or ranks is None:
            return
        self._tick_timer = self._timers.at(self._clock() + TICK_S, self._tick)
        found = None if process.busy else ranks.columns()
        if found is None or not len(found[0]["ids"]):
            return
        columns, clock, now_s = found
        ids = columns["ids"]

        def done(values: NDArray[np.float64]) -> None:
            try:
                ranks.set_ranks(ids, values)
            except ValueError as error:
                process.end(str(error))

        process.rank(columns, clock, now_s, self._deadline_s, done)

    def _failed(self, reason: str) -> None:
        self._active = self._ranks = None
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._on_failed(reason)

    def close(self) -> None:
        self.discard()
        self.stop()
