"""The clairvoyant bound against an exhaustive search over everything that a cache could keep."""

import random

import numpy as np

from evoke.core import scores

Requests = list[list[int]]


def random_requests(rng: random.Random) -> Requests:
    """Root-to-node paths in a random small forest."""
    blocks = rng.randint(2, 7)
    parents = [rng.randint(-1, block - 1) for block in range(blocks)]
    requests: Requests = []
    for _ in range(rng.randint(2, 9)):
        path = [rng.randrange(blocks)]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        requests.append(path[::-1])
    return requests


def clairvoyant(requests: Requests, capacity: int, chains: bool) -> dict[str, int]:
    """Counts of the policy's run."""
    known = scores.Identities()
    return scores.simulate(
        np.array([block for request in requests for block in request], np.uint32),
        np.cumsum([0, *map(len, requests)], dtype=np.uint64),
        np.arange(len(requests), dtype=np.float64),
        8,
        capacity,
        tail_first=True,
        clock="request",
        keep_state=True,
        chains=chains,
        scored=False,
        known=known,
        scores=scores.Scores(known, 0.05),
        order=scores.Clairvoyant(known),
    )


def subsets(mask: int, most: int) -> list[int]:
    """Every part of a set of bits that has at most so many."""
    found = []
    part = mask
    while True:
        if part.bit_count() <= most:
            found.append(part)
        if part == 0:
            return found
        part = (part - 1) & mask


def best_prefix_hits(requests: Requests, capacity: int) -> int:
    """The most that any sequence of kept sets gets."""
    best = {0: 0}
    for request in requests:
        asked = sum(1 << block for block in request)
        after: dict[int, int] = {}
        for held, hits in best.items():
            leading = 0
            while leading < len(request) and held >> request[leading] & 1:
                leading += 1
            for kept in subsets(held | asked, capacity):
                after[kept] = max(after.get(kept, 0), hits + leading)
        best = after
    return max(best.values())


def test_nothing_that_a_cache_could_keep_gets_more() -> None:
    """On 300 random small trees the bound is what an exhaustive search finds."""
    rng = random.Random(7)
    positive = 0
    for _ in range(300):
        requests, capacity = random_requests(rng), rng.randint(1, 4)
        most = best_prefix_hits(requests, capacity)
        for chains in (True, False):
            counts = clairvoyant(requests, capacity, chains)
            assert counts["prefix_hits"] == most, (requests, capacity)
            assert counts["hits"] == most
        positive += most > 0
    assert positive > 200


def test_of_blocks_used_next_by_the_same_request_the_root_stays() -> None:
    """Equals fall to the depth: a chain of four in a cache of two keeps its first two."""
    counts = clairvoyant([[0, 1, 2, 3], [0, 1, 2, 3]], 2, chains=True)
    assert counts["prefix_hits"] == 2
