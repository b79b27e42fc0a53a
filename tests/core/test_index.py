"""The index: against a plain model, and what each operation promises."""

import dataclasses
import itertools
import struct
import time
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
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


@dataclasses.dataclass
class Block:
    """What the model knows of one row."""

    namespace: int
    key: bytes
    chain_index: int
    refs: list[int]
    tier: int
    parent: tuple[int, bytes] | None = None
    holds: int = 0


class IndexAgainstModel(RuleBasedStateMachine):
    """Random operations on chains that fork agree with dicts and a list by recency."""

    def __init__(self) -> None:
        super().__init__()
        self.index = native.Index(buckets=1)
        self.blocks: dict[tuple[int, bytes], Block] = {}  # visible ones
        self.rows: dict[tuple[int, bytes], int] = {}
        self.zombies: dict[int, Block] = {}  # erased, still held
        self.recency: list[tuple[int, bytes]] = []  # least recent first
        self.next_ref = itertools.count(1)
        self.parts: list[int] = []
        self.secrets: list[bytes] = []

    @initialize()
    def make_namespaces(self) -> None:
        for parts in (1, 3):
            number, secret = self.index.add_namespace(parts)
            assert number == len(self.parts)
            self.parts.append(parts)
            self.secrets.append(secret)

    # -- the model's own rules

    def ancestors(self, name: tuple[int, bytes]) -> list[tuple[int, bytes]]:
        found = []
        parent = self.blocks[name].parent
        while parent is not None:
            found.append(parent)
            parent = self.blocks[parent].parent
        return found

    def model_touch(self, names: list[tuple[int, bytes]]) -> None:
        order: list[tuple[int, bytes]] = []
        for name in names:
            for one in [*reversed(self.ancestors(name)), name]:
                if one not in order:
                    order.append(one)
        for one in reversed(order):
            self.recency.remove(one)
            self.recency.append(one)

    def model_link(self, child: tuple[int, bytes], parent: tuple[int, bytes]) -> bool:
        if child not in self.blocks or parent not in self.blocks:
            return False
        below, above = self.blocks[child], self.blocks[parent]
        if below.parent is not None or below.chain_index != above.chain_index + 1:
            return False
        below.parent = parent
        return True

    def model_erase(self, name: tuple[int, bytes]) -> list[int]:
        block = self.blocks.pop(name)
        row = self.rows.pop(name)
        self.recency.remove(name)
        for other in self.blocks.values():
            if other.parent == name:
                other.parent = None
        if block.holds:
            self.zombies[row] = block
            return []
        return block.refs

    def model_victims(self, count: int, bytes_wanted: int, namespace: int) -> list[int]:
        chosen: list[tuple[int, bytes]] = []
        total = 0
        for name in self.recency:
            if len(chosen) >= count and total >= bytes_wanted:
                break
            if namespace >= 0 and name[0] != namespace:
                continue
            children = [n for n, block in self.blocks.items() if block.parent == name]
            if self.blocks[name].holds or any(child not in chosen for child in children):
                continue
            chosen.append(name)
            total += 10 * len(self.blocks[name].refs)
        return [self.rows[name] for name in chosen]

    def draw_names(self, data: st.DataObject, most: int) -> list[tuple[int, bytes]]:
        if not self.blocks:
            return []
        return data.draw(st.lists(st.sampled_from(sorted(self.blocks)), max_size=most))

    # -- operations

    @rule(
        namespace=st.integers(0, 1),
        chain=st.integers(0, 3),
        first=st.integers(0, 6),
        length=st.integers(0, 6),
        tier=st.integers(1, 3),
        lie=st.booleans(),
    )
    def insert(
        self, namespace: int, chain: int, first: int, length: int, tier: int, lie: bool
    ) -> None:
        """Chains 2 and 3 continue chain 0 and 1 from their third block; some give a wrong index."""
        names = [
            (namespace, key_of(chain % 2 if at < 3 else chain, at))
            for at in range(first, first + length + 1)
        ]
        first_index = first + 1 + (1 if lie and first == 3 else 0)
        parent, *news = names
        parts = self.parts[namespace]
        refs = [[next(self.next_ref) for _ in range(parts)] for _ in news]
        flat = np.array(refs, np.uint64).reshape(-1)
        got = self.index.insert_many(
            namespace,
            b"".join(key for _, key in news),
            first_index,
            parent[1],
            flat,
            np.full(len(flat), 10, np.uint32),
            flat * np.uint64(3),
            tier,
        )
        fresh = []
        before = parent
        for number, name in enumerate(news):
            is_new = name not in self.blocks
            assert (got[number] == NO_ROW) == (not is_new)
            if is_new:
                self.blocks[name] = Block(
                    namespace, name[1], first_index + number, refs[number], tier
                )
                self.rows[name] = int(got[number])
                self.recency.append(name)
            if self.model_link(name, before):
                fresh.append(before)
            if is_new:
                fresh.append(name)
            before = name
        self.model_touch(fresh)

    @rule(namespace=st.integers(0, 1), chain=st.integers(0, 3), first=st.integers(0, 5))
    def link(self, namespace: int, chain: int, first: int) -> None:
        names = [
            (namespace, key_of(chain % 2 if at < 3 else chain, at))
            for at in range(first, first + 5)
        ]
        self.index.link(namespace, b"".join(key for _, key in names))
        linked = [a for a, b in itertools.pairwise(names) if self.model_link(b, a)]
        self.model_touch(linked)

    @rule(data=st.data())
    def erase(self, data: st.DataObject) -> None:
        names = self.draw_names(data, 4)
        freed = self.index.erase(rows_array(self.rows[name] for name in names))
        expected = [ref for name in dict.fromkeys(names) for ref in self.model_erase(name)]
        assert freed.tolist() == expected

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        names = self.draw_names(data, 4)
        self.index.hold(rows_array(self.rows[name] for name in names))
        for name in names:
            self.blocks[name].holds += 1

    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        held = {self.rows[name]: block for name, block in self.blocks.items() if block.holds}
        held |= self.zombies
        if not held:
            return
        row = data.draw(st.sampled_from(sorted(held)))
        freed = self.index.unhold(rows_array([row])).tolist()
        held[row].holds -= 1
        gone = row in self.zombies and held[row].holds == 0
        assert freed == (self.zombies.pop(row).refs if gone else [])

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        names = self.draw_names(data, 5)
        self.index.touch(rows_array(self.rows[name] for name in names))
        self.model_touch(names)

    @rule(data=st.data(), tier=st.integers(1, 3))
    def relocate(self, data: st.DataObject, tier: int) -> None:
        names = [n for n in self.draw_names(data, 3) if not self.blocks[n].holds]
        names = list(dict.fromkeys(names))
        had = [ref for name in names for ref in self.blocks[name].refs]
        for name in names:
            self.blocks[name].refs = [next(self.next_ref) for _ in self.blocks[name].refs]
            self.blocks[name].tier = tier
        refs = [ref for name in names for ref in self.blocks[name].refs]
        rows = rows_array(self.rows[name] for name in names)
        assert self.index.relocate(rows, np.array(refs, np.uint64), tier).tolist() == had

    @rule(count=st.integers(0, 12), bytes_wanted=st.integers(0, 120), namespace=st.integers(-1, 1))
    def evict(self, count: int, bytes_wanted: int, namespace: int) -> None:
        rows = self.index.victims(count, bytes_wanted, namespace).tolist()
        assert rows == self.model_victims(count, bytes_wanted, namespace)
        if count % 2:
            names = {row: name for name, row in self.rows.items()}
            freed = self.index.erase(rows_array(rows)).tolist()
            assert freed == [ref for row in rows for ref in self.model_erase(names[row])]

    @rule(data=st.data())
    def descendants(self, data: st.DataObject) -> None:
        names = self.draw_names(data, 3)
        got = self.index.descendants(rows_array(self.rows[name] for name in names)).tolist()
        below = {n for n in self.blocks if n in names or set(self.ancestors(n)) & set(names)}
        assert sorted(got) == sorted(self.rows[name] for name in below)
        for name in below:
            for ancestor in set(self.ancestors(name)) & below:
                assert got.index(self.rows[name]) < got.index(self.rows[ancestor])

    # -- what always holds

    @invariant()
    def proves_itself(self) -> None:
        self.index.check()
        assert len(self.index) == len(self.blocks)

    @invariant()
    def rows_say_the_same(self) -> None:
        for name, block in self.blocks.items():
            row = self.index.row(self.rows[name])
            assert (row["namespace"], row["key"]) == name
            assert row["chain_index"] == block.chain_index
            assert row["tier"] == block.tier
            assert row["holds"] == block.holds
            assert row["bytes"] == 10 * len(block.refs)
            assert row["parent_row"] == (self.rows[block.parent] if block.parent else NO_ROW)
            children = sum(other.parent == name for other in self.blocks.values())
            assert row["children"] == children
            for part, ref in enumerate(block.refs):
                refs, lengths, _ = self.index.part(rows_array([self.rows[name]]), part)
                assert (refs.tolist(), lengths.tolist()) == ([ref], [10])

    @invariant()
    def order_is_the_same(self) -> None:
        for namespace in range(len(self.parts)):
            expected = [self.rows[name] for name in self.recency if name[0] == namespace]
            assert self.index.rows_of(namespace).tolist() == expected
        free = [self.rows[name] for name in self.recency if not self.blocks[name].holds]
        assert self.index.oldest() == (free[0] if free else NO_ROW)

    @invariant()
    def visible_is_found_and_published(self) -> None:
        view = native.TableView(self.index.table_fd())
        for namespace, secret in enumerate(self.secrets):
            keys = [key for space, key in self.blocks if space == namespace]
            found = self.index.find(namespace, b"".join(keys))
            assert found.tolist() == [self.rows[namespace, key] for key in keys]
            tiers = view.lookup(secret, b"".join(keys)).tolist()
            assert tiers == [self.blocks[namespace, key].tier for key in keys]
        view.close()

    @invariant()
    def usage_is_counted(self) -> None:
        for entry in self.index.usage():
            blocks = [b for b in self.blocks.values() if b.namespace == entry["namespace"]]
            assert entry["blocks"] == len(blocks)
            assert entry["bytes"] == sum(10 * len(block.refs) for block in blocks)

    def teardown(self) -> None:
        freed = []
        for namespace in range(len(self.parts)):
            freed += self.index.drop_namespace(namespace).tolist()
        for row, block in list(self.zombies.items()):
            freed += self.index.unhold(rows_array([row] * block.holds)).tolist()
        for block in self.blocks.values():
            held = [row for name, row in self.rows.items() if self.blocks[name] is block]
            freed += self.index.unhold(rows_array(held * block.holds)).tolist()
        expected = [ref for block in self.blocks.values() for ref in block.refs]
        expected += [ref for block in self.zombies.values() for ref in block.refs]
        assert sorted(freed) == sorted(expected)
        self.index.check()
        self.index.close()


IndexAgainstModel.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestIndexAgainstModel = IndexAgainstModel.TestCase


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
