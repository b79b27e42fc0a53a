"""A flush of many blocks: in turns, answered once at its end, and nothing slips in meanwhile."""

from __future__ import annotations

import os

import msgspec
import zmq

from evoke.client.wire import Code, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, Engine, chain, eventually, make_namespace

SEEDS = range(4)
CHAIN = 3000


def _fill(engine: Engine) -> None:
    for seed in SEEDS:
        keys = chain(engine.namespace, CHAIN, seed)
        assert engine.store(keys, [0] * CHAIN) == [Stored.STORED] * CHAIN


def test_flush_in_turns(start: Start) -> None:
    """12,000 blocks leave in turns of at most 4,096, each an event of its own; other requests are
    answered in between; the answer counts them all, and then nothing is left."""
    daemon = start(host__capacity="64MiB")
    namespace = make_namespace()
    with daemon.engine(namespace) as engine, daemon.peer() as other:
        _fill(engine)
        reader: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        topic = engine.peer.ok("events", engine.handle)
        reader.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
        reader.connect(f"ipc://{daemon.directory}/events.sock")
        reader.send(b"")
        for seed in range(1000, 1100):  # the request for the topic travels by itself
            engine.store(chain(namespace, 1, seed))
            if reader.poll(20):
                break
        blocks = engine.usage()[0]
        engine.peer.send("flush", engine.id, "")
        for _ in range(20):
            other.ok("ping")
        code, result = (reply := engine.peer.receive()).code, reply.result
        assert (code, result) == (Code.OK, [blocks, blocks * BLOCK])
        assert engine.usage() == (0, 0)
        counts: list[int] = []
        while sum(counts) < blocks:
            assert reader.poll(5000)
            _, _, kind, _, keys, _ = msgspec.msgpack.decode(reader.recv_multipart()[1])
            counts += [len(keys) // 32] * (kind == "flushed")
        assert max(counts) <= 4096
        reader.close(0)


def test_store_behind_a_large_flush(start: Start) -> None:
    """What is stored while a flush is under way is either late or there when it is over."""
    daemon = start(host__capacity="64MiB")
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        _fill(engine)
        engine.peer.send("flush", engine.id, "")
        keys = [chain(namespace, 4, 100 + seed) for seed in range(50)]
        sent = {engine.peer.send("store", *engine.store_args(one)): one for one in keys}
        replies = [engine.peer.receive() for _ in range(51)]
        for reply in replies:
            if reply.request in sent:
                results = set(reply.result)
                assert results in ({Stored.LATE}, {Stored.STORED})
                stored = Stored.STORED in results
                assert set(engine.lookup(sent[reply.request])) == {int(stored)}
        assert engine.store(chain(namespace, 4, 999)) == [Stored.STORED] * 4


def test_flush_outlives_its_session(start: Start) -> None:
    """A flush whose session ends goes on to its end."""
    daemon = start(host__capacity="64MiB")
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        _fill(engine)
        with daemon.peer() as brief:
            brief.ok("register_namespace", namespace.encoded())
            brief.send("flush", engine.id, "")
            assert eventually(lambda: engine.usage()[0] < 12_000)
        assert eventually(lambda: engine.usage() == (0, 0))
        assert engine.store(chain(namespace, 1, 5)) == [Stored.STORED]
