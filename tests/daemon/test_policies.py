"""Reload of the policy in a running daemon: whole or not at all, under load, and told to people."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from evoke.client import wire
from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Peer, chain, eventually, in_child, make_namespace

GOOD = '[priority]\nformula = "lru"\n'
RELOADS = 100
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def shown(peer: Peer) -> dict[str, Any]:
    state: dict[str, Any] = peer.ok("policy_show")
    return state


def with_half_life(half_life: int) -> str:
    return f"{GOOD}[score]\nhalf_life = {half_life}\n"


def test_default_policy_is_shown(daemon: DaemonProcess) -> None:
    """Without a file the built-in policy is version 1, with every value that holds."""
    with daemon.peer() as peer:
        state = shown(peer)
        assert (state["version"], state["source"], state["warnings"]) == (1, "built in", [])
        assert state["effective"]["priority"]["formula"] == peer.status()["policy"]
        assert state["effective"]["score"]["half_life"] == 13.5


@pytest.mark.parametrize(
    ("content", "line", "key"),
    [
        ("[score\n", 1, ""),
        ("[score]\nhalf_lief = 3\n", 2, "score.half_lief"),
        ("[score]\n\nalpha = -1\n", 3, "score.alpha"),
        ("[place]\nkeep = 0.1\nevict = 0.2\n", 3, "place.evict"),
        ("[priority]\nformula = 'best'\n", 2, "priority.formula"),
        ("[shadow]\ncandidates = ['best']\n", 2, "shadow.candidates"),
        (" \n", None, ""),
    ],
)
def test_bad_reload_changes_nothing(start: Start, content: str, line: int | None, key: str) -> None:
    """A policy with an error is refused as a whole; line and key are named, and counted once."""
    daemon = start()
    with daemon.peer() as peer:
        before = shown(peer)
        for verb in ("policy_check", "policy_reload"):
            result = peer.ok(verb, content, "mine.toml")
            error = result["error"]
            assert (error["file"], error["line"], error["key"]) == ("mine.toml", line, key)
            place = "mine.toml" if line is None else f"mine.toml:{line}"
            assert error["text"] == f"{f'{place} {key}'.rstrip()}: {error['reason']}"
        assert shown(peer) == before
        assert (peer.counter("policy_refused"), peer.counter("policy_reloads")) == (1, 0)
        last = peer.ok("policy_history")[-1]
        assert (last["outcome"], last["version"]) == ("refused", 1)
        assert key in last["reason"]


def test_second_reload_of_the_same_is_no_change(start: Start) -> None:
    """A reload raises the version once; the same policy again is in force already."""
    with start().peer() as peer:
        first = peer.ok("policy_reload", with_half_life(7), "mine.toml")
        assert (first["applied"], first["changed"], first["version"]) == (True, True, 2)
        again = peer.ok("policy_reload", "# as before\n" + with_half_life(7), "mine.toml")
        assert (again["applied"], again["changed"], again["version"]) == (True, False, 2)
        assert shown(peer)["effective"]["score"]["half_life"] == 7
        outcomes = [row["outcome"] for row in peer.ok("policy_history")]
        assert outcomes == ["start", "applied", "unchanged"]
        assert peer.counter("policy_reloads") == 1
        lines = peer.ok("metrics").splitlines()
        assert {"evoke_policy_version 2.0", "evoke_policy_reloads_total 1.0"} <= set(lines)


def test_warnings_are_told(start: Start) -> None:
    """A policy that is legal and hardly meant, or ahead of this version, is put into force, with a
    sentence."""
    content = "[score]\nalpha=0.05\n[place]\nunits='absolute'\nkeep=0.1\nevict=0.02\n"
    with start().peer() as peer:
        told = peer.ok("policy_reload", content, "")["warnings"]
        assert "place.keep: 0.1 is above alpha" in told[0]
        assert "place: read and checked, but not obeyed by this version" in told[1]
        assert shown(peer)["warnings"] == told


def test_reload_reads_the_configured_file(start: Start, tmp_path: Path) -> None:
    """SIGHUP and a reload without content read the file of daemon.policy; when it is bad, gone, a
    pipe or empty, nothing changes."""
    file = tmp_path / "policy.toml"
    file.write_text(with_half_life(3))
    daemon = start(daemon__policy=str(file))
    with daemon.peer() as peer:
        assert shown(peer)["source"] == str(file)
        file.write_text(with_half_life(4))
        os.kill(daemon.pid, signal.SIGHUP)
        assert eventually(lambda: shown(peer)["version"] == 2)
        assert shown(peer)["effective"]["score"]["half_life"] == 4
        file.write_text(with_half_life(5))
        assert peer.ok("policy_reload", None, "")["version"] == 3
        for spoil, reason in (
            (lambda: file.write_text("[score]\nhalf_life = 0"), "0 is out of range"),
            (lambda: file.write_bytes(b"\xff"), "is not UTF-8 text"),
            (lambda: file.write_text(""), "is empty"),
            (file.unlink, "cannot be read: No such file"),
            (lambda: os.mkfifo(file), "is no regular file"),
        ):
            spoil()
            result = peer.ok("policy_reload", None, "")
            assert reason in result["error"]["text"]
            assert (result["applied"], result["version"]) == (False, 3)
        os.kill(daemon.pid, signal.SIGHUP)
        assert eventually(lambda: peer.counter("policy_refused") == 6)
        assert shown(peer)["effective"]["score"]["half_life"] == 5


@needs_root
def test_reload_needs_the_admin_right(start: Start) -> None:
    """Another user may look at the policy, but not check, replace, or read its history."""
    daemon = start(access__group="nogroup")
    for path in (daemon.directory.parents[1], daemon.directory.parent):
        path.chmod(0o755)

    def other() -> str:
        peer = Peer(daemon.directory)
        codes = [
            peer.call(verb, *args)[0].name
            for verb, args in (
                ("policy_show", ()),
                ("policy_check", (GOOD, "")),
                ("policy_reload", (GOOD, "")),
                ("policy_history", ()),
            )
        ]
        peer.close()
        return " ".join(codes)

    gid = os.stat(daemon.directory / "session.sock").st_gid
    assert in_child(other, uid=1234, gid=gid) == "OK DENIED DENIED DENIED"


def test_reload_is_announced(start: Start) -> None:
    """Who follows all events is told of each policy that comes into force, and of no other."""
    daemon = start()
    with daemon.peer() as peer:
        topic = peer.ok("events", 0xFFFFFFFF)
        reader: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        reader.setsockopt(zmq.LINGER, 0)
        reader.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
        reader.connect(f"ipc://{daemon.directory}/events.sock")
        reader.send(b"")
        half_life = 1
        while not reader.poll(20):  # the request for the topic travels by itself
            half_life += 1
            version = peer.ok("policy_reload", with_half_life(half_life), "")["version"]
        told = [msgspec.msgpack.decode(reader.recv_multipart()[1])]
        peer.ok("policy_reload", "[score", "")
        last = peer.ok("policy_reload", with_half_life(1), "")["version"]
        while told[-1][5] != f"version {last}: lru":
            assert reader.poll(5000)
            told.append(msgspec.msgpack.decode(reader.recv_multipart()[1]))
        reader.close(0)
    assert [row[2:5] for row in told] == [["policy", b"", b""]] * len(told)
    assert told[-2][5] == f"version {version}: lru"
    assert [row[0] for row in told] == list(range(told[0][0], told[0][0] + len(told)))


def test_reloads_under_load_lose_nothing(start: Start) -> None:
    """While clients store and fetch without pause, 100 reloads, every tenth a bad one, lose no
    block, fail no request and never show half a policy."""
    daemon = start(host__capacity="64MiB")
    stop = threading.Event()
    failures: list[str] = []
    rounds = [0, 0]

    def work(number: int) -> None:
        try:
            with daemon.engine(make_namespace(), slots=32) as engine:
                engine.fill(number)
                while not stop.is_set():
                    keys = chain(engine.namespace, 16, seed=rounds[number])
                    assert set(engine.store(keys, range(16))) == {Stored.STORED}
                    assert set(engine.fetch(keys, range(16, 32))) == {Fetched.HOST}
                    assert (engine.blocks[:16] == engine.blocks[16:]).all()
                    rounds[number] += 1
        except BaseException as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        with daemon.peer() as admin:
            version = 1
            for number in range(RELOADS):
                content = with_half_life(number + 1)
                if number % 10 == 9:
                    content = content.replace("half_life", "half_lief")
                result = admin.ok("policy_reload", content, "")
                version += result["applied"]
                assert result["version"] == version
                assert result["applied"] is (number % 10 != 9)
                seen = shown(admin)
                wanted = number if number % 10 == 9 else number + 1
                assert (seen["version"], seen["effective"]["score"]["half_life"]) == (
                    version,
                    wanted,
                )
            reached = list(rounds)
            assert eventually(lambda: all(map(lambda a, b: a > b, rounds, reached)), 20)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    with daemon.peer() as peer:
        assert peer.counter("policy_reloads") == RELOADS * 9 // 10
        assert peer.counter("blocks_refused") == 0
        assert peer.ok("audit")["good"]


def test_oversized_policy_is_a_bad_argument(daemon: DaemonProcess) -> None:
    """Content above the limit is refused with the field's name."""
    with daemon.peer() as peer:
        code, result = peer.call("policy_reload", "#" * (wire.POLICY_BYTES_MAX + 1), "")
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "content")
