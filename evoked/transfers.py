"""Copies under way: what was submitted to the copy engine, and what happens when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from evoke.client.wire import FENCE_WORDS, Code
from evoke.core import native
from evoked.counters import Counters
from evoked.histograms import Histograms
from evoked.server import Refusal, Replier
from evoked.sessions import PoolEntry, Session

__all__ = ["Done", "Transfers"]

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Done = Callable[[U8, U64], None]  # outcome and checksum of each block


class _Transfer(NamedTuple):
    verb: str
    session: Session
    number: int
    pool: PoolEntry
    copy_bytes: int
    done: Done
    started_s: float


class Transfers:
    """Submits copies within each session's limit and calls back on the loop when they end."""

    def __init__(
        self,
        engine: native.CopyEngine,
        replier: Replier,
        counters: Counters,
        histograms: Histograms,
        inflight_bytes_max: int,
        verify: bool,
    ) -> None:
        self._engine, self._histograms = engine, histograms
        self._replier, self._counters = replier, counters
        self._inflight_bytes_max, self._verify = inflight_bytes_max, verify
        self._waiting: dict[int, _Transfer] = {}
        self._log = structlog.get_logger()
        self.eventfd = engine.eventfd

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self, session: Session, copy_bytes: int) -> None:
        """BUSY when the session has too much under way; one request alone always fits."""
        if session.transfers >= FENCE_WORDS:
            raise Refusal(Code.BUSY, "", f"{FENCE_WORDS} copies of this session are under way")
        under_way = session.inflight_bytes
        if under_way and under_way + copy_bytes > self._inflight_bytes_max:
            sentence = f"{under_way} bytes are being copied for this session, "
            sentence += f"limits.session_inflight_bytes = {self._inflight_bytes_max}"
            raise Refusal(Code.BUSY, "", sentence)

    def store(
        self,
        session: Session,
        number: int,
        pool: PoolEntry,
        slots: U32,
        refs: U64,
        deadline_ms: int,
        fence: int,
        done: Done,
    ) -> None:
        """`number`: of the request that waits for this copy; `done` answers it."""
        ticket = self._engine.store(pool.native, slots, refs, deadline_ms, session.fence, fence)
        self._wait("store", ticket, session, number, pool, len(slots), done)

    def fetch(
        self,
        session: Session,
        number: int,
        pool: PoolEntry,
        slots: U32,
        refs: U64,
        sums: U64,
        deadline_ms: int,
        fence: int,
        done: Done,
    ) -> None:
        ticket = self._engine.fetch(
            pool.native, slots, refs, sums, self._verify, deadline_ms, session.fence, fence
        )
        self._wait("fetch", ticket, session, number, pool, len(slots), done)

    def _wait(
        self,
        verb: str,
        ticket: int,
        session: Session,
        number: int,
        pool: PoolEntry,
        blocks: int,
        done: Done,
    ) -> None:
        copy_bytes = blocks * pool.native.layout.block_bytes
        session.inflight_bytes += copy_bytes
        session.transfers += 1
        self._waiting[ticket] = _Transfer(
            verb, session, number, pool, copy_bytes, done, time.monotonic()
        )

    def complete(self) -> None:
        """The eventfd is readable: run what ended."""
        for ticket, outcomes, sums in self._engine.take_completed():
            transfer = self._waiting.pop(ticket)
            transfer.session.inflight_bytes -= transfer.copy_bytes
            transfer.session.transfers -= 1
            self._finish(transfer, outcomes, sums)
            seconds = time.monotonic() - transfer.started_s
            self._histograms.transfer(transfer.verb, transfer.copy_bytes, seconds)

    def _finish(self, transfer: _Transfer, outcomes: U8, sums: U64) -> None:
        session = transfer.session
        try:
            transfer.done(outcomes, sums)
        except Exception:  # the loop's edge: a defect of ours must not take the daemon down
            self._counters.add("defects")
            self._log.exception("defect after a copy", session=session.number)
            failed = [transfer.verb, "a defect of the daemon"]
            self._replier.reply(session, transfer.number, Code.INTERNAL, failed)
        # A pool that its owner still uses, and whose pages it takes away, is no memory to work on.
        if transfer.pool.number in session.pools and (outcomes == native.FAULT).any():
            self._replier.end_session(session, f"pool {transfer.pool.number} faulted under a copy")
