"""What the bench measures against: libc's memcpy, and non-temporal copies without a checksum."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client import Group, Namespace, Part
from evoke.client.namespace import DTYPE_BYTES

__all__ = ["BATCH_BYTES", "LAYOUTS", "Baseline", "Shape", "batch_blocks", "cpu_clock",
           "huge_memory", "load_limit"]  # fmt: skip

BATCH_BYTES: Final = 64 << 20
BLOCK_TOKENS: Final = 16
HUGE_PAGE_BYTES: Final = 2 << 20
COMPILE_S: Final = 60


@dataclass(frozen=True)
class Shape:
    """Geometry of a model's KV cache; the pools of the bench have its numbers as dimensions."""

    layers: int
    heads: int
    head_size: int
    dtype: str

    @property
    def item_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.tensors * self.heads * BLOCK_TOKENS * self.head_size * self.item_bytes

    @property
    def tensors(self) -> int:
        """Keys and values of each layer."""
        return 2 * self.layers

    @property
    def head_bytes(self) -> int:
        """One token of one head: the run of a [head][token][element] cache."""
        return self.head_size * self.item_bytes

    def namespace(self, model: str, salt: str) -> Namespace:
        group = Group(layers=self.layers, kv_heads=self.heads, head_size=self.head_size)
        return Namespace(
            model=model, weights_epoch="0", position="none", dtype=self.dtype, salt=salt,
            block_tokens=BLOCK_TOKENS, parts=(Part(groups=(group,)),),
        )  # fmt: skip


LAYOUTS: Final = {
    "2mib": Shape(32, 8, 128, "float16"),
    "5mib": Shape(80, 8, 128, "float16"),
    "smollm2": Shape(30, 3, 64, "float32"),
}


def batch_blocks(block_bytes: int) -> int:
    return max(1, BATCH_BYTES // block_bytes)


def cpu_clock(pid: int) -> int:
    """Clock of all CPU time of a process, for time.clock_gettime. ProcessLookupError."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise ProcessLookupError(error, os.strerror(error))
    return clock.value


def huge_memory(size_bytes: int) -> NDArray[np.uint8]:
    """Touched private memory, on transparent huge pages where the machine gives them."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, private)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    begin = -int(whole.ctypes.data) % HUGE_PAGE_BYTES
    aligned = whole[begin : begin + size_bytes]
    aligned[:] = 1
    return aligned


class Baseline:
    """One plain memcpy of a batch: warm huge pages, the same blocks in the same order."""

    def __init__(self, block_bytes: int, blocks: int) -> None:
        """blocks: of each side."""
        self.block_bytes = block_bytes
        self.source = huge_memory(blocks * block_bytes)
        self.target = huge_memory(blocks * block_bytes)
        self._memcpy = ctypes.CDLL(None).memcpy
        self._memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._memcpy.restype = ctypes.c_void_p

    def memcpy(self, targets: list[int], sources: list[int]) -> None:
        memcpy, size = self._memcpy, self.block_bytes
        to, begin = self.target.ctypes.data, self.source.ctypes.data
        for target, source in zip(targets, sources, strict=True):
            memcpy(to + target * size, begin + source * size, size)


# The yardstick of the copy engine: what AVX2 loads and non-temporal stores alone can do.
LIMIT_C: Final = """
#include <immintrin.h>
#include <stdint.h>
#include <stddef.h>
__attribute__((target("avx2"))) void limit(char *stored, char *pool, const int64_t *offsets,
                                           size_t runs, size_t run_bytes, int scatter) {
  for (size_t r = 0; r < runs; r++, stored += run_bytes) {
    const __m256i *from = (const __m256i *)(scatter ? stored : pool + offsets[r]);
    __m256i *to = (__m256i *)(scatter ? pool + offsets[r] : stored);
    for (size_t i = 0; i < run_bytes / 32; i += 4) {
      __m256i a = _mm256_load_si256(from + i), b = _mm256_load_si256(from + i + 1);
      __m256i c = _mm256_load_si256(from + i + 2), d = _mm256_load_si256(from + i + 3);
      _mm256_stream_si256(to + i, a);
      _mm256_stream_si256(to + i + 1, b);
      _mm256_stream_si256(to + i + 2, c);
      _mm256_stream_si256(to + i + 3, d);
    }
  }
  _mm_sfence();
}
"""


def load_limit() -> Any:
    """The function above, compiled now; None on a machine without a compiler or without AVX2."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or " avx2 " not in _cpu_flags():
        return None
    with tempfile.TemporaryDirectory(prefix="evoke-bench-") as folder:
        library = Path(folder) / "limit.so"
        command = [compiler, "-O3", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        done = subprocess.run(
            command, input=LIMIT_C, text=True, capture_output=True, timeout=COMPILE_S
        )
        if done.returncode:
            return None
        limit = ctypes.CDLL(str(library)).limit
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    limit.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_int]
    limit.restype = None
    return limit


def _cpu_flags() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line + " " for line in lines if line.startswith("flags")), "")
