"""What the return index costs the daemon: python benchmarks/bench_return_index.py.

2,000 requests of 500 blocks, a minute's worth: sessions that come back with a longer prompt, over a
cache of a tenth of the blocks. Share of a core: CPU seconds by 60 s, the least of the rounds.
`shadow` has three caches of keys beside the order; `age` has none; `lru` is the plain order.
"""

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from evoke.core import scores
from evoke.policy.classics import Lru
from evoke.policy.formula import Formula
from evoke.policy.return_index import ReturnIndex

REQUESTS = 2000
MEAN_BLOCKS = 500
MINUTE_S = 60.0
Stream = tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.float64], int]


def stream(sessions: int = 100) -> Stream:
    """Sessions of 20 turns, each 36 blocks longer, after one of three trunks of 120 blocks."""
    rng = np.random.default_rng(1)
    turns = REQUESTS // sessions
    grown = 2 * (MEAN_BLOCKS - 120) // (turns + 1)
    tails = [
        360 + np.arange(turns * grown, dtype=np.uint32) + np.uint32(s * turns * grown)
        for s in range(sessions)
    ]
    trunks = [np.arange(120, dtype=np.uint32) + np.uint32(120 * t) for t in range(3)]
    turn_of = [0] * sessions
    requests = []
    for session in rng.permutation(np.repeat(np.arange(sessions), turns)):
        turn_of[session] += 1
        own = tails[session][: turn_of[session] * grown]
        requests.append(np.concatenate([trunks[session % 3], own]))
    starts = np.cumsum([0, *map(len, requests)], dtype=np.uint64)
    now_s = np.linspace(0, MINUTE_S, len(requests))
    return np.concatenate(requests), starts, now_s, 360 + sessions * turns * grown


def cpu_seconds(made: Stream, formula: Formula) -> tuple[float, dict[str, int]]:
    """Of one run."""
    ids, starts, now_s, identities = made
    known = scores.Identities()
    order, written = formula.order(known, identities // 10), formula.scores(known)
    began = time.process_time()
    counts = scores.simulate(
        ids,
        starts,
        now_s,
        identities,
        identities // 10,
        tail_first=True,
        clock=formula.clock,
        keep_state=True,
        chains=formula.chains,
        scored=formula.scored,
        known=known,
        scores=written,
        order=order,
    )
    return time.process_time() - began, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    made = stream()
    formulas: dict[str, Formula] = {
        "lru": Lru(),
        "return_index:classes=age": ReturnIndex("age"),
        "return_index": ReturnIndex(),
    }
    for spec, formula in formulas.items():
        runs = [cpu_seconds(made, formula) for _ in range(rounds)]
        least = min(seconds for seconds, _ in runs)
        hits = 100 * runs[0][1]["prefix_hits"] / len(made[0])
        print(
            f"{spec:28} {100 * least / MINUTE_S:6.2f} % of a core"
            f" {1e9 * least / len(made[0]):6.0f} ns a block  prefix hits {hits:5.2f} %"
        )


if __name__ == "__main__":
    main()
