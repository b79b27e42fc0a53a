"""Fixtures: a scripted daemon, a client of it, and a pool of 16 slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.client import Client, Pool, Space, connect
from tests.client.peer import ScriptedDaemon, make_namespace

AXES = "slot layer kv token head element"
SLOTS = 16


class Engine:
    """A client with one namespace and one pool."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.space: Space = client.namespace(make_namespace())
        block_bytes = self.space.namespace.parts[0].part_bytes
        self.memory = client.pool_memory(SLOTS * block_bytes)
        self.array: NDArray[np.float32] = self.memory.array((SLOTS, 2, 2, 4, 2, 8), np.float32)
        self.pool: Pool = self.space.register_pool(self.memory, self.array, AXES)

    def fill(self, seed: int = 0) -> NDArray[np.float32]:
        """Random numbers into every slot; a copy of them."""
        self.array[:] = np.random.default_rng(seed).random(self.array.shape, np.float32)
        content: NDArray[np.float32] = self.array.copy()
        return content

    def chain(self, blocks: int, seed: int = 0) -> Any:
        tokens = np.random.default_rng(seed).integers(0, 1 << 20, blocks * 4)
        return self.space.keys(tokens)


Connect = Callable[..., Client]


@pytest.fixture
def daemon(socket_dir: Path) -> Iterator[ScriptedDaemon]:
    peer = ScriptedDaemon(socket_dir)
    yield peer
    peer.close()


@pytest.fixture
def joined(socket_dir: Path) -> Iterator[Connect]:
    """joined(...): a client of the daemon in socket_dir, closed after the test."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        clients.append(connect(socket_dir, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def engine(daemon: ScriptedDaemon, joined: Connect) -> Engine:
    return Engine(joined())
