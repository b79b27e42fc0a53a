"""Copies that go wrong: damaged bytes, deadlines, fences, faults. Never a wrong byte as a hit."""

from __future__ import annotations

import numpy as np

from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import BLOCK, DaemonProcess, Engine, chain, make_namespace


def test_flipped_bit(daemon: DaemonProcess) -> None:
    """A block with one flipped bit is "corrupt" once, counted, then a miss; others are right."""
    namespace = make_namespace(blocks_4k=3)
    keys = chain(namespace, 10)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(1)
        engine.store(keys)
        before = engine.peer.counter("integrity_failures")
        engine.peer.ok("inject", engine.handle, keys[7 * 32 : 8 * 32], 3 * BLOCK - 1)
        found = engine.fetch(keys, range(16, 26))
        assert found == [Fetched.HOST] * 7 + [Fetched.CORRUPT] + [Fetched.HOST] * 2
        others = [n for n in range(10) if n != 7]
        assert (engine.blocks[[16 + n for n in others]] == pattern[others]).all()
        assert engine.peer.counter("integrity_failures") == before + 1
        assert engine.lookup(keys)[7] == 0
        assert engine.fetch(keys)[7] == Fetched.MISS
        assert engine.peer.counter("integrity_failures") == before + 1
        assert engine.usage() == (9, 27 * BLOCK)


def test_flipped_bit_in_a_part(daemon: DaemonProcess) -> None:
    """A flipped bit at any place of a block is found, the first and the last byte included."""
    namespace = make_namespace(blocks_4k=2)
    keys = chain(namespace, 8)
    with daemon.engine(namespace) as engine:
        engine.fill(1)
        engine.store(keys)
        for block, offset in enumerate((0, 1, 255, 256, 4095, 4096, 8190, 8191)):
            engine.peer.ok("inject", engine.handle, keys[block * 32 : block * 32 + 32], offset)
        assert engine.fetch(keys) == [Fetched.CORRUPT] * 8


def test_damaged_under_a_pin(daemon: DaemonProcess) -> None:
    """A pinned block that is damaged is dropped all the same; the pin's release still balances."""
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
        pin, _ = engine.pin(keys)
        engine.peer.ok("inject", engine.handle, keys[:32], 0)
        assert engine.fetch(keys, grant=pin) == [Fetched.CORRUPT, Fetched.HOST]
        assert engine.fetch(keys, grant=pin) == [Fetched.MISS, Fetched.HOST]
        engine.peer.ok("unpin", pin)


def test_inject_is_denied_by_default(start: Start) -> None:
    """Without debug.inject nobody can damage a block."""
    daemon = start(daemon__verify_fetch="false")
    with daemon.engine(make_namespace()) as engine:
        key = chain(engine.namespace, 1)
        engine.store(key)
        assert engine.peer.call("inject", engine.handle, key, 0)[0] == Code.DENIED


def test_without_verification(start: Start) -> None:
    """With verify_fetch = false a damaged block is served as it is: the setting says so."""
    daemon = start(daemon__verify_fetch="false", debug__inject="true")
    namespace = make_namespace()
    keys = chain(namespace, 2)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(2)
        engine.store(keys)
        engine.peer.ok("inject", engine.handle, keys[:32], 5)
        assert engine.fetch(keys, [9, 10]) == [Fetched.HOST] * 2
        difference = engine.blocks[9] ^ pattern[0]
        assert (int(difference[5]), int(difference.sum())) == (1, 1)
        assert (engine.blocks[10] == pattern[1]).all()


def test_bad_inject(daemon: DaemonProcess) -> None:
    """A key that is absent, or an offset behind the block, is refused."""
    with daemon.engine(make_namespace()) as engine:
        key = chain(engine.namespace, 1)
        assert engine.peer.call("inject", engine.handle, key, 0)[0] == Code.NOT_FOUND
        engine.store(key)
        assert engine.peer.call("inject", engine.handle, key, BLOCK)[0] == Code.BAD_ARGUMENT


# ---------------------------------------------------------------------- late


def test_deadlines(start: Start) -> None:
    """Copies that do not begin in time are "late": their slots are untouched and nothing leaks."""
    daemon = start(host__capacity="160MiB")
    namespace = make_namespace(blocks_4k=256)
    keys = chain(namespace, 128)
    with daemon.engine(namespace, 128) as engine:
        engine.bytes[:] = 1
        for _ in range(20):
            outcomes = engine.store(keys, deadline_ms=1)
            if Stored.LATE in outcomes and Stored.STORED in outcomes:
                break
            engine.peer.ok("flush", engine.id, "")
        else:
            raise AssertionError("no store was late")
        assert set(outcomes) == {Stored.STORED, Stored.LATE}
        assert engine.lookup(keys) == [int(code == Stored.STORED) for code in outcomes]
        engine.store(keys)
        for _ in range(20):
            engine.bytes[:] = 2
            outcomes = engine.fetch(keys, deadline_ms=1)
            if Fetched.LATE in outcomes and Fetched.HOST in outcomes:
                break
        else:
            raise AssertionError("no fetch was late")
        filled = {Fetched.HOST: 1, Fetched.LATE: 2}
        for slot, code in enumerate(outcomes):
            assert (engine.blocks[slot] == filled[Fetched(code)]).all()
        assert engine.peer.counter("blocks_late") >= outcomes.count(Fetched.LATE)


def _cancel(engine: Engine, word: int) -> None:
    engine.peer.fence.arm(word)
    assert engine.peer.fence.cancel(word, 0)


def test_cancelled_fetch(daemon: DaemonProcess) -> None:
    """A fetch whose fence was raised touches no slot and says "late"; the blocks stay."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
        engine.bytes[:] = 9
        _cancel(engine, 5)
        assert engine.fetch(keys, fence=5) == [Fetched.LATE] * 4
        assert (engine.bytes == 9).all()
        assert engine.fetch(keys) == [Fetched.HOST] * 4
        engine.peer.fence.arm(5)
        assert engine.fetch(keys, fence=5) == [Fetched.HOST] * 4


def test_cancelled_store(daemon: DaemonProcess) -> None:
    """A store whose fence was raised leaves no block and no memory."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine:
        _cancel(engine, 63)
        assert engine.store(keys, fence=63) == [Stored.LATE] * 4
        assert engine.usage() == (0, 0)
        assert engine.store(keys, fence=62) == [Stored.STORED] * 4


def test_cancel_in_the_middle(daemon: DaemonProcess) -> None:
    """After a cancel that said so no slot changes any more, whatever the reply says later."""
    namespace = make_namespace(blocks_4k=256)
    keys = chain(namespace, 32)
    with daemon.engine(namespace) as engine:
        engine.bytes[:] = 1
        engine.store(keys)
        engine.bytes[:] = 2
        engine.peer.fence.arm(1)
        engine.peer.send("fetch", *engine.fetch_args(keys, fence=1))
        assert engine.peer.fence.cancel(1, 2000)
        seen = engine.blocks.copy()
        outcomes = list(engine.peer.receive().result)
        assert set(outcomes) <= {Fetched.HOST, Fetched.LATE}
        assert (engine.blocks == seen).all()
        for slot, code in enumerate(outcomes):
            assert (seen[slot] == (1 if code == Fetched.HOST else 2)).all()


def test_nonsense_in_the_fence_page(daemon: DaemonProcess) -> None:
    """Whatever a peer writes into its fence page only makes its own copies late."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine, daemon.engine(namespace) as other:
        engine.store(keys)
        for word in range(64):
            engine.peer.fence.cancel(word, 0)
            outcomes = engine.fetch(keys, fence=word)
            assert outcomes == [Fetched.LATE] * 4
        assert other.fetch(keys) == [Fetched.HOST] * 4


def test_writer_overwrites_while_stored(daemon: DaemonProcess) -> None:
    """An engine that writes its slots during the store harms only its own block: what is stored
    has the checksum of what is stored."""
    namespace = make_namespace(blocks_4k=64)
    keys = chain(namespace, 16)
    with daemon.engine(namespace) as engine:
        engine.peer.send("store", *engine.store_args(keys))
        rng = np.random.default_rng(0)
        for _ in range(20):
            slot = int(rng.integers(16))
            engine.blocks[slot] = rng.integers(256)
        assert list(engine.peer.receive().result) == [Stored.STORED] * 16
        assert engine.fetch(keys, range(16, 32)) == [Fetched.HOST] * 16
