"""The verb flush: removes blocks on request, a bounded number in each turn of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from evoke.client import wire
from evoke.client.wire import Code
from evoke.core import native
from evoked.admin import is_admin
from evoked.counters import Counters
from evoked.registry import Registry
from evoked.server import DEFERRED, Refusal, Replier
from evoked.sessions import NamespaceEntry, Session
from evoked.tiers import Balance
from evoked.timers import Timers

__all__ = ["Flushes"]

BLOCKS_PER_TURN: Final = 4096


class _Flush:
    """One request under way; it goes on when its session ends."""

    def __init__(self, session: Session, number: int, entries: list[NamespaceEntry]) -> None:
        self.session, self.number, self.entries = session, number, entries
        self.blocks = self.flushed_bytes = 0


class Flushes:
    """A namespace commits nothing while it is being flushed, so that each flush ends."""

    def __init__(
        self,
        replier: Replier,
        registry: Registry,
        index: native.Index,
        balance: Balance,
        counters: Counters,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        self._replier, self._registry, self._index = replier, registry, index
        self._balance, self._counters = balance, counters
        self._timers, self._clock = timers, clock

    def flush(self, session: Session, number: int, args: wire.Flush) -> Any:
        """Removes blocks of the session's own namespaces; an admin may name any, or all."""
        flush = _Flush(session, number, self._targets(session, args))
        for entry in flush.entries:
            entry.generation += 1
            entry.flushes += 1
        self._turn(flush)
        return DEFERRED

    def _turn(self, flush: _Flush) -> None:
        room = BLOCKS_PER_TURN
        while flush.entries and room:
            entry = flush.entries[-1]
            rows = self._index.rows_of(entry.number, room)
            removed_bytes = len(rows) * entry.block_bytes
            self._balance.remove(rows, "flushed")
            self._counters.add("blocks_flushed", len(rows))
            flush.blocks += len(rows)
            flush.flushed_bytes += removed_bytes
            room -= len(rows)
            if room:
                flush.entries.pop()
                entry.flushes -= 1
                entry.generation += 1
        if flush.entries:
            # After now, so that the loop looks at its sockets in between.
            self._timers.at(self._clock() + 1e-6, lambda: self._turn(flush))
            return
        result = [flush.blocks, flush.flushed_bytes]
        self._replier.reply(flush.session, flush.number, Code.OK, result)

    def _targets(self, session: Session, args: wire.Flush) -> list[NamespaceEntry]:
        known = self._registry.namespaces if is_admin(session) else session.namespaces
        entries = list(known.values())
        if args.namespace_id:
            entries = [entry for entry in entries if entry.id == args.namespace_id]
            if not entries:
                raise Refusal(Code.NOT_FOUND, "namespace_id", args.namespace_id.hex())
        if args.weights_epoch:
            epoch = args.weights_epoch
            entries = [entry for entry in entries if entry.namespace.weights_epoch == epoch]
        return entries
