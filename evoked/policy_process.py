"""The daemon's end of the process that runs a user's policy: one request at a time, each with a
deadline. A late, dead or talkative process is ended, and the owner told once why."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from evoke.core import native
from evoked.shared_columns import SharedColumns
from evoked.timers import Timer, Timers
from evoked.watcher import Watcher

__all__ = ["PolicyProcess"]

PACKET_BYTES_MAX: Final = 4096
ROWS_MIN: Final = 4096
REAP_S: Final = 0.05
# Of the environment only what a Python with numpy needs; one thread for its linear algebra.
ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_answer: Final = msgspec.msgpack.Decoder(tuple[str, str])


class PolicyProcess:
    """on_end(reason) is called once, when the process can no longer be used."""

    def __init__(
        self,
        watcher: Watcher,
        timers: Timers,
        clock: Callable[[], float],
        on_end: Callable[[str], None],
    ) -> None:
        self._watcher, self._timers, self._clock = watcher, timers, clock
        self.on_end = on_end
        self._done: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._columns: SharedColumns | None = None
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setblocking(False)
        try:
            self._process = self._start(theirs)
        except OSError:
            self._connection.close()
            raise
        finally:
            theirs.close()
        watcher.add(self._connection.fileno(), self._receive)
        self._open = True

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        fd = theirs.fileno()
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "evoked.policy_helper", str(fd)],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def busy(self) -> bool:
        return self._done is not None

    # ------------------------------------------------------------------ requests
    def load(
        self, source: tuple[str, str, str], options: dict[str, Any], deadline_s: float,
        done: Callable[[], None],
    ) -> None:  # fmt: skip
        """source: (file or entry, name, text)."""
        self._request(["load", *source, options], deadline_s, done)

    def trial(
        self, requests: tuple[bytes, bytes, bytes], capacity_blocks: int, alpha: float,
        deadline_s: float, done: Callable[[], None],
    ) -> None:  # fmt: skip
        """requests: ids (u32), starts (u64), seconds (f64), as for simulate()."""
        self._request(["trial", *requests, capacity_blocks, alpha], deadline_s, done)

    def rank(
        self, columns: dict[str, NDArray[Any]], clock: float, now_s: float, deadline_s: float,
        done: Callable[[NDArray[np.float64]], None],
    ) -> None:  # fmt: skip
        """done gets a copy of the ranks, which are whatever the process wrote."""
        count = len(columns["ids"])
        if self._columns is None or self._columns.capacity < count:
            self._grow(max(ROWS_MIN, 2 * count))
        shared = self._columns
        assert shared is not None
        for name, view in shared.views(count).items():
            view[:] = columns[name]
        request = ["rank", count, clock, now_s]
        self._request(request, deadline_s, lambda: done(shared.ranks(count).copy()))

    def _grow(self, capacity: int) -> None:
        size_bytes = SharedColumns.size_bytes(capacity)
        fd = native.make_pool_memfd(size_bytes, "policy")
        try:
            self._columns = SharedColumns(fd, capacity)
            packet = msgspec.msgpack.encode(["memory", capacity])
            socket.send_fds(self._connection, [packet], [fd])
        finally:
            os.close(fd)

    def _request(self, request: list[Any], deadline_s: float, done: Callable[[], None]) -> None:
        assert self._open
        assert not self.busy
        try:
            self._connection.send(msgspec.msgpack.encode(request))
        except OSError as error:
            self._done = done
            self.end(f"cannot be reached: {error.strerror}")
            return
        self._done = done
        late = f"{request[0]} took longer than {deadline_s * 1000:.0f} ms"
        self._timer = self._timers.at(self._clock() + deadline_s, lambda: self.end(late))

    # ------------------------------------------------------------------ answers
    def _receive(self) -> None:
        try:
            data = self._connection.recv(PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(f"cannot be reached: {error.strerror}")
            return
        if not data:
            self.end("has ended by itself")
            return
        try:
            state, sentence = _answer.decode(data)
        except (msgspec.DecodeError, RecursionError):
            self.end("does not speak the protocol")
            return
        if state == "error":
            self.end(sentence)
        else:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if done is None:
            self.end("answers what nobody asked")
        else:
            done()

    def end(self, reason: str = "") -> None:
        """Kills the process; on_end is called when there is a reason."""
        if not self._open:
            return
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        self._done = None
        self._watcher.remove(self._connection.fileno())
        self._connection.close()
        self._process.kill()
        self._reap()
        if reason:
            self.on_end(reason)

    def _reap(self) -> None:
        if self._process.poll() is None:  # it may be in the kernel still
            self._timers.at(self._clock() + REAP_S, self._reap)
