"""Copy and checksum rates of the core beside what the machine can copy without a checksum.

Rounds over all shapes: the yardstick (copy_limit.cpp, AVX2 non-temporal and memcpy) and the
product take turns, so that a slow spell of the machine hits both. Bytes per CPU second unless
said otherwise; medians of the rounds; the raw seconds go into the JSON on stdout.
`kernel`: Layout.gather and scatter in one thread, both sides on transparent huge pages.
`engine`: CopyEngine with a pool in a memfd (hugetlb where enough pages are free).
"""

import argparse
import json
import mmap
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from evoke.core import native

HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True)
class Shape:
    """Runs in three nested dimensions, outermost first."""

    name: str
    run_bytes: int
    counts: tuple[int, int, int]
    strides: tuple[int, int, int]
    slot_stride: int
    slots: int

    @property
    def block_bytes(self) -> int:
        return self.run_bytes * int(np.prod(self.counts))

    def layout(self, pool_bytes: int) -> "native.Layout":
        dims = list(zip(self.counts, self.strides, strict=True))
        return native.Layout([(0, self.slot_stride, dims, self.run_bytes)], self.slots, pool_bytes)

    def command(self, kernel: str, direction: str, threads: int, blocks: int) -> str:
        dims = [n for pair in zip(self.counts, self.strides, strict=True) for n in pair]
        words = [kernel, direction, self.run_bytes, *dims, self.slot_stride, self.slots]
        return " ".join(map(str, [*words, threads, blocks])) + "\n"


def make_shapes(pool_bytes: int) -> list[Shape]:
    """The shapes of the targets: whole blocks, 32 KiB runs, and (head, token, element) caches."""
    whole, run = 2 << 20, 32 << 10
    shapes = [Shape("2MiB_1_run", whole, (1, 1, 1), (0, 0, 0), whole, pool_bytes // whole)]
    for runs in (64, 160):  # [run][slot]: the runs of a slot lie far apart
        slots = pool_bytes // (run * runs)
        name = f"{runs}x32KiB"
        shapes.append(Shape(name, run, (1, 1, runs), (0, 0, run * slots), run, slots))
    heads, head_bytes, tokens, tensors = 8, 256, 16, 64  # [layer and k/v][head][token][element]
    slots = pool_bytes // (tensors * heads * tokens * head_bytes)
    head_stride = slots * tokens * head_bytes
    shapes.append(
        Shape(
            "hf_256B_runs",
            head_bytes,
            (tensors, tokens, heads),
            (heads * head_stride, head_bytes, head_stride),
            tokens * head_bytes,
            slots,
        )
    )
    return shapes


class Yardstick:
    """A running copy_limit."""

    def __init__(self, mib: int, hugetlb: bool, folder: Path) -> None:
        source = Path(__file__).with_name("copy_limit.cpp")
        program = folder / "copy_limit"
        compiler = os.environ.get("CXX", "g++")
        flags = ["-std=c++20", "-O3", "-pthread"]
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
        words = [str(program), str(mib), *(["hugetlb"] if hugetlb else [])]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, command: str) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command)
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate("")


def huge_memory(size_bytes: int) -> tuple[mmap.mmap, int]:
    """Touched anonymous memory on transparent huge pages, and its 2 MiB aligned address."""
    memory = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, np.uint8)
    view[:] = 1
    address = view.ctypes.data
    return memory, -(-address // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


def free_huge_pages() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("HugePages_Free"))


@dataclass
class Product:
    """The core's side of the comparison: memory, engines of one and two workers."""

    pool_bytes: int
    hugetlb: bool
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def __post_init__(self) -> None:
        self.here, self.here_address = huge_memory(self.pool_bytes)
        self.arena, self.arena_address = huge_memory(self.pool_bytes)
        flags = os.MFD_CLOEXEC | (os.MFD_HUGETLB if self.hugetlb else 0)
        self.fd = os.memfd_create("bench-copy", flags)
        os.ftruncate(self.fd, self.pool_bytes)
        with mmap.mmap(self.fd, self.pool_bytes) as peer:
            np.frombuffer(peer, np.uint8)[:] = 1
        self.engines = {n: native.CopyEngine(n) for n in (1, 2)}
        for engine in self.engines.values():
            engine.add_memory(self.arena_address, self.pool_bytes)
        self.pools: dict[str, native.Pool] = {}

    def slots(self, shape: Shape, blocks: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        return self.random.permutation(shape.slots)[:blocks].astype(np.uint32)

    def kernel(self, shape: Shape, direction: str, blocks: int) -> dict[str, float]:
        layout = shape.layout(self.pool_bytes)
        stored = np.frombuffer(self.arena, np.uint8)
        offset = self.arena_address - stored.ctypes.data
        places = self.pool_bytes // shape.block_bytes
        call = layout.gather if direction == "gather" else layout.scatter
        work = [
            (self.slots(shape, 1), stored[at : at + shape.block_bytes])
            for at in offset + self.random.integers(0, places, blocks) * shape.block_bytes
        ]
        wall, cpu = time.perf_counter(), time.thread_time()
        for slot, block in work:
            call(self.here_address, slot, block)
        cpu_s, wall_s = time.thread_time() - cpu, time.perf_counter() - wall
        return {"bytes": blocks * shape.block_bytes, "wall_s": wall_s, "cpu_s": cpu_s}

    def engine(self, shape: Shape, direction: str, workers: int, blocks: int) -> dict[str, float]:
        engine = self.engines[workers]
        if shape.name not in self.pools:
            layout = shape.layout(self.pool_bytes)
            self.pools[shape.name] = native.Pool(self.fd, self.pool_bytes, layout)
        pool = self.pools[shape.name]
        slots = self.slots(shape, blocks)
        places = self.random.permutation(self.pool_bytes // shape.block_bytes)[: len(slots)]
        refs = places.astype(np.uint64) * np.uint64(shape.block_bytes)
        cpu, wall = engine.stats()["cpu_ns"], time.perf_counter()
        if direction == "gather":
            engine.store(pool, slots, refs)
        else:
            engine.fetch(pool, slots, refs, np.zeros(len(slots), np.uint64), False)
        select.select([engine.eventfd], [], [])
        wall_s = time.perf_counter() - wall
        ((_, outcomes, _),) = engine.take_completed()
        if outcomes.any():
            raise RuntimeError(f"{shape.name}: outcomes {outcomes}")
        cpu_s = (engine.stats()["cpu_ns"] - cpu) * 1e-9
        return {"bytes": len(slots) * shape.block_bytes, "wall_s": wall_s, "cpu_s": cpu_s}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, float]]]:
    pool_bytes = args.pool_mib << 20
    hugetlb = free_huge_pages() * HUGE_PAGE_BYTES >= 2 * pool_bytes
    native.self_test()
    product = Product(pool_bytes, hugetlb)
    yardstick = Yardstick(args.pool_mib, hugetlb, folder)
    raw: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for shape in make_shapes(pool_bytes):
            blocks = min((args.round_mib << 20) // shape.block_bytes, shape.slots)
            for direction in ("gather", "scatter"):
                key = f"{shape.name}/{direction}"
                for kernel in ("avx_nt", "memcpy"):
                    command = shape.command(kernel, direction, 1, blocks)
                    raw.setdefault(f"{key}/{kernel}", []).append(yardstick.measure(command))
                raw.setdefault(f"{key}/kernel", []).append(product.kernel(shape, direction, blocks))
                for workers in (1, 2):
                    raw.setdefault(f"{key}/engine{workers}", []).append(
                        product.engine(shape, direction, workers, blocks)
                    )
    yardstick.close()
    return raw


def summarise(raw: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """GB per CPU second (and wall second for the engines), and the ratios of the targets."""

    def rate(key: str, clock: str) -> float:
        return statistics.median(r["bytes"] / r[clock] for r in raw[key]) / 1e9

    summary: dict[str, dict[str, float]] = {}
    for shape in dict.fromkeys(key.rpartition("/")[0] for key in raw):
        row = {
            name: rate(f"{shape}/{name}", "cpu_s")
            for name in ("avx_nt", "memcpy", "kernel", "engine1", "engine2")
        }
        row["kernel_of_avx_nt"] = row["kernel"] / row["avx_nt"]
        row["engine1_of_avx_nt"] = row["engine1"] / row["avx_nt"]
        row["engine1_of_memcpy"] = row["engine1"] / row["memcpy"]
        walls = [rate(f"{shape}/engine{n}", "wall_s") for n in (1, 2)]
        row["two_workers_wall"] = walls[1] / walls[0]
        summary[shape] = {name: round(value, 3) for name, value in row.items()}
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pool-mib", type=int, default=640)
    parser.add_argument("--round-mib", type=int, default=320, help="copied in one measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raw = measure(args, Path(folder))
    summary = summarise(raw)
    for name, row in summary.items():
        print(f"{name:26}", *(f"{k}={v}" for k, v in row.items()), file=sys.stderr)
    json.dump({"kernel": native.kernel_name(), "summary": summary, "raw": raw}, sys.stdout)


if __name__ == "__main__":
    main()
