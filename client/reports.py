"""Tells the daemon what was looked up, in batches: with the next request or soon after.

The thread that does the latter sleeps without a timeout while there is nothing to tell.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.keys import Chain

__all__ = ["ASK_MAX", "Reports"]

DELAY_S: Final = 0.08  # at most 100 ms are promised
REPORTS_MAX: Final = 4096
KEY_BYTES_MAX: Final = 16 << 20
ASK_MAX: Final = 1 << 62  # numbers of callers are below, so that ours never meet them
_ASKS_REMEMBERED: Final = 4096
_FRAME_KEY_BYTES: Final = 768 << 10  # of one asked frame, whose limit is 1 MiB


class Reports:
    """Thread-safe and bounded: the oldest reports are dropped, and counted in `dropped`."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        """on_idle: what else to do in the background after wake()."""
        self.dropped = 0
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._queue: deque[tuple[Connection, wire.Report]] = deque()
        self._key_bytes = 0
        self._asks: OrderedDict[int, None] = OrderedDict()
        self._own_asks = itertools.count(ASK_MAX)
        self._awake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self, connection: Connection, namespace: int, chain: Chain, hits: int, ask: int | None
    ) -> None:
        """One look-up of one engine request; the same `ask` is reported once."""
        with self._lock:
            if ask is None:
                ask = next(self._own_asks)
            elif ask in self._asks:
                return
            else:
                self._asks[ask] = None
                if len(self._asks) > _ASKS_REMEMBERED:
                    self._asks.popitem(last=False)
            for begin in range(0, len(chain), wire.KEYS_MAX):
                piece = chain.cut(begin, min(begin + wire.KEYS_MAX, len(chain)))
                found = min(max(hits - begin, 0), len(piece))
                number = ask if begin == 0 else next(self._own_asks)
                report = wire.Report(namespace, piece.keys, piece.first, found, number)
                self._queue.append((connection, report))
                self._key_bytes += len(piece.keys)
            while len(self._queue) > REPORTS_MAX or self._key_bytes > KEY_BYTES_MAX:
                self._key_bytes -= len(self._queue.popleft()[1].keys)
                self.dropped += 1
        self.wake()

    def wake(self) -> None:
        """Have the thread look after its work, in a moment."""
        if not self._awake.is_set():
            if self._thread is None:
                self._start()
            self._awake.set()

    def flush(self) -> None:
        """Send what is waiting. Never waits; what cannot be sent is dropped."""
        while self._queue:
            batch = self._take_batch()
            if not batch:
                return
            connection = batch[0][0]
            args = wire.Asked([report for _, report in batch])
            if not connection.send_unanswered("asked", args):
                with self._lock:
                    self.dropped += len(batch)

    def close(self) -> None:
        """Send what is waiting and end the thread."""
        self.flush()
        self._stop.set()
        self._awake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _take_batch(self) -> list[tuple[Connection, wire.Report]]:
        batch: list[tuple[Connection, wire.Report]] = []
        key_bytes = 0
        with self._lock:
            while self._queue and len(batch) < wire.REPORTS_MAX:
                connection, report = self._queue[0]
                key_bytes += len(report.keys)
                if batch and (connection is not batch[0][0] or key_bytes > _FRAME_KEY_BYTES):
                    break
                batch.append(self._queue.popleft())
                self._key_bytes -= len(report.keys)
        return batch

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="evoke-reports", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._awake.wait()
            if self._stop.wait(DELAY_S):
                return
            self._awake.clear()
            self.flush()
            self._on_idle()
