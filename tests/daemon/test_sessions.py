"""The end of sessions: everything they had comes back within a second, whatever they were at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evoke.client.wire import Code, Fetched, Stored
from evoke.core import native
from tests.daemon.conftest import Start
from tests.daemon.peer import (
    DaemonProcess,
    Engine,
    Peer,
    chain,
    eventually,
    make_namespace,
)

ROOT = Path(__file__).parents[2]

_VICTIM = """
import sys, time
from pathlib import Path
from tests.daemon.peer import Engine, Peer, chain, make_namespace
namespace = make_namespace("victim", blocks_4k=64)
engine = Engine(Peer(Path(sys.argv[1])), namespace, 32)
engine.blocks[:] = 0xEE
stored = chain(namespace, 4, 1)
engine.store(stored)
engine.pin(stored)
engine.reserve(chain(namespace, 8, 2))
for seed in range(3, 40):
    engine.peer.send("store", *engine.store_args(chain(namespace, 8, seed)))
for seed in range(3, 40):
    engine.peer.send("fetch", *engine.fetch_args(stored))
print("ready", flush=True)
time.sleep(60)
"""


def _child(code: str, *args: str, **options: object) -> subprocess.Popen[str]:
    """A Python process that has printed its first line."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, **options
    )  # type: ignore[call-overload]
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child  # type: ignore[no-any-return]


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_killed_in_mid_store(start: Start) -> None:
    """SIGKILL of an engine gives back sessions, grants, descriptors and mappings within 1 s."""
    daemon = start(host__capacity="64MiB")
    namespace = make_namespace("victim", blocks_4k=64)
    with daemon.engine(namespace) as engine:
        engine.peer.ok("ping")
        fds, mappings = daemon.fds(), daemon.pool_mappings()
        child = _child(_VICTIM, str(daemon.directory))
        assert daemon.pool_mappings() == mappings + 1
        os.kill(child.pid, signal.SIGKILL)

        def back() -> bool:
            status = engine.peer.status()
            tier = status["tiers"][0]
            return (
                len(status["sessions"]) == 1
                and (status["grants"], status["transfers"]) == (0, 0)
                and tier["allocated_bytes"] == tier["used_bytes"]
                and daemon.fds() == fds
                and daemon.pool_mappings() == mappings
            )

        assert eventually(back, 1)
        _end(child)
        # Of what it began nothing is visible half: each block is whole or absent.
        for seed in range(2, 40):
            found = engine.fetch(chain(namespace, 8, seed))
            present = [n for n in range(8) if found[n] == Fetched.HOST]
            assert (engine.blocks[present] == 0xEE).all()
        assert engine.store(chain(namespace, 8, 2)) == [Stored.STORED] * 8


_FORKING_VICTIM = """
import os, sys, time
from pathlib import Path
from tests.daemon.peer import Engine, Peer, chain, make_namespace
engine = Engine(Peer(Path(sys.argv[1])), make_namespace("victim"), 32)
child = os.fork()
if not child:
    time.sleep(60)
print("ready", flush=True)
print(child, flush=True)
time.sleep(60)
"""


def test_killed_with_a_child_that_lives_on(daemon: DaemonProcess) -> None:
    """The session ends with its process although a forked child keeps all its sockets open."""
    with daemon.peer() as peer:
        victim = _child(_FORKING_VICTIM, str(daemon.directory))
        assert victim.stdout is not None
        child = int(victim.stdout.readline())
        assert len(peer.status()["sessions"]) == 2
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert eventually(lambda: len(peer.status()["sessions"]) == 1, 1)
        os.kill(child, 0)
        os.kill(child, signal.SIGKILL)
        victim.communicate()


def test_closed_socket_ends_the_session(daemon: DaemonProcess) -> None:
    """A session whose liveness socket closes is over, although its process and DEALER live."""
    with daemon.peer() as peer:
        peer.liveness.close()
        code = eventually(lambda: peer.call("ping")[0] == Code.BAD_TOKEN)
        assert code


def test_pool_outlives_its_session_in_a_copy(daemon: DaemonProcess) -> None:
    """Sessions that end again and again with copies under way harm nobody and leave nothing."""
    namespace = make_namespace(blocks_4k=64)
    with daemon.engine(namespace) as other:
        other.peer.ok("ping")
        before = daemon.fds()
        for seed in range(20):
            with daemon.engine(namespace) as engine:
                engine.peer.send("store", *engine.store_args(chain(namespace, 16, seed)))
                engine.peer.send(
                    "fetch", *engine.fetch_args(chain(namespace, 16, max(0, seed - 1)))
                )
        assert eventually(lambda: daemon.fds() == before)
        assert eventually(lambda: daemon.pool_mappings() == 1)


def test_unregistered_pool(daemon: DaemonProcess) -> None:
    """A pool that is unregistered is unmapped when its copies end, and is no pool any more."""
    namespace = make_namespace(blocks_4k=64)
    keys = chain(namespace, 16)
    with daemon.engine(namespace) as engine:
        store = engine.peer.send("store", *engine.store_args(keys))
        unregister = engine.peer.send("unregister_pool", engine.pool)
        replies = {reply.request: reply for reply in (engine.peer.receive() for _ in range(2))}
        assert replies[unregister].code == Code.OK
        assert list(replies[store].result) == [Stored.STORED] * 16
        assert eventually(lambda: daemon.pool_mappings() == 0)
        for verb, args in (
            ("store", engine.store_args(keys)),
            ("fetch", engine.fetch_args(keys)),
            ("unregister_pool", (engine.pool,)),
            ("prove_pool", (engine.pool, 0, 1, 0)),
        ):
            assert engine.peer.call(verb, *args)[0] == Code.NOT_FOUND


def test_unregister_behind_a_proof(daemon: DaemonProcess) -> None:
    """A pool that is unregistered in the middle of its proof is answered, and nobody dies."""
    namespace = make_namespace(blocks_4k=2048)
    with daemon.engine(namespace, 2) as engine:
        for _ in range(5):
            pool_bytes = 2 * engine.block_bytes
            fd = native.make_pool_memfd(pool_bytes, "pool")
            os.pwrite(fd, bytes(pool_bytes), 0)  # a page that is not there would be a fault
            memory = engine.peer.send_memory(fd)
            os.close(fd)
            segments: Any = [(0, engine.block_bytes, [], engine.block_bytes)]
            pool = engine.peer.ok(
                "register_pool", engine.handle, "cpu", pool_bytes, 2, segments, memory
            )
            proof = engine.peer.send("prove_pool", pool, 0, 1, 0)
            engine.peer.send("unregister_pool", pool)
            replies = {r.request: r for r in (engine.peer.receive() for _ in range(2))}
            assert replies[proof].code in (Code.OK, Code.BAD_ARGUMENT, Code.NOT_FOUND)


def test_proof_is_the_checksum(daemon: DaemonProcess) -> None:
    """A proof copies a slot to another through the tier and answers the checksum of its bytes."""
    namespace = make_namespace(blocks_4k=2)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(8)
        checksum = engine.peer.ok("prove_pool", engine.pool, 3, 7, 0)
        assert checksum == native.xxh3_64(pattern[3].tobytes())
        assert (engine.blocks[7] == pattern[3]).all()
        code, result = engine.peer.call("prove_pool", engine.pool, 0, 32, 0)
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "to_slot")


def test_pools_limit(start: Start) -> None:
    """One pool more than limits.session_pools is answered "busy"."""
    daemon = start(limits__session_pools=2)
    namespace = make_namespace()
    with daemon.peer() as peer:
        engines = [Engine(peer, namespace) for _ in range(2)]
        memory = peer.send_memory(fd := native.make_pool_memfd(4096, "pool"))
        os.close(fd)
        args: Any = (engines[0].handle, "cpu", 4096, 1, [(0, 4096, [], 4096)], memory)
        assert peer.call("register_pool", *args)[0] == Code.BUSY
        peer.ok("unregister_pool", engines[0].pool)
        assert peer.call("register_pool", *args)[0] == Code.OK
        for engine in engines:
            engine.close()


def test_sessions_limit(start: Start) -> None:
    """A connection beyond limits.sessions is told so, and finds room when another ends."""
    daemon = start(limits__sessions=2)
    with daemon.peer() as a:
        b = Peer(daemon.directory)
        with pytest.raises(ConnectionRefusedError, match=r"limits\.sessions"):
            Peer(daemon.directory)
        assert a.call("ping")[0] == Code.OK
        b.close()
        assert eventually(lambda: _connects(daemon))


def _connects(daemon: DaemonProcess) -> bool:
    try:
        Peer(daemon.directory).close()
    except ConnectionRefusedError:
        return False
    return True


def test_many_sessions_come_and_go(daemon: DaemonProcess) -> None:
    """200 sessions one after another leave no descriptor behind."""
    with daemon.peer() as other:
        other.ok("ping")
        before = daemon.fds()
        for _ in range(200):
            Peer(daemon.directory).close()
        assert eventually(lambda: daemon.fds() == before)
        assert eventually(lambda: len(other.status()["sessions"]) == 1)


def test_daemon_killed(start: Start) -> None:
    """After SIGKILL a new daemon serves on the same path with a new boot id and an empty tier."""
    daemon = start()
    namespace = make_namespace()
    keys = chain(namespace, 4)
    with daemon.engine(namespace) as engine:
        engine.store(keys)
        boot = engine.peer.boot
        daemon.kill()
        assert engine.peer.ended()
    again = DaemonProcess(daemon.directory.parent, {})
    try:
        with again.engine(namespace) as engine:
            assert engine.peer.boot != boot
            assert engine.lookup(keys) == [0] * 4
            assert engine.store(keys) == [Stored.STORED] * 4
        again.stop()
    finally:
        again.kill()
