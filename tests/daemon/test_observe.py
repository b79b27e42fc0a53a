"""Reports of attention: keys once, strict numbers, a clock of steps, and the client's side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evoke.client import BadArgument, connect, wire
from evoke.client.wire import Code
from evoke.core import native
from evoked.counters import Counters
from evoked.observe import NO_IDENTITY, TICK_S, Observe, ScoreTable
from evoked.registry import Registry
from evoked.server import Refusal
from evoked.sessions import NamespaceEntry, Tenant
from evoked.timers import Timers
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Peer, chain, make_namespace

ALPHA = 0.2


def halves(*values: float) -> bytes:
    return np.array(values, np.float16).tobytes()


class Registered:
    """What the verb needs of a session."""

    def __init__(self, entry: NamespaceEntry) -> None:
        self.namespaces = {entry.number: entry}


class Desk:
    """The verb without sockets: one namespace, a session, a clock that a test moves."""

    def __init__(self) -> None:
        self.index = native.Index()
        self.registry = Registry(self.index, namespaces_max=8, pools_max=8)
        self.registry.make_tenant = lambda salt: Tenant(
            share_bytes=1 << 30, grants_max=8, requests_per_s=1000
        )
        self.entry = self.registry._add(make_namespace())
        self.timers, self.now_s = Timers(), 0.0
        self.table = ScoreTable(ALPHA, absent="freeze", limit=64)
        self.counters = Counters()
        self.observe = Observe(
            self.registry, self.counters, self.timers, lambda: self.now_s, self.table
        )
        self.session: Any = Registered(self.entry)
        self.keys = chain(self.entry.namespace, 8)

    def __call__(
        self, first: int, keys: bytes = b"", signal: bytes = b"", *, sequence: int = 1,
        channels: int = 1, steps: int = 8, prefill: bool = False, present: bytes = b"",
    ) -> Any:  # fmt: skip
        number = self.entry.number
        args = (number, sequence, first, keys, channels, signal, steps, prefill, present)
        return self.observe.observe(self.session, 1, wire.Observe(*args))

    def tick(self) -> None:
        self.now_s += TICK_S
        self.timers.run_due(self.now_s)

    def scores(self, count: int) -> Any:
        ids = self.table.identities(self.entry.number, self.keys[: 32 * count])
        return np.exp(self.table.scores.log_scores(ids, self.observe.steps))


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.index.close()


def test_reports_become_scores(desk: Desk) -> None:
    """Keys travel once; later reports name the sequence only, and the scores are the moving
    average over its steps once the tick has come."""
    assert desk(0, desk.keys[:64], halves(0.5, 0.25)) == 2
    assert desk(2, b"", halves(0.5, 0.0)) == 2
    assert len(desk.timers) == 1, "one tick is armed, however many reports come"
    desk.tick()
    assert desk.observe.steps == 16
    keep = (1 - ALPHA) ** 8
    assert desk.scores(2) == pytest.approx(
        [0.5 * (1 - keep**2), 0.25 * (1 - keep) * keep], rel=1e-5
    )
    assert desk.timers.next_due_s() is None, "nobody reports: no timer runs"
    assert desk.counters["observed_reports"] == 2


def test_clock_is_the_longest_step_count(desk: Desk) -> None:
    """A tick moves the clock by the largest number of decode steps of any sequence; rows of a
    prefill weigh their signal and move nothing."""
    desk(0, desk.keys[:32], halves(1.0), sequence=1, steps=3)
    desk(0, desk.keys[:32], halves(1.0), sequence=2, steps=5)
    desk(1, b"", halves(1.0), sequence=2, steps=2)
    desk(1, b"", halves(1.0), sequence=1, steps=16, prefill=True)
    desk.tick()
    assert desk.observe.steps == 7


def test_sequences_grow_and_roll_back(desk: Desk) -> None:
    """Keys from `first` on replace what was there; a sequence that ended is forgotten."""
    assert desk(0, desk.keys[:64]) == 2
    assert desk(2, desk.keys[64:160]) == 5
    assert desk(3) == 3, "three blocks are left"
    assert desk(1, desk.keys[32:64], halves(0.1, 0.2)) == 2
    assert desk(0) == 0
    with pytest.raises(Refusal) as refused:
        desk(2, b"", halves(0.1, 0.2))
    assert (refused.value.code, refused.value.field) == (Code.NOT_FOUND, "sequence")
    desk.tick()
    assert desk.scores(2)[1] > 0, "what it reported before its end counts"


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.25, 1.5])
def test_bad_masses_are_refused(desk: Desk, value: float) -> None:
    """A mass that is NaN, infinite, negative or above 1 is refused with field and number; scores
    and clock stay, and the next good report counts."""
    desk(0, desk.keys[:64])
    with pytest.raises(Refusal) as refused:
        desk(2, b"", halves(0.5, value))
    assert refused.value.field == "signal"
    assert "block 1 is" in refused.value.sentence
    desk.tick()
    assert (desk.observe.steps, desk.scores(2).tolist()) == (0, [0, 0])
    assert desk(2, b"", halves(0.5, 0.5)) == 2


def test_sizes_are_refused(desk: Desk) -> None:
    """Gaps, short signals and flags that do not fit change nothing."""
    desk(0, desk.keys[:64])
    for field, arguments in (
        ("first", {"first": 3, "keys": desk.keys[96:128]}),
        ("signal", {"first": 2, "signal": halves(0.5)}),
        ("signal", {"first": 2, "signal": halves(0.5, 0.5), "channels": 2}),
        ("present", {"first": 2, "signal": halves(0.5, 0.5), "present": b"\1\1"}),
        ("keys", {"first": 2, "keys": b"short"}),
    ):
        with pytest.raises(Refusal) as refused:
            desk(**arguments)  # type: ignore[arg-type]
        assert refused.value.field == field
    assert desk(2, b"", halves(0.5, 0.5)) == 2


def test_table_is_bounded(desk: Desk) -> None:
    """Blocks beyond the table's limit have no identity: reports go on without them."""
    more = chain(desk.entry.namespace, 100, seed=9)
    found = desk.table.identities(desk.entry.number, more)
    assert len(desk.table) == 64
    assert (found[64:] == NO_IDENTITY).all()
    assert desk(0, more, halves(*[0.01] * 100)) == 100
    desk.tick()


def test_end_of_a_session_folds_its_reports(desk: Desk) -> None:
    """What a session reported last still counts when it has ended, and its sequences are gone."""
    desk(0, desk.keys[:32], halves(1.0))
    desk.observe.session_ended(desk.session)
    assert desk.scores(1)[0] == pytest.approx(1 - (1 - ALPHA) ** 8, rel=1e-5)
    with pytest.raises(Refusal):
        desk(1, b"", halves(1.0))


def test_wire(daemon: DaemonProcess) -> None:
    """Over the socket: a good report answers with the number of blocks, a bad one with its field,
    and a namespace that was not registered is not found."""
    namespace = make_namespace("observed")
    keys = chain(namespace, 2)
    with daemon.peer() as peer:
        number = register(peer, namespace)
        before = peer.counter("observed_reports")
        args = (number, 5, 0, keys, 1, halves(0.5, 0.5), 8, False, b"")
        assert peer.call("observe", *args) == (Code.OK, 2)
        assert peer.counter("observed_reports") == before + 1
        bad = (number, 5, 2, b"", 1, halves(0.5, math.nan), 8, False, b"")
        code, (field, sentence) = peer.call("observe", *bad)
        assert (code, field) == (Code.BAD_ARGUMENT, "signal")
        assert "nan" in sentence
        assert peer.call("observe", number, 5, 0, b"", 9, b"", 8, False, b"")[1][0] == "channels"
        assert peer.call("observe", number, 5, 0, b"", 1, b"", 0, False, b"")[1][0] == "steps"
        foreign = (number + 1000, 5, 0, keys, 1, b"", 8, False, b"")
        assert peer.call("observe", *foreign)[0] == Code.NOT_FOUND


def register(peer: Peer, namespace: Any) -> int:
    number: int = peer.ok("register_namespace", namespace.encoded())[0]
    return number


def test_client_reports_a_growing_sequence(start: Start) -> None:
    """The client sends keys once, only new ones when the sequence grows, all of them to a daemon
    that does not know them, and refuses bad numbers itself."""
    daemon = start()
    namespace = make_namespace("observed")
    with connect(daemon.directory, raise_errors=True) as client:
        space = client.namespace(namespace)
        tokens = np.arange(10 * namespace.block_tokens)
        whole = space.keys(tokens)
        observed = space.observed()
        for blocks in (4, 4, 10, 7):
            masses = np.full((2, blocks), 1 / blocks)
            assert observed.report(whole[:blocks], masses, steps=8)
        present = np.ones(7, bool)
        present[2] = False
        assert observed.report(whole[:7], np.zeros(7), steps=8, present=present)
        with pytest.raises(BadArgument, match="channel 0 block 3 is nan"):
            observed.report(whole[:4], [0.1, 0.1, 0.1, math.nan])
        with pytest.raises(BadArgument, match=r"shape \(1, 3\)"):
            observed.report(whole[:4], np.zeros(3))
        with pytest.raises(BadArgument, match="steps: 0"):
            observed.report(whole[:4], np.zeros(4), steps=0)
        with daemon.peer() as peer:
            assert peer.counter("observed_reports") == 5
            assert peer.counter("refused_requests") == 0
        observed.close()
