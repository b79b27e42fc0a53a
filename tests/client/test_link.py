"""The link to the daemon: absence, restarts, refusals and forks, as an engine sees them."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from evoke.client import BadArgument, DaemonError, Fetched, Forked, Stored, Unavailable, connect
from evoke.client.sockets import socket_directory
from evoke.client.wire import Code
from tests.client.conftest import Connect, Engine
from tests.client.peer import HELD, Refusal, ScriptedDaemon, make_namespace


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "evoke"]


def test_absent_daemon_is_a_miss_at_once(
    socket_dir: Path, joined: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a daemon everything can be set up, nothing waits, nothing raises, and it is logged
    once."""
    begin = time.monotonic()
    engine = Engine(joined(timeout_s=5))
    chain = engine.chain(3)
    for _ in range(20):
        assert engine.space.lookup(chain) == 0
        stored = engine.space.store(engine.pool, chain, range(3))
        assert stored.codes.tolist() == [Stored.REFUSED] * 3
        fetched = engine.space.fetch(engine.pool, chain, range(3))
        assert fetched.codes.tolist() == [Fetched.MISS] * 3
        assert engine.space.pin(chain, 1).leading == 0
    assert time.monotonic() - begin < 2
    assert not engine.client.connected
    assert len(warnings_of(caplog)) == 1
    assert "going on without cache" in warnings_of(caplog)[0]


def test_absent_daemon_raises_on_demand(socket_dir: Path) -> None:
    """With raise_errors connect() says why there is no daemon."""
    with pytest.raises(Unavailable, match="No such file"):
        connect(socket_dir, raise_errors=True)


def test_daemon_that_comes_later_is_found(
    socket_dir: Path, joined: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that was set up without a daemon uses one that comes, by look-ups alone."""
    engine = Engine(joined())
    daemon = ScriptedDaemon(socket_dir)
    try:
        deadline = time.monotonic() + 5
        while not engine.client.connected:
            assert engine.space.lookup(engine.chain(1)) == 0
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert engine.space.store(engine.pool, engine.chain(1), [0]).stored == 1
        assert daemon.count("prove_pool") == 0
    finally:
        daemon.close()
    assert [("back" in text) for text in warnings_of(caplog)] == [False, True]


def test_restart_is_survived(
    socket_dir: Path, joined: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart look-ups are 0 at once, and the next store works: namespaces and pools are
    registered again, with the same memory and without a proof."""
    first = ScriptedDaemon(socket_dir)
    engine = Engine(joined())
    before, chain = engine.fill(), engine.chain(4)
    engine.space.store(engine.pool, chain, range(4))
    assert engine.space.lookup(chain) == 4
    first.close()
    assert engine.space.lookup(chain) == 0
    second = ScriptedDaemon(socket_dir)
    try:
        assert engine.space.store(engine.pool, chain, range(4)).stored == 4
        assert engine.space.fetch(engine.pool, chain, range(8, 12)).leading == 4
        np.testing.assert_array_equal(engine.array[8:12], before[:4])
        assert engine.space.lookup(chain) == 4
        assert second.count("prove_pool") == 0
        assert engine.client.boot_id == second.boot
    finally:
        second.close()
    texts = warnings_of(caplog)
    assert len(texts) == 2
    assert "going on without cache" in texts[0]
    assert "is back" in texts[1]


def test_pauses_grow(socket_dir: Path, joined: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts to connect come ever more rarely while there is no daemon, two seconds at most."""
    client = joined()
    tries = []

    def refuse(*_: Any) -> Any:
        tries.append(1)
        raise Unavailable("none")

    monkeypatch.setattr("evoke.client.link.Connection", refuse)
    now = 1000.0
    monkeypatch.setattr("evoke.client.link.time.monotonic", lambda: now)
    monkeypatch.setattr(client.link.reports, "wake", lambda: None)
    client.link._next_try_s = 0.0
    times = []
    for step in range(2000):
        now = 1000.0 + step / 100
        before = len(tries)
        client.link.connection(now + 1)
        if len(tries) > before:
            times.append(now)
    gaps = np.diff(times)
    assert gaps[0] <= 0.25
    assert all(later >= earlier - 0.011 for earlier, later in itertools.pairwise(gaps))
    assert 1.98 <= gaps[-1] <= 2.02


def _raise(error: Exception) -> Any:
    raise error


def test_caller_with_little_time_finds_a_session_later(
    socket_dir: Path, joined: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls with less time than a handshake takes get their session from the background."""
    engine = Engine(joined())

    def slow_hello(*_: object) -> list[object]:
        time.sleep(0.1)
        return [b"j" * 16, 1]

    monkeypatch.setattr(ScriptedDaemon, "_hello", slow_hello)
    daemon = ScriptedDaemon(socket_dir)
    try:
        deadline = time.monotonic() + 5
        chain = engine.chain(1)
        while not engine.space.store(engine.pool, chain, [0], timeout_s=0.02).readable:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        engine.client.close()
        daemon.close()


def test_closed_memory_is_not_registered_again(
    engine: Engine, daemon: ScriptedDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool whose memory was closed is a miss after a restart; the rest of the client works."""
    engine.memory.close()
    daemon.drop_sessions()
    assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 0
    assert engine.client.ping() == 1
    assert any("memory: closed" in text for text in warnings_of(caplog))


def test_hung_daemon_costs_a_bounded_wait(socket_dir: Path, joined: Connect) -> None:
    """A daemon that accepts and says nothing costs one call its timeout, and the next nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_dir / "session.sock"))
        listener.listen()
        begin = time.monotonic()
        client = joined(timeout_s=0.3)
        assert 0.25 < time.monotonic() - begin < 1
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="timed out"):
            client.ping()
        assert time.monotonic() - begin < 0.1
    (socket_dir / "session.sock").unlink()


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (["refused", "uid 5 is not allowed"], "refused: uid 5 is not allowed"),
        (["welcome", 2, b"b" * 16, b"t" * 16, b"r" * 17], "speaks version 2"),
        (["welcome", 1, b"b" * 16, b"t" * 16, b"r" * 17], "0 descriptors"),
        (["hello"], "no welcome"),
        ("nonsense", "array"),
    ],
)
def test_bad_welcome_is_absence(
    socket_dir: Path, joined: Connect, packet: Any, reason: str
) -> None:
    """A refusal, a newer daemon or nonsense on the socket is an absent daemon, and says why."""

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        peer.send(msgspec.msgpack.encode(packet))
        peer.recv(1)
        peer.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(socket_dir / "session.sock"))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = joined()
        thread.join(5)
        assert not client.connected
        assert reason in client.link.absence
    (socket_dir / "session.sock").unlink()


def test_lost_session_frees_its_waiters(engine: Engine, daemon: ScriptedDaemon) -> None:
    """When the daemon goes, every waiting thread has its miss at once, not at its timeout."""
    daemon.on.update({verb: lambda _s, _a: HELD for verb in ("fetch", "touch")})
    results: list[Any] = []

    def fetch(slot: int) -> None:
        results.append(engine.space.fetch(engine.pool, engine.chain(1), [slot], timeout_s=30))

    threads = [threading.Thread(target=fetch, args=(slot,)) for slot in range(6)]
    for thread in threads:
        thread.start()
    while len(daemon.held) < 6:
        time.sleep(0.002)
    begin = time.monotonic()
    daemon.drop_sessions()
    for thread in threads:
        thread.join(10)
    assert time.monotonic() - begin < 2
    assert [r.codes.tolist() for r in results] == [[Fetched.LATE]] * 6


def test_foreign_boot_id_ends_the_session(engine: Engine, daemon: ScriptedDaemon) -> None:
    """An answer of another daemon than the one that welcomed us is none; the client reconnects."""
    daemon.boot = bytes(16)
    assert engine.space.fetch(engine.pool, engine.chain(1), [0]).codes.tolist() == [Fetched.LATE]
    assert engine.space.store(engine.pool, engine.chain(1), [0]).stored == 1
    assert engine.client.boot_id == bytes(16)


def test_forgotten_session_is_renewed(engine: Engine, daemon: ScriptedDaemon) -> None:
    """A daemon that no longer knows the session's token gets a new session."""

    def forget(_s: Any, _a: Any) -> Any:
        daemon.on.clear()
        raise Refusal(Code.BAD_TOKEN)

    daemon.on["store"] = forget
    assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 0
    assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 1
    assert daemon.count("hello") == 2


def test_refused_namespace_is_said(daemon: ScriptedDaemon, joined: Connect) -> None:
    """A namespace that the daemon refuses is an error of the call that registers it; one that a
    later daemon refuses is a miss."""
    engine = Engine(joined())
    daemon.on["register_namespace"] = lambda _s, _a: _raise(Refusal(Code.BUSY, "", "1024 of them"))
    with pytest.raises(DaemonError, match="1024"):
        joined().namespace(make_namespace())
    daemon.drop_sessions()
    assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 0
    assert engine.space.lookup(engine.chain(1)) == 0
    assert engine.client.ping() == 1


def test_instance_is_joined_by_token(daemon: ScriptedDaemon, joined: Connect) -> None:
    """A process that is given another's token says it, and its rank; both say it again later."""
    first = joined()
    second = joined(join=first.join_token, rank=1)
    assert second.join_token == first.join_token != b""
    daemon.drop_sessions()
    assert first.ping() == second.ping() == 1
    hellos = [args for verb, args in daemon.requests if verb == "hello"]
    assert [h.rank for h in hellos] == [0, 1, 0, 1]
    assert [h.join for h in hellos] == [b""] + [first.join_token] * 3


def test_stale_join_token_makes_a_new_instance(daemon: ScriptedDaemon, joined: Connect) -> None:
    """A daemon that does not know the token of its predecessor gets a client of a new instance."""
    client = joined()
    old = client.join_token

    def hello(_s: Any, args: Any) -> Any:
        if args.join:
            raise Refusal(Code.NOT_FOUND, "join", "no instance of this token lives")
        return [b"n" * 16, 1]

    daemon.on["hello"] = hello
    daemon.drop_sessions()
    assert client.ping() == 1
    assert client.join_token == b"n" * 16 != old


def test_forked_child_gets_a_clear_error(engine: Engine, daemon: ScriptedDaemon) -> None:
    """In a forked child every use raises Forked; the parent's session goes on undisturbed, and
    ends with the parent's close although the child lives."""
    future = engine.space.store_async(engine.pool, engine.chain(1), [0])
    read, write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for use in (
            engine.client.ping,
            lambda: engine.space.lookup(engine.chain(1)),
            lambda: engine.space.store(engine.pool, engine.chain(1), [0]),
            lambda: engine.client.namespace(make_namespace(model="child")),
            future.result,
        ):
            try:
                use()
            except Forked as error:
                said.append("must connect() itself" in str(error))
        engine.client.close()
        os.write(write, bytes(said))
        os.close(hold_write)
        os.read(hold_read, 1)
        os._exit(0)
    try:
        assert os.read(read, 16) == bytes([True] * 5)
        assert future.result().stored == 1
        assert engine.client.ping() == 1
        assert daemon.count("hello") == 1
        engine.client.close()
        deadline = time.monotonic() + 5
        (session,) = daemon.sessions.values()
        while session.connection.recv(1, socket.MSG_PEEK) != b"":
            assert time.monotonic() < deadline
    finally:
        os.close(hold_write)
        os.waitpid(pid, 0)
        for fd in (read, write, hold_read):
            os.close(fd)


def test_closed_client_is_of_no_use(engine: Engine, daemon: ScriptedDaemon) -> None:
    """close() may come twice; use after it is the caller's mistake; nothing is left open."""
    engine.client.close()
    engine.client.close()
    with pytest.raises(BadArgument, match="closed"):
        engine.space.lookup(engine.chain(1))
    names = [thread.name for thread in threading.enumerate()]
    assert "evoke-reports" not in names


def test_nothing_leaks_over_many_sessions(socket_dir: Path, joined: Connect) -> None:
    """Reconnecting many times leaves no descriptors and no threads behind."""
    daemon = ScriptedDaemon(socket_dir)
    engine = Engine(joined())

    def session() -> int:
        daemon.drop_sessions()
        assert engine.space.store(engine.pool, engine.chain(1), [0]).readable == 1
        return len(os.listdir("/proc/self/fd"))

    try:
        counts = [session() for _ in range(30)]
        assert max(counts[10:]) <= max(counts[:10]) + 2
        assert threading.active_count() < 10
    finally:
        daemon.close()


def test_socket_directory_is_found_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given, $EVOKE_SOCKET, /run/evoked, $XDG_RUNTIME_DIR/evoked, /tmp/evoked-UID: the first."""
    monkeypatch.setenv("EVOKE_SOCKET", "/somewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_directory("/given") == Path("/given")
    assert socket_directory() == Path("/somewhere")
    monkeypatch.delenv("EVOKE_SOCKET")
    monkeypatch.setattr("os.path.isdir", lambda path: path == "/run/evoked")
    monkeypatch.setattr("os.access", lambda *_args, **_options: True)
    assert socket_directory() == Path("/run/evoked")
    monkeypatch.setattr("os.path.isdir", lambda _path: False)
    assert socket_directory() == tmp_path / "evoked"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert socket_directory() == Path(f"/tmp/evoked-{os.getuid()}")


def test_bad_arguments_of_connect(tmp_path: Path) -> None:
    """What can never work is refused at once, whether or not there is a daemon."""
    for options, named in (
        ({"rank": 256}, "rank"),
        ({"join": b"short"}, "join"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"config": {}}, "config"),
    ):
        with pytest.raises(BadArgument, match=named):
            connect(tmp_path, **options)
    with pytest.raises(BadArgument, match="107"):
        connect(Path("/tmp/" + "x" * 120))


def test_warnings_are_on_the_evoke_logger(socket_dir: Path, joined: Connect) -> None:
    """An application can silence the client by the logger "evoke"."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep()
    logging.getLogger("evoke").addHandler(handler)
    try:
        joined()
    finally:
        logging.getLogger("evoke").removeHandler(handler)
    assert [record.levelname for record in records] == ["WARNING"]
