"""The verb store, and what all writing of blocks has in common (reservations.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evoke.client import wire
from evoke.client.wire import Code, Stored
from evoke.core import native
from evoked.counters import Counters
from evoked.events import Announcer
from evoked.grants import Grants
from evoked.parts import COUNTED, OUTCOMES, Parts, PartState, PendingBlock
from evoked.registry import Registry, Request
from evoked.server import DEFERRED, Replier
from evoked.sessions import Grant, PoolEntry, Session
from evoked.tenants import Tenants
from evoked.tiers import U32, U64, Balance, Tier
from evoked.transfers import U8, Transfers

__all__ = ["Writes"]


class Writes:
    """Rooms are found in chain order, so that what is refused is the tail."""

    def __init__(
        self,
        replier: Replier,
        registry: Registry,
        index: native.Index,
        tier: Tier,
        balance: Balance,
        tenants: Tenants,
        transfers: Transfers,
        grants: Grants,
        parts: Parts,
        counters: Counters,
        announcer: Announcer,
    ) -> None:
        self._replier, self._registry, self._index, self._tier = replier, registry, index, tier
        self._balance, self._tenants = balance, tenants
        self._transfers, self._grants = transfers, grants
        self._parts, self._counters = parts, counters
        self._announcer = announcer
        self.copied: Callable[[Grant], None]  # under a reservation; Reservations sets it

    # ------------------------------------------------------------------ store
    def store(self, session: Session, number: int, args: wire.Store) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        pool = self._registry.pool(session, args.pool, entry)
        request = Request(entry, args.keys, args.first, args.parent)
        request.check_parent()
        request.take_slots(args.slots, pool, request.count)
        self._transfers.check_room(session, request.count * entry.part_bytes(pool.part))
        if not request.count:
            return b""
        if len(entry.namespace.parts) > 1:
            return self._store_parts(session, number, args, request, pool)
        results, missing, held = self.open(session, request)
        with self._balance.let_go(held=held):
            refs = self._tenants.place(entry, entry.part_bytes(0), len(missing))
        results[missing[len(refs) :]] = Stored.REFUSED
        missing = missing[: len(refs)]
        if not len(missing):
            return self._close(results, held)
        generation = entry.generation
        pending_bytes = len(refs) * entry.part_bytes(0)

        def done(outcomes: U8, sums: U64) -> None:
            entry.tenant.pending_bytes -= pending_bytes
            with self._balance.let_go(held=held):
                if session.ended or not entry.accepts(generation):
                    self._balance.free(refs)
                    self._counters.add("blocks_dropped", len(refs))
                    results[missing] = Stored.LATE
                else:
                    self._insert_runs(request, missing, refs, outcomes, sums, results)
                    self._index.link(entry.number, request.parent + request.keys)
            self._replier.reply(session, number, Code.OK, self._close(results, held))

        slots = request.slots[missing]
        with self._balance.let_go(refs, held=held):
            self._transfers.store(
                session, number, pool, slots, refs, args.deadline_ms, args.fence, done
            )
        entry.tenant.pending_bytes += pending_bytes
        return DEFERRED

    def open(self, session: Session, request: Request) -> tuple[U8, U32, U32]:
        """(results so far, positions that are missing, rows to hold until the end).

        What is present and the parent are held: making room for a chain must not eat the chain.
        """
        rows = self._index.find(request.entry.number, request.keys)
        present = rows != native.NO_ROW
        results = np.where(present, Stored.PRESENT, Stored.REFUSED).astype(np.uint8)
        held = rows[present]
        if len(request.parent):
            parent = self._index.find(request.entry.number, request.parent)
            held = np.concatenate([parent[parent != native.NO_ROW], held])
        if len(held) and not session.reports:
            self._balance.policy.touched(held)
        self._index.hold(held)
        return results, np.flatnonzero(~present).astype(np.uint32), held

    def _close(self, results: U8, held: U32) -> bytes:
        self._balance.free(self._index.unhold(held))
        for code, count in enumerate(np.bincount(results, minlength=len(Stored)).tolist()):
            if count and Stored(code) in COUNTED:
                self._counters.add(COUNTED[Stored(code)], count)
        return results.tobytes()

    def _insert_runs(
        self, request: Request, missing: U32, refs: U64, outcomes: U8, sums: U64, results: U8
    ) -> None:
        """Commit what was copied: one index call for each unbroken run of positions."""
        for outcome, code in OUTCOMES.items():
            results[missing[outcomes == outcome]] = code
        good = np.flatnonzero(outcomes == native.COPIED)
        part_bytes = request.entry.part_bytes(0)
        kept = np.zeros(len(refs), bool)
        try:
            for run in np.split(good, np.flatnonzero(np.diff(missing[good]) != 1) + 1):
                if not len(run):
                    continue
                begin, end = int(missing[run[0]]), int(missing[run[-1]]) + 1
                rows = self._index.insert_many(
                    request.entry.number,
                    request.keys[begin * 32 : end * 32],
                    request.first + begin,
                    request.parent_of(begin),
                    refs[run],
                    np.full(len(run), part_bytes, np.uint32),
                    sums[run],
                    self._tier.number,
                )
                kept[run] = rows != native.NO_ROW  # else another writer was first
                results[missing[run]] = np.where(kept[run], Stored.STORED, Stored.PRESENT)
                keys = map(request.key, missing[run[kept[run]]].tolist())
                self._announcer.keys("stored", request.entry, keys, self._tier.name)
                self._counters.add("bytes_stored", int(kept[run].sum()) * part_bytes)
        finally:
            self._balance.free(refs[~kept])

    # ------------------------------------------------------------------ several ranks
    def _store_parts(
        self, session: Session, number: int, args: wire.Store, request: Request, pool: PoolEntry
    ) -> Any:
        request.check_distinct()
        results, missing, held = self.open(session, request)
        blocks: list[tuple[int, PendingBlock]] = []
        for position in missing.tolist():
            block = self._parts.join(
                session,
                request.entry,
                request.key(position),
                request.first + position,
                request.parent_of(position),
            )
            if block.states[pool.part] is PartState.EMPTY:
                blocks.append((position, block))
            else:  # another rank that shares this part stored it, or is at it
                results[position] = Stored.INCOMPLETE
        part_bytes = request.entry.part_bytes(pool.part)
        with self._balance.let_go(held=held):
            refs = self._tenants.place(request.entry, part_bytes, len(blocks))
        for _, block in blocks[len(refs) :]:
            self._parts.settle(session, block)
        blocks = blocks[: len(refs)]
        for (_, block), ref in zip(blocks, refs.tolist(), strict=True):
            self._parts.give_place(block, pool.part, ref)
        positions = [position for position, _ in blocks]
        slots = request.slots[np.array(positions, np.int64)]
        return self.copy_parts(
            session, number, args, pool, blocks, slots, results, held, booked=request
        )

    def copy_parts(
        self,
        session: Session,
        number: int,
        args: wire.Store | wire.Commit,
        pool: PoolEntry,
        blocks: list[tuple[int, PendingBlock]],
        slots: U32,
        results: U8,
        held: U32,
        *,
        booked: Request | None,
        grant: Grant | None = None,
    ) -> Any:
        """Copy one part of each (position in results, block), then finish them in chain order."""
        if not blocks:
            return self._close(results, held)
        for _, block in blocks:
            block.states[pool.part] = PartState.COPYING

        def done(outcomes: U8, sums: U64) -> None:
            ends = zip(blocks, outcomes.tolist(), sums.tolist(), strict=True)
            with self._balance.let_go(held=held), self._parts.let_go(session, blocks, pool.part):
                for (position, block), outcome, checksum in ends:
                    if session.ended and not block.dropped:
                        self._parts.drop(block)
                    results[position] = self._parts.finish(block, pool.part, outcome, checksum)
                    if results[position] == Stored.INCOMPLETE:
                        block.writers.add(session)
                    elif outcome != native.COPIED:
                        block.ranks.discard(session.rank)  # which may try again
                    if booked is not None and not session.ended:
                        self._parts.settle(session, block)
                if booked is not None and not session.ended:
                    self._index.link(booked.entry.number, booked.parent + booked.keys)
                if grant is not None:
                    self.copied(grant)
            self._replier.reply(session, number, Code.OK, self._close(results, held))

        refs = np.array([block.refs[pool.part] for _, block in blocks], np.uint64)
        with self._balance.let_go(held=held), self._parts.let_go(session, blocks, pool.part):
            self._transfers.store(
                session, number, pool, slots, refs, args.deadline_ms, args.fence, done
            )
        return DEFERRED
