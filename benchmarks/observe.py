"""What reports of attention cost: the daemon's share of a core, and the client's reduction.

100 sequences of 128K tokens (8,192 blocks of 16) decode at a given speed and report every 8 steps.
The daemon's side is measured from the frame on: decoding, checks, sums, and the fold of every tick.
The reduction is compared with one pass over the same weights (numpy's sum).

    python benchmarks/observe.py [--sequences 100] [--blocks 8192] [--steps-per-s 30]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from evoke.client import wire
from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.client.signals import Channel, Reduction
from evoke.core import native
from evoked.counters import Counters
from evoked.observe import Observe, ScoreTable
from evoked.registry import Registry
from evoked.sessions import Tenant
from evoked.timers import Timers

EVERY_STEPS = 8
SECONDS = 4  # of decoding that are played


class Reporter:
    """What the verb needs of a session."""

    def __init__(self) -> None:
        self.namespaces: dict[int, Any] = {}


def daemon_share(sequences: int, blocks: int, channels: int, steps_per_s: float) -> float:
    """Seconds of a core per second of decoding."""
    index = native.Index()
    registry = Registry(index, namespaces_max=1, pools_max=1)
    registry.make_tenant = lambda salt: Tenant(share_bytes=1, grants_max=1, requests_per_s=1 << 30)
    namespace = Namespace(
        model="benchmark",
        weights_epoch="1",
        position="none",
        dtype="float16",
        block_tokens=16,
        parts=(Part(groups=(Group(layers=80, kv_heads=8, head_size=128),)),),
        salt=NO_SALT,
    )
    entry = registry._add(namespace)
    table = ScoreTable(limit=sequences * blocks)
    observe = Observe(registry, Counters(), Timers(), time.monotonic, table)
    session: Any = Reporter()
    session.namespaces[entry.number] = entry
    rng = np.random.default_rng(1)
    mass = rng.dirichlet(np.full(blocks, 0.2), channels).astype(np.float16).tobytes()
    frames = []
    for number in range(sequences):
        for first in range(0, blocks, wire.OBSERVE_KEYS_MAX):
            count = min(wire.OBSERVE_KEYS_MAX, blocks - first)
            keys = rng.bytes(32 * count)
            args = wire.Observe(entry.number, number, first, keys, 1, b"", 1, False, b"")
            observe.observe(session, 1, args)
        args = wire.Observe(
            entry.number, number, blocks, b"", channels, mass, EVERY_STEPS, False, b""
        )
        frames.append(wire.encode_request(bytes(16), 1, "observe", args))
    reports = round(sequences * steps_per_s / EVERY_STEPS)  # a second
    begin = time.process_time()
    for second in range(SECONDS):
        for number in range(reports):
            _, decoded = wire.decode_request(frames[(second * reports + number) % sequences])
            assert isinstance(decoded, wire.Observe)
            observe.observe(session, 1, decoded)
        observe.tick()
    spent_s = time.process_time() - begin
    index.close()
    return spent_s / SECONDS


def reduction_ratio(fold: str, layers: int, heads: int, tokens: int) -> float:
    """Time of one reduction / time of numpy's sum over the same weights; the best of several."""
    rng = np.random.default_rng(2)
    weights = rng.random((layers, heads, tokens), np.float32) / tokens
    channel = {
        "mean": Channel.mean(layers, heads),
        "max": Channel.highest(layers, heads),
        "mean of 8 largest": Channel.largest(layers, heads, 8),
    }[fold]
    ours, passes = [], []
    for _ in range(7):
        begin = time.process_time()
        float(weights.sum())
        passes.append(time.process_time() - begin)
        reduction = Reduction(layers, heads, 16, [channel])
        begin = time.process_time()
        for layer in range(layers):
            reduction.add(layer, weights[layer])
        reduction.take()
        ours.append(time.process_time() - begin)
    return min(ours) / min(passes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=8192)
    parser.add_argument("--steps-per-s", type=float, default=30.0)
    given = parser.parse_args()
    for channels in (1, 2):
        share = daemon_share(given.sequences, given.blocks, channels, given.steps_per_s)
        print(
            f"{given.sequences} sequences of {given.blocks} blocks, {channels} channels, "
            f"{given.steps_per_s:g} steps/s each: {100 * share:.2f} % of a core"
        )
    for fold in ("mean", "max", "mean of 8 largest"):
        ratio = reduction_ratio(fold, 2, 32, 131_072)
        print(f"reduction, {fold}: {ratio:.2f} x one pass over the weights")


if __name__ == "__main__":
    main()
