"""Child processes of the demo: daemons, engines, and one that is killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from evoke.client import connect
from evoke.client.errors import EvokeError

__all__ = ["Daemon", "DemoError", "Show", "Stages", "run_engine", "storm"]

READY_S: Final = 60.0
STOP_S: Final = 15.0
STORM_BEGIN_S: Final = 60.0
RECLAIM_GIVE_UP_S: Final = 10.0
POLL_S: Final = 0.005
PAGE_BYTES: Final = 4096  # blocks begin on one

Show = Callable[[int, int], None]  # done, of


class DemoError(Exception):
    """A step could not be run; the message says which and why."""


class Stages:
    """Progress bars of the demo's steps; nothing when quiet."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=console,
            disable=quiet,
        )

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator[Show]:
        task = self._progress.add_task(name, total=None)
        yield lambda done, of: self._progress.update(task, completed=done, total=of or None)
        self._progress.update(task, completed=1, total=1)


class Daemon:
    """An evoked of our own in `directory`; it ends with this process, whatever happens."""

    def __init__(self, directory: Path, settings: list[str]) -> None:
        """Returns when it serves. DemoError, with its last words, when it does not."""
        self.directory = str(directory)
        self._log = directory.with_suffix(".log")
        parent_fd = os.pidfd_open(os.getpid())
        ready_fd, their_fd = os.pipe()
        command = [sys.executable, "-m", "evoked", "--socket", self.directory]
        command += ["--parent-fd", str(parent_fd), "--ready-fd", str(their_fd)]
        for setting in settings:
            command += ["--set", setting]
        try:
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    pass_fds=(parent_fd, their_fd),
                )  # fmt: skip
            os.close(their_fd)
            ready, _, _ = select.select([ready_fd], [], [], READY_S)
            if not ready or not os.read(ready_fd, 256).startswith(b"ready "):
                self.kill()
                raise DemoError(f"the daemon did not start: {tail(self._log)}")
        finally:
            os.close(parent_fd)
            os.close(ready_fd)

    def status(self) -> dict[str, Any]:
        """The daemon's own account of everything. DemoError when it does not answer."""
        try:
            with connect(self.directory, name="evokectl demo") as client:
                return dict(client.status())
        except EvokeError as error:
            raise DemoError(f"status: {error}; {tail(self._log)}") from None

    def stop(self) -> int:
        """Ordered stop; the exit status (negative: the signal that ended it)."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) or "it said nothing"


@contextmanager
def _engine(role: str, folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "evoke.client.demo_engine", role, *arguments]
    # torch leaves a folder where temporary files go: let that be ours.
    own = {
        "TMPDIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with (folder / f"{role}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            env={**os.environ, **own},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run_engine(role: str, folder: Path, arguments: list[str], show: Show) -> dict[str, Any]:
    """Result of one engine process. DemoError when it ends without one."""
    with _engine(role, folder, arguments) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "progress":
                show(event["done"], event["of"])
            elif event["event"] == "error":
                raise DemoError(f"{role}: {event['sentence']}")
            else:
                return dict(event)
        raise DemoError(f"{role} ended without a result: {tail(folder / f'{role}.log')}")


def storm(daemon: Daemon, folder: Path) -> float:
    """Kill an engine that holds grants in mid-store; seconds until the daemon has it all back."""
    idle = daemon.status()
    with _engine("storm", folder, ["--socket", daemon.directory]) as process:
        assert process.stdout is not None
        until = time.monotonic() + STORM_BEGIN_S
        while not _storming(daemon.status(), process.pid):
            if time.monotonic() > until or process.poll() is not None:
                raise DemoError(f"storm did not begin: {tail(folder / 'storm.log')}")
            time.sleep(POLL_S)
        process.kill()
        killed = time.monotonic()
        while not _taken_back(daemon.status(), idle, process.pid):
            if time.monotonic() - killed > RECLAIM_GIVE_UP_S:
                raise DemoError(f"not taken back {RECLAIM_GIVE_UP_S:.0f} s after SIGKILL")
            time.sleep(POLL_S)
        return round(time.monotonic() - killed, 4)


def _storming(status: dict[str, Any], pid: int) -> bool:
    """It holds grants, and bytes of it are being copied at this moment."""
    return any(
        row["pid"] == pid and row["grants"] > 0 and row["inflight_bytes"] > 0
        for row in status["sessions"]
    )


def _taken_back(status: dict[str, Any], idle: dict[str, Any], pid: int) -> bool:
    """No session, grant or copy is left, and only readable blocks take room."""
    return (
        all(row["pid"] != pid for row in status["sessions"])
        and status["grants"] == idle["grants"]
        and status["transfers"] == idle["transfers"]
        and unreadable_bytes(status) == unreadable_bytes(idle)
    )


def unreadable_bytes(status: dict[str, Any]) -> int:
    """Bytes that are allocated but belong to no readable block: reservations, unfinished copies."""
    readable: int = sum(
        int(row["blocks"]) * sum(-(-part // PAGE_BYTES) * PAGE_BYTES for part in row["part_bytes"])
        for row in status["namespaces"]
    )
    allocated = sum(int(tier["allocated_bytes"]) for tier in status["tiers"])
    return allocated - readable
