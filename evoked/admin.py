"""Verbs that ask about the daemon itself, and those that prove it: ping, status, audit, inject."""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Callable, Sized
from typing import Any, Final

import numpy as np

from evoke.client import wire
from evoke.client.wire import Code
from evoke.core import native
from evoked import __version__
from evoked.counters import Counters
from evoked.events import EVERYTHING, EventSink
from evoked.grants import Grants
from evoked.histograms import Histograms
from evoked.memory_watch import memory_besides_bytes
from evoked.policies import Policies
from evoked.registry import Registry
from evoked.server import DEFERRED, Refusal, Replier
from evoked.sessions import NamespaceEntry, Session
from evoked.tiers import REF_MEMORY_SHIFT, U32, U64, Balance, HostTier
from evoked.transfers import U8, Transfers

__all__ = ["WORKER_STALL_S", "Admin"]

WORKER_STALL_S: Final = 10.0  # a block takes about a millisecond
PROOF_DEADLINE_MS: Final = 5000
_ATTRIBUTION: Final = ("asked", "hit_host", "hit_cxl", "hit_flash", "missed", "unknown")


def is_admin(session: Session) -> bool:
    """The daemon's own user and root."""
    return session.peer.uid in (0, os.geteuid())


class Admin:
    def __init__(
        self,
        replier: Replier,
        registry: Registry,
        index: native.Index,
        arena: native.Arena,
        tier: HostTier,
        balance: Balance,
        engine: native.CopyEngine,
        transfers: Transfers,
        grants: Grants,
        counters: Counters,
        histograms: Histograms,
        parts: Sized,
        policies: Policies,
        *,
        boot: bytes,
        inject: bool,
        lock: bool,
        sessions: Callable[[], list[Session]],
        copy: dict[str, Any],
    ) -> None:
        self._replier, self._registry, self._index = replier, registry, index
        self._arena, self._tier = arena, tier
        self._balance, self._engine, self._transfers = balance, engine, transfers
        self._grants, self._counters, self._boot = grants, counters, boot
        self._histograms, self.parts, self._policies = histograms, parts, policies
        self.sink: EventSink | None = None
        self._inject, self._sessions, self._copy = inject, sessions, copy
        self._lock = lock
        self._started_s = time.monotonic()

    # ------------------------------------------------------------------ verbs
    def ping(self, session: Session, number: int, args: wire.Empty) -> Any:
        return int((time.monotonic() - self._started_s) * 1000)

    def inject(self, session: Session, number: int, args: wire.Inject) -> Any:
        """Flips one bit of a stored block: the test that checksums are checked."""
        if not self._inject or not is_admin(session):
            raise Refusal(Code.DENIED, "verb", "inject needs debug.inject and an admin")
        entry = self._registry.namespace(session, args.namespace)
        rows: U32 = self._index.find(entry.number, args.key)
        if rows[0] == native.NO_ROW:
            raise Refusal(Code.NOT_FOUND, "key", args.key.hex())
        refs, lengths, _ = self._index.part(rows, entry.part_of(session.rank))
        if args.offset >= int(lengths[0]):
            raise Refusal(Code.BAD_ARGUMENT, "offset", f"{args.offset} of {lengths[0]} bytes")
        offset = int(refs[0]) & ((1 << REF_MEMORY_SHIFT) - 1)
        ctypes.c_uint8.from_address(self._arena.address + offset + args.offset).value ^= 1

    def prove_pool(self, session: Session, number: int, args: wire.ProvePool) -> Any:
        """Round trip of one block: from_slot to a scratch buffer to to_slot; its checksum."""
        pool = self._registry.pool(session, args.pool, None)
        for name, slot in (("from_slot", args.from_slot), ("to_slot", args.to_slot)):
            if slot >= pool.slots:
                raise Refusal(Code.BAD_ARGUMENT, name, f"{slot}, the pool has {pool.slots}")
        part_bytes = pool.native.layout.block_bytes
        self._transfers.check_room(session, part_bytes)
        refs = self._balance.place(part_bytes, 1)
        if not len(refs):
            raise Refusal(Code.BUSY, "pool", f"no room for a block of {part_bytes} bytes")
        to_slot = np.array([args.to_slot], np.uint32)

        def fetched(outcomes: U8, sums: U64) -> None:
            self._balance.free(refs)
            self._answer_proof(session, number, outcomes, sums)

        def stored(outcomes: U8, sums: U64) -> None:
            if session.pools.get(pool.number) is not pool:  # unregistered, or its session ended
                outcomes[:] = native.CANCELLED
            if outcomes[0] != native.COPIED:
                fetched(outcomes, sums)
                return
            deadline_ms, fence = PROOF_DEADLINE_MS, args.fence
            with self._balance.let_go(refs):
                self._transfers.fetch(
                    session, number, pool, to_slot, refs, sums, deadline_ms, fence, fetched
                )

        from_slot = np.array([args.from_slot], np.uint32)
        with self._balance.let_go(refs):
            self._transfers.store(
                session, number, pool, from_slot, refs, PROOF_DEADLINE_MS, args.fence, stored
            )
        return DEFERRED

    def _answer_proof(self, session: Session, number: int, outcomes: U8, sums: U64) -> None:
        if outcomes[0] == native.COPIED:
            self._replier.reply(session, number, Code.OK, int(sums[0]))
        else:
            sentence = f"the block could not be copied (outcome {outcomes[0]})"
            self._replier.reply(session, number, Code.BAD_ARGUMENT, ["pool", sentence])

    def events(self, session: Session, number: int, args: wire.Events) -> Any:
        """The topic of a namespace of the session, or, for admins, of everything."""
        if self.sink is None:
            raise Refusal(Code.UNSUPPORTED, "verb", "this daemon publishes no events")
        if args.namespace == EVERYTHING:
            if not is_admin(session):
                raise Refusal(Code.DENIED, "namespace", "all events are for admins")
            return self.sink.topic(None)
        return self.sink.topic(self._registry.namespace(session, args.namespace))

    def audit(self, session: Session, number: int, args: wire.Empty) -> Any:
        """Walks index and arena and compares them: what is allocated is what rows and running
        work account for."""
        if not is_admin(session):
            raise Refusal(Code.DENIED, "verb", "audit is for the daemon's user and root")
        findings = []
        try:
            self._index.check()
        except RuntimeError as error:
            findings.append(f"index: {error}")
        usage = self._index.usage()
        stats = self._arena.stats()
        blocks = sum(row["blocks"] for row in usage)
        if blocks != len(self._index):
            findings.append(f"usage counts {blocks} blocks, the index has {len(self._index)}")
        indexed = sum(self._places(row["namespace"], row["blocks"]) for row in usage)
        busy = bool(len(self._transfers) or len(self._grants))
        if stats["blocks"] < indexed or (stats["blocks"] > indexed and not busy and not self.parts):
            findings.append(f"the arena has {stats['blocks']} blocks, the index names {indexed}")
        return {
            "good": not findings,
            "findings": findings,
            "indexed_places": indexed,
            "arena_blocks": stats["blocks"],
            "used_bytes": sum(row["bytes"] for row in usage),
            "allocated_bytes": stats["allocated_bytes"],
            "capacity_bytes": stats["capacity_bytes"],
            "busy": busy,
        }

    def _places(self, namespace: int, blocks: int) -> int:
        return blocks * len(self._registry.namespaces[namespace].namespace.parts)

    # ------------------------------------------------------------------ status
    def status(self, session: Session, number: int, args: wire.Empty) -> Any:
        return self.snapshot(None if is_admin(session) else session)

    def metrics(self, session: Session, number: int, args: wire.Empty) -> Any:
        """Prometheus text; for admins, since it counts everybody's work."""
        if not is_admin(session):
            raise Refusal(Code.DENIED, "verb", "metrics are for the daemon's user and root")
        from evoked.metrics import text  # the library is loaded when somebody asks

        return text(self.snapshot(None), self._histograms)

    def snapshot(self, viewer: Session | None) -> dict[str, Any]:
        """Everything for an admin (viewer None); other sessions see totals and what is theirs."""
        usage = {row["namespace"]: row for row in self._index.usage()}
        sessions = self._sessions()
        entries = list(self._registry.namespaces.values())
        if viewer is not None:
            sessions = [s for s in sessions if s.instance is viewer.instance]
            entries = list(viewer.namespaces.values())
        return {
            "boot_id": self._boot.hex(),
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 3),
            "health": self.health(),
            "tiers": [self._tier_row(usage)],
            "namespaces": [self._namespace_row(e, usage.get(e.number, {})) for e in entries],
            "sessions": [self._session_row(s) for s in sessions],
            "lookups": self._counters.some(_ATTRIBUTION),
            "copy": {**self._copy, **self._engine.stats()},
            "policy": self._policies.config.priority.formula,
            "policy_version": self._policies.version,
            "counters": dict(self._counters),
            "grants": len(self._grants),
            "transfers": len(self._transfers),
            "metadata_bytes": self._index.metadata_bytes(),
            "unpublished_blocks": self._index.unpublished,
            "memory_besides_arenas_bytes": memory_besides_bytes(self._arena, self._index),
        }

    def health(self) -> dict[str, Any]:
        """State is red when any thread is not well."""
        threads = [{"name": "loop", "state": "green", "busy_s": 0.0}]
        for worker, busy_s in enumerate(self._engine.heartbeats()):
            state = "red" if busy_s > WORKER_STALL_S else "green"
            threads.append({"name": f"copy-{worker}", "state": state, "busy_s": round(busy_s, 3)})
        red = any(thread["state"] == "red" for thread in threads)
        defects = self._counters["defects"]
        reasons = [f"{defects} requests met a defect of the daemon; see its log"] if defects else []
        if self._lock and not self._arena.locked:
            reasons.append("host.lock: the host tier is not locked; raise RLIMIT_MEMLOCK")
        if self._policies.trouble:
            reasons.append(self._policies.trouble)
        state = "red" if red else "yellow" if reasons else "green"
        return {"state": state, "threads": threads, "reasons": reasons}

    def _tier_row(self, usage: dict[int, dict[str, int]]) -> dict[str, Any]:
        return {
            "name": self._tier.name,
            "capacity_bytes": self._tier.capacity_bytes,
            "used_bytes": sum(row["bytes"] for row in usage.values()),
            "blocks": len(self._index),
            **self._tier.describe(),
        }

    def _namespace_row(self, entry: NamespaceEntry, usage: dict[str, int]) -> dict[str, Any]:
        namespace = entry.namespace
        return {
            "id": entry.id.hex(),
            "model": namespace.model,
            "weights_epoch": namespace.weights_epoch,
            "dtype": namespace.dtype,
            "block_tokens": namespace.block_tokens,
            "part_bytes": [part.part_bytes for part in namespace.parts],
            "sessions": len(entry.sessions),
            "blocks": usage.get("blocks", 0),
            "gaps": usage.get("gaps", 0),
            "bytes": usage.get("bytes", 0),
        }

    def _session_row(self, session: Session) -> dict[str, Any]:
        instance = session.instance
        return {
            "session": session.number,
            "pid": session.peer.pid,
            "uid": session.peer.uid,
            "name": session.name,
            "instance": _public_name(instance.join) if instance else "",
            "rank": session.rank,
            "pools": len(session.pools),
            "grants": session.grants,
            "inflight_bytes": session.inflight_bytes,
        }


def _public_name(join: bytes) -> str:
    """A name for an instance that does not let anybody join it."""
    return hashlib.sha256(b"evoke-instance" + join).hexdigest()[:12]
