"""Namespaces and clients of the model test: sessions without sockets."""

from __future__ import annotations

import mmap
import os
import select
import socket
from typing import Any

import numpy as np
from hypothesis import strategies as st

from evoke.client import wire
from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.client.wire import Code
from evoke.core import native
from evoked.peers import Peer
from evoked.server import DEFERRED, Refusal
from evoked.sessions import Session
from evoked.works import Works
from tests.daemon.peer import chain

SLOTS = 16
CHAIN = 14
CANCELLED = 1  # a fence word that each client has raised: its copies are given up
FENCES = st.sampled_from([0, 0, 0, CANCELLED])
HOLDS_MS = st.sampled_from([1, 50, 10_000])


def _part(blocks_4k: int) -> Part:
    return Part(groups=(Group(layers=blocks_4k, kv_heads=1, head_size=32),))


def _namespace(model: str, sizes: tuple[int, ...], ranks: tuple[int, ...]) -> Namespace:
    return Namespace(
        model=model,
        weights_epoch="e",
        position="p",
        dtype="float32",
        block_tokens=16,
        parts=tuple(map(_part, sizes)),
        rank_parts=ranks,
        salt=NO_SALT,
    )


NAMESPACES = [
    _namespace("one part", (32,), (0,)),
    _namespace("another size", (80,), (0,)),
    _namespace("two parts", (16, 48), (0, 1)),
    _namespace("a shared part", (16, 32), (0, 0, 1)),
]
CHAINS = [[chain(namespace, CHAIN, seed) for seed in range(2)] for namespace in NAMESPACES]


class Verbs:
    """Calls verbs of `works` as a session; replies are kept by request number."""

    works: Works
    engine: native.CopyEngine
    replies: dict[int, tuple[Code, Any]]
    number: int

    def reply(self, session: Session, number: int, code: Code, result: Any) -> None:
        if not session.ended:
            self.replies[number] = (code, result)

    def end_session(self, session: Session, reason: str) -> None:
        raise AssertionError(reason)

    def submit(self, session: Session, verb: str, args: wire.Args) -> int:
        self.number += 1
        try:
            result = self.works.handlers[verb](session, self.number, args)
        except Refusal as refusal:
            self.replies[self.number] = (refusal.code, refusal.sentence)
        else:
            if result is not DEFERRED:
                self.replies[self.number] = (Code.OK, result)
        return self.number

    def drain(self) -> None:
        while len(self.works.transfers):
            assert select.select([self.engine.eventfd], [], [], 10)[0]
            self.works.transfers.complete()

    def call(self, session: Session, verb: str, args: wire.Args) -> Any:
        number = self.submit(session, verb, args)
        self.drain()
        code, result = self.replies.pop(number)
        assert code == Code.OK, result
        return result


class Client:
    """A session with a pool of each namespace."""

    def __init__(self, machine: Verbs, number: int, join: bytes, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self.far_end = theirs
        peer = Peer(pid=os.getpid(), uid=os.geteuid(), gid=0, groups=(), pidfd=None)
        self.session = Session(number, ours, peer)
        self.machine = machine
        self.session.fence.cancel(CANCELLED, 0)
        self.join = self.call("hello", wire.Hello(join, rank, "model"))[0]
        self.handles: dict[int, int] = {}
        self.pools: dict[int, tuple[int, mmap.mmap, np.ndarray[Any, np.dtype[np.uint8]]]] = {}
        for which, namespace in enumerate(NAMESPACES):
            if rank < len(namespace.rank_parts):
                self._register(which, namespace.parts[namespace.rank_parts[rank]].part_bytes)

    def _register(self, which: int, part_bytes: int) -> None:
        encoded = NAMESPACES[which].encoded()
        self.handles[which] = self.call("register_namespace", wire.RegisterNamespace(encoded))[0]
        pool_bytes = SLOTS * part_bytes
        fd = native.make_pool_memfd(pool_bytes, "pool")
        mapped = mmap.mmap(fd, pool_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.session.memories[which] = fd
        segments = [wire.SegmentArgs(0, part_bytes, [], part_bytes)]
        args = wire.RegisterPool(self.handles[which], "cpu", pool_bytes, SLOTS, segments, which)
        number = self.call("register_pool", args)
        blocks = np.frombuffer(mapped, np.uint8).reshape(SLOTS, part_bytes)
        self.pools[which] = (number, mapped, blocks)

    def call(self, verb: str, args: wire.Args) -> Any:
        return self.machine.call(self.session, verb, args)

    def close(self) -> None:
        self.far_end.close()
        self.pools.clear()  # each is unmapped with its array
