"""store, fetch, lookup: exact bytes, visibility, first writer wins, edges of counts."""

from __future__ import annotations

import numpy as np
import pytest

from evoke.client.wire import Code, Fetched, Stored
from evoke.core import native
from tests.daemon.peer import DaemonProcess, chain, make_namespace


def test_round_trip(daemon: DaemonProcess) -> None:
    """What was stored comes back byte for byte, into other slots and in another order."""
    namespace = make_namespace(blocks_4k=3)
    keys = chain(namespace, 16)
    with daemon.engine(namespace, 48) as engine:
        before = engine.fill(1)
        assert engine.store(keys, range(16)) == [Stored.STORED] * 16
        order = np.random.default_rng(2).permutation(16)
        assert engine.fetch(keys, [16 + int(n) for n in order]) == [Fetched.HOST] * 16
        assert (engine.blocks[16 + order] == before[:16]).all()
        assert (engine.blocks[32:] == before[32:]).all()


def test_other_process_sees_it(daemon: DaemonProcess) -> None:
    """A block outlives the session that stored it, and another session fetches its bytes."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as writer:
        stored = writer.fill(3)
        writer.store(keys)
    with daemon.engine(namespace) as reader:
        assert reader.lookup(keys) == [1, 1, 1, 1]
        assert reader.fetch(keys) == [Fetched.HOST] * 4
        assert (reader.blocks[:4] == stored[:4]).all()


def test_visible_only_when_committed(daemon: DaemonProcess) -> None:
    """Reserved blocks are no hit in any look-up until commit, then all at once."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine, daemon.engine(namespace) as other:
        grant, granted = engine.reserve(keys)
        assert granted == [Stored.STORED] * 4
        assert other.lookup(keys) == [0] * 4
        assert other.fetch(keys) == [Fetched.MISS] * 4
        assert engine.commit(grant, [0, 1], [0, 1]) == [Stored.STORED] * 2
        assert other.lookup(keys) == [1, 1, 0, 0]
        assert engine.commit(grant, [2, 3], [2, 3]) == [Stored.STORED] * 2
        assert other.lookup(keys) == [1] * 4


def test_first_writer_wins(daemon: DaemonProcess) -> None:
    """Of two that reserved one key the first commit counts, the second is told "present"."""
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        grants = [engine.reserve(key)[0] for engine in (a, b)]
        a.blocks[0], b.blocks[0] = 0xAA, 0xBB
        assert a.commit(grants[0], [0], [0]) == [Stored.STORED]
        assert a.fetch(key, [5]) == [Fetched.HOST]
        assert b.commit(grants[1], [0], [0]) == [Stored.PRESENT]
        assert b.store(key, [0]) == [Stored.PRESENT]
        assert b.fetch(key, [5]) == [Fetched.HOST]
        assert (a.blocks[5] == 0xAA).all()
        assert (b.blocks[5] == 0xAA).all()
        assert a.usage() == (1, namespace.parts[0].part_bytes)


def test_racing_stores(daemon: DaemonProcess) -> None:
    """Two sessions that store the same chains at the same time leave one whole copy of each."""
    namespace = make_namespace(blocks_4k=16)
    keys = chain(namespace, 32)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        patterns = a.fill(10), b.fill(11)
        for engine in (a, b):
            engine.peer.send("store", *engine.store_args(keys))
        results = [np.frombuffer(engine.peer.receive().result, np.uint8) for engine in (a, b)]
        assert set(np.concatenate(results).tolist()) == {Stored.STORED, Stored.PRESENT}
        assert ((results[0] == Stored.STORED) ^ (results[1] == Stored.STORED)).all()
        assert a.fetch(keys) == [Fetched.HOST] * 32
        for block in range(32):
            winner = patterns[0 if results[0][block] == Stored.STORED else 1]
            assert (a.blocks[block] == winner[block]).all()


def test_key_twice_in_one_store(daemon: DaemonProcess) -> None:
    """A key listed twice is stored once."""
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as engine:
        assert engine.store(key + key) == [Stored.STORED, Stored.PRESENT]
        assert engine.usage()[0] == 1


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 1024, 1025])
def test_partial_blocks(daemon: DaemonProcess, tokens: int) -> None:
    """A prompt hits for its full blocks only, however its store was split and whatever is asked."""
    namespace = make_namespace()
    ids = np.random.default_rng(tokens).integers(0, 1000, tokens + 1).astype(np.uint32)

    def keys(count: int) -> bytes:
        return native.chain_keys(namespace.id, ids[:count], 16, bytes(32), [])

    full = tokens // 16
    with daemon.engine(namespace, 80) as engine:
        for split in {max(0, full // 2 - 1), full // 2, full}:
            whole = keys(tokens)
            head, tail = whole[: split * 32], whole[split * 32 :]
            engine.store(head)
            parent = head[-32:]
            engine.store(tail, range(split, full), first=split, parent=parent)
            for asked in (tokens - 1, tokens, tokens + 1):
                hits = engine.peer.table.leading(engine.secret, keys(asked))
                assert hits == min(full, asked // 16)
                assert hits * 16 <= asked
            engine.peer.ok("flush", engine.id, "")


def test_no_keys(daemon: DaemonProcess) -> None:
    """Verbs without keys succeed with nothing: no grant, no result, no counter but the query."""
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        before = engine.peer.status()["counters"]
        assert engine.store(b"") == []
        assert engine.fetch(b"") == []
        assert engine.lookup(b"") == []
        assert engine.pin(b"") == (0, [])
        assert engine.reserve(b"") == (0, [])
        assert engine.peer.ok("touch", engine.handle, b"", 0) == 0
        assert engine.peer.call("unpin", 0)[0] == Code.BAD_GRANT
        after = engine.peer.status()["counters"]
        moved = {name for name in after if after[name] != before[name]}
        assert moved == {"requests", "bad_grants", "refused_requests"}


def test_zero_hits(daemon: DaemonProcess) -> None:
    """A pin that finds nothing gives no grant."""
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        assert engine.pin(chain(namespace, 3)) == (0, [Fetched.MISS] * 3)


def test_hole_at_the_front(daemon: DaemonProcess) -> None:
    """Blocks behind a missing first one are no prefix hit."""
    namespace = make_namespace()
    keys = chain(namespace, 3)
    with daemon.engine(namespace) as engine:
        assert engine.store(keys[32:], first=1, parent=keys[:32]) == [Stored.STORED] * 2
        assert engine.peer.table.leading(engine.secret, keys) == 0
        assert engine.lookup(keys) == [0, 1, 1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"keys": bytes(31)}, "keys"),
        ({"slots": [0, 1]}, "slots"),
        ({"slots": [32]}, "slots"),
        ({"slots": [0xFFFFFFFF]}, "slots"),
        ({"parent": bytes(32)}, "parent"),
        ({"first": 1}, "parent"),
        ({"first": 0xFFFFFFFF, "parent": bytes(32)}, "first"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"fence": 64}, "fence"),
    ],
)
def test_bad_store_moves_nothing(
    daemon: DaemonProcess, change: dict[str, object], field: str
) -> None:
    """A store with one bad argument is refused whole, names it, and leaves no block."""
    namespace = make_namespace()
    arguments = {"keys": chain(namespace, 1), "slots": [0], **change}
    with daemon.engine(namespace) as engine:
        code, result = engine.peer.call("store", *engine.store_args(**arguments))  # type: ignore[arg-type]
        assert (code, result[0]) == (Code.BAD_ARGUMENT, field)
        assert engine.usage() == (0, 0)


def test_slot_twice_in_a_fetch(daemon: DaemonProcess) -> None:
    """A fetch that names a slot twice is refused before any byte moves."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        engine.fill(4)
        engine.store(keys)
        engine.blocks[:] = 7
        code, result = engine.peer.call("fetch", *engine.fetch_args(keys, [9, 9]))
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "slots")
        assert (engine.bytes == 7).all()


def test_boot_id_in_each_reply(daemon: DaemonProcess) -> None:
    """Each reply, also of an error, names the boot of the daemon."""
    with daemon.peer() as peer:
        replies = [peer.raw(b"\xc1"), peer.raw(b"a", b"b")]
        peer.send("ping")
        replies.append(peer.receive())
        assert {reply.boot for reply in replies} == {peer.boot}
