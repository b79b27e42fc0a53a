"""A peer of the simulated daemon: an engine that does whatever an engine may do, and then some."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evoke.client import wire
from evoke.client.namespace import Namespace
from evoke.client.wire import Code, Fetched, Stored
from evoke.core import native
from evoked.peers import Peer as Identity
from evoked.sessions import Session

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["ACTS", "Peer"]

SLOTS = 24
REQUESTS_MAX = 6  # of bytes, under way
WORDS = 64


@dataclass(eq=False)
class Ask:
    """A request under way. `then` gets its code and result."""

    then: Callable[[Code, Any], None]
    slots: list[int]
    fence: int = -1
    given_up: bool = False


@dataclass(eq=False)
class Reservation:
    grant: int
    keys: list[bytes]
    granted: list[int]  # positions


def pack(numbers: list[int]) -> bytes:
    return np.array(numbers, "<u4").tobytes()


class Peer:
    """One session with one pool. Slots of requests under way are left alone, unless given up."""

    def __init__(self, world: World, namespace: Namespace, chains: list[list[bytes]]) -> None:
        self.world, self.rng, self.model = world, world.rng, world.model
        self.namespace, self.chains = namespace, chains
        self._other_end, connection = socket.socketpair()
        identity = Identity(pid=1, uid=os.geteuid(), gid=0, groups=(), pidfd=None)
        self.session = Session(world.next_session(), connection, identity)
        self.join = b""
        self.rank = self.rng.randrange(len(namespace.rank_parts))
        self.part = namespace.rank_parts[self.rank]
        self.handle = self.pool = 0
        self._asks: dict[int, Ask] = {}
        self._next_ask = 1
        self._pins: list[int] = []
        self._reservations: list[Reservation] = []
        self._released: list[int] = []

    # ------------------------------------------------------------------ life
    def arrive(self, join: bytes) -> bool:
        """False when the daemon has no room for it."""
        self.join = self.call("hello", join, self.rank, "sim")[1][0]
        code, result = self.call("register_namespace", self.namespace.encoded())
        if code == Code.BUSY:
            return False
        self.handle = result[0]
        self._register_pool()
        return True

    def _register_pool(self) -> None:
        part_bytes = self.namespace.parts[self.part].part_bytes
        pool_bytes = part_bytes * SLOTS
        fd = native.make_pool_memfd(pool_bytes, "pool")
        words = np.frombuffer(mmap.mmap(fd, pool_bytes), np.uint64)
        self.words = words.reshape(SLOTS, part_bytes // 8)
        self.session.memories[1] = fd
        segment = wire.SegmentArgs(0, part_bytes, [], part_bytes)
        args = (self.handle, "cpu", pool_bytes, SLOTS, [segment], 1)
        code, self.pool = self.call("register_pool", *args)
        if code == Code.BUSY:  # its tenant asks too often; later
            self.session.memories.clear()
            os.close(fd)
            self.pool = 0
        else:
            assert code == Code.OK, self.pool
            self.world.engine.pools[self.session.pools[self.pool].native] = self.words

    def gone(self) -> None:
        self._other_end.close()

    def check_all_answered(self) -> None:
        assert not self._asks, "a request was never answered"

    # ------------------------------------------------------------------ requests
    def ask(self, ask: Ask, verb: str, *args: Any) -> None:
        number, self._next_ask = self._next_ask, self._next_ask + 1
        self._asks[number] = ask
        self.world.request(self, number, verb, *args)

    def call(self, verb: str, *args: Any) -> tuple[Code, Any]:
        """A verb that is answered at once."""
        answers: list[tuple[Code, Any]] = []
        self.ask(Ask(lambda code, result: answers.append((code, result)), []), verb, *args)
        return answers[0]

    def answered(self, number: int, code: Code, result: Any) -> None:
        ask = self._asks.pop(number)
        if ask.fence >= 0:
            self.world.engine.cancelled.discard((self.session.fence, ask.fence))
        ask.then(code, result)

    def _copying(self) -> list[Ask]:
        return [ask for ask in self._asks.values() if ask.fence >= 0]

    def _free_slots(self, count: int) -> list[int]:
        busy = {s for ask in self._asks.values() if not ask.given_up for s in ask.slots}
        free = [slot for slot in range(SLOTS) if slot not in busy]
        self.rng.shuffle(free)
        return free[:count]

    def _fence(self) -> int:
        used = {ask.fence for ask in self._copying()}
        return self.rng.choice([word for word in range(WORDS) if word not in used])

    def _piece(self) -> tuple[list[bytes], int, bytes]:
        """(keys, index of the first, its parent) of some chain, mostly from its beginning."""
        chain = self.rng.choice(self.chains)
        first = 0 if self.rng.random() < 0.6 else self.rng.randrange(len(chain))
        keys = chain[first : first + self.rng.randint(1, 16)]
        return keys, first, chain[first - 1] if first else b""

    def act(self) -> None:
        if not self.pool:
            self._register_pool()
            return
        acts = ACTS if len(self._copying()) < REQUESTS_MAX else ACTS[:QUIET_ACTS]
        taste = self.world.taste
        weights = [weight * taste[number] for number, (_, weight) in enumerate(acts)]
        self.rng.choices([act for act, _ in acts], weights)[0](self)

    # ------------------------------------------------------------------ writing
    def _fill(self, keys: list[bytes]) -> list[int]:
        """Slots with new content for the keys, as many as there are."""
        slots = self._free_slots(len(keys))
        for slot, key in zip(slots, keys, strict=False):
            self.words[slot] = self.model.tag((self.namespace.id, key), self.part, self.session)
        return slots

    def _deadline_ms(self) -> int:
        return self.rng.choice((1, 20, 60_000))

    def store(self) -> None:
        keys, first, parent = self._piece()
        if self.rng.random() < 0.02:
            keys = [*keys, keys[0]]
        slots = self._fill(keys)
        keys = keys[: len(slots)]
        name = self.namespace.id
        chain = {(name, key) for key in (parent, *keys)} & self.model.visible
        begun = self.model.history

        def then(code: Code, result: Any) -> None:
            assert code in (Code.OK, Code.BUSY, Code.BAD_ARGUMENT)
            assert code != Code.BAD_ARGUMENT or len(set(keys)) < len(keys), result
            if code == Code.OK:
                assert len(result) == len(keys)
                if self.model.flushed.get(name, 0) <= begun:
                    lost = chain - self.model.visible - self.model.ever_damaged
                    assert not lost, "a chain that made room by eating itself"
                self._stored(keys, list(result))

        fence = self._fence()
        packed = (b"".join(keys), first, parent, pack(slots), self._deadline_ms(), fence)
        self.ask(Ask(then, slots, fence), "store", self.handle, self.pool, *packed)

    def _stored(self, keys: list[bytes], results: list[int]) -> None:
        blocks = [(self.namespace.id, key) for key in keys]
        if Stored.REFUSED in results:
            tail = results[results.index(Stored.REFUSED) :]
            assert {Stored.REFUSED, Stored.PRESENT, Stored.INCOMPLETE}.issuperset(tail)
        for block, result in zip(blocks, results, strict=True):
            if result == Stored.STORED:
                assert block in self.model.visible, "stored was said of what nobody can read"
            elif result == Stored.PRESENT:
                assert block in self.model.ever_visible
            elif result == Stored.INCOMPLETE:
                assert len(self.namespace.rank_parts) > 1

    def reserve(self) -> None:
        keys, first, parent = self._piece()
        hold_ms = self.rng.choice((1, 100, 10_000, wire.HOLD_MS_MAX))
        args = (self.handle, b"".join(keys), first, parent, hold_ms)
        code, result = self.call("reserve", *args)
        if code == Code.BUSY:
            return
        assert code == Code.OK, result
        grant, results = result[0], list(result[1])
        granted = [i for i, outcome in enumerate(results) if outcome == Stored.STORED]
        assert bool(granted) == bool(grant)
        if grant:
            self._reservations.append(Reservation(grant, keys, granted))

    def commit(self) -> None:
        """Part of a reservation of the instance, which may be over."""
        owner = self._member()
        if not owner._reservations:
            return
        reserved = self.rng.choice(owner._reservations)
        positions = self.rng.sample(reserved.granted, self.rng.randint(1, len(reserved.granted)))
        keys = [reserved.keys[position] for position in positions]
        slots = self._fill(keys)
        keys, positions = keys[: len(slots)], positions[: len(slots)]

        def then(code: Code, result: Any) -> None:
            assert code in (Code.OK, Code.BUSY, Code.BAD_GRANT, Code.BAD_ARGUMENT), result
            if code == Code.OK:
                assert Stored.REFUSED not in result
                self._stored(keys, list(result))

        fence = self._fence()
        packed = (pack(positions), pack(slots), self._deadline_ms(), fence)
        self.ask(Ask(then, slots, fence), "commit", reserved.grant, self.pool, *packed)

    def abort(self) -> None:
        owner = self._member()
        if owner._reservations:
            reserved = owner._reservations.pop(0)
            code, _ = self.call("abort", reserved.grant)
            assert code in (Code.OK, Code.BAD_GRANT)
            self._is_over("abort", reserved.grant)

    def _member(self) -> Peer:
        members = [peer for peer in self.world.peers if peer.join == self.join]
        return self.rng.choice(members)

    # ------------------------------------------------------------------ reading
    def fetch(self, grant: int = 0) -> None:
        keys, first, _ = self._piece()
        slots = self._free_slots(len(keys))
        keys = keys[: len(slots)]
        pinned = bool(grant)

        def then(code: Code, result: Any) -> None:
            assert code in (Code.OK, Code.BUSY), result
            if code == Code.OK:
                assert len(result) == len(keys)
                assert pinned or Fetched.EXPIRED not in result
                if not ask.given_up:
                    self._fetched(keys, slots, list(result))

        fence = self._fence()
        ask = Ask(then, slots, fence)
        packed = (b"".join(keys), first, pack(slots), self._deadline_ms(), fence, grant)
        self.ask(ask, "fetch", self.handle, self.pool, *packed)

    def _fetched(self, keys: list[bytes], slots: list[int], results: list[int]) -> None:
        for key, slot, result in zip(keys, slots, results, strict=True):
            block = (self.namespace.id, key)
            if result == Fetched.HOST:
                assert block in self.model.ever_visible
                self.model.check_words(self.words[slot], block, self.part)
            elif result == Fetched.CORRUPT:
                assert block in self.model.ever_damaged, "a good block called corrupt"
            else:
                assert result in (Fetched.MISS, Fetched.FAULT, Fetched.LATE, Fetched.EXPIRED)

    def fetch_pinned(self) -> None:
        owner = self._member()
        if owner._pins:
            self.fetch(self.rng.choice(owner._pins))

    def pin(self) -> None:
        keys, first, _ = self._piece()
        hold_ms = self.rng.choice((1, 100, 10_000))
        code, result = self.call("pin", self.handle, b"".join(keys), first, hold_ms)
        if code == Code.OK:
            visible = [(self.namespace.id, key) in self.model.visible for key in keys]
            assert [outcome == Fetched.HOST for outcome in result[1]] == visible
            assert bool(result[0]) == any(visible)
            if result[0]:
                self._pins.append(result[0])
        else:
            assert code == Code.BUSY, result

    def unpin(self) -> None:
        owner = self._member()
        if owner._pins:
            grant = owner._pins.pop(0)
            code, _ = self.call("unpin", grant)
            assert code in (Code.OK, Code.BAD_GRANT)
            self._is_over("unpin", grant)

    def _is_over(self, verb: str, grant: int) -> None:
        """A second release is an error, whoever tries."""
        grants = len(self.world.works.grants)
        for peer in (self, self.rng.choice(self.world.peers)):
            if peer is self or peer.join != self.join:
                assert peer.call(verb, grant)[0] == Code.BAD_GRANT
        assert len(self.world.works.grants) == grants

    def look(self) -> None:
        keys, first, _ = self._piece()
        code, result = self.call("lookup", self.handle, b"".join(keys), first)
        if code == Code.OK:
            visible = [(self.namespace.id, key) in self.model.visible for key in keys]
            assert [outcome == Fetched.HOST for outcome in result] == visible
            self.call("touch", self.handle, b"".join(keys), first)

    def asked(self) -> None:
        keys, first, _ = self._piece()
        hits = self.rng.randint(0, len(keys) + 1)  # one too many is a lie that shows
        report = wire.Report(self.handle, b"".join(keys), first, hits, self.rng.randrange(100))
        code, _ = self.call("asked", [report])
        assert code in (Code.OK, Code.BUSY, Code.BAD_ARGUMENT)

    # ------------------------------------------------------------------ trouble
    def give_up(self) -> None:
        """Its slots are its own again at once."""
        for ask in self._copying()[:2]:
            self.world.engine.cancelled.add((self.session.fence, ask.fence))
            ask.given_up = True

    def die(self) -> None:
        self.world.depart(self)

    def flush(self) -> None:
        name = self.namespace.id
        self.model.flush(name)
        assert self.call("flush", name, "")[0] == Code.OK
        assert not any(block[0] == name for block in self.model.visible)

    def damage(self) -> None:
        keys = [key for chain in self.chains for key in chain]
        key = self.rng.choice(keys)
        if (self.namespace.id, key) in self.model.visible:
            self.model.damage((self.namespace.id, key))
            self.call("inject", self.handle, key, self.rng.randrange(4096))

    def prove(self) -> None:
        slots = self._free_slots(2)
        if len(slots) == 2:
            codes = (Code.OK, Code.BUSY, Code.BAD_ARGUMENT)

            def then(code: Code, result: Any) -> None:
                assert code in codes, result
                if code == Code.OK and not ask.given_up:
                    assert (self.words[slots[0]] == self.words[slots[1]]).all()

            fence = self._fence()
            ask = Ask(then, slots, fence)
            self.ask(ask, "prove_pool", self.pool, *slots, fence)

    def replace_pool(self) -> None:
        assert self.call("unregister_pool", self.pool)[0] == Code.OK
        for ask in self._asks.values():
            ask.given_up = True  # what comes back went to the old pool
        self._register_pool()

    def lie(self) -> None:
        """Arguments that are well formed and wrong: refused, and nothing has happened."""
        keys, first, parent = self._piece()
        packed, slots = b"".join(keys), pack([SLOTS] * len(keys))
        wrong = pack([0] * (len(keys) + 1))
        lies: list[tuple[str, tuple[Any, ...]]] = [
            ("store", (self.handle, self.pool, packed, first, parent, slots, 9, 0)),
            ("store", (self.handle, self.pool, packed, first, parent, wrong, 9, 0)),
            ("store", (self.handle, self.pool, packed, first, b"x", wrong, 9, 0)),
            ("store", (self.handle, self.pool + 1, packed, first, parent, slots, 9, 0)),
            ("fetch", (self.handle + 77, self.pool, packed, first, slots, 9, 0, 0)),
            ("fetch", (self.handle, self.pool, packed, 0xFFFF_FFFF, slots, 9, 0, 0)),
            ("fetch", (self.handle, self.pool, packed[1:], first, slots, 9, 0, 0)),
            ("commit", (self.rng.randrange(99), self.pool, wrong, wrong, 9, 0)),
            ("abort", (self.rng.randrange(99),)),
            ("unpin", (self.rng.randrange(99),)),
            ("hello", (b"", 0, "again")),
            ("prove_pool", (self.pool, SLOTS, 0, 0)),
            ("unregister_pool", (0,)),
        ]
        before = len(self.world.works.transfers), len(self.world.works.index)
        verb, args = self.rng.choice(lies)
        assert self.call(verb, *args)[0] in (
            Code.BAD_ARGUMENT,
            Code.NOT_FOUND,
            Code.BAD_GRANT,
            Code.BUSY,
        )
        assert before == (len(self.world.works.transfers), len(self.world.works.index))

    def ask_status(self) -> None:
        status = self.call("status")[1]
        tier = status["tiers"][0]
        assert tier["used_bytes"] <= tier["allocated_bytes"] <= tier["capacity_bytes"]
        assert self.call("audit")[1]["findings"] == []


ACTS: list[tuple[Callable[[Peer], None], int]] = [
    (Peer.reserve, 12),
    (Peer.abort, 2),
    (Peer.pin, 8),
    (Peer.unpin, 6),
    (Peer.look, 4),
    (Peer.asked, 5),
    (Peer.give_up, 4),
    (Peer.die, 2),
    (Peer.flush, 1),
    (Peer.damage, 2),
    (Peer.replace_pool, 1),
    (Peer.lie, 4),
    (Peer.ask_status, 1),
    (Peer.store, 35),
    (Peer.fetch, 25),
    (Peer.fetch_pinned, 5),
    (Peer.commit, 30),
    (Peer.prove, 2),
]
QUIET_ACTS = 13  # the first ones, which copy nothing
