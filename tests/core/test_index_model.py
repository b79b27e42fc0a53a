"""The index against a plain model, under random operations."""

import dataclasses
import itertools
import struct
from collections.abc import Iterable

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from evoke.core import native

NO_ROW = native.NO_ROW


def rows_array(rows: Iterable[int]) -> NDArray[np.uint32]:
    return np.array(list(rows), np.uint32)


def key_of(chain: int, position: int) -> bytes:
    return struct.pack("<QQQQ", chain, position, 0, 1)


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
    lent: bool = False


class IndexAgainstModel(RuleBasedStateMachine):
    """Random operations on chains that fork agree with dicts and a list by recency."""

    def __init__(self) -> None:
        super().__init__()
        self.index = native.Index(buckets=1)
        self.blocks: dict[tuple[int, bytes], Block] = {}  # visible ones
        self.rows: dict[tuple[int, bytes], int] = {}
        self.zombies: dict[int, Block] = {}  # erased, still held
        self.recency: list[tuple[int, bytes]] = []  # least recent first, without what stays
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

    def stays(self, name: tuple[int, bytes]) -> bool:
        """It, or something below it, is held."""
        below = (n for n in self.blocks if n == name or name in self.ancestors(n))
        return any(self.blocks[n].holds for n in below)

    def model_settle(self, name: tuple[int, bytes] | None) -> None:
        """After a change at this block: what stays leaves the list, what does not comes back."""
        while name is not None:
            if self.stays(name) and name in self.recency:
                self.recency.remove(name)
            elif not self.stays(name) and name not in self.recency:
                self.recency.append(name)
            name = self.blocks[name].parent

    def model_touch(self, names: list[tuple[int, bytes]]) -> None:
        order: list[tuple[int, bytes]] = []
        for name in names:
            for one in [*reversed(self.ancestors(name)), name]:
                if one not in order:
                    order.append(one)
        for one in reversed(order):
            if one in self.recency:
                self.recency.remove(one)
                self.recency.append(one)

    def model_link(self, child: tuple[int, bytes], parent: tuple[int, bytes]) -> bool:
        if child not in self.blocks or parent not in self.blocks:
            return False
        below, above = self.blocks[child], self.blocks[parent]
        if below.parent is not None or below.chain_index != above.chain_index + 1:
            return False
        below.parent = parent
        self.model_settle(parent)
        return True

    def model_erase(self, name: tuple[int, bytes]) -> list[int]:
        block = self.blocks.pop(name)
        row = self.rows.pop(name)
        if name in self.recency:
            self.recency.remove(name)
        for other in self.blocks.values():
            if other.parent == name:
                other.parent = None
        self.model_settle(block.parent)
        if block.holds or block.lent:
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
            if (
                self.blocks[name].holds
                or self.blocks[name].lent
                or any(child not in chosen for child in children)
            ):
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
            self.model_settle(name)

    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        held = {self.rows[name]: block for name, block in self.blocks.items() if block.holds}
        held |= {row: block for row, block in self.zombies.items() if block.holds}
        if not held:
            return
        row = data.draw(st.sampled_from(sorted(held)))
        freed = self.index.unhold(rows_array([row])).tolist()
        held[row].holds -= 1
        if row not in self.zombies:
            self.model_settle((held[row].namespace, held[row].key))
        gone = row in self.zombies and not held[row].holds and not held[row].lent
        assert freed == (self.zombies.pop(row).refs if gone else [])

    @rule(data=st.data())
    def lend_or_take_back(self, data: st.DataObject) -> None:
        names = list(dict.fromkeys(self.draw_names(data, 3)))
        lent = {row: block for row, block in self.zombies.items() if block.lent}
        lent |= {self.rows[name]: self.blocks[name] for name in names if self.blocks[name].lent}
        self.index.lend(rows_array(self.rows[n] for n in names if not self.blocks[n].lent))
        for name in names:
            self.blocks[name].lent = True
        freed = self.index.take_back(rows_array(lent)).tolist()
        expected = []
        for row, block in lent.items():
            block.lent = False
            if row in self.zombies and not block.holds:
                expected += self.zombies.pop(row).refs
        assert freed == expected

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        names = self.draw_names(data, 5)
        self.index.touch(rows_array(self.rows[name] for name in names))
        self.model_touch(names)

    @rule(data=st.data(), tier=st.integers(1, 3))
    def relocate(self, data: st.DataObject, tier: int) -> None:
        names = [
            n
            for n in self.draw_names(data, 3)
            if not self.blocks[n].holds and not self.blocks[n].lent
        ]
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
            assert row["holds"] == block.holds + block.lent
            assert row["bytes"] == 10 * len(block.refs)
            assert row["parent_row"] == (self.rows[block.parent] if block.parent else NO_ROW)
            facts = [column.tolist() for column in self.index.facts(rows_array([self.rows[name]]))]
            assert facts == [[name[0]], [len(block.refs)], [self.stays(name) or block.lent]]
            assert self.index.keys(rows_array([self.rows[name]])) == name[1]
            for part, ref in enumerate(block.refs):
                refs, lengths, _ = self.index.part(rows_array([self.rows[name]]), part)
                assert (refs.tolist(), lengths.tolist()) == ([ref], [10])

    @invariant()
    def order_is_the_same(self) -> None:
        for namespace in range(len(self.parts)):
            expected = [self.rows[name] for name in self.recency if name[0] == namespace]
            rows = self.index.rows_of(namespace).tolist()
            assert rows[: len(expected)] == expected
            staying = {row for name, row in self.rows.items() if self.stays(name)}
            assert set(rows[len(expected) :]) == {
                row for name, row in self.rows.items() if name[0] == namespace and row in staying
            }
            assert self.index.rows_of(namespace, 2).tolist() == rows[:2]
        free = [self.rows[name] for name in self.recency]
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
            gaps = [b for b in blocks if b.chain_index and b.parent is None]
            assert entry["gaps"] == len(gaps)
            assert entry["bytes"] == sum(10 * len(block.refs) for block in blocks)

    def teardown(self) -> None:
        freed = []
        for namespace in range(len(self.parts)):
            freed += self.index.drop_namespace(namespace).tolist()
        rows = {self.rows[name]: block for name, block in self.blocks.items()} | self.zombies
        for row, block in rows.items():
            freed += self.index.unhold(rows_array([row] * block.holds)).tolist()
            freed += self.index.take_back(rows_array([row] * block.lent)).tolist()
        expected = [ref for block in self.blocks.values() for ref in block.refs]
        expected += [ref for block in self.zombies.values() for ref in block.refs]
        assert sorted(freed) == sorted(expected)
        self.index.check()
        self.index.close()


IndexAgainstModel.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
TestIndexAgainstModel = IndexAgainstModel.TestCase
