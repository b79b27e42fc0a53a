"""What being watched costs the daemon: its CPU seconds per GB stored and fetched while a reader
takes all events and metrics are asked for once a second, against the same without either.

Prints one JSON object. Pairs of rounds take turns, watched first in every second pair; a figure is
the median of the pairs' ratios.
"""

import argparse
import ctypes
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import zmq

from evoke.client import NO_SALT, Client, Group, Namespace, Part, connect, wire
from evoke.client.embedded import Embedded

EVERYTHING = 0xFFFF_FFFF
POOL_BYTES = 64 << 20
SCRAPE_EVERY_S = 1.0


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, of all its threads, to the nanosecond."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        raise ProcessLookupError(pid)
    return time.clock_gettime(clock.value)


class Watcher:
    """A reader of all events and a scraper of metrics, in a thread of this process."""

    def __init__(self, directory: str) -> None:
        self.events, self.scrapes = 0, 0
        self._directory, self._end = directory, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        with connect(self._directory, raise_errors=True, timeout_s=30) as client:
            topic = client.call("events", wire.Events(EVERYTHING))
            reader = context.socket(zmq.DEALER)
            reader.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
            reader.connect(f"ipc://{self._directory}/events.sock")
            reader.send(b"")
            due_s = time.monotonic()
            while not self._end.is_set():
                if time.monotonic() >= due_s:
                    client.call("metrics", wire.Empty())
                    self.scrapes += 1
                    due_s += SCRAPE_EVERY_S
                if reader.poll(20):
                    reader.recv_multipart()
                    self.events += 1
        context.destroy(linger=0)

    def start(self) -> None:
        self._thread.start()
        time.sleep(0.3)  # it is connected, and has asked once

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


@contextmanager
def watched(directory: str, seen: dict[str, int]) -> Iterator[None]:
    watcher = Watcher(directory)
    watcher.start()
    try:
        yield
    finally:
        watcher.stop()
        seen["events"] += watcher.events
        seen["scrapes"] += watcher.scrapes


class Load:
    """Stores and fetches blocks of one size, a pool at a time."""

    def __init__(self, client: Client, block_bytes: int) -> None:
        self.slots = POOL_BYTES // block_bytes
        self.block_bytes = block_bytes
        layers = block_bytes // 4096  # of 2 x 16 tokens x 1 head x 64 x 2 bytes
        part = Part(groups=(Group(layers=layers, kv_heads=1, head_size=64),))
        namespace = Namespace(
            model=f"watched {block_bytes}", weights_epoch="0", position="none", dtype="float16",
            block_tokens=16, parts=(part,), salt=NO_SALT,
        )  # fmt: skip
        self.space = client.namespace(namespace)
        memory = client.pool_memory(POOL_BYTES)
        memory.array(POOL_BYTES)[:] = 1
        view = memory.array((self.slots, layers, 2, 16, 1, 64), np.float16)
        self.pool = self.space.register_pool(memory, view, "slot layer kv token head element")
        self._number = 0

    def run(self, seconds: float) -> float:
        """For at least so long; GB stored and fetched."""
        end_s, copied_bytes = time.monotonic() + seconds, 0
        batch = min(32, self.slots)
        while time.monotonic() < end_s:
            self._number += 1
            tokens = np.full(self.slots * 16, self._number, np.uint32)
            chain = self.space.keys(tokens)
            for verb, good in ((self.space.store, "stored"), (self.space.fetch, "hits")):
                for first in range(0, self.slots, batch):
                    slots = np.arange(first, first + batch)
                    result = verb(self.pool, chain, slots, first=first, timeout_s=30)
                    if getattr(result, good) != batch:
                        raise RuntimeError(f"{good} {getattr(result, good)} of {batch}: {result}")
                    copied_bytes += batch * self.block_bytes
        return copied_bytes / 1e9


def measure(load: Load, pid: int, directory: str, pairs: int, seconds: float) -> dict[str, Any]:
    seen = {"events": 0, "scrapes": 0}
    with watched(directory, dict(seen)):  # warms up: the first scrape imports what it needs
        load.run(seconds)
    costs: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for is_watched in (pair % 2 == 0, pair % 2 == 1):
            with watched(directory, seen) if is_watched else nullcontext():
                began_s = cpu_s(pid)
                copied_gb = load.run(seconds)
                costs[is_watched].append((cpu_s(pid) - began_s) / copied_gb)
    ratios = sorted(b / a for a, b in zip(costs[False], costs[True], strict=True))
    middle = ratios[len(ratios) // 4 : len(ratios) - len(ratios) // 4]
    return {
        "block_bytes": load.block_bytes,
        "overhead_percent": round(100 * (statistics.median(ratios) - 1), 2),
        "overhead_percent_middle_half": [round(100 * (r - 1), 2) for r in (middle[0], middle[-1])],
        "overhead_percent_range": [round(100 * (r - 1), 2) for r in (ratios[0], ratios[-1])],
        "cpu_s_per_gb": round(statistics.median(costs[False]), 4),
        "cpu_s_per_gb_watched": round(statistics.median(costs[True]), 4),
        **seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--block-kib", type=int, nargs="+", default=[2048, 64])
    options = parser.parse_args()
    daemon = Embedded({"host.capacity": "512MiB"}, must_start=True)
    try:
        with connect(daemon.directory, raise_errors=True, timeout_s=30) as client:
            pid, directory = client.status()["pid"], str(daemon.directory)
            for block_kib in options.block_kib:
                load = Load(client, block_kib << 10)
                figures = measure(load, pid, directory, options.pairs, options.seconds)
                print(json.dumps(figures), flush=True)
    finally:
        daemon.close()


if __name__ == "__main__":
    main()
