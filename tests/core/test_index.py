"""The index: what each operation promises."""

import struct
import time
from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.core import native

NO_ROW = native.NO_ROW
ROOT = bytes(32)


def rows_array(rows: Iterable[int]) -> NDArray[np.uint32]:
    return np.array(list(rows), np.uint32)


def key_of(chain: int, position: int) -> bytes:
    return struct.pack("<QQQQ", chain, position, 0, 1)


def keys_of(chain: int, positions: Iterable[int]) -> bytes:
    return b"".join(key_of(chain, position) for position in positions)


def insert_chain(
    index: native.Index, namespace: int, chain: int, length: int, first: int = 0, tier: int = 1
) -> NDArray[np.uint32]:
    parent = key_of(chain, first - 1) if first else ROOT
    refs = np.arange(length, dtype=np.uint64) + np.uint64(chain * 1000 + first)
    return index.insert_many(
        namespace,
        keys_of(chain, range(first, first + length)),
        first,
        parent,
        refs,
        np.full(length, 100, np.uint32),
        refs + np.uint64(7),
        tier,
    )


@pytest.fixture
def index() -> native.Index:
    return native.Index(buckets=16)


def test_parent_stays_more_recent_than_its_children(index: native.Index) -> None:
    """Touching only the tail of a chain leaves the whole chain evictable from its tail only."""
    namespace, _ = index.add_namespace(1)
    old, new = insert_chain(index, namespace, 1, 5), insert_chain(index, namespace, 2, 5)
    index.touch(old[-1:])
    assert index.victims(10).tolist() == [*new[::-1], *old[::-1]]


def test_late_parent_is_linked_by_keys(index: native.Index) -> None:
    """A tail stored before its head is protected by it once link names the chain."""
    namespace, _ = index.add_namespace(1)
    tail = insert_chain(index, namespace, 1, 3, first=2)
    head = insert_chain(index, namespace, 1, 2)
    assert index.row(int(tail[0]))["parent_row"] == NO_ROW
    index.link(namespace, keys_of(1, range(6)))
    index.check()
    assert index.row(int(tail[0]))["parent_row"] == head[1]
    assert index.victims(5).tolist() == [*tail[::-1], *head[::-1]]


def test_late_parent_is_linked_by_an_insert(index: native.Index) -> None:
    """Storing a whole chain again links what is there and keeps parents above their children."""
    namespace, _ = index.add_namespace(1)
    tail = insert_chain(index, namespace, 1, 2, first=2)
    head = insert_chain(index, namespace, 1, 2)
    index.touch(tail)
    assert (insert_chain(index, namespace, 1, 4) == NO_ROW).all()
    index.check()
    assert index.row(int(tail[0]))["parent_row"] == head[1]
    assert index.victims(4).tolist() == [*tail[::-1], *head[::-1]]


def test_links_never_form_a_cycle(index: native.Index) -> None:
    """Keys listed in contradicting orders by a lying client leave the links a forest."""
    namespace, _ = index.add_namespace(1)
    insert_chain(index, namespace, 1, 3)
    index.link(namespace, keys_of(1, [2, 1, 0, 2, 0, 1, 1]))
    index.check()
    index.insert(
        namespace,
        key_of(9, 9),
        0,
        key_of(1, 2),
        np.array([1], np.uint64),
        np.array([1], np.uint32),
        np.array([1], np.uint64),
        1,
    )
    index.check()
    assert index.row(int(index.find(namespace, key_of(9, 9))[0]))["parent_row"] == NO_ROW


def test_held_descendant_protects_its_ancestors(index: native.Index) -> None:
    """While a row in the middle is held, only what is below it and beside it may leave."""
    namespace, _ = index.add_namespace(1)
    chain = insert_chain(index, namespace, 1, 6)
    beside = insert_chain(index, namespace, 2, 2)
    index.hold(chain[2:3])
    assert sorted(index.victims(100).tolist()) == sorted([*chain[3:].tolist(), *beside.tolist()])
    index.unhold(chain[2:3])
    assert len(index.victims(100)) == 8


def test_victims_reach_bytes_and_count(index: native.Index) -> None:
    """Rows are chosen until both the count and the bytes are reached."""
    namespace, _ = index.add_namespace(1)
    insert_chain(index, namespace, 1, 10)
    assert len(index.victims(0, 0)) == 0
    assert len(index.victims(3, 0)) == 3
    assert len(index.victims(0, 250)) == 3
    assert len(index.victims(5, 250)) == 5
    assert len(index.victims(5, 1 << 40)) == 10


def test_erased_while_held(index: native.Index) -> None:
    """The block is gone at once for find, look-ups and touch; its memory comes later."""
    namespace, secret = index.add_namespace(1)
    view = native.TableView(index.table_fd())
    (row,) = insert_chain(index, namespace, 1, 1)
    one = rows_array([row])
    index.hold(one)
    index.hold(one)
    assert len(index.erase(one)) == 0
    assert index.find(namespace, key_of(1, 0)).tolist() == [NO_ROW]
    assert view.lookup(secret, key_of(1, 0)).tolist() == [0]
    assert index.is_visible(one).tolist() == [0]
    assert index.part(one, 0)[0].tolist() == [1000]
    again = insert_chain(index, namespace, 1, 1)
    assert again[0] != row
    for refused in (index.touch, index.hold, index.erase, index.descendants):
        with pytest.raises(IndexError, match=rf"rows\[0\]: row {row} is not visible"):
            refused(one)
    assert len(index.unhold(one)) == 0
    assert index.unhold(one).tolist() == [1000]
    with pytest.raises(IndexError, match=f"row {row} is dead"):
        index.row(int(row))
    index.check()


def test_bad_rows_change_nothing(index: native.Index) -> None:
    """A dead row among good ones is an IndexError and no good one is touched."""
    namespace, _ = index.add_namespace(1)
    rows = insert_chain(index, namespace, 1, 3)
    index.erase(rows[2:])
    for bad in (int(rows[2]), 12345, NO_ROW):
        mixed = rows_array([rows[0], rows[1], bad])
        for refused in (index.hold, index.unhold, index.erase, index.touch):
            with pytest.raises(IndexError, match=r"rows\[[02]\]"):
                refused(mixed)
        assert index.is_visible(mixed).tolist() == [1, 1, 0]
    assert index.row(int(rows[0]))["holds"] == 0
    index.hold(rows[:1])
    with pytest.raises(IndexError, match=r"rows\[1\]: .*is not held"):
        index.unhold(rows_array([rows[0], rows[0]]))
    assert index.row(int(rows[0]))["holds"] == 1
    index.check()


def test_row_numbers_are_reused_late(index: native.Index) -> None:
    """A dead row's number comes back after the others that were free, with a new generation."""
    namespace, _ = index.add_namespace(1)
    rows = insert_chain(index, namespace, 1, 4)
    index.erase(rows)
    for dead in rows:
        (again,) = insert_chain(index, namespace, 2, 1)
        assert again == dead
        assert index.row(int(again))["generation"] == 1
        index.erase(rows_array([again]))


def test_rows_in_a_range_of_refs(index: native.Index) -> None:
    """rows_in names the visible rows with any part in the half-open range."""
    one, _ = index.add_namespace(1)
    two, _ = index.add_namespace(2)
    rows = insert_chain(index, one, 1, 4)
    pair = index.insert(
        two,
        key_of(5, 0),
        0,
        b"",
        np.array([5, 1002], np.uint64),
        np.array([1, 2], np.uint32),
        np.array([1, 2], np.uint64),
        1,
    )
    assert sorted(index.rows_in(1001, 1003).tolist()) == sorted([rows[1], rows[2], pair])
    assert index.rows_in(1004, 1 << 63).tolist() == []
    assert index.row(pair)["bytes"] == 3


def test_dropped_namespace(index: native.Index) -> None:
    """Its rows are gone, its refs are given back but for held ones, and its number is unknown."""
    first, _ = index.add_namespace(1)
    other, _ = index.add_namespace(1)
    rows = insert_chain(index, first, 1, 3)
    kept = insert_chain(index, other, 1, 3)
    index.hold(rows[1:2])
    assert sorted(index.drop_namespace(first).tolist()) == [1000, 1002]
    with pytest.raises(ValueError, match="namespace: there is no 0"):
        index.find(first, b"")
    assert index.unhold(rows[1:2]).tolist() == [1001]
    assert index.find(other, keys_of(1, range(3))).tolist() == kept.tolist()
    assert [entry["namespace"] for entry in index.usage()] == [other]
    index.check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace": 7}, "namespace: there is no 7"),
        ({"keys": bytes(63)}, "keys: 63 bytes"),
        ({"parent": bytes(31)}, "parent: 31 bytes"),
        ({"refs": np.zeros(3, np.uint64)}, "refs: 3 values, expected 2"),
        ({"lengths": np.zeros(1, np.uint32)}, "lengths: 1 values, expected 2"),
        ({"sums": np.zeros(0, np.uint64)}, "sums: 0 values, expected 2"),
        ({"tier": 0}, "tier: 0"),
        ({"tier": 4}, "tier: 4"),
        ({"first_index": 2**32 - 2}, "first_index: 4294967294"),
        ({"first_index": 2**64 - 1}, "first_index: 18446744073709551615"),
    ],
)
def test_bad_inserts_are_named(
    index: native.Index, changes: dict[str, object], message: str
) -> None:
    """A bad argument is a ValueError with its name and numbers, and nothing is inserted."""
    namespace, _ = index.add_namespace(1)
    arguments: dict[str, object] = {
        "namespace": namespace,
        "keys": keys_of(1, range(2)),
        "first_index": 0,
        "parent": b"",
        "refs": np.zeros(2, np.uint64),
        "lengths": np.zeros(2, np.uint32),
        "sums": np.zeros(2, np.uint64),
        "tier": 1,
    }
    with pytest.raises(ValueError, match=message):
        index.insert_many(**{**arguments, **changes})  # type: ignore[arg-type]
    assert len(index) == 0


def test_bad_arguments_elsewhere(index: native.Index) -> None:
    """The other operations name a bad argument, too."""
    namespace, _ = index.add_namespace(1)
    rows = insert_chain(index, namespace, 1, 2)
    with pytest.raises(ValueError, match="parts: 0"):
        index.add_namespace(0)
    with pytest.raises(ValueError, match="keys: 1 bytes"):
        index.find(namespace, b"x")
    with pytest.raises(ValueError, match="part: 1 of a row with 1"):
        index.part(rows, 1)
    with pytest.raises(ValueError, match="namespace: there is no 5"):
        index.victims(1, 0, 5)
    with pytest.raises(ValueError, match="refs: 1 values, expected 2"):
        index.relocate(rows, np.zeros(1, np.uint64), 1)
    index.hold(rows[:1])
    with pytest.raises(ValueError, match=r"rows\[0\]: .*is held"):
        index.relocate(rows, np.zeros(2, np.uint64), 1)
    with pytest.raises(TypeError):
        index.erase(np.array([-1]))
    with pytest.raises(ValueError, match="buckets: 0"):
        native.Index(buckets=0)
    index.close()
    with pytest.raises(ValueError, match="index: closed"):
        index.find(namespace, b"")


def test_touching_a_long_chain_is_linear() -> None:
    """Touching every row of a chain of 20,000 moves each once: far below a second."""
    index = native.Index()
    namespace, _ = index.add_namespace(1)
    rows = insert_chain(index, namespace, 1, 20_000)
    start = time.perf_counter()
    index.touch(rows)
    index.touch(rows[::-1].copy())
    assert time.perf_counter() - start < 0.5
    index.check()


def test_metadata_is_small() -> None:
    """A resident block costs at most 256 bytes, also just after the table and the map doubled."""
    index = native.Index(buckets=1 << 10)
    namespace, _ = index.add_namespace(1)
    chain = 0
    while len(index) < 150_000:
        insert_chain(index, namespace, chain, 1000)
        chain += 1
        if len(index) >= 20_000:
            assert index.metadata_bytes() <= 256 * len(index), len(index)
