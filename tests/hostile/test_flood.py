"""Every verb with arguments that look valid, thousands of times. EVOKE_FLOOD=1000000 is the long
form."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from evoke.client import wire
from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Engine, Peer, chain, make_namespace

REQUESTS = int(os.environ.get("EVOKE_FLOOD", "20000"))
# These walk everything there is: a tenth of the requests is as long a flood.
WALKS = {"status": 10, "metrics": 10, "audit": 10, "flush": 4}
# These read a text of many lines.
WALKS |= {"policy_show": 10, "policy_check": 20, "policy_reload": 20, "policy_history": 10}
POLICIES = (
    "",
    '[priority]\nformula = "lfu"',
    '[priority]\nformula = "lru"',
    '[priority]\nformula = "none"',
    "[priority",
    "[score]\nhalf_life = -1",
)
UNDER_WAY = 64
GROWTH_BYTES_MAX = 24 << 20
Make = Callable[[], tuple[Any, ...]]


class Arguments:
    """Random arguments by verb: mostly good, now and then wrong by a little."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine, self.rng = engine, random.Random(seed)
        self._keys = chain(engine.namespace, 64, seed)
        self._slots = engine.slots
        self._names = [make_namespace(f"flood-{i}").encoded() for i in range(50)]

    def _near(self, good: int) -> int:
        return good if self.rng.random() < 0.95 else self.rng.randrange(1 << 32)

    def _grant(self) -> int:
        return self.rng.randrange(1 << 63)

    def _piece(self) -> tuple[bytes, int, bytes, int]:
        """(keys, index of the first, parent, count)."""
        first, count = self.rng.randrange(48), self.rng.randrange(8)
        parent = self._keys[first * 32 - 32 : first * 32] if first else b""
        return self._keys[first * 32 : (first + count) * 32], self._near(first), parent, count

    def _packed(self, count: int) -> bytes:
        slots = self.rng.sample(range(self._slots), count)
        return b"".join(self._near(slot).to_bytes(4, "little") for slot in slots)

    def _list(self) -> tuple[Any, ...]:
        keys, first, _, _ = self._piece()
        return (self._near(self._engine.handle), keys, first)

    def makers(self) -> dict[str, Make]:
        return {
            "hello": lambda: (self.rng.randbytes(16), self.rng.randrange(8), "again"),
            "ping": lambda: (),
            "register_namespace": lambda: (self.rng.choice(self._names),),
            "register_pool": self._register_pool,
            "unregister_pool": lambda: (self.rng.randrange(1 << 16, 1 << 32),),
            "prove_pool": lambda: (
                self._near(self._engine.pool),
                *self.rng.sample(range(self._slots + 1), 2),
                self.rng.randrange(64),
            ),
            "store": self._store,
            "reserve": self._reserve,
            "commit": lambda: (
                *(self._grant(), self._engine.pool, self._packed(2), self._packed(2)),
                *(self.rng.randint(1, 9), self.rng.randrange(64)),
            ),
            "abort": lambda: (self._grant(),),
            "fetch": self._fetch,
            "pin": lambda: (*self._list(), self.rng.randint(1, 50)),
            "unpin": lambda: (self._grant(),),
            "touch": self._list,
            "lookup": self._list,
            "asked": self._asked,
            "status": lambda: (),
            "metrics": lambda: (),
            "audit": lambda: (),
            "events": lambda: (self._near(self._engine.handle),),
            "observe": self._observe,
            "policy_show": lambda: (),
            "policy_check": lambda: (self.rng.choice(POLICIES), "flood"),
            "policy_reload": lambda: (self.rng.choice((*POLICIES, None)), "flood"),
            "policy_history": lambda: (),
            "flush": lambda: (self.rng.choice((self._engine.id, bytes(32), bytes(31))), ""),
            "inject": lambda: (self._engine.handle, self._keys[:32], self.rng.randrange(8192)),
        }

    def _register_pool(self) -> tuple[Any, ...]:
        size = self.rng.randrange(1, 1 << 30)
        segments = [
            wire.SegmentArgs(
                self.rng.randrange(1 << 30),
                self.rng.randrange(-4096, 4096),
                [(self.rng.randrange(9), self.rng.randrange(4096)) for _ in range(3)],
                self.rng.randint(1, 4096),
            )
        ]
        memory = self.rng.randrange(1 << 32)
        return (self._engine.handle, "cpu", size, self.rng.randint(1, 99), segments, memory)

    def _store(self) -> tuple[Any, ...]:
        keys, first, parent, count = self._piece()
        engine = self._engine
        return (
            *(self._near(engine.handle), engine.pool, keys, first, parent, self._packed(count)),
            *(self.rng.choice((1, 1000)), self.rng.randrange(64)),
        )

    def _reserve(self) -> tuple[Any, ...]:
        keys, first, parent, _ = self._piece()
        return (self._near(self._engine.handle), keys, first, parent, self.rng.randint(1, 50))

    def _fetch(self) -> tuple[Any, ...]:
        keys, first, _, count = self._piece()
        engine, fence = self._engine, self.rng.randrange(64)
        grant = self.rng.choice((0, 0, 0, self._grant()))
        slots = self._packed(count)
        return (self._near(engine.handle), engine.pool, keys, first, slots, 1000, fence, grant)

    def _observe(self) -> tuple[Any, ...]:
        keys, first, _, count = self._piece()
        channels, blocks = self.rng.randint(1, 8), self._near(first + count) % 4096
        return (
            *(self._near(self._engine.handle), self.rng.randrange(8), first, keys, channels),
            *(self.rng.randbytes(2 * channels * blocks), self.rng.randint(1, 65_536)),
            *(self.rng.random() < 0.5, self.rng.choice((b"", self.rng.randbytes(blocks // 8)))),
        )

    def _asked(self) -> tuple[Any, ...]:
        return ([self._report() for _ in range(3)],)

    def _report(self) -> wire.Report:
        namespace, keys, first = self._list()
        return wire.Report(namespace, keys, first, self.rng.randrange(8), self._grant())


def flood(peer: Peer, verb: str, make: Make, count: int) -> Counter[Code]:
    """Codes of the answers, one for each request."""
    codes: Counter[Code] = Counter()
    waiting = set()
    for _ in range(count):
        waiting.add(peer.send(verb, *make()))
        while len(waiting) >= UNDER_WAY or (waiting and peer.dealer.poll(0)):
            reply = peer.receive()
            waiting.remove(reply.request)
            codes[Code(reply.code)] += 1
    while waiting:
        reply = peer.receive()
        waiting.remove(reply.request)
        codes[Code(reply.code)] += 1
    return codes


def is_served(engine: Engine, seed: int) -> None:
    """Another client stores and gets back its bytes."""
    keys = chain(engine.namespace, 4, seed)
    wanted = engine.fill(seed)
    assert engine.store(keys) == [Stored.STORED] * 4
    engine.bytes[:] = 0
    assert engine.fetch(keys) == [Fetched.HOST] * 4
    assert (engine.blocks[:4] == wanted[:4]).all()


@pytest.mark.timeout(600 + REQUESTS // 20)
def test_flood_of_each_verb(start: Start) -> None:
    """No request, however many and of whatever verb, harms the daemon, its memory or others."""
    daemon: DaemonProcess = start(limits__session_requests_per_s=10_000_000)
    with (
        daemon.engine(make_namespace()) as victim,
        daemon.engine(make_namespace()) as attacker,
    ):
        makers = Arguments(attacker, seed=7).makers()
        assert makers.keys() == wire.VERBS.keys()
        is_served(victim, 0)
        for make_verb in ("register_namespace", "store"):  # what is remembered of them is there
            flood(attacker.peer, make_verb, makers[make_verb], 200)
        before = daemon.resident_bytes()
        for number, (verb, make) in enumerate(makers.items()):
            count = REQUESTS // WALKS.get(verb, 1)
            codes = flood(attacker.peer, verb, make, count)
            assert codes.total() == count
            assert codes[Code.INTERNAL] == 0, verb
            is_served(victim, number + 1)
        assert daemon.resident_bytes() - before < GROWTH_BYTES_MAX
        assert attacker.peer.ok("audit")["findings"] == []
