"""What all tests share, and the proof that a session leaves nothing of evoke behind."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The machine may be busy and a sanitizer slow: time is measured by benchmarks, not by hypothesis.
settings.register_profile("default", deadline=None)
settings.register_profile("sanitize", deadline=None, max_examples=10)
settings.load_profile("default")

# In the environment of every process that a test starts, and of what those start.
MARK = "EVOKE_TEST_SESSION"
GRACE_S = 3.0  # what has been told to end may need a moment


def _marked_processes() -> set[str]:
    """Processes started by this session that still run, as "process PID: command"."""
    wanted = f"{MARK}={os.environ[MARK]}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                found.add(f"process {entry.name}: {command.strip()}")
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _shared_memory() -> set[str]:
    """Files of this user in /dev/shm."""
    found = set()
    for entry in os.scandir("/dev/shm"):
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                found.add(entry.path)
        except FileNotFoundError:  # it has gone since
            continue
    return found


def _sockets() -> set[str]:
    """What is in the directories where a daemon puts its sockets unless it is told otherwise."""
    places = [Path("/run/evoked"), *Path("/tmp").glob("evoked-*")]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(runtime, "evoked"))
    return {str(entry) for place in places if place.is_dir() for entry in place.iterdir()}


class LeftBehind:
    """Fails the session when processes, shared memory or sockets outlive it."""

    def __init__(self) -> None:
        self._before = _shared_memory() | _sockets()
        self._found: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        deadline = time.monotonic() + GRACE_S
        while found := (_shared_memory() | _sockets() | _marked_processes()) - self._before:
            if time.monotonic() > deadline:
                self._found = sorted(found)
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
                return
            time.sleep(0.05)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._found:
            terminalreporter.write_line(f"LEFT BEHIND by the tests: {name}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = secrets.token_hex(8)
    # A test that starts pytest itself starts a session of its own.
    config.pluginmanager.register(LeftBehind())


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """An empty directory with a path short enough for sockets, whatever TMPDIR is."""
    directory = tempfile.mkdtemp(prefix="evoke-test-", dir="/tmp")
    yield Path(directory)
    shutil.rmtree(directory)
