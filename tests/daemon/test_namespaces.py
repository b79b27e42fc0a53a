"""Namespaces keep apart what must not be mixed: models, shapes, epochs, tenants; flush; events."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
import zmq

from evoke.client.errors import BadArgument
from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, DaemonProcess, Engine, chain, make_namespace

LAYERS = (Group(layers=2, kv_heads=1, head_size=32),)
SPLIT = (Part(groups=(Group(layers=1, kv_heads=1, head_size=32),)),) * 2
BASE: dict[str, Any] = {
    "model": "base",
    "dtype": "bfloat16",
    "parts": (Part(groups=LAYERS),),
}
CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": "base2"},
    "dtype of equal size": {"dtype": "float16"},
    "block size": {"block_tokens": 32},
    "ranks": {"parts": SPLIT, "rank_parts": (0, 1)},
    "layer split": {"parts": (Part(groups=LAYERS[:1] + SPLIT[0].groups),)},
    "weights epoch": {"weights_epoch": "epoch-2"},
    "position": {"position": "rope:theta=20000"},
    "scales": {"scales": "s2"},
    "adapter": {"lora": "adapter"},
    "salt": {"salt": "tenant"},
    "empty salt": {"salt": ""},
    "key kind": {"key_kind": "engine:x"},
    "format": {"format": "opaque:x", "parts": (Part(groups=LAYERS, part_bytes=BLOCK),)},
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_one_field_apart(daemon: DaemonProcess, change: str) -> None:
    """Keys that one namespace stored are misses in one that differs in a single field."""
    first = make_namespace(**BASE)
    second = make_namespace(**{**BASE, **CHANGES[change]})
    keys = chain(first, 3)
    with daemon.engine(first) as a, daemon.engine(second) as b:
        assert a.store(keys) == [Stored.STORED] * 3
        assert b.lookup(keys) == [0] * 3
        assert b.fetch(keys) == [Fetched.MISS] * 3
        assert b.pin(keys) == (0, [Fetched.MISS] * 3)
        assert b.peer.ok("touch", b.handle, keys, 0) == 0
        assert a.id != b.id
        models = [row["id"] for row in a.peer.status()["namespaces"]]
        assert {a.id.hex(), b.id.hex()} <= set(models)
        assert b.usage() == (0, 0)


def test_separators_in_fields(daemon: DaemonProcess) -> None:
    """Fields whose concatenations are equal make different namespaces."""
    pairs = [("a/b", "c"), ("a", "b/c"), ("a|b", "c"), ("a", "b|c"), ("a:b", "c"), ("a", "b:c")]
    names = [make_namespace(model, weights_epoch=epoch) for model, epoch in pairs]
    with daemon.peer() as peer:
        handles = [peer.ok("register_namespace", name.encoded())[0] for name in names]
    assert len(set(handles)) == len(names)


def test_salt_must_be_said() -> None:
    """A namespace without a word on its salt cannot be made, and None is no salt."""
    with pytest.raises(TypeError):
        Namespace(  # type: ignore[call-arg]
            model="m", weights_epoch="e", position="p", dtype="int8", block_tokens=16,
            parts=(Part(groups=LAYERS),),
        )  # fmt: skip
    with pytest.raises(BadArgument, match="salt"):
        make_namespace(salt=None)
    assert make_namespace("m", salt="").id != make_namespace("m", salt=NO_SALT).id


def test_tenants_do_not_see_each_other(daemon: DaemonProcess) -> None:
    """Of two tenants with the same tokens no verb and no table tells one the other's blocks."""
    ours, theirs = (make_namespace("shared-model", salt=salt) for salt in ("s1", "s2"))
    assert chain(ours, 4) != chain(theirs, 4)
    keys = chain(ours, 4)
    with daemon.engine(ours) as a, daemon.engine(theirs) as b:
        a.fill(1)
        a.store(keys)
        for mine in (keys, chain(theirs, 4)):
            assert b.lookup(mine) == [0] * 4
            assert b.fetch(mine) == [Fetched.MISS] * 4
            assert b.pin(mine) == (0, [0] * 4)
            assert b.peer.table.leading(b.secret, mine) == 0
        assert b.peer.ok("flush", b.id, "") == [0, 0]
        assert a.secret != b.secret
        assert a.lookup(keys) == [1] * 4


def test_handle_of_another_session(daemon: DaemonProcess) -> None:
    """The handle of a namespace opens it only to sessions that registered it."""
    namespace = make_namespace(salt="secret")
    keys = chain(namespace, 1)
    with daemon.engine(namespace) as a, daemon.peer() as b:
        a.store(keys)
        for verb, args in (
            ("lookup", (a.handle, keys, 0)),
            ("touch", (a.handle, keys, 0)),
            ("pin", (a.handle, keys, 0, 1000)),
            ("reserve", (a.handle, keys, 0, b"", 1000)),
            ("fetch", (a.handle, a.pool, keys, 0, bytes(4), 1000, 0, 0)),
            ("store", (a.handle, a.pool, keys, 0, b"", bytes(4), 1000, 0)),
            ("events", (a.handle,)),
        ):
            assert b.call(verb, *args)[0] == Code.NOT_FOUND


def test_pool_of_another_namespace(daemon: DaemonProcess) -> None:
    """A pool is used with the namespace that it was registered for only."""
    first, second = make_namespace(), make_namespace()
    with daemon.peer() as peer:
        a, b = Engine(peer, first), Engine(peer, second)
        args = (a.handle, b.pool, chain(first, 1), 0, b"", bytes(4), 1000, 0)
        code, result = peer.call("store", *args)
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "pool")
        a.close()
        b.close()


def test_new_weights(daemon: DaemonProcess) -> None:
    """After weights changed nothing old hits; flushing the old epoch removes exactly its bytes."""
    old = make_namespace("reloaded", weights_epoch="e1")
    new = make_namespace("reloaded", weights_epoch="e2")
    with daemon.engine(old) as a, daemon.engine(new) as b:
        a.store(chain(old, 5))
        b.store(chain(new, 2))
        assert b.lookup(chain(old, 5)) == [0] * 5
        before = a.peer.status()["tiers"][0]["used_bytes"]
        assert a.peer.ok("flush", b"", "e1") == [5, 5 * BLOCK]
        assert before - a.peer.status()["tiers"][0]["used_bytes"] == 5 * BLOCK
        assert a.lookup(chain(old, 5)) == [0] * 5
        assert b.lookup(chain(new, 2)) == [1] * 2
        assert a.store(chain(old, 5)) == [Stored.STORED] * 5


def test_flush_of_an_unknown_namespace(daemon: DaemonProcess) -> None:
    """A flush of an unknown namespace is an error, one of an unknown epoch finds nothing."""
    with daemon.engine(make_namespace()) as engine:
        engine.store(chain(engine.namespace, 1))
        code, result = engine.peer.call("flush", os.urandom(32), "")
        assert (code, result[0]) == (Code.NOT_FOUND, "namespace_id")
        assert engine.peer.ok("flush", engine.id, "another epoch") == [0, 0]
        assert engine.usage()[0] == 1


def test_flush_under_a_pin(daemon: DaemonProcess) -> None:
    """Pinned blocks that are flushed are misses at once; their memory returns at the unpin."""
    namespace = make_namespace()
    keys = chain(namespace, 3)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
        pin, _ = engine.pin(keys)
        assert engine.peer.ok("flush", engine.id, "") == [3, 3 * BLOCK]
        assert engine.fetch(keys, grant=pin) == [Fetched.MISS] * 3
        assert engine.store(keys) == [Stored.STORED] * 3
        assert engine.peer.status()["tiers"][0]["allocated_bytes"] == 6 * BLOCK
        engine.peer.ok("unpin", pin)
        assert engine.peer.status()["tiers"][0]["allocated_bytes"] == 3 * BLOCK
        assert engine.lookup(keys) == [1] * 3


def test_flush_behind_a_store(daemon: DaemonProcess) -> None:
    """A store that a flush overtakes is not visible after it, and its room is given back."""
    namespace = make_namespace(blocks_4k=256)
    keys = chain(namespace, 16)
    with daemon.engine(namespace) as engine:
        store = engine.peer.send("store", *engine.store_args(keys))
        flush = engine.peer.send("flush", engine.id, "")
        replies = {reply.request: reply for reply in (engine.peer.receive() for _ in range(2))}
        flushed = replies[flush].result[0]
        outcomes = list(replies[store].result)
        assert (flushed, outcomes) in ((16, [Stored.STORED] * 16), (0, [Stored.LATE] * 16))
        assert engine.lookup(keys) == [0] * 16


def test_flush_of_a_reservation(daemon: DaemonProcess) -> None:
    """What was reserved before a flush cannot be committed after it."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        grant, _ = engine.reserve(keys)
        engine.peer.ok("flush", engine.id, "")
        assert engine.commit(grant, [0], [0]) == [Stored.LATE]
        assert engine.lookup(keys) == [0, 0]
        engine.peer.ok("abort", grant)


def test_namespaces_limit(start: Start) -> None:
    """Beyond limits.namespaces a new one is "busy" until one is unused and empty."""
    daemon = start(limits__namespaces=2)
    with daemon.peer() as peer:
        for number in range(2):
            peer.ok("register_namespace", make_namespace(f"n{number}").encoded())
        third = make_namespace("n2").encoded()
        assert peer.call("register_namespace", third)[0] == Code.BUSY
        assert peer.call("register_namespace", make_namespace("n1").encoded())[0] == Code.OK
    with daemon.peer() as peer:
        assert peer.call("register_namespace", third)[0] == Code.OK


def test_namespace_with_blocks_is_remembered(start: Start) -> None:
    """A namespace that nobody has registered keeps its blocks, whatever else is registered."""
    daemon = start(limits__namespaces=2)
    namespace = make_namespace()
    keys = chain(namespace, 3)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
    for _ in range(5):
        with daemon.peer() as peer:
            peer.ok("register_namespace", make_namespace().encoded())
    with daemon.engine(namespace) as engine:
        assert engine.lookup(keys) == [1] * 3


@pytest.mark.parametrize("position", [0, 17, 18, 22, 25, -1])
def test_damaged_encoding(daemon: DaemonProcess, position: int) -> None:
    """An encoding with a damaged byte, cut short or prolonged is refused, or is another one."""
    namespace = make_namespace()
    encoded = namespace.encoded()
    damaged = bytearray(encoded)
    damaged[position] ^= 0x80
    with daemon.peer() as peer:
        for data in (bytes(damaged), encoded[:position], encoded + b"x"):
            code, result = peer.call("register_namespace", data or b"x")
            assert code == Code.BAD_ARGUMENT or result[1] != namespace.id


# ---------------------------------------------------------------------- events


def _subscribe(daemon: DaemonProcess, topic: bytes) -> zmq.Socket[bytes]:
    subscriber: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    subscriber.setsockopt(zmq.LINGER, 0)
    subscriber.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
    subscriber.connect(f"ipc://{daemon.directory}/events.sock")
    subscriber.send(b"")
    return subscriber


def test_events_can_be_fetched(daemon: DaemonProcess) -> None:
    """Each key that is announced as stored can be fetched; sequence numbers have no gap."""
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        subscriber = _subscribe(daemon, engine.peer.ok("events", engine.handle))
        seeds = iter(range(100))
        while not subscriber.poll(20):  # the subscription travels by itself
            engine.store(chain(namespace, 2, next(seeds)))
        last = chain(namespace, 2, 1000)
        engine.store(last)
        sequences = []
        announced = b""
        while announced[-64:] != last:
            assert subscriber.poll(5000)
            _, frame = subscriber.recv_multipart()
            sequence, _, kind, identity, keys, tier = msgspec.msgpack.decode(frame)
            if kind == "stored":
                assert (identity, tier) == (namespace.id, "host")
                assert engine.fetch(keys) == [Fetched.HOST] * (len(keys) // 32)
                announced += keys
            sequences.append(sequence)
        assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))
        subscriber.close(0)


def test_events_of_others(daemon: DaemonProcess) -> None:
    """Who has no topic hears nothing, not even with a subscription to everything."""
    namespace = make_namespace(salt="secret")
    with daemon.engine(namespace) as engine:
        spies = [_subscribe(daemon, topic) for topic in (b"", os.urandom(16), b"\0")]
        own = _subscribe(daemon, engine.peer.ok("events", engine.handle))
        for seed in range(50):
            engine.store(chain(namespace, 2, seed))
            if own.poll(20):
                break
        else:
            raise AssertionError("no event for the owner")
        assert not any(spy.poll(50) for spy in spies)
        for subscriber in (*spies, own):
            subscriber.close(0)
