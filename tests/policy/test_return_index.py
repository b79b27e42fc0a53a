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
