"""An index with a ranker that mirrors it, and the plain truth of what should leave."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoke.core import native, scores

__all__ = ["ALPHA", "BETA", "ORDERS", "RankedIndex", "key_of"]

ALPHA, BETA = 0.05, 0.01
U32 = NDArray[np.uint32]
ORDERS: dict[str, Callable[[scores.Identities], scores.Order]] = {
    "lru": scores.Lru,
    "lfu": scores.Lfu,
    "lrfu": scores.Lrfu,
    "product": lambda known: scores.Product(known, ALPHA, BETA),
}


def key_of(*name: int) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


def rows_of(*rows: int) -> U32:
    return np.array(rows, np.uint32)


class RankedIndex:
    """One namespace of one-part blocks, a page each, in `tier` 1."""

    def __init__(self, order: str, **rules: Any) -> None:
        self.index = native.Index()
        self.index.follow()
        self.space, _ = self.index.add_namespace(1)
        self.known = scores.Identities()
        self.scores = scores.Scores(self.known, ALPHA, True)
        self.ranker = scores.Ranker(self.known, self.scores, **rules)
        self.ranker.set_space(self.space, bytes(16), 4096)
        self.name = order
        self.order = ORDERS[order](self.known)
        self.ranker.use(self.order)
        self.clock = 0.0
        self._next_ref = 0

    def close(self) -> None:
        self.index.close()

    def sync(self) -> None:
        self.ranker.apply(*self.index.take_changes(), self.clock)

    def insert(self, keys: list[bytes], first: int, parent: bytes) -> U32:
        refs = np.arange(len(keys), dtype=np.uint64) + np.uint64(self._next_ref)
        self._next_ref += len(keys)
        sizes = np.full(len(keys), 4096, np.uint32)
        sums = np.zeros(len(keys), np.uint64)
        return self.index.insert_many(
            self.space, b"".join(keys), first, parent, refs, sizes, sums, 1
        )

    def asked(self, keys: list[bytes]) -> None:
        self.clock += 1
        self.sync()
        self.ranker.asked(self.space, b"".join(keys), self.clock, self.clock)

    def find(self, key: bytes) -> int:
        return int(self.index.find(self.space, key)[0])

    def rows(self) -> list[int]:
        rows: list[int] = self.index.rows_of(self.space).tolist()
        return rows

    def rank(self, row: int) -> tuple[float, ...]:
        """Smallest leaves first, as the formula says."""
        state = self.ranker.row(row, self.clock)
        if self.name == "lru":
            return (state["seq"],)
        if self.name == "lfu":
            return (state["count"], state["seq"])
        if self.name == "lrfu":
            return (round(state["log_score"], 9), state["seq"])
        idle, log_score = state["idle"], state["log_score"]
        priority = np.expm1(log_score) * np.expm1(-BETA * idle)
        return (-round(float(priority), 12), state["seq"])

    def literal_victims(self, count: int) -> list[int]:
        """Every candidate is looked at for every victim."""
        there = {row: self.index.row(row) for row in self.rows()}
        children = {row: state["children"] for row, state in there.items()}
        ranks = {row: self.rank(row) for row in there}
        chosen: list[int] = []
        while len(chosen) < count:
            may = [r for r in there if not children[r] and not there[r]["holds"]]
            if not may:
                break
            worst = min(may, key=lambda row: ranks[row])
            chosen.append(worst)
            parent = there.pop(worst)["parent_row"]
            if parent != native.NO_ROW:
                children[parent] -= 1
        return chosen

    def check_mirror(self) -> None:
        """What the ranker believes of every row is what the index says."""
        self.sync()
        assert self.ranker.rows == len(self.index)
        for row in self.rows():
            mine, truth = self.ranker.row(row, self.clock), self.index.row(row)
            assert mine["parent_row"] == truth["parent_row"]
            assert mine["held"] == (truth["holds"] > 0)
            assert mine["resident"] == (truth["tier"] == 1)


class Churn:
    """Random things that happen to a RankedIndex."""

    def __init__(self, space: RankedIndex, rng: random.Random) -> None:
        self.space, self.rng = space, rng
        self.chains = self._chains()
        self.held: list[int] = []

    def _chains(self) -> list[list[bytes]]:
        chains: list[list[bytes]] = []
        for number in range(self.rng.randint(1, 6)):
            trunk = self.rng.choice(chains) if chains else []
            shared = trunk[: self.rng.randrange(len(trunk) + 1)]
            own = [key_of(number, i) for i in range(self.rng.randint(1, 8))]
            chains.append([*shared, *own])
        return chains

    def step(self) -> None:
        rng, space = self.rng, self.space
        chain = rng.choice(self.chains)
        act = rng.randrange(8)
        if act < 2:
            space.asked(chain[: rng.randint(1, len(chain))])
        elif act < 4:
            begin = rng.randrange(len(chain))
            keys = chain[begin : rng.randint(begin + 1, len(chain))]
            space.insert(keys, begin, chain[begin - 1] if begin else b"")
        elif act == 4:
            space.index.link(space.space, b"".join(chain))
        elif act == 5 and space.rows():
            rows = rng.sample(space.rows(), rng.randint(1, len(space.rows())))
            space.sync()
            space.ranker.used(np.array(rows, np.uint32), space.clock)
        elif act == 6:
            self._hold()
        elif space.rows():
            space.index.erase(rows_of(rng.choice(space.rows())))

    def _hold(self) -> None:
        if self.held and self.rng.random() < 0.6:
            row = self.held.pop(self.rng.randrange(len(self.held)))
            self.space.index.unhold(rows_of(row))
        elif self.space.rows():
            row = self.rng.choice(self.space.rows())
            self.space.index.hold(rows_of(row))
            self.held.append(row)
