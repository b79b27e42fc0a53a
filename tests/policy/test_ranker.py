"""The ranker: rows and keys of an index become identities in an order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from evoke.core import native, scores
from evoke.policy.classics import Lru
from evoke.policy.ranking import NOTES_MOST, Ranking
from tests.policy.ranked_index import ALPHA, ORDERS, Churn, RankedIndex, key_of, rows_of

Make = Callable[..., RankedIndex]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[RankedIndex] = []

    def one(order: str = "lru", **rules: float) -> RankedIndex:
        made.append(RankedIndex(order, **rules))
        return made[-1]

    yield one
    for space in made:
        space.close()


def chain_of(number: int, count: int) -> list[bytes]:
    return [key_of(number, i) for i in range(count)]


@pytest.mark.parametrize("order", ORDERS)
def test_victims_are_the_plain_truth(make: Make, order: str) -> None:
    """Whatever happens to the index, victims are those that a look at every block names."""
    rng = random.Random(order)
    for _ in range(250):
        space = make(order)
        churn = Churn(space, rng)
        for _ in range(rng.randint(5, 60)):
            churn.step()
        space.check_mirror()
        count = rng.randint(1, 12)
        rows, refused, short = space.ranker.make_room(count, 0, clock=space.clock)
        assert rows.tolist() == space.literal_victims(count)
        assert (refused, short) == (0, False)
        again, _, _ = space.ranker.make_room(count, 0, clock=space.clock)
        assert again.tolist() == rows.tolist(), "choosing changed something"


def test_victims_until_there_are_bytes_enough(make: Make) -> None:
    """Both the count and the bytes that are wanted are reached."""
    space = make()
    space.insert(chain_of(0, 8), 0, b"")
    space.sync()
    for count, wanted, expected in ((1, 0, 1), (1, 4096, 1), (1, 4097, 2), (3, 1, 3), (9, 0, 8)):
        assert len(space.ranker.make_room(count, wanted)[0]) == expected


def test_only_of_one_namespace(make: Make) -> None:
    """Victims of a namespace are its own, however old the others' blocks are."""
    space = make()
    space.insert(chain_of(0, 50), 0, b"")
    other, _ = space.index.add_namespace(1)
    space.ranker.set_space(other, bytes(range(16)), 4096)
    keys = chain_of(0, 3)
    one = np.arange(100, 103, dtype=np.uint64)
    sizes, sums = np.full(3, 4096, np.uint32), np.zeros(3, np.uint64)
    rows = space.index.insert_many(other, b"".join(keys), 0, b"", one, sizes, sums, 1)
    space.sync()
    chosen, _, short = space.ranker.make_room(2, 0, other)
    assert chosen.tolist() == rows[::-1][:2].tolist()
    assert not short


def test_what_is_asked_for_is_known_when_it_is_stored(make: Make) -> None:
    """A block that was missed counts one access for the request, none for being stored; one that
    nobody asked for counts being stored."""
    space = make("lfu")
    asked, unasked = key_of(1), key_of(2)
    space.asked([asked])
    space.insert([asked], 0, b"")
    space.insert([unasked], 0, b"")
    space.sync()
    assert [space.ranker.row(space.find(key), 1.0)["count"] for key in (asked, unasked)] == [1, 1]
    space.asked([asked])
    assert space.ranker.row(space.find(asked), 2.0)["count"] == 2


@pytest.mark.parametrize("keep", [True, False])
def test_what_was_learned_survives_eviction(make: Make, keep: bool) -> None:
    """With state = keep a block that comes back has its score and count, with reset it is new."""
    space = make("lrfu", keep_state=keep)
    for _ in range(3):
        space.asked([key_of(1)])
    space.insert([key_of(1)], 0, b"")
    space.sync()
    before = space.ranker.row(space.find(key_of(1)), 3.0)
    assert math.isclose(math.exp(before["log_score"]), 1 - (1 - ALPHA) ** 3)
    space.index.erase(rows_of(space.find(key_of(1))))
    space.sync()
    space.insert([key_of(1)], 0, b"")
    space.sync()
    assert space.ranker.row(space.find(key_of(1)), 3.0)["count"] == (4 if keep else 1)


def test_memory_is_bounded_and_forgets_what_is_used_least(make: Make) -> None:
    """However many keys are asked for, no more are remembered than the limit; residents always
    are, and so is what is asked for again and again."""
    space = make("lrfu", remembered_factor=2.0, remembered_least=64)
    resident = chain_of(0, 40)
    space.insert(resident, 0, b"")
    space.sync()
    often = key_of(7)
    for number in range(300):
        space.asked([often])
        space.asked([key_of(100, number, i) for i in range(5)])
        assert space.ranker.remembered <= space.ranker.limit == 80
    space.insert([often], 0, b"")
    space.check_mirror()
    assert space.ranker.row(space.find(often), space.clock)["count"] == 300
    assert all(space.ranker.row(row, 0.0)["count"] == 1 for row in map(space.find, resident))


def test_an_identity_takes_at_most_48_bytes(make: Make) -> None:
    """Tag, score, last access, count, role, priority and size of 100,000 identities, with the hash
    table that finds them, stay below 48 + 24 bytes each."""
    space = make("lru", remembered_least=200_000)
    packed = random.Random(5).randbytes(32 * 1000)
    for number in range(100):
        salt = bytes([number])
        space.asked([salt + packed[i : i + 31] for i in range(0, 32_000, 32)])
    assert space.ranker.remembered == 100_000
    assert space.ranker.size_bytes() <= (48 + 24) * 100_000


def test_numbers_of_accesses_begin_anew(make: Make) -> None:
    """After 4 billion accesses the order is still that of the accesses."""
    space = make("lru")
    chains = [chain_of(number, 3) for number in range(4)]
    for chain in chains:
        space.insert(chain, 0, b"")
    space.sync()
    space.asked(chains[0])
    space.ranker.set_seq(0xF000_0001)
    space.asked(chains[1])
    expected = [space.find(key) for n in (2, 3, 0, 1) for key in reversed(chains[n])]
    assert space.ranker.make_room(12, 0)[0].tolist() == expected
    assert space.ranker.row(expected[-1], 0.0)["seq"] < 100


def test_another_order_takes_over(make: Make) -> None:
    """A new order ranks what is there by what was learned; holds stay."""
    space = make("lru")
    often, seldom = key_of(1), key_of(2)
    for key in (often, often, often, seldom):
        space.asked([key])
    for number, key in enumerate((often, seldom, key_of(3))):
        space.insert([key], number, b"")
    space.index.hold(rows_of(space.find(key_of(3))))
    space.sync()
    assert space.ranker.make_room(9, 0)[0].tolist() == [space.find(often), space.find(seldom)]
    space.ranker.use(scores.Lfu(space.known))
    assert space.ranker.make_room(9, 0)[0].tolist() == [space.find(seldom), space.find(often)]
    space.index.unhold(rows_of(space.find(key_of(3))))
    space.sync()
    assert space.find(key_of(3)) in space.ranker.make_room(9, 0)[0].tolist()


@pytest.mark.parametrize("order", ORDERS)
def test_rescaling_keeps_scores(make: Make, order: str) -> None:
    """A new half-life, also in another unit, leaves scores as they are now and ages in proportion;
    victims are then those of the new numbers."""
    space = make(order)
    churn = Churn(space, random.Random(3))
    for _ in range(60):
        churn.step()
    space.sync()
    before = {row: space.ranker.row(row, space.clock) for row in space.rows()}
    space.ranker.rescale(0.3, space.clock, 2 * space.clock)
    old_clock, space.clock = space.clock, 2 * space.clock
    for row, was in before.items():
        now = space.ranker.row(row, space.clock)
        assert math.isclose(now["log_score"], was["log_score"], abs_tol=1e-9)
        assert math.isclose(now["idle"], 2 * was["idle"], abs_tol=1e-9 * old_clock)
    if order != "product":  # which has an alpha of its own, set by whoever makes it
        assert space.ranker.make_room(9, 0, clock=space.clock)[0].tolist() == space.literal_victims(
            9
        )


def test_a_moved_block_is_not_ranked(make: Make) -> None:
    """Blocks of another tier are no victims of this one, and come back with their parents."""
    space = make()
    space.insert(chain_of(0, 3), 0, b"")
    space.sync()
    tail, middle, root = (space.find(key) for key in reversed(chain_of(0, 3)))
    refs = np.array([77], np.uint64)
    space.index.relocate(rows_of(tail), refs, 3)
    space.check_mirror()
    assert space.ranker.make_room(9, 0)[0].tolist() == [middle, root]
    space.index.relocate(rows_of(tail), refs, 1)
    space.check_mirror()
    assert space.ranker.make_room(9, 0)[0].tolist() == [tail, middle, root]


def test_dropped_namespace(make: Make) -> None:
    """A namespace that is dropped takes its rows along; its number may be another's then."""
    space = make()
    space.insert(chain_of(0, 5), 0, b"")
    space.sync()
    space.index.drop_namespace(space.space)
    space.sync()
    assert space.ranker.rows == len(space.index) == 0
    again, _ = space.index.add_namespace(1)
    assert again == space.space
    space.ranker.set_space(again, b"another secret!!", 4096)
    space.insert(chain_of(0, 5), 0, b"")
    space.check_mirror()
    assert space.ranker.remembered == 10


def test_remembered_outlive_the_daemon(make: Make) -> None:
    """What is dumped and loaded has aged by what passed, and keeps its order."""
    old, new = make("lrfu"), make("lrfu")
    for number in (1, 2, 1, 3):
        old.asked([key_of(number)])
    records = old.ranker.dump(old.clock)
    assert len(records) == 3 * 40
    new.clock = 10.0
    assert new.ranker.load(records, new.clock, 5.0) == 3
    for number in (1, 2, 3):
        old.insert([key_of(number)], 0, b"")
        new.insert([key_of(number)], 0, b"")
    old.sync()
    new.sync()
    for number in (1, 2, 3):
        was = old.ranker.row(old.find(key_of(number)), old.clock)
        now = new.ranker.row(new.find(key_of(number)), new.clock)
        assert now["count"] == was["count"] + 1  # the load knows of no request that waits
    fresh = make("lrfu")
    fresh.ranker.load(records, 0.0, 5.0)
    fresh.insert([key_of(1)], 0, b"")
    fresh.sync()
    score = math.exp(fresh.ranker.row(fresh.find(key_of(1)), 0.0)["log_score"])
    keep = 1 - ALPHA  # accesses at clocks 1 and 3, dumped at 4, loaded 5 later, stored then
    assert math.isclose(score, ALPHA * (keep**8 + keep**6 + 1))


@pytest.mark.parametrize("field", [2, 3, 4, 5])
def test_damaged_records_change_nothing(make: Make, field: int) -> None:
    """A record with a number that is never written is refused, and nothing of the load is kept."""
    old, new = make("lrfu"), make("lrfu")
    for number in range(3):
        old.asked([key_of(number)])
    kind = np.dtype("<u8,<u8,<f8,<f8,<u4,<u2,u1,u1")
    records = np.frombuffer(old.ranker.dump(old.clock), kind).copy()
    records[2][field] = math.nan if field < 4 else 0
    with pytest.raises(ValueError, match=r"records\[2\]\."):
        new.ranker.load(records.tobytes(), 0.0, 0.0)
    assert new.ranker.remembered == 0


def test_bad_arguments_are_named(make: Make) -> None:
    """What the ranker cannot know is a ValueError that names it."""
    space = make()
    for call in (
        lambda: space.ranker.asked(9, key_of(1), 0.0, 0.0),
        lambda: space.ranker.asked(0, b"123", 0.0, 0.0),
        lambda: space.ranker.used(rows_of(3), 0.0),
        lambda: space.ranker.row(3, 0.0),
        lambda: space.ranker.set_space(0, b"short", 1),
        lambda: space.ranker.load(b"x", 0.0, 0.0),
        lambda: space.ranker.load(b"", 0.0, -1.0),
        lambda: space.ranker.set_rules(0.5, 1, True),
    ):
        with pytest.raises(ValueError, match=r"\w+: "):
            call()


def test_notes_that_nobody_reads_are_bounded() -> None:
    """Holding and letting go writes notes; the loop has them read when they are many."""
    index = native.Index()
    ranking = Ranking(index, Lru(chains=True), 1 << 20)
    space, _ = index.add_namespace(1)
    ranking.add_namespace(space, bytes(32), 4096)
    refs, sizes, sums = np.zeros(1, np.uint64), np.full(1, 4096, np.uint32), np.zeros(1, np.uint64)
    rows = index.insert_many(space, key_of(1), 0, b"", refs, sizes, sums, 1)
    while index.changes < NOTES_MOST:
        index.hold(rows)
        index.unhold(rows)
        ranking.follow_when_many()
    before = index.changes
    index.hold(rows)
    index.unhold(rows)
    ranking.follow_when_many()
    assert (before >= NOTES_MOST, index.changes) == (True, 0)
    assert ranking.row(int(rows[0]))["held"] is False
    index.close()
