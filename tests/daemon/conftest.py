"""Fixtures: one shared daemon for tests that do not mind each other, and fresh ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.peer import DaemonProcess, eventually

Start = Callable[..., DaemonProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(key=value, ...): a fresh daemon, keys with "__" for ".", stopped after the test."""
    daemons: list[DaemonProcess] = []
    with tempfile.TemporaryDirectory(prefix="evoke-") as directory:

        def make(*, nofile: int = 0, under: Sequence[str] = (), **settings: Any) -> DaemonProcess:
            place = Path(directory, str(len(daemons)))
            place.mkdir()
            values = {key.replace("__", "."): value for key, value in settings.items()}
            daemons.append(DaemonProcess(place, values, nofile=nofile, under=under))
            return daemons[-1]

        try:
            yield make
            for daemon in daemons:
                if daemon.process.poll() is None:
                    assert_idle(daemon)
                    daemon.stop()
        finally:
            for daemon in daemons:
                daemon.kill()


@pytest.fixture(scope="session")
def shared() -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory(prefix="evoke-") as directory:
        settings = {"host.capacity": "64MiB", "debug.inject": "true"}
        daemon = DaemonProcess(Path(directory), settings)
        try:
            yield daemon
            daemon.stop()
        finally:
            daemon.kill()


@pytest.fixture
def daemon(shared: DaemonProcess) -> Iterator[DaemonProcess]:
    """The shared daemon; nothing of the test may be left in it."""
    yield shared
    assert shared.process.poll() is None, shared.log()
    assert_idle(shared)
    with shared.peer(name="cleaner") as peer:
        peer.ok("flush", b"", "")


def assert_idle(daemon: DaemonProcess, health: str = "green") -> None:
    """No sessions, grants or copies are left, and memory in use is exactly the visible blocks."""
    with daemon.peer(name="auditor") as peer:
        assert eventually(lambda: len(peer.status()["sessions"]) == 1), peer.status()["sessions"]
        status = peer.status()
        assert (status["grants"], status["transfers"]) == (0, 0)
        assert status["health"]["state"] == health
        tier = status["tiers"][0]
        assert tier["used_bytes"] == tier["allocated_bytes"]
        assert tier["used_bytes"] == sum(row["bytes"] for row in status["namespaces"])
        assert tier["blocks"] == sum(row["blocks"] for row in status["namespaces"])
