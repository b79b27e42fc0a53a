"""Speed of the simulator beside libCacheSim, in one process and on one trace, run by turns.

    pip install libcachesim        (0.3.5; not needed for anything else)
    python benchmarks/simulate.py tests/data/traces/mooncake_conversation.jsonl.xz [--share 0.1]

libCacheSim runs LRU with hashpower 18 from a file in its own binary form, which a first run has
brought into memory. Seconds are CPU seconds of this process: other load does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np

from evoke.policy.simulate import simulate
from evoke.policy.spec import make_formula
from evoke.policy.traces import Trace
from evoked.cli.trace_files import load_requests

ROUNDS = 7
RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
# name -> (formula, options, ratio to reach or None)
POLICIES: dict[str, tuple[str, dict[str, Any], float | None]] = {
    "lru": ("lru", {}, None),
    "lrfu 0.05": ("lrfu", {"alpha": 0.05, "state": "keep"}, 1.0),
    "lrfu 0.001": ("lrfu", {"alpha": 0.001, "state": "keep"}, 1.0),
    "product": ("product", {"alpha": 0.05, "beta": 0.001, "state": "keep"}, 0.5),
    "return_index": ("return_index", {}, None),
}


def oracle_general(trace: Trace, path: Path) -> None:
    """libCacheSim's binary form: one access a record, size 1."""
    records = np.zeros(trace.accesses, RECORD)
    records["id"] = trace.ids.astype(np.uint64) + 1
    records["size"] = 1
    records["next"] = -1
    records.tofile(path)


def cpu_s(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(trace: Trace, capacity_blocks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        oracle_general(trace, path)

        def theirs() -> float:
            kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
            reader = libcachesim.TraceReader(trace=str(path), trace_type=kind)
            cache = libcachesim.LRU(cache_size=capacity_blocks, hashpower=18)
            missed, _ = cache.process_trace(reader)
            return float(missed)

        ours = {
            name: partial(simulate, trace, make_formula(formula, options), capacity_blocks, "list")
            for name, (formula, options, _) in POLICIES.items()
        }
        hits = round((1 - theirs()) * trace.accesses)
        assert hits == ours["lru"]().hits, "the two LRUs disagree"
        seconds: dict[str, list[float]] = {name: [] for name in ("libCacheSim LRU", *ours)}
        for _ in range(ROUNDS):
            seconds["libCacheSim LRU"].append(cpu_s(theirs))
            for name, run in ours.items():
                seconds[name].append(cpu_s(run))
    base = seconds["libCacheSim LRU"]
    figures: dict[str, Any] = {"accesses": trace.accesses, "capacity_blocks": capacity_blocks}
    for name, found in seconds.items():
        ratios = [b / s for b, s in zip(base, found, strict=True)]
        figures[name] = {
            "ratio": round(statistics.median(ratios), 2),
            "spread": [round(min(ratios), 2), round(max(ratios), 2)],
            "target": POLICIES[name][2] if name in POLICIES else None,
            "million_accesses_per_s": round(trace.accesses / statistics.median(found) / 1e6, 1),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--share", type=float, default=0.1, help="capacity, of distinct blocks")
    arguments = parser.parse_args()
    trace = load_requests(arguments.trace)
    capacity_blocks = int(trace.identities * arguments.share)
    print(json.dumps(measure(trace, capacity_blocks), indent=1))


if __name__ == "__main__":
    main()
