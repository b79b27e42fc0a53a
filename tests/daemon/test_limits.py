"""Limits of one session: it is told "busy", or is ended; others notice nothing."""

from __future__ import annotations

import time

import zmq

from evoke.client import wire
from evoke.client.wire import Code, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import chain, eventually, make_namespace


def test_request_rate(start: Start) -> None:
    """Requests over the rate are answered "busy", each of them, and the rate comes back."""
    daemon = start(limits__session_requests_per_s=100)
    with daemon.peer() as peer, daemon.peer() as other:
        numbers = {peer.send("ping") for _ in range(300)}
        replies = [peer.receive() for _ in range(300)]
        assert {reply.request for reply in replies} == numbers
        codes = [reply.code for reply in replies]
        assert set(codes) == {Code.OK, Code.BUSY}
        assert 90 <= codes.count(Code.OK) <= 200
        assert other.call("ping")[0] == Code.OK
        time.sleep(0.1)
        assert peer.call("ping")[0] == Code.OK


def test_bytes_under_way(start: Start) -> None:
    """A store beyond the bytes under way is "busy"; one alone always fits; room comes back."""
    daemon = start(host__capacity="64MiB", limits__session_inflight_bytes="1MiB")
    namespace = make_namespace(blocks_4k=256)
    with daemon.engine(namespace) as engine, daemon.engine(namespace) as other:
        for seed in range(8):
            keys = chain(namespace, 4, seed)
            engine.peer.send("store", *engine.store_args(keys))
        assert other.store(chain(namespace, 2, 100)) == [Stored.STORED] * 2
        replies = [engine.peer.receive() for _ in range(8)]
        codes = [reply.code for reply in sorted(replies, key=lambda reply: reply.request)]
        assert codes[0] == Code.OK
        assert Code.BUSY in codes
        assert set(codes) == {Code.OK, Code.BUSY}
        assert engine.store(chain(namespace, 4, 50)) == [Stored.STORED] * 4


def test_reader_that_never_reads(start: Start) -> None:
    """A session that never reads its replies is ended; the daemon and other sessions go on."""
    daemon = start(limits__session_requests_per_s=1_000_000)
    with daemon.peer(queue=1) as victim, daemon.peer() as other:
        frame = wire.encode_request(victim.token, 1, "status", wire.Empty())

        def flood() -> bool:
            for _ in range(500):
                if victim.dealer.poll(0, zmq.POLLOUT):
                    victim.dealer.send(frame)
            return other.counter("replies_dropped") > 0

        assert eventually(flood, 20)
        assert victim.ended()
        assert other.call("ping")[0] == Code.OK
        assert [row["session"] for row in other.status()["sessions"]] == [other.number]
        assert "a reply could not be queued" in daemon.log()
