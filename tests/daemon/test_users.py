"""Other users: who may connect, what they see, and what a leaked token is worth to them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from evoke.client.wire import Code
from tests.daemon.conftest import Start
from tests.daemon.peer import (
    DaemonProcess,
    Engine,
    Peer,
    chain,
    in_child,
    make_namespace,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def _look_around(directory: Path, foreign_id: bytes) -> str:
    peer = Peer(directory)
    status = peer.status()
    assert [row["session"] for row in status["sessions"]] == [peer.number], status["sessions"]
    assert status["namespaces"] == [], status["namespaces"]
    own = Engine(peer, make_namespace("own", salt="ours"))
    own.store(chain(own.namespace, 2))
    assert [row["model"] for row in peer.status()["namespaces"]] == ["own"]
    assert peer.call("flush", foreign_id, "")[0] == Code.NOT_FOUND
    assert peer.ok("flush", b"", "") == [2, 8192]
    assert peer.call("inject", own.handle, bytes(32), 0)[0] == Code.DENIED
    assert peer.call("metrics")[0] == Code.DENIED
    assert peer.call("events", 0xFFFFFFFF)[0] == Code.DENIED
    return "passed"


def _open_to_group(daemon: DaemonProcess) -> int:
    """gid of a group that may open the sockets."""
    for path in (daemon.directory.parents[1], daemon.directory.parent):
        path.chmod(0o755)
    return os.stat(daemon.directory / "session.sock").st_gid


@needs_root
def test_other_user_sees_only_its_own(start: Start) -> None:
    """A user who is no admin sees and flushes only what is its own, and may inject nothing."""
    daemon = start(access__group="nogroup", debug__inject="true")
    group = _open_to_group(daemon)
    namespace = make_namespace("foreign", salt="theirs")
    keys = chain(namespace, 3)
    with daemon.engine(namespace, name="victim") as engine:
        engine.store(keys)
        seen = in_child(lambda: _look_around(daemon.directory, namespace.id), uid=1234, gid=group)
        assert seen == "passed"
        assert engine.lookup(keys) == [1] * 3


@needs_root
def test_uid_list(start: Start) -> None:
    """With access.uids another user is refused at the liveness socket; the daemon's own is not."""
    daemon = start(access__group="nogroup", access__uids="[4321]")
    group = _open_to_group(daemon)

    def connect() -> str:
        return Peer(daemon.directory).join.hex()

    refused = "ConnectionRefusedError: uid 1234 is not in access.uids"
    assert in_child(connect, uid=1234, gid=group) == refused
    assert len(in_child(connect, uid=4321, gid=group)) == 32
    with daemon.peer() as peer:
        assert peer.call("ping")[0] == Code.OK


@needs_root
def test_join_token_of_another_user(start: Start) -> None:
    """A join token that leaked does not let another user join the instance."""
    daemon = start(access__group="nogroup")
    group = _open_to_group(daemon)
    with daemon.peer() as peer:

        def join() -> str:
            thief = Peer(daemon.directory, hello=False)
            return thief.call("hello", peer.join, 0, "thief")[0].name

        assert in_child(join, uid=1234, gid=group) == "DENIED"


def test_sockets_are_private_by_default(daemon: DaemonProcess) -> None:
    """Where the group does not exist the sockets can be opened by their owner only."""
    for name in ("session.sock", "control.sock", "events.sock"):
        assert os.stat(daemon.directory / name).st_mode & 0o077 == 0
    assert os.stat(daemon.directory).st_mode & 0o077 == 0


def _register_salts(directory: Path) -> str:
    peer = Peer(directory)
    salts = ("uid:0", "uid:1234", "uid:01234", "uid:1235", "team")
    names = [make_namespace(salt=salt).encoded() for salt in salts]
    return " ".join(peer.call("register_namespace", name)[0].name for name in names)


@needs_root
def test_salt_of_another_user(start: Start) -> None:
    """The salt that names a user, which anybody could guess, is for that user and admins only."""
    daemon = start(access__group="nogroup")
    group = _open_to_group(daemon)
    codes = in_child(lambda: _register_salts(daemon.directory), uid=1234, gid=group)
    assert codes == "DENIED OK DENIED DENIED OK"
    with daemon.peer() as peer:
        peer.ok("register_namespace", make_namespace(salt="uid:1234").encoded())


def _flood_of_sessions(directory: Path, count: int) -> str:
    peers = [Peer(directory) for _ in range(count)]
    try:
        Peer(directory)
    except ConnectionRefusedError as error:
        sentence = str(error)
    else:
        sentence = "one more was let in"
    peers[0].close()
    for _ in range(200):  # the daemon sees the end a moment later
        try:
            peers[0] = Peer(directory)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    else:
        sentence = "no room after one ended"
    for peer in peers:
        peer.close()
    return sentence


@needs_root
def test_sessions_of_a_user_are_bounded(start: Start) -> None:
    """A user at its number of sessions gets no further one, until one ends; others do."""
    daemon = start(access__group="nogroup", limits__sessions_per_user=3)
    group = _open_to_group(daemon)
    said = in_child(lambda: _flood_of_sessions(daemon.directory, 3), uid=1234, gid=group)
    assert said == "uid 1234 has limits.sessions_per_user = 3 sessions"
    peers = [Peer(daemon.directory) for _ in range(5)]
    for peer in peers:
        peer.close()
