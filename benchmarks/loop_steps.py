"""CPU milliseconds of the steps of the control loop that used to grow with the number of rows.

    python benchmarks/loop_steps.py [--rows 1200000]

JSON on standard output; the worst of several runs of each step, in CPU time of the thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from evoke.core import native

REQUEST_BLOCKS = 8192
FLUSH_BLOCKS = 4096


def worst_ms(step: Callable[[], object], runs: int = 1) -> float:
    longest_s = 0.0
    for _ in range(runs):
        began_s = time.thread_time()
        step()
        longest_s = max(longest_s, time.thread_time() - began_s)
    return round(longest_s * 1e3, 2)


def fill(index: native.Index, space: int, rows: int) -> tuple[NDArray[np.uint32], dict[str, float]]:
    """All rows, and the cost of a request's inserts with and without a growing table."""
    steady: list[float] = []
    growing: list[float] = []
    made: list[NDArray[np.uint32]] = []
    values = np.arange(REQUEST_BLOCKS, dtype=np.uint64)
    lengths = np.full(REQUEST_BLOCKS, 4096, np.uint32)
    while len(index) < rows:
        keys = np.random.default_rng(len(index)).bytes(32 * REQUEST_BLOCKS)
        grows = index.is_growing()
        cost_ms = worst_ms(
            lambda keys=keys: made.append(  # type: ignore[misc]
                index.insert_many(space, keys, 0, b"", values, lengths, values, 1)
            )
        )
        (growing if grows or index.is_growing() else steady).append(cost_ms)
    costs = {"insert_median": float(np.median(steady)), "insert_worst": max(steady)}
    return np.concatenate(made), {**costs, "insert_while_growing": max(growing, default=0.0)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_200_000)
    options = parser.parse_args()
    index = native.Index()
    space, _ = index.add_namespace(1)
    rows, costs = fill(index, space, options.rows)
    half = rows[: len(rows) // 2].copy()
    index.hold(half)
    costs["victims_64_with_half_held"] = worst_ms(lambda: index.victims(64), 5)
    index.unhold(half)
    costs["rows_in_a_region"] = worst_ms(lambda: index.rows_in(1 << 50, 1 << 51), 5)

    def flush_turn() -> None:
        leaving = index.rows_of(space, FLUSH_BLOCKS)
        index.facts(leaving)
        index.keys(leaving)
        index.erase(leaving)

    costs["flush_turn"] = worst_ms(flush_turn, 20)
    weave = [(0, 3, [(60, 5000)], 1)]  # 5000 % 3 != 0: slots weave without meeting
    costs["largest_layout"] = worst_ms(lambda: native.Layout(weave, 2100, 1 << 30), 5)
    print(json.dumps({"rows": len(rows), "cpu_ms": costs}, indent=2))


if __name__ == "__main__":
    main()
