"""The main figure without any timer of the product: CPU seconds of 1 GiB stored and fetched through
a daemon, by getrusage and /proc, against one plain memcpy of the same blocks on huge pages."""

import ctypes
import json
import mmap
import os
import resource
import statistics
from pathlib import Path

import numpy as np

from evoke.client import NO_SALT, Group, Namespace, Part, connect

BLOCK, SLOTS, BATCH, BATCHES, ROUNDS = 2 << 20, 192, 32, 16, 7


def used_s(pid: int) -> float:
    """CPU seconds of this process and of the daemon."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return own.ru_utime + own.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def huge() -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    memory = mmap.mmap(-1, (SLOTS + 1) * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(memory, np.uint8)[-np.frombuffer(memory, np.uint8).ctypes.data % BLOCK :]
    view[:] = 1
    return view


shape = Part(groups=(Group(layers=32, kv_heads=8, head_size=128),))
namespace = Namespace(model="main figure", weights_epoch="0", position="none", dtype="float16",
                      block_tokens=16, parts=(shape,), salt=NO_SALT)  # fmt: skip
random, libc, source, target = np.random.default_rng(0), ctypes.CDLL(None), huge(), huge()
ratios: dict[str, list[float]] = {"store": [], "fetch": []}
config = {"host.capacity": "1100MiB"}
with connect("embedded", config=config, raise_errors=True, timeout_s=30) as client:
    space, pid = client.namespace(namespace), client.status()["pid"]
    memory = client.pool_memory(SLOTS * BLOCK)
    memory.array(SLOTS * BLOCK)[:] = random.integers(0, 256, SLOTS * BLOCK, np.uint8)
    view = memory.array((SLOTS, 32, 2, 16, 8, 128), np.float16)
    pool = space.register_pool(memory, view, "slot layer kv token head element")
    for turn in range(ROUNDS + 1):  # the first one warms up
        chain = space.keys(random.integers(0, 1 << 31, BATCHES * BATCH * 16))
        order = [random.permutation(SLOTS)[:BATCH] for _ in range(BATCHES)]
        marks = [used_s(pid)]
        for verb, good in ((space.store, "stored"), (space.fetch, "hits")):
            for i, slots in enumerate(order):
                assert getattr(verb(pool, chain, slots, first=i * BATCH), good) == BATCH
            marks.append(used_s(pid))
        for slot in np.concatenate(order).tolist():
            to, begin = (ctypes.c_void_p(m.ctypes.data + slot * BLOCK) for m in (target, source))
            libc.memcpy(to, begin, ctypes.c_size_t(BLOCK))
        stored, fetched, copied = np.diff([*marks, used_s(pid)]).tolist()
        for name, seconds in (("store", stored), ("fetch", fetched)) if turn else ():
            ratios[name].append(seconds / copied)
        client.flush(space)
print(json.dumps({f"{k}_cpu_vs_memcpy": round(statistics.median(v), 4) for k, v in ratios.items()}))
