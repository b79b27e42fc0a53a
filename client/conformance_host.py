"""The conformance kit's side of the processes: daemons that it starts, stops and kills, runners
that it drives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from evoke.client import wire
from evoke.client.client import Client, connect
from evoke.client.conformance_runner import Options
from evoke.client.embedded import spawn, wait_ready

__all__ = ["Answer", "Daemon", "Failed", "RunnerProcess", "eventually"]

START_WAIT_S: Final = 300.0  # a model may be loaded
CALL_WAIT_S: Final = 300.0
SETTLE_S: Final = 15.0
_EVERYTHING: Final = 0xFFFF_FFFF


class Failed(AssertionError):
    """The runner raised, died or did not answer."""


def eventually(check: Callable[[], bool], seconds: float = SETTLE_S) -> bool:
    """Whether check became true in time."""
    give_up_at = time.monotonic() + seconds
    while not check():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


class Daemon:
    """An evoked in `directory`; start() again after kill()."""

    def __init__(self, directory: Path, capacity_bytes: int) -> None:
        self.directory = directory
        settings = {"host.capacity": f"{capacity_bytes >> 20}MiB", "host.backing": "4k"}
        settings["debug.inject"] = "true"
        self._arguments = [f"--set={name}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        self._process, ready = spawn(self.directory, self._arguments)
        try:
            reason = wait_ready(ready, self._process)
        finally:
            os.close(ready)
        if reason:
            self.kill()
            raise RuntimeError(reason)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It answers nothing meanwhile, as a machine under pressure would have it."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL. Again: nothing."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # ------------------------------------------------------------ what it says

    @contextmanager
    def client(self, rank: int = 0) -> Iterator[Client]:
        name = "conformance"
        with connect(
            self.directory, name=name, rank=rank, timeout_s=10, raise_errors=True
        ) as client:
            yield client

    def status(self) -> dict[str, Any]:
        with self.client() as client:
            return client.status()

    def audit(self) -> dict[str, Any]:
        """The index and the arena, walked and compared."""
        with self.client() as client:
            result: dict[str, Any] = client.call("audit", wire.Empty())
            return result

    def blocks(self) -> int:
        """Stored blocks of all namespaces."""
        return sum(int(namespace["blocks"]) for namespace in self.status()["namespaces"])

    def runner_sessions(self) -> list[dict[str, Any]]:
        """Sessions of others than the kit."""
        return [s for s in self.status()["sessions"] if s["pid"] != os.getpid()]

    def nothing_is_held(self) -> bool:
        """No session of a runner, no grant, nothing being copied."""
        status = self.status()
        others = [s for s in status["sessions"] if s["pid"] != os.getpid()]
        return not others and status["grants"] == 0 and status["transfers"] == 0

    @contextmanager
    def stored_keys(self, keys: list[bytes], wanted: int) -> Iterator[None]:
        """Append to keys what becomes readable meanwhile, until there are `wanted`, in order."""
        context: zmq.Context[Any] = zmq.Context()
        try:
            reader = context.socket(zmq.DEALER)
            with self.client() as client:
                topic: bytes = client.call("events", wire.Events(_EVERYTHING))
            reader.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
            reader.connect(f"ipc://{self.directory}/events.sock")
            reader.send(b"")
            time.sleep(0.2)  # nothing tells when the daemon has taken the reader in
            yield
            while len(keys) < wanted and reader.poll(2000):
                _, frame = reader.recv_multipart()
                event = msgspec.msgpack.decode(frame)
                if event[2] == "stored":
                    keys += [event[4][at : at + 32] for at in range(0, len(event[4]), 32)]
        finally:
            context.destroy(linger=0)

    def flip(self, encoding: bytes, key: bytes, rank: int) -> None:
        """Damage one byte of that rank's part of a stored block."""
        with self.client(rank) as client:
            number = client.call("register_namespace", wire.RegisterNamespace(encoding))[0]
            client.call("inject", wire.Inject(number, key, 5))


@dataclass(frozen=True)
class Answer:
    """What one generate() gave, and how long it took inside the runner's process."""

    token_ids: list[int]
    forwarded: int
    evidence: bytes
    took_s: float


class RunnerProcess:
    """The author's runner in a process; what it raises there is Failed here."""

    def __init__(self, factory: str, options: Options) -> None:
        ours, theirs = socket.socketpair()
        # What pytest was told about where modules are holds for the runner as well.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "evoke.client.conformance_runner", factory]
        command += [msgspec.json.encode(options).decode(), str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environ, stdin=subprocess.DEVNULL
            )
        self._connection = Connection(ours.detach())
        try:
            described = self._receive(START_WAIT_S)
        except BaseException:
            self.kill()
            raise
        self.encoding: bytes = described[0]
        self.block_tokens, self.block_bytes, self.ranks = map(int, described[1:4])
        self.vocabulary, self.context_tokens = map(int, described[4:6])
        self.patience_s = float(described[6])

    def begin(self, prompt: list[int], steps: int) -> None:
        """generate() that is not waited for; finish() gives its answer."""
        self._connection.send_bytes(msgspec.msgpack.encode(["generate", prompt, steps]))

    def finish(self, wait_s: float = CALL_WAIT_S) -> Answer:
        return Answer(*self._receive(wait_s))

    def generate(self, prompt: list[int], steps: int, wait_s: float = CALL_WAIT_S) -> Answer:
        self.begin(prompt, steps)
        return self.finish(wait_s)

    def close(self) -> None:
        """Its close(), then the end of its process."""
        if self.process.poll() is None:
            self._connection.send_bytes(msgspec.msgpack.encode(["close"]))
            self._receive(CALL_WAIT_S)
        self._connection.close()
        self.process.wait(CALL_WAIT_S)

    def kill(self) -> None:
        """SIGKILL. Again: nothing."""
        self.process.kill()
        self.process.wait()
        self._connection.close()

    def _receive(self, wait_s: float) -> Any:
        if not self._connection.poll(wait_s):
            raise Failed(f"the runner did not return within {wait_s:.1f} s")
        try:
            word, result = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise Failed(f"the runner ended with status {self.process.wait()}") from None
        if word != "ok":
            raise Failed(f"the runner raised:\n{result}")
        return result
