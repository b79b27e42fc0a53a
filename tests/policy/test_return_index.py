"""The return index: what it keeps, what it refuses, what it does with clocks and sizes."""

import numpy as np
import pytest

from evoke.core import scores


def run(
    requests: list[list[int]],
    now_s: list[float],
    capacity: int,
    classes: str = "shadow",
) -> dict[str, int]:
    """Counts of a run over these requests."""
    ids = np.array([block for request in requests for block in request], np.uint32)
    starts = np.cumsum([0, *map(len, requests)], dtype=np.uint64)
    known = scores.Identities()
    return scores.simulate(
        ids,
        starts,
        np.array(now_s, np.float64),
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
    )


def chain(first: int, length: int) -> list[int]:
    """Numbers of a chain's blocks."""
    return list(range(first, first + length))


def test_a_prompt_longer_than_the_cache_keeps_its_beginning() -> None:
    """The tail of a prompt that does not fit is what leaves."""
    counts = run([chain(0, 10)] * 2, [0.0, 1.0], capacity=4)
    assert counts == {"accesses": 20, "hits": 4, "prefix_hits": 4, "evictions": 12}


@pytest.mark.parametrize("backwards_s", [float("nan"), -1e9, 0.0])
def test_a_clock_that_runs_backwards_stands_still(backwards_s: float) -> None:
    """Ages are taken from the latest time seen, so that a jump back is as if no time had passed."""
    requests = [chain(10 * (i % 7), 6) for i in range(60)]
    times = [10.0 + i for i in range(60)]
    jumping = [time if i % 5 else backwards_s for i, time in enumerate(times)]
    jumping[0] = times[0]
    standing = list(np.fmax.accumulate(np.array(jumping)))
    assert run(requests, jumping, 20) == run(requests, standing, 20)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity_bytes": 0}, "capacity: 0 is not above 0"),
        ({"capacity_bytes": 9, "classes": "x"}, "classes: 'x' is none of age, gap,"),
        ({"capacity_bytes": 9, "memory_requests": 0.5}, "memory_requests: 0.5"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, float], message: str) -> None:
    """A bad field is an error that names it and the value."""
    with pytest.raises(ValueError, match=message):
        scores.ReturnIndex(scores.Identities(), **wrong)  # type: ignore[arg-type]


EDGES_S = [1.5**k for k in range(23)]
WIDTHS_S = [1.0, *np.diff(EDGES_S).tolist()]


def bins(**values: float) -> list[float]:
    """Zero but for these: bin number with a letter before it."""
    return [values.get(f"b{k}", 0.0) for k in range(23)]


def test_chances_are_returns_by_those_that_reached_the_bin() -> None:
    """3 of 12 came back in bin 0, 2 of 9 in bin 1: falling by the second, so left as they are."""
    q = scores.return_chances(bins(b0=3, b1=1), bins(b0=9, b1=8, b2=8), bins(), 1e-12)
    assert q[:3] == pytest.approx([0.25, 1 / 9, 0.0])


def test_imagined_blocks_speak_where_few_were_seen() -> None:
    """One return of one block, against 9 imagined ones that never return, is a tenth."""
    q = scores.return_chances(bins(b0=1), bins(), bins(), 9)
    assert q[0] == pytest.approx(0.1)


def test_old_bins_are_not_more_eager_than_younger_ones() -> None:
    """Bins 1 (0.5 s wide) and 2 (0.75 s): 1 of 10 and 3 of 10 back, after an eager bin 0.

    Together 4 returns in 10 * 0.5 + 10 * 0.75 = 12.5 block-seconds, 0.32 a second: 0.16, 0.24.
    """
    returned, survived = bins(b0=8, b1=1, b2=3), bins(b0=2, b1=9, b2=7, b3=5)
    q = scores.return_chances(returned, survived, bins(), 1e-12)
    assert q[:4] == pytest.approx([0.8, 0.16, 0.24, 0.0])


def test_bins_before_the_most_eager_one_stay_low() -> None:
    """A load that returns after its pause, not at once, is not smoothed away."""
    q = scores.return_chances(
        bins(b5=9), bins(b0=10, b1=10, b2=10, b3=10, b4=10, b5=1), bins(), 1e-9
    )
    assert q[:6] == pytest.approx([0, 0, 0, 0, 0, 0.9], abs=1e-6)


def test_the_index_looks_over_the_horizon_that_pays_best() -> None:
    """All return in bin 2, so the nearer a block is to it, the more a second of keeping brings."""
    index = scores.hits_per_block_second(bins(b2=1.0))
    waits = [1.0 + 0.5, 0.5, 0.0]  # seconds until bin 2 begins
    assert index[:3] == pytest.approx([1 / (wait + WIDTHS_S[2] / 2) for wait in waits])
    assert index[3:] == [0.0] * 20


def test_a_horizon_may_end_before_the_last_return() -> None:
    """Half return within a second: waiting hours for the others is not part of the best horizon."""
    index = scores.hits_per_block_second(bins(b0=0.5, b22=1.0))
    assert index[0] == pytest.approx(0.5 / 0.75)


def test_tables_of_another_length_are_refused() -> None:
    """A list that does not have a number for each bin is named."""
    with pytest.raises(ValueError, match="chances: 2 numbers, not one for each of the 23 bins"):
        scores.hits_per_block_second([0.0, 1.0])


def test_a_newcomer_that_nobody_ever_wants_again_is_refused() -> None:
    """Chains that return after 10 s are kept when single prompts pass by, each used once only."""
    requests, now_s = list[list[int]](), list[float]()
    first = 1000
    for i in range(400):
        requests.append(chain(100 * (i % 4), 20))  # four sessions, back after 12 s
        now_s.append(3.0 * i)
        requests.append(chain(first, 25))  # longer than they are: told apart by new blocks only
        now_s.append(3.0 * i + 1)
        first += 25
    counts = run(requests, now_s, capacity=85)
    lru_keeps = 0  # 4 prompts of 20 and 4 of 25 lie between two uses: 180 blocks
    assert counts["prefix_hits"] > lru_keeps + 0.9 * 400 * 20


def test_a_trunk_that_many_chains_share_stays() -> None:
    """A block with resident children never leaves, however old the chain that brought it is."""
    trunk = chain(0, 10)
    requests = [[*trunk, *chain(100 + 5 * i, 5)] for i in range(200)]
    counts = run(requests, [10.0 * i for i in range(200)], capacity=30)
    assert counts["prefix_hits"] == 199 * 10


def test_the_larger_of_two_blocks_that_are_used_alike_leaves() -> None:
    """The index is by the byte-second."""
    order = scores.ReturnIndex(known := scores.Identities(), 1000)
    known.grow(2)
    order.grow(2)
    known.set_bytes(1, 3)
    for block in (1, 0):
        order.request(np.array([block], np.uint32), block, 5.0)
        order.admit(block)
    for small_is_older in (False, True):
        asked = (0, 1) if small_is_older else (1, 0)
        for block in asked:
            order.request(np.array([block], np.uint32), 6.0, 6.0)
        assert order.worst(6.0) == 1
