"""Stores, fetches and pins against a scripted daemon: results, late answers, fences, threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.client import (
    BadArgument,
    DaemonError,
    Fetched,
    LayoutError,
    SlotsInDoubt,
    Stored,
    Unavailable,
    wire,
)
from evoke.core import native
from tests.client import peer
from tests.client.conftest import AXES, SLOTS, Connect, Engine
from tests.client.peer import HELD, Refusal, ScriptedDaemon


def test_round_trip_is_bit_identical(engine: Engine, daemon: ScriptedDaemon) -> None:
    """What was stored from some slots comes back into others, and look-ups see it."""
    before = engine.fill()
    chain = engine.chain(5)
    assert engine.space.lookup(chain) == 0
    stored = engine.space.store(engine.pool, chain, range(5))
    assert (stored.stored, stored.readable, stored.ok_blocks, stored.error) == (5, 5, 5, None)
    assert engine.space.lookup(chain) == 5
    fetched = engine.space.fetch(engine.pool, chain, [15, 14, 13, 12, 11])
    assert (fetched.leading, fetched.hits) == (5, 5)
    np.testing.assert_array_equal(engine.array[15:10:-1], before[:5])
    np.testing.assert_array_equal(engine.array[:11], before[:11])


def test_blocks_from_the_middle_name_their_parent(engine: Engine, daemon: ScriptedDaemon) -> None:
    """A store from `first` on sends the chain index of its first block and the key before it."""
    chain = engine.chain(6)
    engine.space.store(engine.pool, chain, [1, 2], first=3)
    args = daemon.requests[-1][1]
    assert (args.first, args.parent, args.keys) == (3, chain.key(2), chain.keys[96:160])
    engine.space.store(engine.pool, chain[4:], [1])
    args = daemon.requests[-1][1]
    assert (args.first, args.parent, args.keys) == (4, chain.key(3), chain.key(4))


def test_codes_are_counted_by_meaning(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Counts of a result are of what its codes mean, leading ones up to the first failure."""
    daemon.on["store"] = lambda _s, _a: bytes([0, 1, 5, 2, 0, 3, 4])
    stored = engine.space.store(engine.pool, engine.chain(7), range(7))
    assert (stored.stored, stored.readable, stored.ok_blocks) == (2, 3, 3)
    daemon.on["fetch"] = lambda _s, _a: bytes([1, 3, 0, 2, 4, 5, 6])
    fetched = engine.space.fetch(engine.pool, engine.chain(7), range(7))
    assert (fetched.leading, fetched.hits) == (2, 3)


def test_long_chain_goes_in_several_requests(
    engine: Engine, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of more keys than one request may have is split, and its result is one."""
    monkeypatch.setattr(wire, "KEYS_MAX", 3)
    before, chain = engine.fill(), engine.chain(8)
    assert engine.space.store(engine.pool, chain, range(8)).stored == 8
    stores = [args for verb, args in daemon.requests if verb == "store"]
    assert [(args.first, len(args.keys) // 32) for args in stores] == [(0, 3), (3, 3), (6, 2)]
    assert [args.parent for args in stores] == [b"", chain.key(2), chain.key(5)]
    assert engine.space.fetch(engine.pool, chain, range(8, 16)).leading == 8
    np.testing.assert_array_equal(engine.array[8:], before[:8])


@pytest.mark.parametrize(
    ("slots", "first", "named"),
    [
        ([0, 16], 0, r"slots\[1\]: 16"),
        ([0, -1], 0, r"slots\[1\]: -1"),
        ([0.5], 0, "slots"),
        ([[1]], 0, "slots"),
        ([1, 2], 3, "first: 3"),
        ([1], -1, "first: -1"),
        ([1, 2, 1], 0, "listed twice"),
    ],
)
def test_bad_slots_are_refused(engine: Engine, slots: Any, first: int, named: str) -> None:
    """Slots outside the pool, twice in a fetch, or more than blocks are the caller's mistake."""
    with pytest.raises(BadArgument, match=named):
        engine.space.fetch(engine.pool, engine.chain(4), slots, first)


def test_things_of_another_namespace_are_refused(engine: Engine) -> None:
    """A chain or a pool of another namespace is the caller's mistake."""
    other = engine.client.namespace(peer.make_namespace(model="other"))
    chain = other.keys(list(range(16)))
    with pytest.raises(BadArgument, match="chain: of another namespace"):
        engine.space.lookup(chain)
    with pytest.raises(BadArgument, match="pool: of another namespace"):
        other.store(engine.pool, chain, [0])


# ---------------------------------------------------------------- late answers and fences


def test_late_answer_is_a_miss_in_time(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Without an answer the call ends a moment after its timeout, with LATE for every block, and
    its fence is raised so that no copy starts any more."""
    daemon.on["fetch"] = lambda _s, _a: HELD
    begin = time.monotonic()
    result = engine.space.fetch(engine.pool, engine.chain(3), range(3), timeout_s=0.2)
    assert 0.2 <= time.monotonic() - begin < 1.0
    assert result.codes.tolist() == [Fetched.LATE] * 3
    assert isinstance(result.error, Unavailable)
    session, args = daemon.held[0][0], daemon.requests[-1][1]
    assert session.cancelled(args.fence)
    assert args.deadline_ms <= 200
    daemon.on.clear()
    assert engine.space.fetch(engine.pool, engine.chain(3), range(3)).error is None


def test_word_of_a_late_request_rests_until_its_answer(
    engine: Engine, daemon: ScriptedDaemon
) -> None:
    """A fence word is not used for another request before its own was answered, however late."""
    daemon.on["store"] = lambda _s, _a: HELD
    engine.space.store(engine.pool, engine.chain(1), [0], timeout_s=0.05)
    late_word = daemon.requests[-1][1].fence
    daemon.on["store"] = lambda _s, _a: bytes(1)
    words = set()
    for _ in range(100):
        engine.space.store(engine.pool, engine.chain(1), [0])
        words.add(daemon.requests[-1][1].fence)
    assert late_word not in words
    daemon.answer_held(bytes(1))
    daemon.on["store"] = lambda _s, _a: HELD
    futures = [engine.space.store_async(engine.pool, engine.chain(1), [0]) for _ in range(64)]
    assert engine.client.ping() == 1
    assert {a.fence for v, a in daemon.requests[-66:] if v == "store"} >= {late_word}
    while daemon.held:
        daemon.answer_held(bytes(1))
    assert all(future.result().stored == 1 for future in futures)


def test_running_copy_puts_the_pool_in_doubt(engine: Engine, daemon: ScriptedDaemon) -> None:
    """When a copy still runs after the wait for it, that call and every later use of the pool
    raise SlotsInDoubt, whatever was said about exceptions."""

    def copying(session: Any, args: wire.Fetch) -> Any:
        session.copying(args.fence, 1)
        return HELD

    daemon.on["fetch"] = copying
    begin = time.monotonic()
    with pytest.raises(SlotsInDoubt):
        engine.space.fetch(engine.pool, engine.chain(1), [0], timeout_s=0.05)
    assert time.monotonic() - begin < 3.0
    with pytest.raises(SlotsInDoubt):
        engine.space.store(engine.pool, engine.chain(1), [0])


def test_copy_that_ends_in_time_leaves_no_doubt(engine: Engine, daemon: ScriptedDaemon) -> None:
    """A late copy that is over within the wait is a plain miss."""

    def copying(session: Any, args: wire.Fetch) -> Any:
        session.copying(args.fence, 1)
        threading.Timer(0.3, session.copying, (args.fence, 0)).start()
        return HELD

    daemon.on["fetch"] = copying
    result = engine.space.fetch(engine.pool, engine.chain(1), [0], timeout_s=0.05)
    assert result.codes.tolist() == [Fetched.LATE]
    engine.pool.check_usable()


def test_death_in_mid_copy_leaves_no_doubt(socket_dir: Path, joined: Connect) -> None:
    """A daemon that is killed while it copies copies no more: a miss, and the pool stays good."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import runpy, sys; sys.argv[1:] = [{str(socket_dir)!r}]; "
         "runpy.run_module('tests.client.peer', run_name='__main__')"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        engine = Engine(joined())
        begin = time.monotonic()
        result = engine.space.fetch(engine.pool, engine.chain(2), [0, 1], timeout_s=10)
        assert time.monotonic() - begin < 5
        assert result.codes.tolist() == [Fetched.LATE] * 2
        engine.pool.check_usable()
        assert engine.space.lookup(engine.chain(2)) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_session_end_with_a_copy_under_way_is_doubted(
    engine: Engine, daemon: ScriptedDaemon
) -> None:
    """A daemon that ends the session but lives may still copy: SlotsInDoubt if it does."""

    def copying(session: Any, args: wire.Fetch) -> Any:
        session.copying(args.fence, 1)
        return HELD

    daemon.on["fetch"] = copying
    future = engine.space.fetch_async(engine.pool, engine.chain(1), [0])
    _until(lambda: daemon.count("fetch") == 1)
    daemon.drop_sessions()
    with pytest.raises(SlotsInDoubt):
        future.result()


def test_session_that_answers_nothing_is_ended(engine: Engine, daemon: ScriptedDaemon) -> None:
    """After eight transfers without an answer the session is given up; a new one works."""
    daemon.on["store"] = lambda _s, _a: HELD
    for _ in range(8):
        engine.space.store(engine.pool, engine.chain(1), [0], timeout_s=0.001)
    daemon.on.clear()
    assert engine.space.store(engine.pool, engine.chain(1), [0]).stored == 1
    assert daemon.count("hello") == 2


def test_all_words_in_use_is_waited_for(engine: Engine, daemon: ScriptedDaemon) -> None:
    """The 65th transfer waits for one of the 64 to be answered, within its deadline."""
    daemon.on["store"] = lambda _s, _a: HELD
    futures = [engine.space.store_async(engine.pool, engine.chain(1), [0]) for _ in range(64)]
    late = engine.space.store(engine.pool, engine.chain(1), [0], timeout_s=0.1)
    assert late.codes.tolist() == [Stored.REFUSED]
    assert "too many transfers" in str(late.error)
    timer = threading.Timer(0.2, daemon.answer_held, (bytes(1),))
    timer.start()
    waiting = engine.space.store_async(engine.pool, engine.chain(1), [0], timeout_s=5)
    timer.join()
    _until(lambda: daemon.count("store") == 65)
    while daemon.held:
        daemon.answer_held(bytes(1))
    assert all(future.result().stored == 1 for future in [*futures, waiting])


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("code", [wire.Code.BUSY, wire.Code.INTERNAL, wire.Code.STOPPING])
def test_refusal_is_a_miss_or_an_exception_on_demand(
    daemon: ScriptedDaemon, joined: Connect, code: wire.Code
) -> None:
    """What the daemon refuses is a miss with its reason, or that reason raised if so wished."""

    def refuse(_s: Any, _a: Any) -> Any:
        raise Refusal(code, "slots", "not now")

    quiet, loud = Engine(joined()), Engine(joined(raise_errors=True))
    daemon.on.update({verb: refuse for verb in ("store", "fetch", "pin", "reserve", "touch")})
    stored = quiet.space.store(quiet.pool, quiet.chain(2), [0, 1])
    assert stored.codes.tolist() == [Stored.REFUSED] * 2
    assert str(stored.error) == "slots: not now"
    fetched = quiet.space.fetch(quiet.pool, quiet.chain(2), [0, 1])
    assert fetched.codes.tolist() == [Fetched.MISS] * 2
    assert quiet.space.pin(quiet.chain(2), 1).leading == 0
    assert not len(quiet.space.reserve(quiet.chain(2), 1).granted)
    assert quiet.space.touch(quiet.chain(2)) == 0
    for call in (
        lambda: loud.space.store(loud.pool, loud.chain(2), [0, 1]),
        lambda: loud.space.fetch(loud.pool, loud.chain(2), [0, 1]),
        lambda: loud.space.pin(loud.chain(2), 1),
        lambda: loud.space.touch(loud.chain(2)),
    ):
        with pytest.raises(DaemonError) as caught:
            call()
        assert caught.value.code == code


def test_misfitting_answer_is_a_miss(engine: Engine, daemon: ScriptedDaemon) -> None:
    """An answer with another number of blocks than was asked for ends the session as a miss."""
    daemon.on["fetch"] = lambda _s, _a: bytes([1])
    result = engine.space.fetch(engine.pool, engine.chain(2), [0, 1])
    assert result.codes.tolist() == [Fetched.MISS] * 2
    daemon.on.clear()
    assert engine.space.fetch(engine.pool, engine.chain(2), [0, 1]).error is None
    assert daemon.count("hello") == 2


# ---------------------------------------------------------------- registration


def test_proof_restores_what_was_in_the_slots(daemon: ScriptedDaemon, joined: Connect) -> None:
    """Registering proves the layout by a copy from the first slot to the last, and puts back what
    both held."""
    engine = Engine(joined())
    before = engine.fill()
    again = engine.space.register_pool(engine.memory, engine.array, AXES)
    assert again.slots == SLOTS
    assert daemon.count("prove_pool") == 2
    np.testing.assert_array_equal(engine.array, before)


@pytest.mark.parametrize("wrong", ["order", "sum"])
def test_failed_proof_refuses_the_pool(daemon: ScriptedDaemon, joined: Connect, wrong: str) -> None:
    """A daemon that reads a block in another order is found out before anything is stored."""

    def prove(session: Any, args: wire.ProvePool) -> Any:
        content = daemon._gather(session, args.pool, args.from_slot)
        arrived = content[::-1] if wrong == "order" else content
        daemon._scatter(session, args.pool, args.to_slot, arrived)
        return 1 if wrong == "sum" else native.xxh3_64(content)

    daemon.on["prove_pool"] = prove
    with pytest.raises(LayoutError, match="order"):
        Engine(joined())


def test_closed_pool_is_unregistered_once(engine: Engine, daemon: ScriptedDaemon) -> None:
    """close() has the daemon unmap the pool; a second close and later stores do nothing."""
    engine.pool.close()
    engine.pool.close()
    assert daemon.count("unregister_pool") == 1
    assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 0


# ---------------------------------------------------------------- grants


def test_pin_is_released_once(engine: Engine, daemon: ScriptedDaemon) -> None:
    """A pin is given back by its context or by release(), and a second time is an error."""
    daemon.on.update(pin=lambda _s, _a: [77, bytes([1, 1, 0])], unpin=lambda _s, _a: None)
    with engine.space.pin(engine.chain(3), 1.5) as pin:
        assert pin.leading == 2
        engine.space.fetch(engine.pool, engine.chain(3), range(3), pin=pin)
    assert daemon.requests[-2][1].grant == 77
    assert [v for v, _ in daemon.requests].count("unpin") == 1
    with pytest.raises(BadArgument, match="before"):
        pin.release()
    early = engine.space.pin(engine.chain(3), 1.5)
    with early:
        early.release()
    assert daemon.count("unpin") == 2
    for hold_s in (0, -1, 1e9):
        with pytest.raises(BadArgument, match="hold_s"):
            engine.space.pin(engine.chain(1), hold_s)


def test_pin_of_a_long_chain_has_several_grants(
    engine: Engine, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is fetched under the grant that holds it, by the pin's other processes as well."""
    monkeypatch.setattr(wire, "KEYS_MAX", 3)
    daemon.on["pin"] = lambda _s, args: [args.first + 10, b"\1" * (len(args.keys) // 32)]
    pin = engine.space.pin(engine.chain(8), 1)
    shared = engine.space.shared_pin(pin.export())
    engine.space.fetch(engine.pool, engine.chain(8), range(6), first=1, pin=shared)
    fetches = [args for verb, args in daemon.requests if verb == "fetch"]
    assert [(a.first, len(a.keys) // 32, a.grant) for a in fetches] == [
        (1, 2, 10), (3, 3, 13), (6, 1, 16)]  # fmt: skip
    with pytest.raises(BadArgument, match="exported"):
        engine.space.shared_pin(b"nonsense")


def test_pin_of_a_dead_daemon_is_expired(engine: Engine, daemon: ScriptedDaemon) -> None:
    """After a restart blocks under an old pin are EXPIRED, and nobody is asked to release it."""
    daemon.on["pin"] = lambda _s, _a: [5, bytes([1])]
    pin = engine.space.pin(engine.chain(1), 60)
    daemon.boot = bytes(16)
    daemon.drop_sessions()
    result = engine.space.fetch(engine.pool, engine.chain(1), [0], pin=pin)
    assert result.codes.tolist() == [Fetched.EXPIRED]
    pin.release()
    assert daemon.count("unpin") == daemon.count("fetch") == 0


def test_reservation_is_committed_by_position(
    engine: Engine, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions in the chain are sent as positions in the request that reserved them."""
    monkeypatch.setattr(wire, "KEYS_MAX", 3)
    daemon.on["reserve"] = lambda _s, args: [args.first + 1, bytes(len(args.keys) // 32)]
    daemon.on["commit"] = lambda _s, args: bytes(len(args.positions) // 4)
    daemon.on["abort"] = lambda _s, _a: None
    with engine.space.reserve(engine.chain(7), 5) as room:
        assert room.granted.tolist() == list(range(7))
        assert room.commit(engine.pool, [1, 2, 4, 6], [9, 8, 7, 6]).stored == 4
        for positions, slots in (([2, 1], [0, 1]), ([1], [0, 1]), ([7], [0]), ([-1], [0])):
            with pytest.raises(BadArgument, match="positions"):
                room.commit(engine.pool, positions, slots)
    commits = [args for verb, args in daemon.requests if verb == "commit"]
    got = [(a.grant, _u32(a.positions), _u32(a.slots)) for a in commits]
    assert got == [(1, [1, 2], [9, 8]), (4, [1], [7]), (7, [0], [6])]
    assert daemon.count("abort") == 3
    with pytest.raises(BadArgument, match="before"):
        room.abort()


# ---------------------------------------------------------------- threads and futures


def test_futures_are_answered_in_any_order(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Transfers run side by side; each future gets the answer of its own request."""
    daemon.on["fetch"] = lambda _s, _a: HELD
    futures = [engine.space.fetch_async(engine.pool, engine.chain(1), [slot]) for slot in range(3)]
    _until(lambda: len(daemon.held) == 3)
    assert not futures[0].done()
    with pytest.raises(TimeoutError):
        futures[0].result(timeout=0.05)
    daemon.held.reverse()
    for code in (3, 2, 1):
        daemon.answer_held(bytes([code]))
    _until(lambda: futures[2].done())
    assert [future.result().codes.tolist() for future in futures] == [[1], [2], [3]]
    assert futures[0].result().codes.tolist() == [1]


def test_threads_share_a_session(engine: Engine, daemon: ScriptedDaemon) -> None:
    """Many threads at once each get their own answers, and slow ones do not hold up others."""
    contents = engine.fill()

    def work(number: int) -> None:
        for turn in range(30):
            chain = engine.chain(2, seed=number * 1000 + turn)
            assert engine.space.store(engine.pool, chain, [number, number]).stored == 2
            assert engine.space.lookup(chain) == 2
            assert engine.space.fetch(engine.pool, chain, [number, number + 8]).leading == 2

    daemon.on["touch"] = lambda _s, _a: HELD
    with ThreadPoolExecutor(9) as threads:
        slow = threads.submit(engine.space.touch, engine.chain(1), 5.0)
        done = [threads.submit(work, number) for number in range(8)]
        for future in done:
            future.result(timeout=60)
        daemon.answer_held(1)
        assert slow.result(timeout=60) == 1
    np.testing.assert_array_equal(engine.array[8:], contents[:8])


def _u32(packed: bytes) -> list[int]:
    return [int(number) for number in np.frombuffer(packed, "<u4")]


def _until(check: Any) -> None:
    deadline = time.monotonic() + 10
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.002)
