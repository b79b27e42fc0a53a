"""Making room: who leaves, what "stored" means in a full tier, and sizes that share a tier."""

from __future__ import annotations

import pytest

from evoke.client.wire import Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import Engine, chain, make_namespace

TIER_BLOCKS = 32  # of 64 KiB, in a tier of 2 MiB


def test_tail_leaves_first(start: Start) -> None:
    """Room is made from the tail of the least recent chain, so what is left is a prefix."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    old, new = chain(namespace, 20, 1), chain(namespace, 20, 2)
    with daemon.engine(namespace) as engine:
        engine.store(old)
        assert engine.store(new) == [Stored.STORED] * 20
        assert engine.lookup(new) == [1] * 20
        assert engine.lookup(old) == [1] * 12 + [0] * 8


def test_recently_used_stays(start: Start) -> None:
    """A chain that was fetched, touched or asked for is given up after one that was not."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    first, second, third = (chain(namespace, 12, seed) for seed in (1, 2, 3))
    with daemon.engine(namespace) as engine:
        engine.store(first)
        engine.store(second)
        assert engine.peer.ok("touch", engine.handle, first, 0) == 12
        assert engine.store(third) == [Stored.STORED] * 12
        assert engine.lookup(first) == [1] * 12
        assert engine.lookup(second) == [1] * 8 + [0] * 4


def test_chain_larger_than_the_tier(start: Start) -> None:
    """Of a chain that cannot fit the tail is refused, and what is said stored is readable."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = chain(namespace, 50)
    with daemon.engine(namespace, 64) as engine:
        pattern = engine.fill(4)
        expected = [Stored.STORED] * TIER_BLOCKS + [Stored.REFUSED] * 18
        assert engine.store(keys) == expected
        assert engine.fetch(keys) == [Fetched.HOST] * TIER_BLOCKS + [Fetched.MISS] * 18
        assert (engine.blocks[:TIER_BLOCKS] == pattern[:TIER_BLOCKS]).all()
        expected = [Stored.PRESENT] * TIER_BLOCKS + [Stored.REFUSED] * 18
        assert engine.store(keys) == expected


def test_growing_chain_does_not_eat_itself(start: Start) -> None:
    """A chain that is stored piece by piece never loses its own head to its tail."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = chain(namespace, 40)
    with daemon.engine(namespace) as engine:
        for piece in range(4):
            begin, end = piece * 10, piece * 10 + 10
            parent = keys[(begin - 1) * 32 : begin * 32] if begin else b""
            engine.store(keys[begin * 32 : end * 32], range(10), first=begin, parent=parent)
        found = engine.lookup(keys)
        assert sum(found) == TIER_BLOCKS
        assert found == [1] * TIER_BLOCKS + [0] * 8


def test_three_times_the_tier(start: Start) -> None:
    """Storing 3 x the tier, each block is told the truth, and the newest are present and right."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = [chain(namespace, 1, seed) for seed in range(3 * TIER_BLOCKS)]
    with daemon.engine(namespace) as engine:
        for seed, key in enumerate(keys):
            engine.blocks[0] = seed
            assert engine.store(key, [0]) == [Stored.STORED]
            assert engine.lookup(key) == [1]
        assert engine.lookup(b"".join(keys)) == [0] * 2 * TIER_BLOCKS + [1] * TIER_BLOCKS
        newest = b"".join(keys[-8:])
        assert engine.fetch(newest, range(8)) == [Fetched.HOST] * 8
        for place in range(8):
            assert (engine.blocks[place] == 3 * TIER_BLOCKS - 8 + place).all()
        assert engine.usage()[0] == TIER_BLOCKS


def test_three_times_the_tier_pipelined(start: Start) -> None:
    """With many stores under way at once "stored" still means readable until it is evicted."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = [chain(namespace, 4, seed) for seed in range(24)]
    with daemon.engine(namespace) as engine:
        for key in keys:
            engine.peer.send("store", *engine.store_args(key))
        replies = [engine.peer.receive() for _ in keys]
        assert {bool(reply.code) for reply in replies} == {False}
        outcomes = b"".join(r.result for r in sorted(replies, key=lambda r: r.request))
        assert set(outcomes) <= {Stored.STORED, Stored.REFUSED}
        status = engine.peer.status()
        gone = status["counters"]["blocks_evicted"]
        assert outcomes.count(Stored.STORED) - gone == sum(engine.lookup(b"".join(keys)))


def _store_many(engine: Engine, count: int, seed: int) -> list[int]:
    results = []
    for number in range(count):
        engine.blocks[0] = number % 251
        results += engine.store(chain(engine.namespace, 1, seed + number), [0])
    return results


def test_two_sizes_share_a_tier(start: Start) -> None:
    """A tier full of one block size makes room for another, back and forth, and counts right."""
    daemon = start(host__capacity="6MiB")
    small, large = make_namespace(blocks_4k=1), make_namespace(blocks_4k=128)
    with daemon.engine(small) as a, daemon.engine(large, 4) as b:
        for turn in range(3):
            assert set(_store_many(a, 1536 if turn == 0 else 600, 10_000 * turn)) == {Stored.STORED}
            assert set(_store_many(b, 12, 10_000 * turn)) == {Stored.STORED}
            newest = chain(large, 1, 10_000 * turn + 11)
            assert b.fetch(newest, [1]) == [Fetched.HOST]
            assert (b.blocks[1] == 11).all()
            tier = b.peer.status()["tiers"][0]
            assert tier["used_bytes"] == tier["allocated_bytes"] == a.usage()[1] + b.usage()[1]


def test_block_larger_than_the_tier(start: Start) -> None:
    """A block that the tier can never hold is refused, and nothing is evicted for it."""
    daemon = start(host__capacity="2MiB")
    small, huge = make_namespace(blocks_4k=16), make_namespace(blocks_4k=1024)
    with daemon.engine(small) as a, daemon.engine(huge, 2) as b:
        a.store(chain(small, 20))
        assert b.store(chain(huge, 1)) == [Stored.REFUSED]
        assert a.usage()[0] == 20


def test_parent_is_not_evicted_for_its_child(start: Start) -> None:
    """Storing a chain's next block never evicts the block that the chain continues from."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = chain(namespace, TIER_BLOCKS + 1)
    with daemon.engine(namespace) as engine:
        engine.store(keys[: 32 * TIER_BLOCKS])
        other = chain(namespace, 1, 9)
        engine.peer.ok("touch", engine.handle, other, 0)
        last = keys[-32:]
        parent = keys[-64:-32]
        assert engine.store(last, [0], first=TIER_BLOCKS, parent=parent) == [Stored.REFUSED]
        assert engine.lookup(keys) == [1] * TIER_BLOCKS + [0]


def test_blocks_behind_a_gap_are_counted(start: Start) -> None:
    """Stored blocks that no prefix reaches are reported, until they come with the block
    before them."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace()
    keys = chain(namespace, 6)
    with daemon.engine(namespace) as engine:

        def gaps() -> list[int]:
            return [row["gaps"] for row in engine.peer.status()["namespaces"]]

        engine.store(keys[:64])
        engine.store(keys[96:], first=3, parent=keys[64:96])
        assert engine.lookup(keys) == [1, 1, 0, 1, 1, 1]
        assert gaps() == [1]
        engine.store(keys[64:], first=2, parent=keys[32:64])
        assert gaps() == [0]


@pytest.mark.parametrize("way", ["reserve", "store"])
def test_chain_that_came_backwards(start: Start, way: str) -> None:
    """A chain whose later block came first leaves from its tail like any other."""
    daemon = start(host__capacity="4MiB")
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        if way == "reserve":
            grant, _ = engine.reserve(keys)
            assert engine.commit(grant, [1], [1]) == [Stored.STORED]
            assert engine.commit(grant, [0], [0]) == [Stored.STORED]
        else:
            assert engine.store(keys[32:], [1], first=1, parent=keys[:32]) == [Stored.STORED]
            assert engine.store(keys) == [Stored.STORED, Stored.PRESENT]
        assert engine.fetch(keys[32:], [5], first=1) == [Fetched.HOST]  # the second alone
        for seed in range(1, 2000):
            engine.store(chain(namespace, 1, seed))
            found = engine.lookup(keys)
            assert found != [0, 1]
            if found == [0, 0]:
                break
        else:
            raise AssertionError("nothing left")
