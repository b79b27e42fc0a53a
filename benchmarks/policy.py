"""The daemon's ranking with a million blocks, as multiples of one numpy pass over the scores.

python benchmarks/policy.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from evoke.core import native, scores

BLOCKS = 1_000_000
CHAIN = 1000
ALPHA = 0.05


def best_seconds(run: Callable[[], object], times: int = 5) -> float:
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    index = native.Index()
    index.follow()
    space, _ = index.add_namespace(1)
    known = scores.Identities()
    ranker = scores.Ranker(known, scores.Scores(known, ALPHA, True))
    ranker.set_space(space, bytes(16), 4096)
    ranker.use(scores.Lrfu(known))
    packed = np.random.default_rng(1).bytes(32 * BLOCKS)
    sizes, sums = np.full(CHAIN, 4096, np.uint32), np.zeros(CHAIN, np.uint64)
    for first in range(0, BLOCKS, CHAIN):
        refs = np.arange(first, first + CHAIN, dtype=np.uint64)
        keys = packed[32 * first : 32 * (first + CHAIN)]
        index.insert_many(space, keys, 0, b"", refs, sizes, sums, 1)
    ranker.apply(*index.take_changes(), 0.0)

    keys_k, at, clock = np.zeros(BLOCKS), np.zeros(BLOCKS), 50.0
    rate = -np.log1p(-ALPHA)
    one_pass = best_seconds(lambda: np.expm1(keys_k - clock * rate) * np.expm1(-0.001 * at))
    percent = packed[: 32 * BLOCKS // 100]
    measured = {
        "touch of 1 %": best_seconds(lambda: ranker.asked(space, percent, 1.0, 1.0)),
        "1,000 victims": best_seconds(lambda: ranker.make_room(1000, 0, clock=1.0)),
        "reload": best_seconds(lambda: ranker.rescale(0.06, 1.0, 1.0)),
        "another formula": best_seconds(lambda: ranker.use(scores.Lfu(known)), 1),
    }
    print(f"one numpy pass over {BLOCKS:,} scores: {1000 * one_pass:.1f} ms")
    for name, seconds in measured.items():
        print(f"{name}: {1000 * seconds:.2f} ms, {seconds / one_pass:.3f} passes")


if __name__ == "__main__":
    main()
