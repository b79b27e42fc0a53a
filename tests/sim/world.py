"""One seeded world: the daemon's objects, a clock that the simulation moves, and its peers."""

from __future__ import annotations

import hashlib
import os
import random
from typing import Any, cast

import msgspec
import structlog

from evoke.client import wire
from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.client.wire import Code
from evoke.config import Config
from evoke.config.schema import Daemon, Debug, Host, Limits, Tenants
from evoke.core import native
from evoked.counters import Counters
from evoked.policy_texts import FORMULAS, load
from evoked.server import DEFERRED, Refusal
from evoked.sessions import Session
from evoked.works import Works
from tests.sim.engine import SimEngine
from tests.sim.model import Model
from tests.sim.peer import ACTS, Peer

__all__ = ["World"]

MIB = 1 << 20
BOOT = bytes(16)
PARTS = ((0,), (0,), (0, 0), (0, 1), (0, 1), (0, 1, 1))  # parts by rank
PEERS_MAX = 6


class Loud:
    """A logger for whom a defect that the daemon would survive is the end."""

    def exception(self, event: str, **fields: Any) -> None:
        raise  # it is called from an except clause

    def __getattr__(self, name: str) -> Any:
        return lambda event, **fields: None


class World:
    """step() does one thing and checks everything; end() ends all and finds nothing left."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_s = 1000.0
        self.engine = SimEngine(rng, lambda: self.now_s, rng.choice((0.0, 0.02, 0.1)))
        config = self._config()
        self.arena = native.Arena(config.host.capacity_bytes, "4k")
        self.model = Model(self.engine, self.arena)
        self.peers: list[Peer] = []
        self.works = Works(
            config,
            self,
            cast(native.CopyEngine, self.engine),
            self.arena,
            Counters(),
            clock=lambda: self.now_s,
            boot=BOOT,
            sessions=self.sessions,
            copy={},
        )
        self.works.transfers._log = cast(structlog.stdlib.BoundLogger, Loud())
        self.works.publish_to(self.model)
        # One after the other, so that a replayed seed has its formula whatever was drawn before.
        formula = sorted(FORMULAS)[seed % len(FORMULAS)]
        self.works.balance.swap(load(f'[priority]\nformula = "{formula}"\n', "world"))
        self.model.works = self.works
        # What one world hardly does another does all the time.
        self.taste = [rng.choice((0.1, 1.0, 1.0, 6.0)) for _ in ACTS]
        self.namespaces = [self._namespace(i) for i in range(rng.choice((1, 1, 2, 3)))]
        self.chains = [self._chains(namespace) for namespace in self.namespaces]
        self._answered: set[tuple[int, int]] = set()
        self._next_session = 1
        self._steps = 0

    def _config(self) -> Config:
        rng = self.rng
        return Config(
            daemon=Daemon(verify_fetch=True),
            host=Host(capacity_bytes=rng.choice((2, 2, 4, 8)) * MIB),
            limits=Limits(
                session_grants=rng.choice((2, 100)),
                session_inflight_bytes=rng.choice((MIB // 4, 64 * MIB)),
                namespaces=rng.choice((2, 100)),
                incomplete_ms=rng.choice((50, 2000)),
                loop_memory_bytes=256 * MIB,
            ),
            tenants=Tenants(
                host_percent=rng.choice((30, 60, 100, 100)),
                grants=rng.choice((3, 1000)),
                requests_per_s=rng.choice((500, 1_000_000)),
            ),
            debug=Debug(inject=True),
        )

    def _namespace(self, number: int) -> Namespace:
        rank_parts = self.rng.choice(PARTS)
        sizes = [self.rng.choice((1, 16, 17, 32, 60)) for _ in range(max(rank_parts) + 1)]
        return Namespace(
            model=f"model-{number}",
            weights_epoch="1",
            position="rope",
            dtype="float32",
            block_tokens=16,
            parts=tuple(
                Part(groups=(Group(layers=size, kv_heads=1, head_size=32),)) for size in sizes
            ),
            salt=self.rng.choice((NO_SALT, "red", "blue")),
            rank_parts=rank_parts,
        )

    def _chains(self, namespace: Namespace) -> list[list[bytes]]:
        """Prompts, some of which begin alike."""
        chains: list[list[bytes]] = []
        for number in range(self.rng.randint(2, 6)):
            shared = self.rng.choice(chains)[: self.rng.randrange(6)] if chains else []
            own = [
                hashlib.sha256(namespace.id + bytes([number, i])).digest()
                for i in range(self.rng.randint(2, 20))
            ]
            chains.append([*shared, *own])
        return chains

    # ------------------------------------------------------------------ what the daemon sees
    def sessions(self) -> list[Session]:
        return [peer.session for peer in self.peers]

    def next_session(self) -> int:
        number, self._next_session = self._next_session, self._next_session + 1
        return number

    def request(self, peer: Peer, number: int, verb: str, *values: Any) -> None:
        """As the server would: decode, dispatch, answer once."""
        frame = wire.encode_request(peer.session.token, number, verb, wire.VERBS[verb](*values))
        try:
            request, args = wire.decode_request(frame)
        except wire.WireError as error:
            self.reply(peer.session, number, error.code, [error.field, error.sentence])
            return
        assert request.request == number
        try:
            result = self.works.handlers[verb](peer.session, number, args)
        except Refusal as refusal:
            self.reply(peer.session, number, refusal.code, [refusal.field, refusal.sentence])
            return
        if result is not DEFERRED:
            self.reply(peer.session, number, Code.OK, result)

    def reply(self, session: Session, number: int, code: Code, result: Any) -> None:
        if session.ended or number == 0:
            return
        name = (session.number, number)
        assert name not in self._answered, "a second reply"
        assert code != Code.INTERNAL
        self._answered.add(name)
        result = msgspec.msgpack.decode(msgspec.msgpack.encode(result))
        next(p for p in self.peers if p.session is session).answered(number, code, result)

    def end_session(self, session: Session, reason: str) -> None:
        for peer in [peer for peer in self.peers if peer.session is session]:
            self.depart(peer)

    # ------------------------------------------------------------------ time
    def step(self) -> None:
        rng = self.rng
        self._steps += 1
        if not self.peers or (len(self.peers) < PEERS_MAX and rng.random() < 0.03):
            self._arrive()
        elif rng.random() < 0.75:
            rng.choice(self.peers).act()
        self._pass(rng)
        self.check(everything=self._steps % 16 == 0)

    def _pass(self, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.7:  # else the workers are stalled
            self.engine.work(rng.choice((1, 4, 16, 64)))
        if kind < 0.9:
            rng.shuffle(self.engine.finished)
            self.works.transfers.complete()
        self.now_s += rng.choice((0.0, 0.0, 0.001, 0.01, 0.1)) if kind < 0.98 else 3.0
        self.works.timers.run_due(self.now_s)

    def _arrive(self) -> None:
        """A new engine, or one more rank of one that is there."""
        number = self.rng.randrange(len(self.namespaces))
        siblings = [p for p in self.peers if p.namespace is self.namespaces[number]]
        join = self.rng.choice(siblings).join if siblings and self.rng.random() < 0.8 else b""
        peer = Peer(self, self.namespaces[number], self.chains[number])
        self.peers.append(peer)
        if not peer.arrive(join):
            self.depart(peer)

    def depart(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.works.session_ended(peer.session)
        peer.gone()
        instance = peer.session.instance
        assert instance is None or peer.session.number not in instance.sessions

    def check(self, *, everything: bool) -> None:
        self.model.check_books(self.sessions(), self.now_s)
        if everything:
            self.model.check_bytes()

    # ------------------------------------------------------------------ the end
    def end(self) -> None:
        """Who is there gets all its replies; then all go, and nothing is left in the arena."""
        while self.engine.jobs():
            self.engine.work(1 << 20)
            self.works.transfers.complete()
        self.check(everything=True)
        for peer in self.peers:
            peer.check_all_answered()
        self.now_s += wire.HOLD_MS_MAX / 1000 + 1
        self.works.timers.run_due(self.now_s)
        self.check(everything=True)
        assert len(self.works.grants) == 0
        if self.peers:
            peer = self.peers[0]
            peer.call("flush", b"", "")
            self.check(everything=True)
        for peer in list(self.peers):
            self.depart(peer)
        assert not self.works.registry.instances
        assert len(self.works.parts) == len(self.works.transfers) == 0
        for entry in self.works.registry.namespaces.values():
            self.works.balance.remove(self.works.index.rows_of(entry.number), "flushed")
        stats = self.arena.stats()
        assert (len(self.works.index), stats["blocks"], stats["allocated_bytes"]) == (0, 0, 0)

    def close(self) -> None:
        """Also of a world that failed: no mapping and no descriptor stays."""
        for peer in list(self.peers):
            peer.session.close()
            peer.gone()
        self.peers.clear()
        self.engine.pools.clear()
        self.works.index.close()
        self.arena.close()


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))
