"""The contract of an order, step by step, under chance: what may leave, and what is remembered."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from evoke.core import scores

BLOCKS = 60
Make = Callable[[scores.Identities], scores.Order]
ORDERS: dict[str, Make] = {
    "lru": scores.Lru,
    "lfu": scores.Lfu,
    "lrfu": scores.Lrfu,
    "return_index": lambda known: scores.ReturnIndex(known, 25),
    "return_index, gap": lambda known: scores.ReturnIndex(known, 25, "gap"),
}


class Tier:
    """An order over residents, with a literal account of who may leave."""

    def __init__(self, make: Make, seed: int) -> None:
        self.rng = random.Random(seed)
        self.known = scores.Identities()
        self.known.grow(BLOCKS)
        for block in range(BLOCKS):
            self.known.set_bytes(block, self.rng.choice([1, 1, 4]))
        self.order = make(self.known)
        self.order.grow(BLOCKS)
        self.parent: dict[int, int | None] = {}
        self.resident: set[int] = set()
        self.held: set[int] = set()
        self.seq = 0
        self.now_s = 0.0

    def candidates(self) -> set[int]:
        """Resident, not held, without a resident child."""
        return self.resident - self.held - {self.parent[block] for block in self.resident}

    def step(self) -> None:
        """One of the things that happen to a tier."""
        chance = self.rng.random()
        self.now_s += self.rng.choice([0, 0.2, 3, 50, -20])
        if chance < 0.4:
            self.ask()
        elif chance < 0.5 and self.resident:
            self.hold(self.rng.choice(sorted(self.resident)))
        elif chance < 0.75:
            self.evict(self.rng.randint(1, 6))
        else:
            self.forget()

    def ask(self) -> None:
        """A request; its blocks, or only a part of them, become resident from the root on."""
        path = self.path(self.rng.choice([*self.parent])) if self.parent else []
        fresh = [block for block in range(BLOCKS) if block not in self.parent]
        for block in fresh[: self.rng.randint(0, 5)]:
            self.parent[block] = path[-1] if path else None
            path.append(block)
        if self.rng.random() < 0.9:
            self.order.request(np.array(path, np.uint32), self.now_s, self.now_s)
        for block in reversed(path):
            self.seq += 1
            self.known.note(block, self.now_s, self.seq)
        for block in path[: self.rng.randint(0, len(path) + 3)]:
            if block not in self.resident:
                self.order.admit(block, self.parent[block])
                self.resident.add(block)

    def path(self, block: int | None) -> list[int]:
        """From the root to the block."""
        path = []
        while block is not None:
            path.append(block)
            block = self.parent[block]
        return path[::-1]

    def hold(self, block: int) -> None:
        """Holds it, or lets go of it."""
        if block in self.held:
            self.order.unhold(block)
        else:
            self.order.hold(block)
        self.held ^= {block}

    def evict(self, count: int) -> None:
        """Lets the worst go; the order must name them alike one by one and all at once."""
        named = self.order.victims(count, self.now_s).tolist()
        assert self.order.victims(count, self.now_s).tolist() == named
        for block in named:
            assert self.order.worst(self.now_s) == block
            assert block in self.candidates()
            self.order.leave(block)
            self.resident.remove(block)
        if len(named) < count:
            assert not self.candidates()

    def forget(self) -> None:
        """Drops what no remembered block is chained to; its number is another block's later."""
        parents = set(self.parent.values())
        for block in [b for b in self.parent if b not in self.resident and b not in parents]:
            self.order.forget(block)
            self.known.set_bytes(block, self.rng.choice([1, 2, 4]))
            del self.parent[block]


@pytest.mark.parametrize("name", ORDERS)
def test_only_candidates_are_named_and_naming_changes_nothing(name: str) -> None:
    """Whatever happens, victims are unheld leaves, the same ones by ones and in one call."""
    for seed in range(20):
        tier = Tier(ORDERS[name], seed)
        for _ in range(400):
            tier.step()
            assert tier.order.candidates == len(tier.candidates())
            assert tier.order.residents == len(tier.resident)


def test_what_is_forgotten_costs_no_memory() -> None:
    """The return index remembers cohorts of remembered blocks only, at most 16 a request."""
    order = scores.ReturnIndex(known := scores.Identities(), 50)
    known.grow(1000)
    order.grow(1000)
    for i in range(100):
        order.request(np.arange(10 * i, 10 * i + 10, dtype=np.uint32), i, i)
    assert order.cohorts == 200
    for block in range(5, 1000):
        order.forget(block)
    assert order.cohorts == 1
    order.request(np.arange(5, dtype=np.uint32), 100, 100)
    assert order.cohorts == 2
    for block in range(5):
        order.forget(block)
    assert order.cohorts == 0


def test_a_wrong_step_changes_nothing() -> None:
    """A step on a block in the wrong state is an error that names it."""
    order = scores.Lru(known := scores.Identities())
    with pytest.raises(ValueError, match="count: 2 is above the 1 identities"):
        known.grow(1) or order.grow(2)  # type: ignore[func-returns-value]
    order.grow(1)
    order.admit(0)
    for wrong in (order.admit, order.forget):
        with pytest.raises(ValueError, match="id: 0 is resident"):
            wrong(0)
    order.leave(0)
    for step in (order.leave, order.hold, order.unhold):
        with pytest.raises(ValueError, match="id: 0 is not resident"):
            step(0)
    with pytest.raises(ValueError, match="id: 1 is not below 1"):
        order.admit(0, 1)
    assert (order.residents, order.candidates, order.worst(0)) == (0, 0, None)
