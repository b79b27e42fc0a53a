"""The copy engine alone, in this process, beside non-temporal copies of the same runs."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client import PoolMemory
from evoke.core import native
from evoked.cli.bench_memory import BLOCK_TOKENS, Baseline, Shape

__all__ = ["EngineBench"]

DIRECTIONS: Final = ("gather", "scatter")
U32 = NDArray[np.uint32]


class EngineBench:
    """Pools in `memory` against arena-like huge pages. One round at a time: measure()."""

    def __init__(
        self, shape: Shape, memory: PoolMemory, slots: int, baseline: Baseline, limit: Any
    ) -> None:
        self._slots, self._baseline, self._limit = slots, baseline, limit
        self._memory, self._block_bytes = memory, shape.block_bytes
        self._engines = {n: native.CopyEngine(n) for n in (1, 2)}
        stored = baseline.target
        self._high = {
            n: np.uint64(engine.add_memory(stored.ctypes.data, stored.size) << 56)
            for n, engine in self._engines.items()
        }
        tensor_bytes = slots * shape.heads * BLOCK_TOKENS * shape.head_bytes
        head_stride = slots * BLOCK_TOKENS * shape.head_bytes
        hf = [
            (shape.tensors, tensor_bytes),
            (BLOCK_TOKENS, shape.head_bytes),
            (shape.heads, head_stride),
        ]
        self._pools = {
            "plain": self._pool(shape.block_bytes, [], shape.block_bytes),
            "hf": self._pool(BLOCK_TOKENS * shape.head_bytes, hf, shape.head_bytes),
        }
        self._runs = {
            "plain": (shape.block_bytes, np.zeros(1, np.int64), shape.block_bytes),
            "hf": (BLOCK_TOKENS * shape.head_bytes, _offsets(hf), shape.head_bytes),
        }

    def _pool(self, slot_stride: int, dims: list[tuple[int, int]], item_bytes: int) -> native.Pool:
        layout = native.Layout(
            [(0, slot_stride, dims, item_bytes)], self._slots, self._memory.pool_bytes
        )
        return native.Pool(self._memory.fd, self._memory.pool_bytes, layout)

    def warm(self) -> None:
        """Map every page on the engine's side."""
        half = np.arange(self._slots // 2, dtype=np.uint32)
        for name in self._pools:
            for workers in self._engines:
                for slots in (half, half + np.uint32(len(half))):
                    self._copy(name, "gather", workers, slots, half)

    def measure(self, slots: U32, places: U32, record: Callable[[str, float], None]) -> None:
        """Records CPU seconds as engine/SHAPE/DIRECTION and limit/SHAPE/DIRECTION, and wall
        seconds of one and two workers as wall/WORKERS. Overwrites slots and places."""
        for name in self._pools:
            for direction in DIRECTIONS:
                if self._limit is not None:
                    record(f"limit/{name}/{direction}", self._bare(name, direction, slots, places))
                cpu_s, _ = self._copy(name, direction, 1, slots, places)
                record(f"engine/{name}/{direction}", cpu_s)
        for workers in self._engines:
            record(f"wall/{workers}", self._copy("plain", "gather", workers, slots, places)[1])

    def _bare(self, name: str, direction: str, slots: U32, places: U32) -> float:
        slot_stride, offsets, run_bytes = self._runs[name]
        stored, pool = self._baseline.target.ctypes.data, self._memory.address
        scatter, limit = int(direction == "scatter"), self._limit
        at, count = offsets.ctypes.data, len(offsets)
        began = time.thread_time()
        for slot, place in zip(slots.tolist(), places.tolist(), strict=True):
            block = stored + place * self._block_bytes
            limit(block, pool + slot * slot_stride, at, count, run_bytes, scatter)
        return time.thread_time() - began

    def _copy(
        self, name: str, direction: str, workers: int, slots: U32, places: U32
    ) -> tuple[float, float]:
        """(CPU seconds of the workers, wall seconds)."""
        engine, pool = self._engines[workers], self._pools[name]
        refs = places.astype(np.uint64) * np.uint64(self._block_bytes) | self._high[workers]
        cpu_ns, began = engine.stats()["cpu_ns"], time.perf_counter()
        if direction == "gather":
            engine.store(pool, slots, refs)
        else:
            sums = np.zeros(len(slots), np.uint64)
            engine.fetch(pool, slots, refs, sums, False)
        select.select([engine.eventfd], [], [])
        wall_s = time.perf_counter() - began
        ((_, outcomes, _),) = engine.take_completed()
        if outcomes.any():
            raise RuntimeError(f"copy engine: outcomes {outcomes.tolist()}")
        return (engine.stats()["cpu_ns"] - cpu_ns) * 1e-9, wall_s

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
        for pool in self._pools.values():
            pool.close()


def _offsets(dims: list[tuple[int, int]]) -> NDArray[np.int64]:
    """Of each run, in stored order."""
    offsets = np.zeros(1, np.int64)
    for count, stride in dims:
        offsets = (offsets[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return offsets
