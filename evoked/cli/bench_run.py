"""Stores, fetches and round trips through a daemon, beside baselines in the same rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client import Chain, Client, Pool, Space, wire
from evoke.core import native
from evoked.cli.bench_echo import Echo
from evoked.cli.bench_engine import EngineBench
from evoked.cli.bench_memory import (
    BLOCK_TOKENS,
    Baseline,
    Shape,
    batch_blocks,
    cpu_clock,
    huge_memory,
)

__all__ = ["FIGURE_BATCHES", "Bench", "WrongBytes", "lookup_us", "round_trips_us"]

POOL_BATCHES: Final = 3  # of each half of the pool: stores read from one, fetches write the other
FIGURE_BATCHES: Final = POOL_BATCHES + 1  # stored for one figure
TIMEOUT_S: Final = 30.0
LOOKUP_KEYS: Final = 512
LOOKUPS: Final = 1000
LOOKUP_SHAPE: Final = Shape(1, 1, 64, "float16")  # 4 KiB blocks: only their keys matter
REPORTS_S: Final = 0.2  # by then the client has told the daemon what was looked up

Raw = dict[str, list[float]]
Ints = NDArray[np.int64]


class WrongBytes(Exception):
    """What was measured is worth nothing: a block was not moved, or moved wrongly."""


class Bench:
    """One layout. measure() does a round; `raw` has the seconds of each round by name:
    cpu/WHAT (client and daemon), client/WHAT, wall/WHAT, memcpy, kernel and the engine's."""

    def __init__(
        self, client: Client, shape: Shape, salt: str, arena_bytes: int, limit: Any
    ) -> None:
        """arena_bytes: what may be stored before the bench flushes its own blocks."""
        self.shape, self.client, self.raw = shape, client, Raw()
        self.blocks = batch_blocks(shape.block_bytes)
        self._half = POOL_BATCHES * self.blocks
        self._arena_batches = arena_bytes // (self.blocks * shape.block_bytes)
        self._stored_batches = self._turns = 0
        self._random = np.random.default_rng(7)
        self._pid = int(client.status()["pid"])
        self._clock = cpu_clock(self._pid)
        self.space = client.namespace(shape.namespace("evokectl bench", salt))
        self._make_pools()
        self.baseline = Baseline(shape.block_bytes, self._half)
        private = huge_memory(self.blocks * shape.block_bytes)
        self._private = private.reshape(self.blocks, shape.block_bytes)
        slots = 2 * self._half
        self.engine = EngineBench(shape, self.memory, slots, self.baseline, limit)
        self._plain_layout = native.Layout(
            [(0, shape.block_bytes, [], shape.block_bytes)], self._half, self.baseline.source.size
        )

    def _make_pools(self) -> None:
        """Two pools over the same memory: in stored order, and as transformers has its caches."""
        shape, slots = self.shape, 2 * self._half
        self.memory = self.client.pool_memory(slots * shape.block_bytes)
        self._bytes = self.memory.array((slots, shape.block_bytes))
        self._bytes[:] = self._random.integers(0, 256, self._bytes.shape, np.uint8)
        kind = f"u{shape.item_bytes}"
        inner = (shape.layers, 2, BLOCK_TOKENS, shape.heads, shape.head_size)
        stored_order = self.memory.array((slots, *inner), kind)
        tensor_bytes = self.memory.pool_bytes // shape.tensors
        self._tensors = [
            self.memory.array(
                (shape.heads, slots * BLOCK_TOKENS, shape.head_size), kind, i * tensor_bytes
            )
            for i in range(shape.tensors)
        ]
        register = self.space.register_pool
        axes = "slot layer kv token head element"
        self.plain = register(self.memory, stored_order, axes)
        self.hf = register(self.memory, self._tensors, "head seq element")

    def warm(self) -> None:
        """Touch every page of the pool, on all sides, and of the arena."""
        halves = np.split(np.arange(2 * self._half), 2)
        for pool in (self.plain, self.hf):
            for slots in halves:
                self._measure_pair("", pool, slots, slots)
        self.engine.warm()
        self.raw.clear()

    # ------------------------------------------------------------ a round

    def measure(self) -> None:
        """Each figure is of POOL_BATCHES requests in a row, after one that only warms up; its
        memcpy is the mean of the one before and the one after it."""
        half = self._half
        sources = self._random.permutation(half)
        targets = half + self._random.permutation(half)
        copies = [self._memcpy(targets, sources)]
        for name, pool in (("", self.plain), ("hf_", self.hf)):
            self._measure_pair(name, pool, sources, targets)
            self._verify(pool, sources, targets)
            copies.append(self._memcpy(targets, sources))
        self._record("kernel", self._kernel(targets, sources))
        self._measure_staged(targets)
        copies.append(self._memcpy(targets, sources))
        for i, name in enumerate(("", "hf_", "staged_")):
            self._record(f"memcpy/{name}", (copies[i] + copies[i + 1]) / 2)
        # It overwrites the pool, which keeps random bytes all the same.
        slots, places = targets.astype(np.uint32), sources.astype(np.uint32)
        self.engine.measure(slots[: self.blocks], places[: self.blocks], self._record)

    def _measure_pair(self, name: str, pool: Pool, sources: Ints, targets: Ints) -> None:
        first, *chains = self._fresh_chains()

        def store() -> None:
            for chain, slots in zip(chains, np.split(sources, POOL_BATCHES), strict=True):
                self._store(pool, chain, slots)

        def fetch() -> None:
            for chain, slots in zip(chains, np.split(targets, POOL_BATCHES), strict=True):
                self._fetch(pool, chain, slots)

        self._store(pool, first, sources[: self.blocks])
        self._timed(f"{name}store", store)
        self._fetch(pool, first, targets[: self.blocks])
        self._timed(f"{name}fetch", fetch)

    def _measure_staged(self, targets: Ints) -> None:
        """An engine whose memory is its own: through the pool, by copies of its own."""
        private, batches = self._private, np.split(targets, POOL_BATCHES)
        first, *chains = self._fresh_chains()

        def store() -> None:
            for chain, slots in zip(chains, batches, strict=True):
                for slot, block in zip(slots.tolist(), private, strict=True):
                    self._bytes[slot] = block
                self._store(self.plain, chain, slots)

        def fetch() -> None:
            for chain, slots in zip(chains, batches, strict=True):
                self._fetch(self.plain, chain, slots)
                for slot, block in zip(slots.tolist(), private, strict=True):
                    block[:] = self._bytes[slot]

        kept = self._bytes[: self.blocks].copy()
        private[:] = kept
        self._store(self.plain, first, batches[0])
        self._timed("staged_store", store)
        self._bytes[targets] = 0
        private[:] = 0
        self._fetch(self.plain, first, batches[0])
        self._timed("staged_fetch", fetch)
        if not np.array_equal(kept, private):
            raise WrongBytes("staged blocks came back changed")

    def _timed(self, name: str, action: Callable[[], None]) -> None:
        """Seconds of one request: `action` makes POOL_BATCHES of them."""
        daemon_s, client_s = time.clock_gettime(self._clock), time.process_time()
        began = time.perf_counter()
        action()
        wall_s = time.perf_counter() - began
        client_s = time.process_time() - client_s
        daemon_s = time.clock_gettime(self._clock) - daemon_s
        self._record(f"cpu/{name}", (client_s + daemon_s) / POOL_BATCHES)
        self._record(f"client/{name}", client_s / POOL_BATCHES)
        self._record(f"wall/{name}", wall_s / POOL_BATCHES)

    def _record(self, name: str, value: float) -> None:
        self.raw.setdefault(name, []).append(value)

    # ------------------------------------------------------------ what is timed

    def _store(self, pool: Pool, chain: Chain, slots: Ints) -> None:
        result = self.space.store(pool, chain, slots, timeout_s=TIMEOUT_S)
        if result.stored != len(slots):
            raise WrongBytes(f"stored {result.stored} of {len(slots)} blocks: {result.error}")

    def _fetch(self, pool: Pool, chain: Chain, slots: Ints) -> None:
        result = self.space.fetch(pool, chain, slots, timeout_s=TIMEOUT_S)
        if result.hits != len(slots):
            raise WrongBytes(f"fetched {result.hits} of {len(slots)} blocks: {result.error}")

    def _memcpy(self, targets: Ints, sources: Ints) -> float:
        """CPU seconds a batch, on the core where the daemon's busiest thread was last."""
        to, begin = (targets - self._half).tolist(), sources.tolist()
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {_last_core(self._pid)} & cores or cores)
        try:
            began, wall = time.thread_time(), time.perf_counter()
            self.baseline.memcpy(to, begin)
            self._record("wall/memcpy", (time.perf_counter() - wall) / POOL_BATCHES)
            return (time.thread_time() - began) / POOL_BATCHES
        finally:
            os.sched_setaffinity(0, cores)

    def _kernel(self, targets: Ints, sources: Ints) -> float:
        """The chosen kernel with its checksum, as the memcpy: no pool, no daemon."""
        size, stored = self.shape.block_bytes, self.baseline.target
        slots = sources.astype(np.uint32)
        outs = [stored[at * size : (at + 1) * size] for at in (targets - self._half).tolist()]
        began = time.thread_time()
        for i, out in enumerate(outs):
            self._plain_layout.gather(self.baseline.source.ctypes.data, slots[i : i + 1], out)
        return (time.thread_time() - began) / POOL_BATCHES

    # ------------------------------------------------------------ not timed

    def _fresh_chains(self) -> list[Chain]:
        """Chains of new keys for one figure, and room to store them all without evicting."""
        if self._stored_batches + FIGURE_BATCHES > self._arena_batches:
            self.client.flush(self.space)
            self._stored_batches = 0
        self._stored_batches += FIGURE_BATCHES
        chains = []
        for _ in range(FIGURE_BATCHES):
            self._turns += 1
            tokens = np.full(self.blocks * BLOCK_TOKENS, self._turns, np.uint32)
            chains.append(self.space.keys(tokens))
        return chains

    def _verify(self, pool: Pool, sources: Ints, targets: Ints) -> None:
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            ours, theirs = self._slot(pool, source), self._slot(pool, target)
            if not all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)):
                raise WrongBytes(f"the block of slot {source} arrived changed in slot {target}")

    def _slot(self, pool: Pool, slot: int) -> list[NDArray[Any]]:
        if pool is self.plain:
            return [self._bytes[slot]]
        begin = slot * BLOCK_TOKENS
        return [tensor[:, begin : begin + BLOCK_TOKENS] for tensor in self._tensors]

    def close(self) -> None:
        self.client.flush(self.space)
        self.engine.close()
        for pool in (self.plain, self.hf):
            pool.close()
        self._tensors.clear()
        del self._bytes
        self.memory.close()


def _last_core(pid: int) -> int:
    """Of the thread of a process that has used most CPU."""

    def used(task: Path) -> int:
        return int((task / "schedstat").read_text().split()[0])

    busiest = max(Path(f"/proc/{pid}/task").iterdir(), key=used)
    return int((busiest / "stat").read_text().rpartition(")")[2].split()[36])


# ---------------------------------------------------------------- look-ups and round trips


def _small_space(client: Client, salt: str) -> tuple[Space, Pool, Chain]:
    """A namespace of small blocks of which LOOKUP_KEYS are stored."""
    space = client.namespace(LOOKUP_SHAPE.namespace("evokectl bench look-up", salt))
    memory = client.pool_memory(LOOKUP_KEYS * LOOKUP_SHAPE.block_bytes)
    inner = (1, 2, BLOCK_TOKENS, 1, LOOKUP_SHAPE.head_size)
    view = memory.array((LOOKUP_KEYS, *inner), "u2")
    pool = space.register_pool(memory, view, "slot layer kv token head element")
    chain = space.keys(np.arange(LOOKUP_KEYS * BLOCK_TOKENS))
    stored = space.store(pool, chain, np.arange(LOOKUP_KEYS), timeout_s=TIMEOUT_S)
    if stored.readable != LOOKUP_KEYS:
        raise WrongBytes(f"{stored.readable} of {LOOKUP_KEYS} small blocks stored: {stored.error}")
    return space, pool, chain


def lookup_us(client: Client, salt: str) -> list[float]:
    """Microseconds of look-ups of 512 keys that are all there, reports to the daemon included."""
    space, _, chain = _small_space(client, salt)
    walls = []
    for _ in range(LOOKUPS):
        began = time.perf_counter()
        hits = space.lookup(chain)
        walls.append((time.perf_counter() - began) * 1e6)
        if hits != LOOKUP_KEYS:
            raise WrongBytes(f"look-up found {hits} of {LOOKUP_KEYS} stored keys")
    time.sleep(REPORTS_S)
    return walls


def round_trips_us(client: Client, salt: str, folder: Path, rounds: int) -> Raw:
    """Microseconds of an echo, a ping, and a store and a fetch of no blocks, taking turns."""
    space, pool, _ = _small_space(client, salt)
    connection = client.link.current()
    assert connection is not None
    number, pool_number = connection.handles[space].number, connection.handles[pool]
    store = wire.Store(number, pool_number, b"", 0, b"", b"", 1000, 0)
    fetch = wire.Fetch(number, pool_number, b"", 0, b"", 1000, 0)
    raw: Raw = {}
    with Echo(str(folder / "echo.sock")) as echo:
        actions: dict[str, Callable[[], object]] = {
            "echo": echo.round_trip,
            "ping": client.ping,
            "store_0": lambda: client.call("store", store),
            "fetch_0": lambda: client.call("fetch", fetch),
        }
        for name, action in _turns(actions, rounds):
            began = time.perf_counter()
            action()
            raw.setdefault(name, []).append((time.perf_counter() - began) * 1e6)
    return raw


def _turns(
    actions: dict[str, Callable[[], object]], rounds: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    for _ in range(rounds):
        yield from actions.items()
