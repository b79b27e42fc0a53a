"""Verbs that ask for blocks: fetch, pin, unpin, touch, lookup, asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from evoke.client import wire
from evoke.client.wire import Code, Fetched
from evoke.core import native
from evoked.counters import Counters
from evoked.events import Announcer
from evoked.grants import Grants
from evoked.registry import Registry, Request
from evoked.server import DEFERRED, Refusal, Replier
from evoked.sessions import NamespaceEntry, Session
from evoked.tiers import HOST, U32, U64, Balance
from evoked.transfers import U8, Transfers

__all__ = ["Pinned", "Reads"]

_OUTCOMES: Final = {
    native.CORRUPT: Fetched.CORRUPT,
    native.FAULT: Fetched.FAULT,
    native.LATE: Fetched.LATE,
    native.CANCELLED: Fetched.LATE,
}
_TIER_COUNTERS: Final = {1: "hit_host", 2: "hit_cxl", 3: "hit_flash"}


class Pinned:
    """What a pin holds, and which ranks have given their part back."""

    __slots__ = ("entry", "released", "rows")

    def __init__(self, entry: NamespaceEntry, rows: U32) -> None:
        self.entry, self.rows = entry, rows
        self.released: set[int] = set()


class Reads:
    def __init__(
        self,
        replier: Replier,
        registry: Registry,
        index: native.Index,
        balance: Balance,
        transfers: Transfers,
        grants: Grants,
        counters: Counters,
        announcer: Announcer,
        clock: Callable[[], float],
    ) -> None:
        self._replier, self._registry, self._index = replier, registry, index
        self._balance, self._transfers = balance, transfers
        self._grants, self._counters = grants, counters
        self._announcer, self._clock = announcer, clock

    # ------------------------------------------------------------------ fetch
    def fetch(self, session: Session, number: int, args: wire.Fetch) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        pool = self._registry.pool(session, args.pool, entry)
        request = Request(entry, args.keys, args.first, b"")
        request.take_slots(args.slots, pool, request.count)
        if request.count > 1 and len(np.unique(request.slots)) != request.count:
            raise Refusal(Code.BAD_ARGUMENT, "slots", "a slot is listed twice")
        self._transfers.check_room(session, request.count * entry.part_bytes(pool.part))
        if args.grant and self._pin_of(session, args.grant, entry) is None:
            return bytes([Fetched.EXPIRED]) * request.count
        if not request.count:
            return b""
        rows, positions, results = self._find(request, counts=not session.reports)
        self._counters.add("blocks_missed", request.count - len(positions))
        if not len(positions):
            return results.tobytes()
        self._index.hold(rows)
        refs, _, sums = self._index.part(rows, pool.part)

        def done(outcomes: U8, _sums: U64) -> None:
            self._finish(rows, positions, outcomes, results, entry.part_bytes(pool.part))
            back = positions[outcomes == native.COPIED].tolist()
            self._announcer.keys("restored", entry, map(request.key, back), "host")
            self._replier.reply(session, number, Code.OK, results.tobytes())

        slots = request.slots[positions]
        with self._balance.let_go(held=rows):
            self._transfers.fetch(
                session, number, pool, slots, refs, sums, args.deadline_ms, args.fence, done
            )
        return DEFERRED

    def _find(self, request: Request, *, counts: bool) -> tuple[U32, U32, U8]:
        """(rows, their positions, results with the tier of each). counts: it is an access, which
        no report of what was asked will count."""
        rows = self._index.find(request.entry.number, request.keys)
        positions = np.flatnonzero(rows != native.NO_ROW).astype(np.uint32)
        results = np.zeros(request.count, np.uint8)
        rows = rows[positions]
        results[positions] = HOST
        if counts and len(rows):
            self._balance.policy.touched(rows)
        return rows, positions, results

    def _finish(
        self, rows: U32, positions: U32, outcomes: U8, results: U8, part_bytes: int
    ) -> None:
        try:
            for outcome, code in _OUTCOMES.items():
                results[positions[outcomes == outcome]] = code
            good = int((outcomes == native.COPIED).sum())
            self._counters.add("blocks_fetched", good)
            self._counters.add("bytes_fetched", good * part_bytes)
            self._counters.add("peer_faults", int((outcomes == native.FAULT).sum()))
            late = (outcomes == native.LATE) | (outcomes == native.CANCELLED)
            self._counters.add("blocks_late", int(late.sum()))
            damaged = rows[outcomes == native.CORRUPT]
            if len(damaged):
                self._counters.add("integrity_failures", len(damaged))
                self._balance.remove(damaged[self._index.is_visible(damaged) != 0], "damaged")
        finally:
            self._balance.free(self._index.unhold(rows))

    # ------------------------------------------------------------------ pins
    def pin(self, session: Session, number: int, args: wire.Pin) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        request = Request(entry, args.keys, args.first, b"")
        self._grants.check_room(session, entry.tenant)
        rows, _, results = self._find(request, counts=not session.reports)
        if not len(rows):
            return [0, results.tobytes()]
        held_bytes = len(rows) * entry.block_bytes
        self._grants.check_pin(session, held_bytes)
        self._index.hold(rows)

        def end() -> None:
            self._balance.free(self._index.unhold(rows))

        grant = self._grants.make(
            session,
            entry.tenant,
            args.hold_ms,
            end,
            Pinned(entry, rows),
            held_bytes=held_bytes,
            pins=True,
        )
        return [grant.number, results.tobytes()]

    def unpin(self, session: Session, number: int, args: wire.Grant) -> Any:
        grant = self._grants.need(session, args.grant)
        pinned = grant.details
        if not isinstance(pinned, Pinned):
            raise Refusal(Code.BAD_GRANT, "grant", "is a reservation; commit or abort it")
        if session.rank in pinned.released:
            self._counters.add("bad_grants")
            raise Refusal(Code.BAD_GRANT, "grant", f"rank {session.rank} released it before")
        pinned.released.add(session.rank)
        if len(pinned.released) == len(pinned.entry.namespace.rank_parts):
            self._grants.release(grant)

    def _pin_of(self, session: Session, number: int, entry: NamespaceEntry) -> Pinned | None:
        grant = self._grants.get(session, number)
        if grant is None:
            return None
        pinned = grant.details
        if not isinstance(pinned, Pinned) or pinned.entry is not entry:
            raise Refusal(Code.BAD_GRANT, "grant", "is not a pin of this namespace")
        return None if session.rank in pinned.released else pinned

    # ------------------------------------------------------------------ no bytes move
    def touch(self, session: Session, number: int, args: wire.KeyList) -> Any:
        request = Request(
            self._registry.namespace(session, args.namespace), args.keys, args.first, b""
        )
        return len(self._find(request, counts=True)[0])

    def lookup(self, session: Session, number: int, args: wire.KeyList) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        request = Request(entry, args.keys, args.first, b"")
        rows = self._index.find(entry.number, request.keys)
        return np.where(rows != native.NO_ROW, HOST, 0).astype(np.uint8).tobytes()

    def asked(self, session: Session, number: int, args: wire.Asked) -> Any:
        """The access stream: what engines looked up, each of their requests once."""
        requests = []
        for report in args.reports:  # all checked before any is counted
            entry = self._registry.namespace(session, report.namespace)
            request = Request(entry, report.keys, report.first, b"")
            if report.hits > request.count:
                sentence = f"{report.hits} of {request.count} keys"
                raise Refusal(Code.BAD_ARGUMENT, "hits", sentence)
            requests.append((request, report))
        for request, report in requests:
            if session.first_ask(report.ask):
                self._count(request, report.hits)
            else:
                self._counters.add("reports_repeated")

    def _count(self, request: Request, hits: int) -> None:
        rows = self._index.find(request.entry.number, request.keys[: hits * 32])
        found = rows[rows != native.NO_ROW]
        self._counters.add("asked", request.count)
        self._counters.add(_TIER_COUNTERS[HOST], len(found))
        self._counters.add("unknown", hits - len(found))
        self._counters.add("missed", request.count - hits)
        self._balance.policy.asked(request.entry.number, request.keys, self._clock())
