"""Verbs that bring blocks in: store, reserve, commit, abort."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from evoked.server import DEFERRED, Refusal, Replier
from evoked.sessions import Grant, NamespaceEntry, PoolEntry, Session
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
        results, missing, held = self._open(session, request)
        with self._let_go(held):
            refs = self._tenants.place(entry, entry.part_bytes(0), len(missing))
        results[missing[len(refs) :]] = Stored.REFUSED
        missing = missing[: len(refs)]
        if not len(missing):
            return self._close(results, held)
        generation = entry.generation
        pending_bytes = len(refs) * entry.part_bytes(0)

        def done(outcomes: U8, sums: U64) -> None:
            entry.tenant.pending_bytes -= pending_bytes
            with self._let_go(held):
                if session.ended or generation != entry.generation:
                    self._balance.free(refs)
                    self._counters.add("blocks_dropped", len(refs))
                    results[missing] = Stored.LATE
                else:
                    self._insert_runs(request, missing, refs, outcomes, sums, results)
                    self._index.link(entry.number, request.parent + request.keys)
            self._replier.reply(session, number, Code.OK, self._close(results, held))

        slots = request.slots[missing]
        with self._let_go(held, refs):
            self._transfers.store(
                session, number, pool, slots, refs, args.deadline_ms, args.fence, done
            )
        entry.tenant.pending_bytes += pending_bytes
        return DEFERRED

    def _open(self, session: Session, request: Request) -> tuple[U8, U32, U32]:
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
        self._index.hold(held)
        if len(held) and not session.reports:
            self._balance.policy.touched(held)
        return results, np.flatnonzero(~present).astype(np.uint32), held

    @contextmanager
    def _let_go(self, held: U32, refs: U64 | None = None) -> Iterator[None]:
        """What fails inside must not leave the chain held, or places taken, for ever."""
        try:
            yield
        except BaseException:
            self._balance.free(self._index.unhold(held))
            if refs is not None:
                self._balance.free(refs)
            raise

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
        bad = outcomes != native.COPIED
        self._balance.free(refs[bad])
        good, refs, sums = missing[~bad], refs[~bad], sums[~bad]
        breaks = np.flatnonzero(np.diff(good) != 1) + 1
        part_bytes = request.entry.part_bytes(0)
        for run in np.split(np.arange(len(good)), breaks):
            if not len(run):
                continue
            begin, end = int(good[run[0]]), int(good[run[-1]]) + 1
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
            lost = rows == native.NO_ROW  # another writer was first
            self._balance.free(refs[run][lost])
            results[good[run]] = np.where(lost, Stored.PRESENT, Stored.STORED)
            kept = map(request.key, good[run][~lost].tolist())
            self._announcer.keys("stored", request.entry, kept, self._tier.name)
            self._counters.add("bytes_stored", int((~lost).sum()) * part_bytes)

    # ------------------------------------------------------------------ several ranks
    def _store_parts(
        self, session: Session, number: int, args: wire.Store, request: Request, pool: PoolEntry
    ) -> Any:
        request.check_distinct()
        results, missing, held = self._open(session, request)
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
        with self._let_go(held):
            refs = self._tenants.place(request.entry, part_bytes, len(blocks))
        for _, block in blocks[len(refs) :]:
            self._parts.settle(session, block)
        blocks = blocks[: len(refs)]
        for (_, block), ref in zip(blocks, refs.tolist(), strict=True):
            self._parts.give_place(block, pool.part, ref)
        positions = [position for position, _ in blocks]
        slots = request.slots[np.array(positions, np.int64)]
        return self._copy_parts(
            session, number, args, pool, blocks, slots, results, held, booked=request
        )

    def _copy_parts(
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
            with self._let_go(held):
                for (position, block), outcome, checksum in ends:
                    if session.ended and not block.dropped:
                        self._parts.drop(block)
                    results[position] = self._parts.finish(block, pool.part, outcome, checksum)
                    if results[position] == Stored.INCOMPLETE:
                        block.writers.add(session)
                    if booked is not None and not session.ended:
                        self._parts.settle(session, block)
                if booked is not None and not session.ended:
                    self._index.link(booked.entry.number, booked.parent + booked.keys)
                if grant is not None:
                    self._end_complete(grant)
            self._replier.reply(session, number, Code.OK, self._close(results, held))

        refs = np.array([block.refs[pool.part] for _, block in blocks], np.uint64)
        with self._let_go(held):
            self._transfers.store(
                session, number, pool, slots, refs, args.deadline_ms, args.fence, done
            )
        return DEFERRED

    # ------------------------------------------------------------------ reserve, commit, abort
    def reserve(self, session: Session, number: int, args: wire.Reserve) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        request = Request(entry, args.keys, args.first, args.parent)
        request.check_parent()
        self._grants.check_room(session, entry.tenant)
        if not request.count:
            return [0, b""]
        results, missing, held = self._open(session, request)
        blocks: dict[int, PendingBlock] = {}
        with self._let_go(held):
            room_blocks = self._grants.room_bytes(session) // entry.block_bytes
            room = self._place_all(entry, min(len(missing), room_blocks))
        for position, refs in zip(missing.tolist(), room, strict=False):
            parent = request.parent_of(position)
            index = request.first + position
            block = PendingBlock(entry, request.key(position), index, parent, reserved=True)
            block.refs = refs
            blocks[position] = block
            results[position] = Stored.STORED
        self._balance.free(self._index.unhold(held))
        if not blocks:
            return [0, results.tobytes()]

        pending_bytes = len(blocks) * entry.block_bytes
        entry.tenant.pending_bytes += pending_bytes

        def end() -> None:
            entry.tenant.pending_bytes -= pending_bytes
            # Committed in whatever order, and between blocks that were there before.
            self._index.link(entry.number, request.parent + request.keys)
            for block in blocks.values():
                if not block.dropped:
                    self._counters.add("blocks_dropped")
                    self._parts.drop(block)

        grant = self._grants.make(
            session,
            entry.tenant,
            args.hold_ms,
            end,
            blocks,
            held_bytes=pending_bytes,
            pins=False,
        )
        return [grant.number, results.tobytes()]

    def _place_all(self, entry: NamespaceEntry, count: int) -> list[list[int]]:
        """Places for all parts of up to count blocks; what does not make a whole block is freed."""
        sizes = [part.part_bytes for part in entry.namespace.parts]
        places: list[U64] = []
        try:
            for size in sizes:
                places.append(self._tenants.place(entry, size, count))
        except BaseException:
            for refs in places:
                self._balance.free(refs)
            raise
        whole = min(len(refs) for refs in places)
        for refs in places:
            self._balance.free(refs[whole:])
        return [[int(refs[i]) for refs in places] for i in range(whole)]

    def commit(self, session: Session, number: int, args: wire.Commit) -> Any:
        grant = self._grants.need(session, args.grant)
        if not isinstance(grant.details, dict):
            raise Refusal(Code.BAD_GRANT, "grant", "is a pin, not a reservation")
        reserved: dict[int, PendingBlock] = grant.details
        pool = self._registry.pool(session, args.pool, next(iter(reserved.values())).entry)
        if len(args.positions) % 4:
            raise Refusal(Code.BAD_ARGUMENT, "positions", f"{len(args.positions)} bytes")
        positions = np.frombuffer(args.positions, "<u4").tolist()
        request = Request(pool.namespace, b"", 0, b"")
        request.take_slots(args.slots, pool, len(positions))
        self._transfers.check_room(session, len(positions) * pool.native.layout.block_bytes)
        for position in positions:
            block = reserved.get(position)
            if block is None or block.states[pool.part] is not PartState.EMPTY or block.dropped:
                sentence = f"{position} was not reserved, or was committed by this rank before"
                raise Refusal(Code.BAD_ARGUMENT, "positions", sentence)
        if len(set(positions)) != len(positions):
            raise Refusal(Code.BAD_ARGUMENT, "positions", "one is listed twice")
        results = np.full(len(positions), Stored.LATE, np.uint8)
        blocks = [(i, reserved[position]) for i, position in enumerate(positions)]
        held = np.empty(0, np.uint32)
        slots = request.slots
        return self._copy_parts(
            session, number, args, pool, blocks, slots, results, held, booked=None, grant=grant
        )

    def _end_complete(self, grant: Grant) -> None:
        """A reservation of which every block was committed holds nothing any more."""
        blocks: dict[int, PendingBlock] = grant.details  # type: ignore[assignment]
        if self._grants.lives(grant) and all(block.dropped for block in blocks.values()):
            self._grants.release(grant)

    def abort(self, session: Session, number: int, args: wire.Grant) -> Any:
        grant = self._grants.need(session, args.grant)
        if not isinstance(grant.details, dict):
            raise Refusal(Code.BAD_GRANT, "grant", "is a pin; unpin it")
        self._grants.release(grant)
