"""Shared memory that blocks of one namespace are copied through, and the verbs over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from evoke.client.errors import BadArgument
from evoke.client.namespace import Namespace

__all__ = ["Staging"]

AXES: Final = "slot layer kv token head element"
TIMEOUT_S: Final = 10.0


class Staging:
    """A pool in stored order, whose slots 0, 1, ... are reused in every round. One user a time."""

    def __init__(self, client: Any, namespace: Namespace, pool_bytes: int) -> None:
        """At least one block, at most what pool_bytes holds."""
        if pool_bytes < 1:
            raise BadArgument(f"pool_bytes: {pool_bytes}, from 1")
        part = namespace.parts[0]
        group = part.groups[0]
        self.block_bytes = part.part_bytes
        self.slots = max(1, pool_bytes // self.block_bytes)
        self.space = client.namespace(namespace)
        self._memory = client.pool_memory(self.slots * self.block_bytes)
        self._bytes = self._memory.array(self.slots * self.block_bytes)
        item_bytes = self.block_bytes // (group.numbers() * namespace.block_tokens)
        shape = (group.layers, 2, namespace.block_tokens, group.kv_heads, group.head_size)
        view = self._memory.array((self.slots, *shape), f"u{item_bytes}")
        self._pool = self.space.register_pool(self._memory, view, AXES)

    def rounds(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(first, count) of the pieces of blocks first..end-1 that fit the pool."""
        for start in range(first, end, self.slots):
            yield start, min(self.slots, end - start)

    def buffer(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of slots 0..count-1."""
        part: np.ndarray[Any, np.dtype[np.uint8]] = self._bytes[: count * self.block_bytes]
        return part

    def store(self, chain: Any, first: int, count: int) -> tuple[int, int]:
        """Slots 0..count-1 as blocks first.. of chain: (newly stored, readable before)."""
        slots = np.arange(count)
        result = self.space.store(self._pool, chain, slots, first, timeout_s=TIMEOUT_S)
        stored = int(result.stored)
        return stored, int(result.readable) - stored

    def fetch(self, chain: Any, first: int, count: int) -> int:
        """Blocks first.. of chain into slots 0..count-1; how many leading ones arrived."""
        slots = np.arange(count)
        result = self.space.fetch(self._pool, chain, slots, first, timeout_s=TIMEOUT_S)
        return int(result.leading)

    def close(self) -> None:
        self._pool.close()
        self._memory.close()
