"""The return index against a literal, slow transcription of its definition, victim by victim."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from evoke.core import scores

BINS = 23
EDGES = [1.5**k for k in range(BINS)]
WIDTHS = [EDGES[0], *(EDGES[k] - EDGES[k - 1] for k in range(1, BINS))]
LEVELS = [0, 1, 2, 3, 4, 6, 9, 17]
USES = [0, 1, 2, 3, 4.5, 7, 12, 20]
SETS = ("age", "gap", "count-new")
Kind = tuple[object, ...]  # a class, the name of its set first
Outcomes = dict[tuple[Kind, int], float]


def largest(bounds: list[int], value: float) -> int:
    """Which of rising bounds is the last that value reaches."""
    return max(i for i, bound in enumerate(bounds) if value >= bound)


@dataclass
class Cohort:
    """Blocks of one request with one tail flag and one level."""

    at_s: float
    request: int
    length: int
    tail: bool
    level: int
    gap: int
    fresh: int
    blocks: set[int] = field(default_factory=set)
    bin: int = 0

    def __post_init__(self) -> None:
        self.kinds: dict[str, Kind] = {
            "age": ("age", self.tail),
            "gap": ("gap", self.tail, self.gap),
            "level": ("level", self.tail, self.level),
            "count-new": ("count-new", self.tail, self.level, self.fresh),
        }


def falling(chances: list[float], blocks: list[float]) -> list[float]:
    """chances with chance / width made to fall from its maximum on."""
    rates = [chance / width for chance, width in zip(chances, WIDTHS, strict=True)]
    first = rates.index(max(rates))
    pools: list[tuple[float, float, list[int]]] = []
    for k in range(first, BINS):
        pools.append((chances[k] * blocks[k], WIDTHS[k] * blocks[k], [k]))
        while len(pools) > 1 and pools[-1][0] / pools[-1][1] > pools[-2][0] / pools[-2][1]:
            after, before = pools.pop(), pools.pop()
            pools.append((before[0] + after[0], before[1] + after[1], before[2] + after[2]))
    made = list(chances)
    for returns, seconds, members in pools:
        if len(members) > 1:
            for k in members:
                made[k] = min(1.0, returns / seconds * WIDTHS[k])
    return made


class Learner:
    """Returns, survivals and what follows of them."""

    def __init__(self) -> None:
        self.cohorts: list[Cohort] = []
        self.cohort_of: dict[int, Cohort] = {}
        self.count: dict[int, int] = defaultdict(int)
        self.returned: Outcomes = defaultdict(float)
        self.survived: Outcomes = defaultdict(float)
        self.table: tuple[Outcomes, Outcomes, float] = ({}, {}, 1.0)
        self.made: dict[Kind, list[float]] = {}
        self.indexes: dict[tuple[Kind, int], float] = {}
        self.requests = 0
        self.refresh_at = 16
        self.weights = [0.0, 0.0]

    def request(self, ids: list[int], now_s: float) -> None:
        """Learns and files."""
        for cohort in self.cohorts:
            while cohort.bin < BINS and now_s - cohort.at_s >= EDGES[cohort.bin]:
                self.note(self.survived, cohort, cohort.bin, len(cohort.blocks))
                cohort.bin += 1
        seen = next((i for i, b in enumerate(ids) if b not in self.cohort_of), len(ids))
        gap = 0
        if seen > 1:
            before = self.cohort_of[ids[seen - 1]]
            if 2 * seen + 4 >= before.length:
                gap = 1 + largest([0, 16, 64, 256], now_s - before.at_s)
        fresh = largest([0, 2, 5, 17, 65], len(ids) - seen)
        self.requests += 1
        for i, block in enumerate(ids):
            if block in self.cohort_of:
                old = self.cohort_of[block]
                self.note(self.returned, old, min(old.bin, BINS - 1), 1)
                old.blocks.remove(block)
            level, tail = largest(LEVELS, self.count[block]), i == len(ids) - 1
            self.file(block, Cohort(now_s, self.requests, len(ids), tail, level, gap, fresh))
            self.count[block] += 1
        self.cohorts = [cohort for cohort in self.cohorts if cohort.blocks]
        self.weights = [self.weights[0] + 1, self.weights[1] + len(ids)]
        self.refresh()

    def note(self, outcomes: Outcomes, cohort: Cohort, k: int, blocks: float) -> None:
        """Counts blocks in every class of the cohort."""
        for kind in cohort.kinds.values():
            outcomes[kind, k] += blocks

    def file(self, block: int, wanted: Cohort) -> None:
        """Puts the block under the cohort that is like this one."""
        for cohort in self.cohorts:
            if cohort.request == wanted.request and cohort.kinds == wanted.kinds:
                break
        else:
            cohort = wanted
            self.cohorts.append(cohort)
        cohort.blocks.add(block)
        self.cohort_of[block] = cohort

    def refresh(self) -> None:
        """Every 16th request the index follows what was counted."""
        if self.requests < self.refresh_at:
            return
        mean = self.weights[1] / self.weights[0]
        self.table = (dict(self.returned), dict(self.survived), mean)
        self.made, self.indexes = {}, {}
        self.refresh_at += 16
        factor = 2 ** (-16 / 500000)
        for outcomes in (self.returned, self.survived):
            for key in outcomes:
                outcomes[key] *= factor
        self.weights = [weight * factor for weight in self.weights]

    def chances(self, kind: Kind) -> list[float]:
        """q of a class."""
        if kind in self.made:
            return self.made[kind]
        returned, survived, mean = self.table
        weight = 20 * mean
        if kind[0] == "age":
            weight = 0.1 * mean
            prior = [
                min(0.05, 0.02 * width / (edge - width / 2))
                for edge, width in zip(EDGES, WIDTHS, strict=True)
            ]
        elif kind[0] == "gap":
            prior = self.chances(("age", kind[1]))
        elif kind[0] == "level":
            assert isinstance(kind[2], int)
            times = 1 + USES[kind[2]]
            prior = [1 - (1 - q) ** times for q in self.chances(("age", kind[1]))]
        else:
            prior = self.chances(("level", kind[1], kind[2]))
        back = [returned.get((kind, k), 0.0) for k in range(BINS)]
        blocks = [back[k] + survived.get((kind, k), 0.0) + weight for k in range(BINS)]
        plain = [(back[k] + weight * prior[k]) / blocks[k] for k in range(BINS)]
        self.made[kind] = falling(plain, blocks)
        return self.made[kind]

    def index(self, classes: str, block: int) -> float:
        """The best hits per block-second over any horizon from the block's age on."""
        cohort = self.cohort_of[block]
        key = cohort.kinds[classes], min(cohort.bin, BINS - 1)
        if key not in self.indexes:
            q = self.chances(key[0])
            alive, hits, seconds, best = 1.0, 0.0, 0.0, 0.0
            for k in range(key[1], BINS):
                hits += alive * q[k]
                seconds += alive * WIDTHS[k] * (1 - q[k] / 2)
                best = max(best, hits / seconds)
                alive *= 1 - q[k]
            self.indexes[key] = best
        return self.indexes[key]


class Cache:
    """Who is resident, by one set of classes."""

    def __init__(self, learner: Learner, parent: dict[int, int], capacity: int, classes: str):
        self.learner, self.parent, self.capacity = learner, parent, capacity
        self.classes = classes
        self.resident: set[int] = set()

    def leading(self, ids: list[int]) -> int:
        """Prefix hits."""
        return next((i for i, b in enumerate(ids) if b not in self.resident), len(ids))

    def request(self, ids: list[int]) -> list[int]:
        """Admits all and says who left."""
        self.resident |= set(ids)
        gone: list[int] = []
        while len(self.resident) > self.capacity:
            block = self.worst()
            cohort = self.learner.cohort_of[block]
            while len(self.resident) > self.capacity and block in self.leaves():
                if self.learner.cohort_of[block] is not cohort:
                    break
                self.resident.remove(block)
                gone.append(block)
                block = self.parent[block]
        return gone

    def leaves(self) -> set[int]:
        """Residents without a resident child."""
        return self.resident - {self.parent[block] for block in self.resident}

    def worst(self) -> int:
        """The least index of the oldest leaf of each class; the newest request's own if lower."""
        cohort_of, oldest = self.learner.cohort_of, dict[object, int]()
        for block in sorted(self.leaves(), key=lambda b: cohort_of[b].request):
            oldest.setdefault(cohort_of[block].kinds[self.classes], block)

        def rank(block: int) -> tuple[float, int]:
            return self.learner.index(self.classes, block), cohort_of[block].request

        worst = min(oldest.values(), key=rank)
        for own in self.leaves():
            if cohort_of[own].request == self.learner.requests and rank(own)[0] < rank(worst)[0]:
                return own
        return worst


def model(
    requests: list[list[int]], now_s: list[float], capacity: int, classes: str
) -> Iterator[list[int]]:
    """Who leaves after each request."""
    learner, parent = Learner(), dict[int, int]()
    cache = Cache(learner, parent, capacity, "age" if classes == "shadow" else classes)
    shadows = [Cache(learner, parent, capacity, name) for name in SETS if classes == "shadow"]
    hits = dict.fromkeys(SETS, 0.0)
    for ids, now in zip(requests, now_s, strict=True):
        parent.update(zip(ids, [-1, *ids], strict=False))
        for shadow in shadows:
            hits[shadow.classes] *= 2 ** (-1 / 300)
            hits[shadow.classes] += shadow.leading(ids)
        learner.request(ids, now)
        for shadow in shadows:
            shadow.request(ids)
        for shadow in shadows:
            if hits[shadow.classes] > 1.01 * hits[cache.classes]:
                cache.classes = shadow.classes
        yield cache.request(ids)


def random_case(rng: random.Random) -> tuple[list[list[int]], list[float], int]:
    """Chains that go on, fork from trunks, repeat; seconds to minutes apart."""
    requests: list[list[int]] = []
    now_s: list[float] = []
    now, count = 0.0, 0
    pace = rng.choice([0.3, 3, 40])
    for _ in range(rng.randint(2, 70)):
        past = rng.choice(requests[-rng.choice([3, 30]) :]) if requests else []
        kept = rng.choice([0, len(past), len(past) - 1, rng.randint(0, len(past))])
        new = rng.choice([0, 0, 1, 2, 3, 6]) if kept else rng.randint(1, 8)
        if kept > 0 or new:
            requests.append(past[: max(kept, 0)] + list(range(count, count + new)))
            now_s.append(now)
            count += new
        now += rng.expovariate(1 / pace) * rng.choice([0, 1, 1, 5])
    return requests, now_s, rng.randint(1, 30)


@pytest.mark.parametrize("classes", [*SETS, "shadow"])
def test_the_same_blocks_leave_as_by_the_definition(classes: str) -> None:
    """On 250 random small cases a set of classes, every victim is the model's, in order."""
    rng = random.Random(classes)
    left = 0
    for _ in range(250):
        requests, now_s, capacity = random_case(rng)
        ids = np.array([block for request in requests for block in request], np.uint32)
        known, victims = scores.Identities(), scores.Victims()
        scores.simulate(
            ids,
            np.cumsum([0, *map(len, requests)], dtype=np.uint64),
            np.array(now_s),
            int(ids.max()) + 1,
            capacity,
            tail_first=True,
            clock="request",
            keep_state=True,
            chains=True,
            scored=False,
            known=known,
            scores=scores.Scores(known, 0.05),
            order=scores.ReturnIndex(known, capacity, classes),
            victims=victims,
        )
        expected = list(model(requests, now_s, capacity, classes))
        parts = np.split(victims.ids, victims.starts[1:-1].astype(np.int64))
        assert [part.tolist() for part in parts] == expected
        left += len(victims.ids)
    assert left > 5000
