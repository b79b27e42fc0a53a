"""reserve, commit, abort, pin, unpin: one-shot, owned, bounded in time, without drift."""

from __future__ import annotations

import time

from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, DaemonProcess, Engine, Peer, chain, eventually, make_namespace

TIER_BLOCKS_64K = 32  # of a tier of 2 MiB

# One session may hold the whole tier.
FULL = {"limits__session_host_percent": 100, "limits__pins_host_percent": 100}


def test_double_release(daemon: DaemonProcess) -> None:
    """A second release of a pin or a reservation is an error and changes nothing."""
    namespace = make_namespace()
    keys = chain(namespace, 3)
    with daemon.engine(namespace) as engine:
        engine.store(keys[:64])
        pin, _ = engine.pin(keys[:64])
        reservation, _ = engine.reserve(keys[64:], first=2, parent=keys[32:64])
        assert engine.peer.call("unpin", pin)[0] == Code.OK
        assert engine.peer.call("unpin", pin)[0] == Code.BAD_GRANT
        assert engine.peer.call("abort", reservation)[0] == Code.OK
        assert engine.peer.call("abort", reservation)[0] == Code.BAD_GRANT
        assert engine.usage() == (2, 2 * BLOCK)


def test_wrong_kind_of_release(daemon: DaemonProcess) -> None:
    """A pin is not aborted or committed, a reservation is not unpinned or fetched under."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        engine.store(keys[:32])
        pin, _ = engine.pin(keys[:32])
        reservation, _ = engine.reserve(keys[32:], first=1, parent=keys[:32])
        commit = (pin, engine.pool, bytes(4), bytes(4), 1000, 0)
        fetch = engine.fetch_args(keys[:32], grant=reservation)
        assert engine.peer.call("abort", pin)[0] == Code.BAD_GRANT
        assert engine.peer.call("commit", *commit)[0] == Code.BAD_GRANT
        assert engine.peer.call("unpin", reservation)[0] == Code.BAD_GRANT
        assert engine.peer.call("fetch", *fetch)[0] == Code.BAD_GRANT
        assert engine.fetch(keys[:32], grant=pin) == [Fetched.HOST]
        assert engine.commit(reservation, [0], [0]) == [Stored.STORED]


def _fill(engine: Engine, seed: int, blocks: int = TIER_BLOCKS_64K) -> list[int]:
    """Outcomes of storing as many independent one-block chains."""
    results = []
    for number in range(blocks):
        key = chain(engine.namespace, 1, seed + number)
        results += engine.store(key, [number % engine.slots])
    return results


def test_foreign_and_forged_release(start: Start) -> None:
    """Releases of another instance's or an invented pin are refused, and B's pin holds on."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    key = chain(namespace, 1, 7)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        pattern = a.fill(1)[0]
        a.store(key)
        pin_a, pin_b = a.pin(key)[0], b.pin(key)[0]
        codes = [a.peer.call("unpin", grant)[0] for grant in (pin_a, pin_a, pin_b, 12345)]
        assert codes == [Code.OK] + 3 * [Code.BAD_GRANT]
        assert a.peer.counter("bad_grants") == 3
        assert set(_fill(a, 1000, 3 * TIER_BLOCKS_64K)) == {Stored.STORED}
        assert b.fetch(key, [9]) == [Fetched.HOST]
        assert (b.blocks[9] == pattern).all()
        b.peer.ok("unpin", pin_b)
        _fill(a, 2000)
        assert b.fetch(key, [9]) == [Fetched.MISS]


def test_partial_grants_do_not_drift(start: Start) -> None:
    """1,000 batches against a tier that pins fill get the free places and no more, each time."""
    daemon = start(host__capacity="2MiB", **FULL)
    namespace = make_namespace(blocks_4k=32)  # 16 blocks fill the tier
    held = chain(namespace, 12, 1)
    wanted = chain(namespace, 16, 2)
    with daemon.engine(namespace) as engine:
        engine.store(held)
        pin, _ = engine.pin(held)
        for _ in range(1000):
            grant, results = engine.reserve(wanted[: 8 * 32])
            assert results == [Stored.STORED] * 4 + [Stored.REFUSED] * 4
            engine.peer.ok("abort", grant)
        assert engine.peer.status()["tiers"][0]["allocated_bytes"] == 12 * 32 * BLOCK
        engine.peer.ok("unpin", pin)
        grant, results = engine.reserve(wanted)
        assert results == [Stored.STORED] * 16
        engine.peer.ok("abort", grant)


def test_no_room_for_a_store(start: Start) -> None:
    """A store into a tier that pins fill is refused, says so, and drops nothing that is pinned."""
    daemon = start(host__capacity="2MiB", **FULL)
    namespace = make_namespace(blocks_4k=32)
    held, more = chain(namespace, 16, 1), chain(namespace, 3, 2)
    with daemon.engine(namespace) as engine:
        engine.store(held)
        pin, _ = engine.pin(held)
        assert engine.store(more) == [Stored.REFUSED] * 3
        assert engine.reserve(more) == (0, [Stored.REFUSED] * 3)
        assert engine.lookup(held) == [1] * 16
        engine.peer.ok("unpin", pin)
        assert engine.store(more) == [Stored.STORED] * 3


def test_grants_of_a_session_hold_its_share(start: Start) -> None:
    """Pins beyond the session's share are BUSY, reservations beyond it refused block by block, and
    what is released can be held again."""
    daemon = start(host__capacity="2MiB", limits__session_host_percent=25)
    namespace = make_namespace(blocks_4k=32)  # 16 blocks fill the tier
    keys, more = chain(namespace, 8, 1), chain(namespace, 8, 2)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
        code, result = engine.peer.call("pin", engine.handle, keys, 0, 60_000)
        assert (code, result[0]) == (Code.BUSY, "keys")
        pin, _ = engine.pin(keys[: 2 * 32])
        grant, results = engine.reserve(more)
        assert results == [Stored.STORED] * 2 + [Stored.REFUSED] * 6
        engine.peer.ok("unpin", pin)
        engine.peer.ok("abort", grant)
        grant, results = engine.reserve(more)
        assert results == [Stored.STORED] * 4 + [Stored.REFUSED] * 4
        engine.peer.ok("abort", grant)


def test_pins_never_take_the_whole_tier(start: Start) -> None:
    """Many sessions' pins together stop at their share: there is room for what is stored next."""
    daemon = start(host__capacity="2MiB", limits__session_host_percent=100)
    namespace = make_namespace(blocks_4k=32)
    keys = chain(namespace, 16, 1)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        a.store(keys)
        first, _ = a.pin(keys[: 4 * 32])
        b.pin(keys[: 4 * 32])
        code, result = b.peer.call("pin", b.handle, keys[: 5 * 32], 0, 60_000)
        assert code == Code.BUSY
        assert "limits.pins_host_percent leaves 0" in result[1]
        a.peer.ok("unpin", first)
        b.pin(keys[: 4 * 32])
        assert b.store(chain(namespace, 8, 2)) == [Stored.STORED] * 8


def test_pin_expires(start: Start) -> None:
    """A slow reader whose pin is over is told "expired" for each block, and nothing is copied."""
    daemon = start(host__capacity="2MiB")
    namespace = make_namespace(blocks_4k=16)
    keys = chain(namespace, 2, 7)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        a.fill(1)
        a.store(keys)
        pin, _ = a.pin(keys, hold_ms=100)
        assert a.fetch(keys[:32], [9], grant=pin) == [Fetched.HOST]
        time.sleep(0.2)
        b.fill(2)
        _fill(b, 100, 2 * TIER_BLOCKS_64K)
        a.bytes[:] = 5
        assert a.fetch(keys[32:], [10], first=1, grant=pin) == [Fetched.EXPIRED]
        assert a.fetch(keys, [9, 10], grant=pin) == [Fetched.EXPIRED] * 2
        assert (a.bytes == 5).all()
        assert a.peer.call("unpin", pin)[0] == Code.BAD_GRANT
        assert a.peer.counter("grants_expired") == 1


def test_reservation_expires(daemon: DaemonProcess) -> None:
    """A reservation that is over is no longer committed, and its room is given back."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        grant, _ = engine.reserve(keys, hold_ms=50)
        assert eventually(lambda: engine.peer.status()["grants"] == 0, 2)
        commit = (grant, engine.pool, bytes(4), bytes(4), 1000, 0)
        assert engine.peer.call("commit", *commit)[0] == Code.BAD_GRANT
        assert engine.usage() == (0, 0)


def test_commit_twice(daemon: DaemonProcess) -> None:
    """A position is committed once, whether the second try is in the same request or a later."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        grant, _ = engine.reserve(keys)
        twice = (grant, engine.pool, bytes(8), bytes(8), 1000, 0)
        assert engine.peer.call("commit", *twice)[0] == Code.BAD_ARGUMENT
        assert engine.commit(grant, [0], [0]) == [Stored.STORED]
        code, result = engine.peer.call("commit", grant, engine.pool, bytes(4), bytes(4), 1000, 0)
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "positions")
        engine.peer.ok("abort", grant)
        assert engine.usage() == (1, BLOCK)


def test_commit_again_after_a_failed_copy(daemon: DaemonProcess) -> None:
    """A commit that its client gave up can be made again: the room is still reserved."""
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(3)[4]
        grant, _ = engine.reserve(key)
        engine.peer.fence.arm(3)
        engine.peer.fence.cancel(3, 0)
        assert engine.commit(grant, [0], [4], fence=3) == [Stored.LATE]
        assert engine.lookup(key) == [0]
        assert engine.commit(grant, [0], [4]) == [Stored.STORED]
        assert engine.fetch(key, [5]) == [Fetched.HOST]
        assert (engine.blocks[5] == pattern).all()


def test_complete_reservation_is_over(daemon: DaemonProcess) -> None:
    """A reservation of which each block was committed is no grant any more."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        grant, _ = engine.reserve(keys)
        engine.commit(grant, [0, 1], [0, 1])
        assert engine.peer.status()["grants"] == 0
        assert engine.peer.call("abort", grant)[0] == Code.BAD_GRANT


def test_abort_while_committing(daemon: DaemonProcess) -> None:
    """An abort behind a commit under way leaves each block either whole or absent."""
    namespace = make_namespace(blocks_4k=64)
    keys = chain(namespace, 32)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(6)
        grant, _ = engine.reserve(keys)
        packed = b"".join(n.to_bytes(4, "little") for n in range(32))
        commit = engine.peer.send("commit", grant, engine.pool, packed, packed, 5000, 0)
        abort = engine.peer.send("abort", grant)
        replies = {reply.request: reply for reply in (engine.peer.receive() for _ in range(2))}
        assert replies[commit].code == Code.OK
        assert replies[abort].code in (Code.OK, Code.BAD_GRANT)
        results = list(replies[commit].result)
        found = engine.fetch(keys)
        assert [hit == Fetched.HOST for hit in found] == [r == Stored.STORED for r in results]
        present = [n for n in range(32) if found[n] == Fetched.HOST]
        assert (engine.blocks[present] == pattern[present]).all()


def test_grant_limit(start: Start) -> None:
    """One grant more than limits.session_grants is answered "busy"; another session has its own."""
    daemon = start(limits__session_grants=3)
    namespace = make_namespace()
    keys = chain(namespace, 1)
    with daemon.engine(namespace) as a, daemon.engine(namespace) as b:
        a.store(keys)
        pins = [a.pin(keys)[0] for _ in range(3)]
        assert a.peer.call("pin", a.handle, keys, 0, 1000)[0] == Code.BUSY
        assert b.pin(keys)[0] != 0
        a.peer.ok("unpin", pins[0])
        assert a.pin(keys)[0] != 0


def test_released_grants_leave_no_memory(start: Start) -> None:
    """20,000 pins with the longest hold, each released at once, leave the loop no larger."""
    daemon = start()
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as engine:
        engine.store(key)
        _pin_and_unpin(engine.peer, engine.handle, key, 2000)
        before = daemon.resident_bytes()
        _pin_and_unpin(engine.peer, engine.handle, key, 20_000)
        assert daemon.resident_bytes() - before < 2 << 20


def _pin_and_unpin(peer: Peer, handle: int, key: bytes, times: int) -> None:
    for _ in range(times // 100):
        for _ in range(100):
            peer.send("pin", handle, key, 0, 3_600_000)
        for grant, _ in [peer.receive().result for _ in range(100)]:
            peer.send("unpin", grant)
        assert {peer.receive().code for _ in range(100)} == {Code.OK}
