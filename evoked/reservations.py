"""Verbs of reservations: room for blocks first, their bytes rank by rank later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from evoke.client import wire
from evoke.client.wire import Code, Stored
from evoke.core import native
from evoked.counters import Counters
from evoked.grants import Grants
from evoked.parts import Parts, PartState, PendingBlock
from evoked.registry import Registry, Request
from evoked.server import Refusal
from evoked.sessions import Grant, NamespaceEntry, Session
from evoked.tenants import Tenants
from evoked.tiers import U64, Balance
from evoked.transfers import Transfers
from evoked.writes import Writes

__all__ = ["Reservations"]


class Reservations:
    """`details` of such a grant are its blocks by their position in the request."""

    def __init__(
        self,
        writes: Writes,
        registry: Registry,
        index: native.Index,
        balance: Balance,
        tenants: Tenants,
        transfers: Transfers,
        grants: Grants,
        parts: Parts,
        counters: Counters,
    ) -> None:
        self._writes, self._registry, self._index = writes, registry, index
        self._balance, self._tenants, self._transfers = balance, tenants, transfers
        self._grants, self._parts, self._counters = grants, parts, counters
        writes.copied = self.end_complete

    def reserve(self, session: Session, number: int, args: wire.Reserve) -> Any:
        entry = self._registry.namespace(session, args.namespace)
        request = Request(entry, args.keys, args.first, args.parent)
        request.check_parent()
        self._grants.check_room(session, entry.tenant)
        if not request.count:
            return [0, b""]
        results, missing, held = self._writes.open(session, request)
        blocks: dict[int, PendingBlock] = {}
        with self._balance.let_go(held=held):
            room_blocks = self._grants.room_bytes(session) // entry.block_bytes
            room = self._place_all(entry, min(len(missing), room_blocks))
        for position, refs in zip(missing.tolist(), room, strict=False):
            parent = request.parent_of(position)
            index = request.first + position
            block = PendingBlock(entry, request.key(position), index, parent, reserved=True)
            for part, ref in enumerate(refs):
                self._parts.give_place(block, part, ref)
            blocks[position] = block
            results[position] = Stored.STORED
        self._balance.free(self._index.unhold(held))
        if not blocks:
            return [0, results.tobytes()]

        def end() -> None:
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
            held_bytes=len(blocks) * entry.block_bytes,
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
        if len(set(positions)) != len(positions):
            raise Refusal(Code.BAD_ARGUMENT, "positions", "one is listed twice")
        for position in positions:
            block = reserved.get(position)
            if block is None or session.rank in block.ranks:
                sentence = f"{position} was not reserved, or was committed by this rank before"
                raise Refusal(Code.BAD_ARGUMENT, "positions", sentence)
        results = np.full(len(positions), Stored.LATE, np.uint8)
        blocks: list[tuple[int, PendingBlock]] = []
        for i, position in enumerate(positions):
            block = reserved[position]
            if block.committed:
                results[i] = Stored.PRESENT
            elif not block.dropped and block.states[pool.part] is PartState.EMPTY:
                blocks.append((i, block))
            elif not block.dropped:  # another rank that shares this part committed it, or is at it
                results[i] = Stored.INCOMPLETE
            block.ranks.add(session.rank)
        slots = request.slots[[i for i, _ in blocks]]
        held = np.empty(0, np.uint32)
        if not blocks:
            self.end_complete(grant)
        return self._writes.copy_parts(
            session, number, args, pool, blocks, slots, results, held, booked=None, grant=grant
        )

    def end_complete(self, grant: Grant) -> None:
        """A reservation of which every rank committed every block, or of which the rest was
        dropped, holds nothing any more."""
        if isinstance(grant.details, dict) and self._grants.lives(grant):
            blocks: Iterable[PendingBlock] = grant.details.values()
            if all(block.over for block in blocks):
                self._grants.release(grant)

    def abort(self, session: Session, number: int, args: wire.Grant) -> Any:
        grant = self._grants.need(session, args.grant)
        if not isinstance(grant.details, dict):
            raise Refusal(Code.BAD_GRANT, "grant", "is a pin; unpin it")
        self._grants.release(grant)
