"""Stores, fetches and look-ups through a daemon (pytest-benchmark), and whether the two programs
that measure the main figure agree. `make bench` runs it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.client import NO_SALT, Chain, Client, Group, Namespace, Part, Pool, Space, connect

BLOCK_BYTES, BATCH, SLOTS = 2 << 20, 32, 64  # 64 MiB a request
ROUNDS = 20
AGREE = 0.15


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    config = {"host.capacity": "256MiB"}
    with connect("embedded", config=config, raise_errors=True, timeout_s=30) as client:
        yield client


@pytest.fixture(scope="module")
def space(client: Client) -> Space:
    part = Part(groups=(Group(layers=32, kv_heads=8, head_size=128),))
    namespace = Namespace(
        model="bench", weights_epoch="0", position="none", dtype="float16",
        block_tokens=16, parts=(part,), salt=NO_SALT,
    )  # fmt: skip
    return client.namespace(namespace)


@pytest.fixture(scope="module", params=["stored_order", "head_token_element"])
def pool(client: Client, space: Space, request: pytest.FixtureRequest) -> Pool:
    memory = client.pool_memory(SLOTS * BLOCK_BYTES)
    memory.array(SLOTS * BLOCK_BYTES)[:] = np.arange(SLOTS * BLOCK_BYTES, dtype=np.uint8)
    if request.param == "stored_order":
        view = memory.array((SLOTS, 32, 2, 16, 8, 128), np.float16)
        return space.register_pool(memory, view, "slot layer kv token head element")
    tensor_bytes = SLOTS * BLOCK_BYTES // 64
    shape = (8, SLOTS * 16, 128)
    views = [memory.array(shape, np.float16, i * tensor_bytes) for i in range(64)]
    return space.register_pool(memory, views, "head seq element")


def chain_of(space: Space, number: int) -> Chain:
    return space.keys(np.full(BATCH * 16, number, np.uint32))


def test_store_64_mib(client: Client, space: Space, pool: Pool, benchmark: Any) -> None:
    """A request of 32 new blocks of 2 MiB is stored whole, into an arena with room for it."""
    numbers = iter(range(10_000))

    def fresh() -> tuple[tuple[Chain], dict[str, Any]]:
        client.flush(space)
        return (chain_of(space, next(numbers)),), {}

    def store(chain: Chain) -> int:
        return int(space.store(pool, chain, np.arange(BATCH)).stored)

    stored = benchmark.pedantic(store, setup=fresh, rounds=ROUNDS, warmup_rounds=2)
    assert stored == BATCH


def test_fetch_64_mib(client: Client, space: Space, pool: Pool, benchmark: Any) -> None:
    """A request of 32 resident blocks of 2 MiB arrives whole in other slots."""
    client.flush(space)
    chain, slots = chain_of(space, 20_000), BATCH + np.arange(BATCH)
    assert space.store(pool, chain, np.arange(BATCH)).stored == BATCH

    def fetch() -> int:
        return int(space.fetch(pool, chain, slots).hits)

    assert benchmark.pedantic(fetch, rounds=ROUNDS, warmup_rounds=2) == BATCH


def test_round_trip(client: Client, benchmark: Any) -> None:
    """A ping is answered."""
    assert benchmark(client.ping) >= 0


def _run(*words: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *words], check=True, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def test_main_figure_agrees(benchmark: Any) -> None:
    """`evokectl bench` and a program without the product's timers measure the same within 15 %."""
    evokectl = "from evoked.cli import main; main()"
    ours = _run("-c", evokectl, "bench", "--quick", "--json")
    program = str(Path(__file__).with_name("main_figure.py"))
    theirs = benchmark.pedantic(_run, args=(program,), rounds=1)
    for name in ("store_cpu_vs_memcpy", "fetch_cpu_vs_memcpy"):
        assert abs(ours[name] / theirs[name] - 1) <= AGREE, (name, ours[name], theirs[name])
