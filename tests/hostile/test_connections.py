"""Peers that connect and then do nothing, in numbers."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from evoke.client.wire import Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Engine, chain, eventually, make_namespace

SESSIONS_MAX = 50
CONNECTIONS = 10_000


@contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """As many connections as this process may open, up to `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + 500
    limit = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    try:
        yield min(wanted, max(soft, limit) - 500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(daemon: DaemonProcess, name: str, kind: socket.SocketKind) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.settimeout(10)
    connection.connect(str(daemon.directory / name))
    return connection


def is_served(engine: Engine, seed: int) -> None:
    key = chain(engine.namespace, 1, seed)
    assert engine.store(key) == [Stored.STORED]
    assert engine.fetch(key, [1]) == [Fetched.HOST]
    assert (engine.blocks[0] == engine.blocks[1]).all()


def test_idle_connections(start: Start) -> None:
    """Of 10,000 connections that stay and say nothing, those beyond limits.sessions are told why
    and cost nothing afterwards, and whoever was there is served."""
    daemon = start(limits__sessions=SESSIONS_MAX)
    open_ones: list[socket.socket] = []
    with daemon.engine(make_namespace()) as engine, descriptors(CONNECTIONS) as count:
        engine.fill(1)
        before = daemon.resident_bytes()
        try:
            refused = 0
            for number in range(count):
                connection = connect(daemon, "session.sock", socket.SOCK_SEQPACKET)
                open_ones.append(connection)
                data, fds, _, _ = socket.recv_fds(connection, 4096, 4)
                for fd in fds:
                    os.close(fd)
                kind, *rest = msgspec.msgpack.decode(data)
                if kind == "refused":
                    refused += 1
                    assert "limits.sessions" in rest[0]
                if number % 1000 == 0:
                    is_served(engine, number)
            assert refused == count - SESSIONS_MAX + 1
            assert daemon.resident_bytes() - before < 16 << 20
            assert daemon.fds() < 40 + 5 * SESSIONS_MAX
            is_served(engine, count)
        finally:
            for connection in open_ones:
                connection.close()
        assert eventually(lambda: len(engine.peer.status()["sessions"]) == 1)


def test_silent_control_connections(start: Start) -> None:
    """Connections to the control socket that take the last descriptor stop nobody who is there,
    and newcomers are served again when they have gone."""
    daemon = start(nofile=128)
    silent: list[socket.socket] = []
    with daemon.engine(make_namespace()) as engine:
        engine.fill(1)
        is_served(engine, 1)
        try:
            full_seen = False
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and len(silent) < 1000:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                silent.append(connection)
                connection.setblocking(False)
                try:
                    connection.connect(str(daemon.directory / "control.sock"))
                except BlockingIOError:  # the backlog is full until the daemon takes some
                    time.sleep(0.005)
                except ConnectionRefusedError:  # out of descriptors, it is opening its socket anew
                    full_seen = True
                    break
                if full_seen := daemon.fds() >= 120:
                    break
            assert full_seen
            is_served(engine, 2)
        finally:
            for connection in silent:
                connection.close()
        assert eventually(lambda: daemon.fds() < 100)
        with daemon.engine(make_namespace()) as newcomer:
            newcomer.fill(2)
            is_served(newcomer, 3)
