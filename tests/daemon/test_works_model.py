"""Any sequence of verbs, deaths and deadlines: memory adds up, and served bytes are committed ones.

The daemon's own objects without its sockets, on a clock of the test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evoke.client import wire
from evoke.client.wire import Code, Fetched, Stored
from evoke.config import Config, Host, Limits
from evoke.core import native
from evoked.counters import Counters
from evoked.parts import PendingBlock
from evoked.reads import Pinned
from evoked.works import Works
from tests.daemon.model import CANCELLED, CHAIN, CHAINS, FENCES, HOLDS_MS, NAMESPACES, Client, Verbs
from tests.daemon.peer import BLOCK


class WorksMachine(Verbs, RuleBasedStateMachine):
    """`committed[namespace, key]` is the filling of the block that may be served, part by part."""

    @initialize()
    def build(self) -> None:
        limits = Limits(incomplete_ms=100, session_host_percent=100, pins_host_percent=100)
        config = Config(host=Host(capacity_bytes=4 << 20), limits=limits)
        self.now_s = 1000.0
        self.arena = native.Arena(4 << 20, "4k")
        self.engine = native.CopyEngine(1)
        self.replies: dict[int, tuple[Code, Any]] = {}
        self.number = 0
        self.works = Works(
            config,
            self,
            self.engine,
            self.arena,
            Counters(),
            clock=lambda: self.now_s,
            boot=bytes(16),
            sessions=lambda: [client.session for client in self.clients],
            copy={},
        )
        self.clients: list[Client] = []
        self.fill = 0
        self.fillings: dict[tuple[int, bytes, int], set[int]] = {}
        self.grants: list[tuple[Client, int, str, int, int]] = []
        for rank in (0, 0, 1):
            self.open(rank, rank > 0)
        for which, keys in ((0, CHAINS[0][0]), (1, CHAINS[1][0]), (2, CHAINS[2][0])):
            self._store(self.clients[0], which, 0, 8, keys, wait=True)

    # ------------------------------------------------------------------ sessions
    @rule(rank=st.integers(0, 2), joined=st.booleans())
    def open(self, rank: int, joined: bool) -> None:
        if len(self.clients) < 4:
            join = self.clients[0].join if joined and self.clients else b""
            self.clients.append(Client(self, self.number + 1, join, rank))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), luck=st.integers(0, 3))
    def end(self, data: st.DataObject, luck: int) -> None:
        """Also with copies of the session under way."""
        if luck:
            return
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.works.session_ended(client.session)
        self.grants = [grant for grant in self.grants if grant[0] is not client]
        self.drain()
        client.close()

    # ------------------------------------------------------------------ verbs
    def _pick(self, data: st.DataObject) -> tuple[Client, int, int, int, bytes]:
        client = data.draw(st.sampled_from(self.clients))
        which = data.draw(st.sampled_from([min(client.pools), *client.pools]))
        keys = CHAINS[which][data.draw(st.integers(0, 1))]
        first = data.draw(st.sampled_from([0, 0, 0, 0, 5, CHAIN - 1]))
        count = data.draw(st.integers(1, CHAIN - first))
        return client, which, first, count, keys

    def _write(self, client: Client, which: int, keys: bytes, slots: list[int]) -> None:
        """A new filling in each slot, noted as one that may be served for its key's part."""
        if client.session.inflight_bytes:
            self.drain()  # nothing may read these slots meanwhile
        part = NAMESPACES[which].rank_parts[client.session.rank]
        for place, slot in enumerate(slots):
            self.fill = self.fill % 250 + 1
            client.pools[which][2][slot] = self.fill
            key = keys[place * 32 : place * 32 + 32]
            self.fillings.setdefault((which, key, part), set()).add(self.fill)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), wait=st.booleans(), fence=FENCES)
    def store(self, data: st.DataObject, wait: bool, fence: int) -> None:
        self._store(*self._pick(data), wait=wait, fence=fence)

    def _store(
        self,
        client: Client,
        which: int,
        first: int,
        count: int,
        keys: bytes,
        *,
        wait: bool,
        fence: int = 0,
    ) -> None:
        wanted = keys[first * 32 : (first + count) * 32]
        slots = list(range(count))
        self._write(client, which, wanted, slots)
        parent = keys[(first - 1) * 32 : first * 32] if first else b""
        packed = np.array(slots, "<u4").tobytes()
        args = wire.Store(
            client.handles[which],
            client.pools[which][0],
            wanted,
            first,
            parent,
            packed,
            60_000,
            fence,
        )
        number = self.submit(client.session, "store", args)
        if wait:
            self.drain()
            code, result = self.replies.pop(number)
            assert code == Code.OK, result
            self._check_stored(client, which, wanted, result)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def race(self, data: st.DataObject) -> None:
        """All that can store the same blocks at the same time."""
        _, which, first, count, keys = self._pick(data)
        for client in self.clients:
            if which in client.pools:
                self._store(client, which, first, count, keys, wait=False)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), luck=st.integers(0, 3))
    def flush_under_pin(self, data: st.DataObject, luck: int) -> None:
        if luck:
            return
        client, which, first, count, keys = self._pick(data)
        handle, wanted = client.handles[which], keys[first * 32 : (first + count) * 32]
        pin, _ = self.call(client.session, "pin", wire.Pin(handle, wanted, first, 1000))
        self.call(client.session, "flush", wire.Flush(NAMESPACES[which].id, ""))
        self.memory_adds_up()
        if pin:
            self.submit(client.session, "unpin", wire.Grant(pin))

    def _check_stored(self, client: Client, which: int, keys: bytes, result: bytes) -> None:
        found = self.call(client.session, "lookup", wire.KeyList(client.handles[which], keys, 0))
        for outcome, tier in zip(result, found, strict=True):
            # What was refused may be present: another store of it can have been under way.
            assert tier == Fetched.HOST or outcome not in (Stored.STORED, Stored.PRESENT)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), fence=FENCES)
    def fetch(self, data: st.DataObject, fence: int) -> None:
        """Each block that is served has a filling that was written for its key and part."""
        client, which, first, count, keys = self._pick(data)
        wanted = keys[first * 32 : (first + count) * 32]
        self.drain()
        blocks = client.pools[which][2]
        blocks[:count] = 0
        packed = np.arange(count, dtype="<u4").tobytes()
        pool = client.pools[which][0]
        args = wire.Fetch(client.handles[which], pool, wanted, first, packed, 60_000, fence, 0)
        result = self.call(client.session, "fetch", args)
        part = NAMESPACES[which].rank_parts[client.session.rank]
        for slot, outcome in enumerate(result):
            value = int(blocks[slot, 0])
            assert (blocks[slot] == value).all()
            if outcome == Fetched.MISS or fence == CANCELLED:
                assert value == 0
            else:
                assert outcome == Fetched.HOST
                assert value in self.fillings[which, wanted[slot * 32 : slot * 32 + 32], part]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), hold_ms=HOLDS_MS, kind=st.sampled_from(["pin", "reserve"]))
    def take(self, data: st.DataObject, hold_ms: int, kind: str) -> None:
        client, which, first, count, keys = self._pick(data)
        wanted = keys[first * 32 : (first + count) * 32]
        parent = keys[(first - 1) * 32 : first * 32] if first else b""
        handle = client.handles[which]
        if kind == "pin":
            args: wire.Args = wire.Pin(handle, wanted, first, hold_ms)
        else:
            args = wire.Reserve(handle, wanted, first, parent, hold_ms)
        grant, _ = self.call(client.session, kind, args)
        if grant:
            self.grants.append((client, grant, kind, which, count))

    @precondition(lambda self: self.grants and self.clients)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner, grant, kind, _, _ = data.draw(st.sampled_from(self.grants))
        client = data.draw(st.sampled_from([owner, owner, *self.clients]))
        verb = "unpin" if kind == "pin" else "abort"
        self.submit(client.session, verb, wire.Grant(grant))

    @precondition(lambda self: self.grants and self.clients)
    @rule(data=st.data(), wait=st.booleans(), fence=FENCES)
    def commit(self, data: st.DataObject, wait: bool, fence: int) -> None:
        owner, grant, _, which, count = data.draw(st.sampled_from(self.grants))
        client = data.draw(st.sampled_from([owner, owner, *self.clients]))
        if which not in client.pools:
            return
        positions = data.draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
        living = self.works.grants._grants.get(grant)
        keys = b""
        for position in positions:
            details = living.details if living is not None else None
            block = details.get(position) if isinstance(details, dict) else None
            keys += block.key if block is not None else bytes(32)
        self._write(client, which, keys, list(range(len(positions))))
        packed = np.array(positions, "<u4").tobytes()
        slots = np.arange(len(positions), dtype="<u4").tobytes()
        pool = client.pools[which][0]
        args = wire.Commit(grant, pool, packed, slots, 60_000, fence)
        self.submit(client.session, "commit", args)
        if wait:
            self.drain()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), luck=st.integers(0, 7))
    def flush(self, data: st.DataObject, luck: int) -> None:
        if luck:
            return  # seldom, or there is little to find
        client = data.draw(st.sampled_from(self.clients))
        which = data.draw(st.sampled_from(sorted(client.pools)))
        identity = NAMESPACES[which].id
        blocks, flushed = self.call(client.session, "flush", wire.Flush(identity, ""))
        sizes = sum(part.part_bytes for part in NAMESPACES[which].parts)
        assert flushed == blocks * sizes

    @rule(seconds=st.sampled_from([0.01, 0.2, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.works.timers.run_due(self.now_s)

    # ------------------------------------------------------------------ what always holds
    def _rows_of(self, entry: Any) -> list[int]:
        return [int(row) for row in self.works.index.rows_of(entry.number)]

    def _places_in_use(self) -> int:
        """Parts of visible blocks, of blocks that only pins hold, and of blocks on their way in."""
        index = self.works.index
        places = 0
        visible = set()
        for entry in self.works.registry.namespaces.values():
            rows = self._rows_of(entry)
            visible.update(rows)
            places += len(rows) * len(entry.namespace.parts)
        gone = set()
        pending: list[PendingBlock] = list(self.works.parts._book.values())
        for grant in self.works.grants._grants.values():
            if isinstance(grant.details, Pinned):
                gone.update(set(grant.details.rows.tolist()) - visible)
            else:
                pending.extend(grant.details.values())  # type: ignore[attr-defined]
        places += sum(int(index.row(row)["parts"]) for row in gone)
        return places + sum(ref != native.NO_REF for block in pending for ref in block.refs)

    @invariant()
    def memory_adds_up(self) -> None:
        index = self.works.index
        index.check()
        usage = {row["namespace"]: row for row in index.usage()}
        for entry in self.works.registry.namespaces.values():
            rows = self._rows_of(entry)
            row = usage.get(entry.number, {"blocks": 0, "bytes": 0})
            assert row["blocks"] == len(rows)
            assert row["bytes"] == sum(int(index.row(number)["bytes"]) for number in rows)
        stats = self.arena.stats()
        assert stats["allocated_bytes"] % BLOCK == 0
        if not len(self.works.transfers):
            assert stats["blocks"] == self._places_in_use()

    def teardown(self) -> None:
        if not hasattr(self, "works"):
            return
        self.drain()
        for client in self.clients:
            self.works.session_ended(client.session)
            client.close()
        assert (len(self.works.grants), len(self.works.parts)) == (0, 0)
        assert not self.works.registry.instances
        self.memory_adds_up()
        for entry in self.works.registry.namespaces.values():
            self.works.balance.remove(self.works.index.rows_of(entry.number), "flushed")
        assert self.arena.stats()["blocks"] == 0
        self.pass_time(1e6)
        assert self.works.timers.next_due_s() is None
        self.engine.close()
        self.works.index.close()
        self.arena.close()


TestWorks = WorksMachine.TestCase
TestWorks.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
