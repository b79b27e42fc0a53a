"""A daemon process, its raw clients (session.py), and engines: clients with a pool."""

from __future__ import annotations

import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoke.client import wire
from evoke.client.namespace import Namespace
from evoke.core import native
from tests.daemon.helpers import BLOCK, chain, eventually, in_child, make_namespace
from tests.daemon.session import Peer

__all__ = [
    "BLOCK",
    "DaemonProcess",
    "Engine",
    "Peer",
    "chain",
    "eventually",
    "in_child",
    "make_namespace",
]

READY_S = 20.0


class DaemonProcess:
    """One evoked. stop() must find exit status 0, a clean log and no files left."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, Any],
        *,
        nofile: int = 0,
        under: Sequence[str] = (),
    ) -> None:
        """under: a command that runs the daemon in its own place."""
        self.directory = directory / "s"
        self.log_path = directory / "log"
        values = {"host.capacity": "16MiB", "host.backing": "4k", "daemon.workers": 1, **settings}
        options = [f"--set={key}={value}" for key, value in values.items()]
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", "evoked", "--socket", str(self.directory)]
        if nofile:
            under = ["prlimit", f"--nofile={nofile}:{nofile}", *under]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*under, *command, "--ready-fd", str(write_fd), *options],
                pass_fds=[write_fd],
                stderr=log,
                stdout=log,
            )
        os.close(write_fd)
        try:
            assert select.select([read_fd], [], [], READY_S)[0], "not ready in time"
            assert os.read(read_fd, 4096) == f"ready {self.directory}\n".encode(), self.log()
        finally:
            os.close(read_fd)

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(15)
        log = self.log()
        assert code == 0, log
        assert "Traceback" not in log, log
        assert "defect" not in log, log
        assert os.listdir(self.directory) == ["control.lock"]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(15)

    # ------------------------------------------------------------------ seen from outside
    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def pool_mappings(self) -> int:
        """Mappings of peers' pools."""
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        return sum("memfd:pool" in line for line in maps.splitlines())

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ------------------------------------------------------------------ clients
    @contextmanager
    def peer(self, **options: Any) -> Iterator[Peer]:
        peer = Peer(self.directory, **options)
        try:
            yield peer
        finally:
            peer.close()

    @contextmanager
    def engine(self, namespace: Namespace, slots: int = 32, **options: Any) -> Iterator[Engine]:
        """A peer of its own with one pool."""
        peer = Peer(self.directory, **options)
        engine = None
        try:
            engine = Engine(peer, namespace, slots, rank=options.get("rank", 0))
            yield engine
        finally:
            if engine is not None:
                engine.close()
            peer.close()


class Engine:
    """A registered namespace and one pool with one contiguous block a slot, or as segments say."""

    def __init__(
        self,
        peer: Peer,
        namespace: Namespace,
        slots: int = 32,
        *,
        rank: int = 0,
        segments: list[wire.SegmentArgs] | None = None,
        pool_bytes: int = 0,
    ) -> None:
        self.peer, self.namespace, self.slots = peer, namespace, slots
        self.block_bytes = namespace.parts[namespace.rank_parts[rank]].part_bytes
        result = peer.ok("register_namespace", namespace.encoded())
        self.handle, self.id, self.secret, self.part_sizes = result
        pool_bytes = pool_bytes or slots * self.block_bytes
        fd = native.make_pool_memfd(pool_bytes, "pool")
        memory = peer.send_memory(fd)
        if segments is None:
            segments = [wire.SegmentArgs(0, self.block_bytes, [], self.block_bytes)]
        self.pool: int = peer.ok(
            "register_pool", self.handle, "cpu", pool_bytes, slots, segments, memory
        )
        self._mapped = mmap.mmap(fd, pool_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        os.close(fd)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapped, np.uint8)

    @property
    def blocks(self) -> NDArray[np.uint8]:
        """The pool as slots x bytes, for a contiguous pool."""
        blocks: NDArray[np.uint8] = self.bytes.reshape(self.slots, self.block_bytes)
        return blocks

    def fill(self, seed: int) -> NDArray[np.uint8]:
        """Random bytes all over the pool; a copy of them, slot by slot."""
        rng = np.random.default_rng(seed)
        self.bytes[:] = rng.integers(0, 256, len(self.bytes), dtype=np.uint8)
        filled: NDArray[np.uint8] = self.blocks.copy()
        return filled

    # ------------------------------------------------------------------ verbs
    def store_args(
        self,
        keys: bytes,
        slots: list[int] | range | None = None,
        *,
        first: int = 0,
        parent: bytes = b"",
        deadline_ms: int = 5000,
        fence: int = 0,
    ) -> tuple[Any, ...]:
        packed = _packed(range(len(keys) // 32) if slots is None else slots)
        return (self.handle, self.pool, keys, first, parent, packed, deadline_ms, fence)

    def store(self, *args: Any, **options: Any) -> list[int]:
        return list(self.peer.ok("store", *self.store_args(*args, **options)))

    def fetch_args(
        self,
        keys: bytes,
        slots: list[int] | range | None = None,
        *,
        first: int = 0,
        grant: int = 0,
        deadline_ms: int = 5000,
        fence: int = 0,
    ) -> tuple[Any, ...]:
        packed = _packed(range(len(keys) // 32) if slots is None else slots)
        return (self.handle, self.pool, keys, first, packed, deadline_ms, fence, grant)

    def fetch(self, *args: Any, **options: Any) -> list[int]:
        return list(self.peer.ok("fetch", *self.fetch_args(*args, **options)))

    def reserve(
        self, keys: bytes, *, first: int = 0, parent: bytes = b"", hold_ms: int = 60_000
    ) -> tuple[int, list[int]]:
        grant, results = self.peer.ok("reserve", self.handle, keys, first, parent, hold_ms)
        return grant, list(results)

    def commit(
        self, grant: int, positions: list[int] | range, slots: list[int] | range, fence: int = 0
    ) -> list[int]:
        packed = (_packed(positions), _packed(slots))
        return list(self.peer.ok("commit", grant, self.pool, *packed, 5000, fence))

    def pin(self, keys: bytes, *, first: int = 0, hold_ms: int = 60_000) -> tuple[int, list[int]]:
        grant, results = self.peer.ok("pin", self.handle, keys, first, hold_ms)
        return grant, list(results)

    def lookup(self, keys: bytes) -> list[int]:
        """By the verb; the published table must agree."""
        found = list(self.peer.ok("lookup", self.handle, keys, 0))
        assert found == self.peer.table.lookup(self.secret, keys).tolist()
        return found

    def usage(self) -> tuple[int, int]:
        """(blocks, bytes) of this namespace."""
        for row in self.peer.status()["namespaces"]:
            if row["id"] == self.id.hex():
                return row["blocks"], row["bytes"]
        raise AssertionError("namespace not listed")

    def close(self) -> None:
        self.bytes = np.empty(0, np.uint8)
        self._mapped.close()


def _packed(numbers: list[int] | range) -> bytes:
    return np.array(numbers, "<u4").tobytes()
