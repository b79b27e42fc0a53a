"""A private daemon of this process, which it never outlives.

The daemon holds a pidfd of this process and ends when that fires; it also ends by close(), at
the interpreter's exit, and when it is told to by a signal. PDEATHSIG would do harm: it fires when
the *thread* that started the daemon ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evoke.client.errors import BadArgument, Unavailable

__all__ = ["Embedded"]

START_WAIT_S: Final = 60.0  # it faults in its whole arena before it is ready
STOP_WAIT_S: Final = 5.0

_log = logging.getLogger("evoke")
_running: weakref.WeakSet[Embedded] = weakref.WeakSet()


class Embedded:
    """Starts the daemon and waits until it serves in `directory`."""

    def __init__(self, config: Mapping[str, object], *, must_start: bool) -> None:
        """config: {"section.key": value}. must_start: Unavailable if it does not serve in time."""
        arguments = [f"--set={name}={_text(name, value)}" for name, value in config.items()]
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self.directory = Path(tempfile.mkdtemp(prefix="evoke-"))
        try:
            self._process, ready = spawn(self.directory, arguments)
        except BaseException:
            shutil.rmtree(self.directory)
            raise
        _running.add(self)
        try:
            reason = wait_ready(ready, self._process)
        finally:
            os.close(ready)
        if reason:
            self.close()
            if must_start:
                raise Unavailable(reason)
            _log.warning("evoke: %s; going on without cache", reason)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_process"):
            self.close()

    def close(self) -> None:
        """End the daemon, in order if it can be, and remove its directory. Bounded."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self._process.terminate()
            try:
                self._process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self.directory, ignore_errors=True)


def spawn(directory: Path, arguments: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the read end of a pipe that says "ready"."""
    parent = os.pidfd_open(os.getpid())
    ready, to_child = os.pipe()
    command = [sys.executable, "-m", "evoked", "--socket", str(directory), *arguments]
    command += ["--parent-fd", str(parent), "--ready-fd", str(to_child)]
    try:
        process = subprocess.Popen(
            command, pass_fds=(parent, to_child), stdin=subprocess.DEVNULL, start_new_session=True
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(parent)
        os.close(to_child)
    return process, ready


def wait_ready(ready: int, process: subprocess.Popen[bytes]) -> str:
    """Empty when it serves, else why not."""
    give_up_at = time.monotonic() + START_WAIT_S
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    said = b""
    while b"\n" not in said:
        if not poll.poll(max(0.0, give_up_at - time.monotonic()) * 1e3):
            return f"the embedded daemon was not ready after {START_WAIT_S:.0f} s"
        more = os.read(ready, 4096)
        if not more:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_WAIT_S)
            return f"the embedded daemon ended with status {process.returncode}"
        said += more
    return ""


def _text(name: str, value: object) -> str:
    """As TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float, str)):
        return str(value)
    raise BadArgument(f"config[{name!r}]: {value!r} is not a text, a number or a truth value")


@atexit.register
def _close_all() -> None:
    for embedded in list(_running):
        embedded.close()
