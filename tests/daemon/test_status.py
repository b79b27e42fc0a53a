"""What is counted and shown: attribution, usage, the published table as it grows."""

from __future__ import annotations

import os
import socket

import msgspec
import numpy as np

from evoke.client import wire
from evoke.client.wire import Code, Stored
from evoke.core import native
from tests.daemon.conftest import Start, assert_idle
from tests.daemon.peer import BLOCK, DaemonProcess, Engine, chain, make_namespace

ATTRIBUTION = ("asked", "hit_host", "hit_cxl", "hit_flash", "missed", "unknown")


def _lookups(engine: Engine) -> list[int]:
    lookups = engine.peer.status()["lookups"]
    return [lookups[name] for name in ATTRIBUTION]


def test_attribution(daemon: DaemonProcess) -> None:
    """hits + missed + unknown = asked; a report that is repeated is counted once."""
    namespace = make_namespace()
    keys = chain(namespace, 10)
    with daemon.engine(namespace) as engine:
        engine.store(keys[: 6 * 32])
        before = np.array(_lookups(engine))
        report = wire.Report(engine.handle, keys, 0, 6, 77)
        engine.peer.ok("asked", [report])
        assert (np.array(_lookups(engine)) - before).tolist() == [10, 6, 0, 0, 4, 0]
        repeated = engine.peer.counter("reports_repeated")
        engine.peer.ok("asked", [report, report])
        assert (np.array(_lookups(engine)) - before).tolist() == [10, 6, 0, 0, 4, 0]
        assert engine.peer.counter("reports_repeated") == repeated + 2
        engine.peer.ok("flush", engine.id, "")
        engine.peer.ok("asked", [wire.Report(engine.handle, keys, 0, 6, 78)])
        assert (np.array(_lookups(engine)) - before).tolist() == [20, 6, 0, 0, 8, 6]


def test_bad_report_counts_nothing(daemon: DaemonProcess) -> None:
    """A batch with one bad report is refused whole: none of its reports is counted."""
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine:
        before = _lookups(engine)
        good = wire.Report(engine.handle, keys, 0, 0, 1)
        for bad in (
            wire.Report(engine.handle, keys, 0, 5, 2),
            wire.Report(4711, keys, 0, 0, 2),
            wire.Report(engine.handle, keys[:-1], 0, 0, 2),
        ):
            assert engine.peer.call("asked", [good, bad])[0] in (Code.BAD_ARGUMENT, Code.NOT_FOUND)
        assert _lookups(engine) == before
        engine.peer.ok("asked", [good])
        assert _lookups(engine)[0] == before[0] + 4


def test_one_way_report(daemon: DaemonProcess) -> None:
    """A report with request id 0 is counted and not answered."""
    namespace = make_namespace()
    keys = chain(namespace, 3)
    with daemon.engine(namespace) as engine:
        before = _lookups(engine)
        args = wire.Asked([wire.Report(engine.handle, keys, 0, 0, 5)])
        engine.peer.dealer.send(wire.encode_request(engine.peer.token, 0, "asked", args))
        engine.peer.ok("ping")  # the next reply is this one's
        assert _lookups(engine)[0] == before[0] + 3


def test_status_adds_up(daemon: DaemonProcess) -> None:
    """Usage of tiers and namespaces, sessions, pools and grants are shown as they are."""
    namespace = make_namespace("shown", blocks_4k=2)
    keys = chain(namespace, 5)
    with daemon.engine(namespace, name="me") as engine:
        engine.store(keys)
        engine.pin(keys)
        status = engine.peer.status()
        (session,) = status["sessions"]
        assert (session["name"], session["pid"]) == ("me", os.getpid())
        assert (session["pools"], session["grants"], status["grants"]) == (1, 1, 1)
        (row,) = [row for row in status["namespaces"] if row["model"] == "shown"]
        assert (row["blocks"], row["bytes"]) == (5, 10 * BLOCK)
        assert status["pid"] == daemon.pid
        assert status["boot_id"] == engine.peer.boot.hex()
        assert status["tiers"][0]["capacity_bytes"] == 64 << 20


def test_table_grows_while_serving(start: Start) -> None:
    """A table that is outgrown is replaced: clients get the new one, and old ones say so."""
    daemon = start(host__capacity="160MiB")
    namespace = make_namespace()
    with daemon.engine(namespace) as engine:
        old = engine.peer.table
        first = chain(namespace, 1000, 0)
        engine.store(first, [0] * 1000)
        assert old.leading(engine.secret, first) == 1000
        for seed in range(1, 40):
            keys = chain(namespace, 1000, seed)
            assert engine.store(keys, [0] * 1000) == [Stored.STORED] * 1000
        assert old.superseded()
        engine.peer.liveness.settimeout(5)
        tables = 0
        while engine.peer.table.superseded():
            data, fds, _, _ = socket.recv_fds(engine.peer.liveness, 4096, 4)
            word, epoch = msgspec.msgpack.decode(data)
            assert word == "table"
            engine.peer.table.close()
            engine.peer.table = native.TableView(fds[0])
            assert engine.peer.table.epoch == epoch
            os.close(fds[0])
            tables += 1
        assert tables >= 1
        for seed in range(40):
            keys = chain(namespace, 1000, seed)
            assert engine.peer.table.leading(engine.secret, keys) == 1000
        assert engine.peer.status()["unpublished_blocks"] == 0
        with daemon.peer() as late:
            assert late.table.epoch == engine.peer.table.epoch


def test_reader_of_tables_that_never_reads(start: Start) -> None:
    """A session that leaves its table packets unread is served on: its look-ups are misses."""
    daemon = start(host__capacity="160MiB")
    namespace = make_namespace()
    with daemon.engine(namespace) as engine, daemon.peer() as sleeper:
        for seed in range(40):
            engine.store(chain(namespace, 1000, seed), [0] * 1000)
        assert sleeper.table.superseded()
        assert sleeper.call("ping")[0] == Code.OK


def test_lock_that_failed_is_seen(start: Start) -> None:
    """host.lock over RLIMIT_MEMLOCK: the daemon serves, and its health is yellow and says why."""
    under = ["prlimit", "--memlock=65536:65536"]
    if os.geteuid() == 0:  # which no limit holds
        under = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *under]
    daemon = start(under=under, host__lock="true")
    with daemon.peer() as peer:
        health = peer.status()["health"]
        assert health["state"] == "yellow"
        assert "host.lock" in health["reasons"][0]
    assert_idle(daemon, "yellow")
    daemon.stop()
