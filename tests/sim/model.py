"""What must be true of the daemon, kept beside it: fed by its events and replies, checked against
its index, arena and grants.

Whatever is written to a slot has a tag of its own in each of its words. So any bytes anywhere say
what they are: the block (namespace, key), its part, who offered it and when.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from evoke.core import native
from evoked.counters import Counters
from evoked.events import EventSink
from evoked.parts import PartState, PendingBlock
from evoked.reads import Pinned
from evoked.registry import KEY
from evoked.sessions import NamespaceEntry, Session
from evoked.tiers import REF_MEMORY_SHIFT
from evoked.works import Works
from tests.sim.engine import OFFSET_MASK, SimEngine, Words

__all__ = ["Content", "Model"]

Block = tuple[bytes, bytes]  # namespace id, key
PLACE_BYTES = 4096  # what the arena rounds blocks up to


class Content(NamedTuple):
    """What a tag stands for."""

    block: Block
    part: int
    writer: Session
    offered: int  # position in the history of the world


class Model(EventSink):
    """Set `works` before anything happens."""

    works: Works

    def __init__(self, engine: SimEngine, arena: native.Arena) -> None:
        self._engine, self._arena = engine, arena
        self.history = 0
        self.contents: dict[int, Content] = {}
        self.visible: set[Block] = set()
        self.ever_visible: set[Block] = set()
        self.damaged: set[Block] = set()
        self.ever_damaged: set[Block] = set()
        self.flushed: dict[bytes, int] = {}  # namespace id -> history
        self.erased_in_use = False  # a row that a store may hold has been erased

    def tag(self, block: Block, part: int, writer: Session) -> int:
        self.history += 1
        self.contents[self.history] = Content(block, part, writer, self.history)
        return self.history

    def flush(self, namespace_id: bytes) -> None:
        """Is about to happen: nothing that was offered before may be seen again."""
        self.history += 1
        self.flushed[namespace_id] = self.history

    def damage(self, block: Block) -> None:
        """A bit of it is about to flip."""
        self.damaged.add(block)
        self.ever_damaged.add(block)

    # ------------------------------------------------------------------ events
    def wanted(self) -> bool:
        return True

    def policy(self, what: str) -> None:
        raise AssertionError("no policy is reloaded here")

    def topic(self, namespace: NamespaceEntry | None) -> bytes:
        return bytes(16)

    def forget(self, namespace: NamespaceEntry) -> None:
        lost = {block for block in self.visible if block[0] == namespace.id}
        assert not lost, "a namespace that still has blocks is forgotten"

    def blocks(self, kind: str, namespace: NamespaceEntry, keys: bytes, tier: str) -> None:
        assert tier == "host"
        blocks = [(namespace.id, keys[i : i + KEY]) for i in range(0, len(keys), KEY)]
        assert len(set(blocks)) == len(blocks)
        if kind == "stored":
            for block in blocks:
                self._stored(namespace, block)
        elif kind == "evicted":
            self._evicted(namespace, blocks)
        elif kind in ("flushed", "damaged"):
            self.erased_in_use = True
            assert kind == "flushed" or self.damaged.issuperset(blocks)
        if kind in ("evicted", "flushed", "damaged"):
            assert self.visible.issuperset(blocks), f"{kind} what nobody could see"
            self.visible.difference_update(blocks)
            self.damaged.difference_update(blocks)

    def _stored(self, namespace: NamespaceEntry, block: Block) -> None:
        assert block not in self.visible, "stored twice"
        self.visible.add(block)
        self.ever_visible.add(block)
        row = self.row(namespace, block[1])
        for content in self.check_row(namespace, row, block):
            assert content.offered > self.flushed.get(block[0], 0), "offered before a flush"
            assert not content.writer.ended, "completed for a dead writer"

    def _evicted(self, namespace: NamespaceEntry, blocks: list[Block]) -> None:
        """Nothing that is held leaves, and nothing leaves before what continues it."""
        index = self.works.index
        leaving = {self.row(namespace, key) for _, key in blocks}
        for row in leaving:
            assert index.row(row)["holds"] == 0, "evicted while it was held"
        for row in index.rows_of(namespace.number).tolist():
            if row not in leaving:
                assert index.row(row)["parent_row"] not in leaving, "a hole in a chain"

    def row(self, namespace: NamespaceEntry, key: bytes) -> int:
        row = int(self.works.index.find(namespace.number, key)[0])
        assert row != native.NO_ROW
        return row

    # ------------------------------------------------------------------ bytes
    def check_row(self, namespace: NamespaceEntry, row: int, block: Block) -> list[Content]:
        """The contents of its parts, each whole and its own."""
        contents = []
        for part in range(len(namespace.namespace.parts)):
            refs, lengths, _ = self.works.index.part(np.array([row], np.uint32), part)
            assert int(lengths[0]) == namespace.part_bytes(part)
            words = self._engine.place(int(refs[0]), int(lengths[0]) // 8)
            contents.append(self.check_words(words, block, part))
        return contents

    def check_words(self, words: Words, block: Block, part: int) -> Content:
        tag = int(words[0])
        assert tag in self.contents, f"{tag:#x} was never offered"
        assert bool((words == words[0]).all()), "a block of several writers"
        content = self.contents[tag]
        assert (content.block, content.part) == (block, part), "bytes of another block"
        return content

    def check_bytes(self) -> None:
        """All that is visible is what was visible, and whole."""
        self.works.index.check()
        found = set()
        for entry in self.works.registry.namespaces.values():
            for row in self.works.index.rows_of(entry.number).tolist():
                self._check_ranked(row)
                block = (entry.id, self.works.index.row(row)["key"])
                found.add(block)
                if block not in self.damaged:
                    self.check_row(entry, row, block)
        assert found == self.visible

    def _check_ranked(self, row: int) -> None:
        """What the policy believes of a row is what the index says."""
        ranked, truth = self.works.balance.policy.row(row), self.works.index.row(row)
        assert ranked["parent_row"] == truth["parent_row"]
        assert ranked["held"] == (truth["holds"] > 0)
        assert ranked["resident"]

    # ------------------------------------------------------------------ books
    def check_books(self, sessions: list[Session], now_s: float) -> None:
        works = self.works
        usage = works.index.usage()
        assert sum(row["blocks"] for row in usage) == len(works.index) == len(self.visible)
        for row in usage:
            entry = works.registry.namespaces[row["namespace"]]
            size = sum(part.part_bytes for part in entry.namespace.parts)
            assert row["bytes"] == row["blocks"] * size
        self._check_grants(sessions, now_s)
        self._check_attribution(works.counters)
        self._check_places()
        for session in sessions:
            assert session.inflight_bytes >= 0
        assert len(works.transfers) == len(self._engine.jobs())

    def _check_grants(self, sessions: list[Session], now_s: float) -> None:
        living = {session: 0 for session in sessions}
        tenants: Counter[int] = Counter()
        for grant in self.works.grants._grants.values():
            living[grant.session] += 1  # KeyError: a grant of the dead
            tenants[id(grant.tenant)] += 1
            assert grant.instance.grants[grant.number] is grant
            assert grant.timer is not None
            assert grant.timer.due_s > now_s, "a grant past its deadline"
        for session, count in living.items():
            assert session.grants == count
        for entry in self.works.registry.namespaces.values():
            assert entry.tenant.grants == tenants[id(entry.tenant)]

    @staticmethod
    def _check_attribution(counters: Counters) -> None:
        hits = sum(counters[f"hit_{tier}"] for tier in ("host", "cxl", "flash"))
        assert hits + counters["missed"] + counters["unknown"] == counters["asked"]

    def _check_places(self) -> None:
        """What the arena gave out is what rows, grants, pending blocks and copies name, once."""
        stored = self._places_of_rows()
        writing: dict[int, int] = {}
        reading: dict[int, int] = {}
        for job in self._engine.jobs():
            size = job.pool.shape[1] * 8
            named = writing if job.verb == "store" else reading
            assert not writing.keys() & set(job.refs), "written while it is used"
            named.update(dict.fromkeys(job.refs, size))
        assert not writing.keys() & reading.keys(), "read while it is written"
        assert not writing.keys() & stored.keys(), "a visible block is written"
        pending = self._places_pending()
        assert not pending.keys() & (stored.keys() | reading.keys())
        named = {**stored, **writing, **reading, **pending}
        stats = self._arena.stats()
        if not self._engine.jobs():
            self.erased_in_use = False
        if self.erased_in_use:
            assert stats["blocks"] >= len(named)
        else:
            assert stats["blocks"] == len(named), f"arena {stats['blocks']}, named {len(named)}"
            rounded = sum(-(-size // PLACE_BYTES) * PLACE_BYTES for size in named.values())
            assert stats["allocated_bytes"] == rounded

    def _places_of_rows(self) -> dict[int, int]:
        """Of visible rows, and of those that only a pin still holds."""
        index = self.works.index
        found: dict[int, int] = {}
        for entry in self.works.registry.namespaces.values():
            rows = {*index.rows_of(entry.number).tolist()}
            for grant in self.works.grants._grants.values():
                if isinstance(grant.details, Pinned) and grant.details.entry is entry:
                    rows |= {*grant.details.rows.tolist()}
            for part in range(len(entry.namespace.parts)):
                refs = index.part(np.array(sorted(rows), np.uint32), part)[0].tolist()
                assert not found.keys() & set(refs), "two blocks in one place"
                found.update(dict.fromkeys(refs, entry.part_bytes(part)))
        return found

    def _places_pending(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for block in self._pending():
            assert not block.dropped or PartState.COPYING in block.states
            for part, ref in enumerate(block.refs):
                if ref != native.NO_REF:
                    assert ref not in found, "two pending blocks in one place"
                    assert ref >> REF_MEMORY_SHIFT == 0
                    assert (ref & OFFSET_MASK) % PLACE_BYTES == 0
                    found[ref] = block.entry.part_bytes(part)
        return found

    def _pending(self) -> list[PendingBlock]:
        blocks = list(self.works.parts._book.values())
        for grant in self.works.grants._grants.values():
            if isinstance(grant.details, dict):
                blocks += [block for block in grant.details.values() if not block.dropped]
        return blocks
