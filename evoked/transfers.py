"""Copies under way: what was submitted to the copy engine, and what happens when it is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evoke.client.wire import Code
from evoke.core import native
from evoked.server import Refusal
from evoked.sessions import PoolEntry, Session

__all__ = ["Done", "Transfers"]

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Done = Callable[[U8, U64], None]  # outcome and checksum of each block


class Transfers:
    """Submits copies within each session's limit and calls back on the loop when they end."""

    def __init__(self, engine: native.CopyEngine, inflight_bytes_max: int, verify: bool) -> None:
        self._engine = engine
        self._inflight_bytes_max, self._verify = inflight_bytes_max, verify
        self._waiting: dict[int, tuple[Session, int, Done]] = {}
        self.eventfd = engine.eventfd

    def __len__(self) -> int:
        return len(self._waiting)

    def check_room(self, session: Session, copy_bytes: int) -> None:
        """BUSY when the session has too much under way; one request alone always fits."""
        under_way = session.inflight_bytes
        if under_way and under_way + copy_bytes > self._inflight_bytes_max:
            sentence = f"{under_way} bytes are being copied for this session, "
            sentence += f"limits.session_inflight_bytes = {self._inflight_bytes_max}"
            raise Refusal(Code.BUSY, "", sentence)

    def store(
        self,
        session: Session,
        pool: PoolEntry,
        slots: U32,
        refs: U64,
        deadline_ms: int,
        fence: int,
        done: Done,
    ) -> None:
        ticket = self._engine.store(pool.native, slots, refs, deadline_ms, session.fence, fence)
        self._wait(ticket, session, len(slots) * pool.native.layout.block_bytes, done)

    def fetch(
        self,
        session: Session,
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
        self._wait(ticket, session, len(slots) * pool.native.layout.block_bytes, done)

    def _wait(self, ticket: int, session: Session, copy_bytes: int, done: Done) -> None:
        session.inflight_bytes += copy_bytes
        self._waiting[ticket] = (session, copy_bytes, done)

    def complete(self) -> None:
        """The eventfd is readable: run what ended."""
        for ticket, outcomes, sums in self._engine.take_completed():
            session, copy_bytes, done = self._waiting.pop(ticket)
            session.inflight_bytes -= copy_bytes
            done(outcomes, sums)
