"""What the daemon costs by itself: memory besides arenas, start, idle CPU, metadata of a block.

Prints one JSON object. Each daemon is a process of its own; nothing is left behind.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evoke.client import NO_SALT, Client, Group, Namespace, Part, connect

BLOCK_BYTES, BATCH, SLOTS = 4096, 4096, 4096
# What `import` of the daemon alone costs: the same modules, nothing started.
IMPORTS = "import evoked.__main__, evoked.daemon"


class Daemon:
    """An evoked of its own; `ready_s`: from exec until it serves."""

    def __init__(self, folder: Path, capacity: str) -> None:
        self.directory = folder / "sockets"
        parent, (ready, theirs) = os.pidfd_open(os.getpid()), os.pipe()
        words = ["-m", "evoked", "--socket", str(self.directory), "--parent-fd", str(parent)]
        words += ["--ready-fd", str(theirs), "--set", f"host.capacity={capacity}"]
        began = time.perf_counter()
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], pass_fds=(parent, theirs), stdout=log, stderr=log
            )
        os.close(theirs)
        if not os.read(ready, 256).startswith(b"ready"):
            raise RuntimeError((folder / "log").read_text())
        self.ready_s = time.perf_counter() - began
        os.close(ready)
        os.close(parent)

    def cpu_s(self) -> float:
        clock = ctypes.c_int()
        if ctypes.CDLL(None).clock_getcpuclockid(self.process.pid, ctypes.byref(clock)):
            raise ProcessLookupError(self.process.pid)
        return time.clock_gettime(clock.value)

    def besides_bytes(self, tiers: list[dict[str, Any]], pool_bytes: int) -> int:
        """Resident memory without the arenas and what is mapped of a client's pool."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        rows = dict(line.split(":", 1) for line in text.splitlines())
        arenas = sum(int(t["capacity_bytes"]) for t in tiers if t["backing"] != "hugetlb")
        resident_bytes = int(rows["VmRSS"].split()[0]) << 10
        return int(resident_bytes - arenas - pool_bytes)


@contextmanager
def daemon(capacity: str) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="evoke-limits-") as folder:
        running = Daemon(Path(folder), capacity)
        try:
            yield running
        finally:
            running.process.terminate()
            if running.process.wait(20):
                raise RuntimeError((Path(folder) / "log").read_text())


def import_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.perf_counter() - began


def start(rounds: int) -> dict[str, Any]:
    """Ready times of an almost empty host tier against imports, taking turns."""
    imports, readies = [], []
    for _ in range(rounds):
        imports.append(import_s())
        with daemon("8MiB") as running:
            readies.append(running.ready_s)
    pairs = [ready / plain for ready, plain in zip(readies, imports, strict=True)]
    return {
        "import_s": round(statistics.median(imports), 4),
        "ready_s": round(statistics.median(readies), 4),
        "ready_vs_import": round(statistics.median(pairs), 3),
        "ready_vs_import_spread": [round(min(pairs), 3), round(max(pairs), 3)],
    }


def idle(seconds: float) -> dict[str, Any]:
    """Of a daemon with one connected client that does nothing."""
    with daemon("8MiB") as running, connect(running.directory, raise_errors=True) as client:
        client.ping()
        time.sleep(1)
        began, cpu_s = time.perf_counter(), running.cpu_s()
        time.sleep(seconds)
        cpu_s, wall_s = running.cpu_s() - cpu_s, time.perf_counter() - began
        return {"idle_cpu_percent": round(100 * cpu_s / wall_s, 3), "idle_s": round(wall_s, 1)}


def fill(client: Client, blocks: int) -> None:
    """Store blocks of 4 KiB, in chains of BATCH."""
    part = Part(groups=(Group(layers=1, kv_heads=1, head_size=64),))
    namespace = Namespace(
        model="daemon limits", weights_epoch="0", position="none", dtype="float16",
        block_tokens=16, parts=(part,), salt=NO_SALT,
    )  # fmt: skip
    space = client.namespace(namespace)
    memory = client.pool_memory(SLOTS * BLOCK_BYTES)
    view = memory.array((SLOTS, 1, 2, 16, 1, 64), np.float16)
    pool = space.register_pool(memory, view, "slot layer kv token head element")
    for first in range(0, blocks, BATCH):
        count = min(BATCH, blocks - first)
        chain = space.keys(np.full(count * 16, first, np.uint32))
        result = space.store(pool, chain, np.arange(count))
        if result.stored != count:
            raise RuntimeError(f"stored {result.stored} of {count}: {result.error}")


def memory(blocks: int) -> dict[str, Any]:
    """Resident memory besides the arena, empty and with many blocks."""
    capacity_bytes = blocks * BLOCK_BYTES * 5 // 4 + (64 << 20)
    with daemon(f"{capacity_bytes >> 20}MiB") as running:
        with connect(running.directory, raise_errors=True, timeout_s=30) as client:
            empty = client.status()
            empty_bytes = running.besides_bytes(empty["tiers"], 0)
            fill(client, blocks)
            full = client.status()
            full_bytes = running.besides_bytes(full["tiers"], SLOTS * BLOCK_BYTES)
    resident = full["tiers"][0]["blocks"]
    return {
        "blocks": resident,
        "rss_besides_arenas_mib_empty": round(empty_bytes / (1 << 20), 1),
        "rss_besides_arenas_mib_full": round(full_bytes / (1 << 20), 1),
        "metadata_bytes_per_block": round(full["metadata_bytes"] / resident, 1),
        "rss_growth_bytes_per_block": round((full_bytes - empty_bytes) / resident, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="starts")
    parser.add_argument("--idle-s", type=float, default=10)
    parser.add_argument("--blocks", type=int, default=100_000)
    options = parser.parse_args()
    figures = start(options.rounds) | idle(options.idle_s) | memory(options.blocks)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
