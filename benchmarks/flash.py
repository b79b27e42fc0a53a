"""The spill store beside what the disk gives without it: interleaved pairs, same size and depth.

    python benchmarks/flash.py --dir DIR [--block-mib 5] [--depth 4] [--pairs 9] [--seconds 1]

For reads and writes, by io_uring and by threads: the median of the pairs' ratios of rates (store to
limit: at least 0.85 wanted) and of CPU seconds per GB (at most 1.3). `read` checks each checksum,
`read_unverified` leaves that to whoever copies the block out, as the copy engine does for nothing.
Writes replace the oldest block, with its record in the index. JSON on standard output.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import select
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from evoke.core import native, spill

MEMORY = 1
CASES = (("write", "write"), ("read", "read"), ("read_unverified", "read"))


class Limit:
    """A running flash_limit."""

    def __init__(self, folder: Path, file_bytes: int, block_bytes: int, depth: int) -> None:
        here = Path(__file__).parent
        program = folder / "flash_limit"
        sources = ["benchmarks/flash_limit.cpp", "csrc/spill/ring.cpp", "csrc/memory.cpp"]
        flags = ["-std=c++20", "-O2", "-pthread", *sources, "-o", str(program)]
        subprocess.run([os.environ.get("CXX", "g++"), *flags], check=True, cwd=here.parent)
        words = [str(program), str(folder / "limit"), *map(str, (file_bytes, block_bytes, depth))]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def measure(self, verb: str, engine: str, seconds: float) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{verb} {engine} {seconds}\n")
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate("")


class Spill:
    """A full store whose blocks are read at random and written in turn."""

    def __init__(
        self, folder: Path, file_bytes: int, block_bytes: int, depth: int, engine: str
    ) -> None:
        folder.mkdir()
        self.block_bytes, self.depth = block_bytes, depth
        # Blocks to write, then places to read into.
        self.map = mmap.mmap(-1, 2 * depth * block_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = np.frombuffer(self.map, np.uint8)
        self.memory[:] = np.random.default_rng(5).integers(0, 256, self.memory.size, np.uint8)
        blocks = self.memory.reshape(2 * depth, block_bytes)
        self.sums = [np.array([native.xxh3_64(block)], np.uint64) for block in blocks]
        places = [MEMORY << 56 | i * block_bytes for i in range(2 * depth)]
        self.refs = [np.array([place], np.uint64) for place in places]
        self.lengths = np.array([block_bytes], np.uint32)
        memories = [(MEMORY, self.memory.ctypes.data, self.memory.size)]
        self.store = spill.Store(
            str(folder),
            file_bytes,
            memories,
            segment_bytes=file_bytes // 4096 * 4096,
            depth=depth,
            engine="auto" if engine == "io_uring" else engine,
        )
        while self.store.stats()["segments_ready"] < self.store.stats()["segments"]:
            time.sleep(0.01)
        assert self.store.stats()["engine"] == engine, self.store.stats()
        self.space = self.store.add_namespace(bytes(32))
        self.number = 0
        self.order: list[int] = []
        while self.write(0):
            self.take()

    def write(self, place: int) -> int:
        key = self.number.to_bytes(8, "little") * 4
        ticket = self.store.write(
            self.space, key, b"", 0, self.refs[place], self.lengths, self.sums[place]
        )
        self.number += 1 if ticket else 0
        return ticket

    def take(self) -> list[int]:
        """Tickets of what ended, at least one."""
        ended: list[int] = []
        while not ended:
            select.select([self.store.fd], [], [])
            for ticket, _, outcome, error, _, slot, _ in self.store.take():
                assert outcome == spill.DONE, (outcome, error)
                self.order.append(slot)
                ended.append(ticket)
        return ended

    def measure(self, case: str, seconds: float) -> dict[str, float]:
        chance = np.random.default_rng(self.number)
        slots = list(self.order)
        self.order = slots if case == "write" else []

        def start(place: int) -> int:
            if case == "write":
                self.store.erase(np.array([self.order.pop(0)], np.uint32))
                return self.write(place)
            slot = slots[int(chance.integers(len(slots)))]
            target = self.refs[self.depth + place]
            return self.store.read(slot, target, self.lengths, case == "read")

        cpu_s, began_s = time.process_time(), time.monotonic()
        under_way = {start(place): place for place in range(self.depth)}
        blocks = 0
        while under_way:
            for ticket in self.take():
                place = under_way.pop(ticket)
                blocks += 1
                if time.monotonic() < began_s + seconds:
                    under_way[start(place)] = place
        gb = blocks * self.block_bytes / 1e9
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        if case != "write":
            self.order = slots
        return {"gbps": gb / wall_s, "cpu_s_per_gb": cpu_s / gb}


def figures(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ("gbps", "cpu_s_per_gb"):
        ratios = sorted(store[name] / limit[name] for store, limit in pairs)
        out[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        out[f"{name}_ratio_spread"] = [round(ratios[0], 3), round(ratios[-1], 3)]
        out[f"{name}_store"] = round(statistics.median(store[name] for store, _ in pairs), 4)
        out[f"{name}_limit"] = round(statistics.median(limit[name] for _, limit in pairs), 4)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="on the device to be measured")
    parser.add_argument("--block-mib", type=int, default=5)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--file-mib", type=int, default=1000)
    said = parser.parse_args()
    block_bytes, file_bytes = said.block_mib << 20, said.file_mib << 20
    result: dict[str, Any] = {name: getattr(said, name) for name in ("block_mib", "depth", "pairs")}
    with tempfile.TemporaryDirectory(dir=said.dir) as temporary:
        folder = Path(temporary)
        limit = Limit(folder, file_bytes, block_bytes, said.depth)
        for engine in ("io_uring", "threads"):
            store = Spill(folder / engine, file_bytes, block_bytes, said.depth, engine)
            pairs: dict[str, list[Any]] = {case: [] for case, _ in CASES}
            for _ in range(said.pairs):
                for case, verb in CASES:
                    mine = store.measure(case, said.seconds)
                    pairs[case].append((mine, limit.measure(verb, engine, said.seconds)))
            store.store.close()
            result[engine] = {case: figures(done) for case, done in pairs.items()}
        limit.close()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
