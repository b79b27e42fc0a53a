"""A flash directory with a tier memory before it, for the tests of the spill store."""

from __future__ import annotations

import mmap
import select
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evoke.core import native, spill

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
ID = bytes(range(32))
MEMORY = 3  # the number that refs have
MIB = 1 << 20


class Done(NamedTuple):
    ticket: int
    kind: int
    outcome: int
    error: int
    is_final: bool
    slot: int
    sums: U64


def key(number: int) -> bytes:
    return (number + 1).to_bytes(8, "little") * 4


def bytes_of(number: int, length_bytes: int) -> U8:
    """What block `number` holds; different in each."""
    return np.random.default_rng(number).integers(0, 256, length_bytes, dtype=np.uint8)


def wait(store: spill.Store, ticket: int = 0, finals: int = 1, seconds: float = 60) -> list[Done]:
    """Results until that ticket's final one, or without a ticket until so many final ones."""
    results: list[Done] = []
    until = time.monotonic() + seconds
    while True:
        ended = [done for done in results if done.is_final and ticket in (0, done.ticket)]
        if len(ended) >= (1 if ticket else finals):
            return results
        ready, _, _ = select.select([store.fd], [], [], max(0, until - time.monotonic()))
        assert ready, f"no result in {seconds} s: {results} {store.stats()}"
        results += [Done(*done) for done in store.take()]


class Flash:
    """Blocks are numbers; each has one namespace, key and content."""

    def __init__(self, directory: Path, memory_bytes: int = 16 * MIB) -> None:
        self.directory = directory
        self.map = mmap.mmap(-1, memory_bytes)
        self.memory: U8 = np.frombuffer(self.map, np.uint8)
        self.opened: list[spill.Store] = []
        self.store: spill.Store

    def open(self, capacity_bytes: int = 16 * MIB, **options: Any) -> spill.Store:
        options.setdefault("segment_bytes", 2 * MIB)
        memories = [(MEMORY, self.memory.ctypes.data, self.memory.size)]
        self.store = spill.Store(str(self.directory), capacity_bytes, memories, **options)
        self.opened.append(self.store)
        until = time.monotonic() + 60
        while self.store.stats()["segments_ready"] < self.store.stats()["segments"]:
            assert time.monotonic() < until, self.store.stats()
            time.sleep(0.002)
        self.space = self.store.add_namespace(ID)
        return self.store

    def close(self) -> None:
        for store in self.opened:
            assert store.close()

    def write_at(self, number: int, offset: int, length_bytes: int, **options: Any) -> int:
        """The content goes to that offset of the memory; a ticket."""
        content = bytes_of(number, length_bytes)
        self.memory[offset : offset + length_bytes] = content
        parent = key(number - 1) if number else b""
        return self.store.write(
            self.space,
            key(number),
            parent,
            number,
            np.array([MEMORY << 56 | offset], np.uint64),
            np.array([length_bytes], np.uint32),
            np.array([native.xxh3_64(content)], np.uint64),
            **options,
        )

    def write(self, number: int, length_bytes: int = 65536) -> Done:
        ticket = self.write_at(number, 0, length_bytes)
        assert ticket, f"no room for block {number}"
        return wait(self.store, ticket)[-1]

    def slot(self, number: int) -> int:
        return int(self.store.find(self.space, key(number))[0])

    def read_at(self, slot: int, offset: int, length_bytes: int, **options: Any) -> int:
        refs = np.array([MEMORY << 56 | offset], np.uint64)
        return self.store.read(slot, refs, np.array([length_bytes], np.uint32), **options)

    def read(self, number: int, **options: Any) -> U8 | None:
        """The block's bytes, or None for a miss: not found, or found damaged."""
        slot = self.slot(number)
        if slot == spill.NO_SLOT:
            return None
        length_bytes = self.store.entry(slot)["length_bytes"]
        self.memory[:length_bytes] = 0
        done = wait(self.store, self.read_at(slot, 0, length_bytes, **options))[-1]
        assert done.outcome in (spill.DONE, spill.CORRUPT), done
        return self.memory[:length_bytes].copy() if done.outcome == spill.DONE else None

    def holds(self, number: int, length_bytes: int = 65536) -> bool:
        """Whether the block is here, with its own bytes; other bytes are a failure."""
        content = self.read(number)
        assert content is None or np.array_equal(content, bytes_of(number, length_bytes))
        return content is not None
