"""Engines of several ranks: a block is visible when all its parts are, and dies with a writer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from evoke.client.namespace import Group, Namespace, Part
from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, DaemonProcess, Engine, chain, eventually, make_namespace


def _parts(*layers: int) -> tuple[Part, ...]:
    return tuple(Part(groups=(Group(layers=count, kv_heads=1, head_size=32),)) for count in layers)


@contextmanager
def _engine_of_ranks(
    daemon: DaemonProcess, namespace: Namespace, ranks: int
) -> Iterator[list[Engine]]:
    """Sessions joined into one instance, each with a pool of its own part."""
    engines: list[Engine] = []
    peers = []
    try:
        for rank in range(ranks):
            join = engines[0].peer.join if engines else b""
            context = daemon.peer(join=join, rank=rank)
            peers.append((context, context.__enter__()))
            engines.append(Engine(peers[-1][1], namespace, rank=rank))
        yield engines
    finally:
        for engine in engines:
            engine.close()
        for context, _ in peers:
            context.__exit__(None, None, None)


def test_visible_when_all_parts_are_stored(daemon: DaemonProcess) -> None:
    """After one rank a block is incomplete and no hit, after the other it is, for both."""
    namespace = make_namespace(parts=_parts(1, 3), rank_parts=(0, 1))
    keys = chain(namespace, 4)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        assert (a.block_bytes, b.block_bytes) == (BLOCK, 3 * BLOCK)
        patterns = a.fill(1), b.fill(2)
        assert a.store(keys) == [Stored.INCOMPLETE] * 4
        assert a.lookup(keys) == [0] * 4
        assert a.usage() == (0, 0)
        assert b.store(keys) == [Stored.STORED] * 4
        assert a.lookup(keys) == [1] * 4
        assert a.usage() == (4, 16 * BLOCK)
        for engine, pattern in zip((a, b), patterns, strict=True):
            assert engine.fetch(keys, range(8, 12)) == [Fetched.HOST] * 4
            assert (engine.blocks[8:12] == pattern[:4]).all()


def test_parts_in_any_order_and_pieces(daemon: DaemonProcess) -> None:
    """Ranks that store in different orders and pieces complete each block exactly once."""
    namespace = make_namespace(parts=_parts(1, 1, 1), rank_parts=(0, 1, 2))
    keys = chain(namespace, 6)
    with _engine_of_ranks(daemon, namespace, 3) as engines:
        patterns = [engine.fill(rank) for rank, engine in enumerate(engines)]
        engines[2].store(keys[64:], range(2, 6), first=2, parent=keys[32:64])
        engines[0].store(keys)
        engines[1].store(keys[:96], range(3))
        assert engines[0].lookup(keys) == [0, 0, 1, 0, 0, 0]
        assert engines[2].store(keys[:64]) == [Stored.STORED] * 2
        assert engines[1].store(keys) == [Stored.PRESENT] * 3 + [Stored.STORED] * 3
        for engine, pattern in zip(engines, patterns, strict=True):
            assert engine.fetch(keys, range(8, 14)) == [Fetched.HOST] * 6
            assert (engine.blocks[8:14] == pattern[:6]).all()


def test_ranks_store_at_the_same_time(daemon: DaemonProcess) -> None:
    """Two ranks whose stores are under way together complete all blocks, and each is told so."""
    namespace = make_namespace(parts=_parts(64, 64), rank_parts=(0, 1))
    keys = chain(namespace, 24)
    with _engine_of_ranks(daemon, namespace, 2) as engines:
        for engine in engines:
            engine.peer.send("store", *engine.store_args(keys))
        results = [np.frombuffer(e.peer.receive().result, np.uint8) for e in engines]
        completed = (results[0] == Stored.STORED).astype(int) + (results[1] == Stored.STORED)
        assert (completed == 1).all()
        assert engines[0].lookup(keys) == [1] * 24


def test_storing_a_part_again(daemon: DaemonProcess) -> None:
    """A rank that offers its part twice is told "incomplete" twice, and it is kept once."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        a.blocks[0], a.blocks[1] = 0xAA, 0xBB
        assert a.store(key, [0]) == [Stored.INCOMPLETE]
        assert a.store(key, [1]) == [Stored.INCOMPLETE]
        b.store(key)
        assert a.fetch(key, [2]) == [Fetched.HOST]
        assert (a.blocks[2] == 0xAA).all()


def test_key_twice_in_one_store_of_a_part(daemon: DaemonProcess) -> None:
    """A key listed twice by a rank is refused whole, and the daemon lives."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 2) as (a, _):
        code, result = a.peer.call("store", *a.store_args(key + key))
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "keys")
        assert a.store(key) == [Stored.INCOMPLETE]


def test_identical_parts_are_stored_once(daemon: DaemonProcess) -> None:
    """Ranks that share a part store it once; both fetch it; the third rank completes the block."""
    namespace = make_namespace(parts=_parts(1, 2), rank_parts=(0, 0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 3) as (a, b, c):
        a.blocks[0], b.blocks[0], c.blocks[0] = 1, 2, 3
        assert a.store(key) == [Stored.INCOMPLETE]
        assert b.store(key) == [Stored.INCOMPLETE]
        assert c.store(key) == [Stored.STORED]
        assert a.usage() == (1, 3 * BLOCK)
        for engine, value in ((a, 1), (b, 1), (c, 3)):
            assert engine.fetch(key, [5]) == [Fetched.HOST]
            assert (engine.blocks[5] == value).all()


def test_dead_writer(daemon: DaemonProcess) -> None:
    """An incomplete block is dropped when one of its writers ends, and is stored anew after."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    keys = chain(namespace, 4)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        assert a.store(keys) == [Stored.INCOMPLETE] * 4
        with daemon.peer(join=a.peer.join, rank=1) as second:
            late = Engine(second, namespace, rank=1)
            assert late.store(keys[:32]) == [Stored.STORED]
            late.close()
        assert b.lookup(keys) == [1, 0, 0, 0]
        with daemon.peer(join=a.peer.join, rank=0) as brief:
            again = Engine(brief, namespace, rank=0)
            more = chain(namespace, 2, 9)
            assert again.store(more) == [Stored.INCOMPLETE] * 2
            again.close()
        assert eventually(lambda: b.peer.status()["tiers"][0]["allocated_bytes"] == 5 * BLOCK)
        assert b.store(more) == [Stored.INCOMPLETE] * 2
        assert a.store(more) == [Stored.STORED] * 2


def test_incomplete_deadline(start: Start) -> None:
    """A block that is not complete in time is dropped with its memory, and can be stored anew."""
    daemon = start(limits__incomplete_ms=100)
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        a.store(key)
        assert a.peer.status()["tiers"][0]["allocated_bytes"] == BLOCK
        time.sleep(0.2)
        assert a.peer.status()["tiers"][0]["allocated_bytes"] == 0
        assert b.store(key) == [Stored.INCOMPLETE]
        assert a.store(key) == [Stored.STORED]


def test_flush_of_incomplete_blocks(daemon: DaemonProcess) -> None:
    """A part that was stored before a flush never becomes part of a block; storing anew works."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        a.blocks[0] = 1
        a.store(key)
        a.peer.ok("flush", a.id, "")
        assert b.store(key) == [Stored.INCOMPLETE]
        a.blocks[0] = 2
        assert a.store(key) == [Stored.STORED]
        assert a.fetch(key, [3]) == [Fetched.HOST]
        assert (a.blocks[3] == 2).all()


def test_commit_by_ranks(daemon: DaemonProcess) -> None:
    """A reservation of one session is committed part by part by the ranks of its instance."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    keys = chain(namespace, 2)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        pattern = b.fill(5)
        grant, _ = a.reserve(keys)
        assert a.commit(grant, [0, 1], [0, 1]) == [Stored.INCOMPLETE] * 2
        assert b.commit(grant, [1], [1]) == [Stored.STORED]
        assert a.lookup(keys) == [0, 1]
        assert b.commit(grant, [0], [0]) == [Stored.STORED]
        assert b.fetch(keys, [6, 7]) == [Fetched.HOST] * 2
        assert (b.blocks[6:8] == pattern[:2]).all()


def test_commit_of_a_shared_part(daemon: DaemonProcess) -> None:
    """Of ranks that share a part the second is told what it would be told of a store: "incomplete",
    then "present"; the reservation ends when each rank has committed, and none twice."""
    namespace = make_namespace(parts=_parts(1, 2), rank_parts=(0, 0, 1))
    keys = chain(namespace, 2)
    with _engine_of_ranks(daemon, namespace, 3) as (a, b, c):
        a.blocks[0], b.blocks[0] = 1, 2
        grant, _ = a.reserve(keys)
        assert a.commit(grant, [0, 1], [0, 0]) == [Stored.INCOMPLETE] * 2
        assert a.peer.call("commit", grant, a.pool, bytes(4), bytes(4), 1000, 0)[0] == (
            Code.BAD_ARGUMENT
        )
        assert b.commit(grant, [0], [0]) == [Stored.INCOMPLETE]
        assert c.commit(grant, [0, 1], [0, 1]) == [Stored.STORED] * 2
        assert b.commit(grant, [1], [0]) == [Stored.PRESENT]
        assert a.peer.status()["grants"] == 0
        assert b.fetch(keys, [4, 5]) == [Fetched.HOST] * 2
        assert (b.blocks[4:6] == 1).all()


def test_reservation_of_dropped_blocks(daemon: DaemonProcess) -> None:
    """A reservation of which a dead writer took every block ends at once, with its memory."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    keys = chain(namespace, 2)
    with _engine_of_ranks(daemon, namespace, 2) as (a, _):
        grant, _ = a.reserve(keys)
        with daemon.peer(join=a.peer.join, rank=1) as brief:
            writer = Engine(brief, namespace, rank=1)
            assert writer.commit(grant, [0, 1], [0, 1]) == [Stored.INCOMPLETE] * 2
            writer.close()
        assert eventually(lambda: a.peer.status()["grants"] == 0)
        assert a.peer.status()["tiers"][0]["allocated_bytes"] == 0


def test_pin_of_ranks(daemon: DaemonProcess) -> None:
    """Each rank uses and releases its part of a pin once; it holds until the last has."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    key = chain(namespace, 1)
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        a.store(key)
        b.store(key)
        pin, _ = a.pin(key)
        assert a.peer.call("unpin", pin)[0] == Code.OK
        assert a.peer.call("unpin", pin)[0] == Code.BAD_GRANT
        assert a.fetch(key, [3], grant=pin) == [Fetched.EXPIRED]
        assert b.fetch(key, [3], grant=pin) == [Fetched.HOST]
        assert b.peer.call("unpin", pin)[0] == Code.OK
        assert b.peer.call("unpin", pin)[0] == Code.BAD_GRANT
        assert a.peer.status()["grants"] == 0


def test_pin_ends_with_its_maker(daemon: DaemonProcess) -> None:
    """A pin ends with the session that made it, although the instance lives on."""
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as a:
        a.store(key)
        with daemon.peer(join=a.peer.join) as second:
            handle = second.ok("register_namespace", namespace.encoded())[0]
            pin, _ = second.ok("pin", handle, key, 0, 60_000)
            assert a.fetch(key, [1], grant=pin) == [Fetched.HOST]
        assert eventually(lambda: a.peer.status()["grants"] == 0)
        assert a.fetch(key, [1], grant=pin) == [Fetched.EXPIRED]


def test_rank_beyond_the_namespace(daemon: DaemonProcess) -> None:
    """A session cannot register a namespace that has no such rank."""
    namespace = make_namespace(parts=_parts(1, 1), rank_parts=(0, 1))
    with daemon.peer(rank=2) as peer:
        code, result = peer.call("register_namespace", namespace.encoded())
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "rank")


def test_join_token(daemon: DaemonProcess) -> None:
    """A living token joins its instance; one that outlived its daemon founds an instance again."""
    with daemon.peer() as a, daemon.peer(join=a.join) as b:
        assert b.join == a.join
        rows = {row["session"]: row["instance"] for row in a.status()["sessions"]}
        assert rows[a.number] == rows[b.number]
        with daemon.peer(join=b"x" * 16) as c, daemon.peer(join=b"x" * 16) as d:
            assert c.join == d.join == b"x" * 16
        with daemon.peer(hello=False) as e:
            code, result = e.call("hello", b"short", 0, "")
            assert (code, result[0]) == (Code.BAD_ARGUMENT, "join")


def test_eviction_takes_all_parts(start: Start) -> None:
    """What is evicted leaves with all its parts: usage stays whole blocks, memory follows."""
    daemon = start(host__capacity="4MiB")
    namespace = make_namespace(parts=_parts(16, 48), rank_parts=(0, 1))
    with _engine_of_ranks(daemon, namespace, 2) as (a, b):
        for seed in range(30):
            key = chain(namespace, 1, seed)
            a.store(key, [0])
            assert b.store(key, [0]) == [Stored.STORED]
            blocks, used = a.usage()
            assert used == blocks * 64 * BLOCK
            assert a.peer.status()["tiers"][0]["allocated_bytes"] == used
        assert a.peer.counter("blocks_evicted") > 0
