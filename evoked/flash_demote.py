"""Demotion: what memory would give up next is copied to flash before, in the background.

A block is then in both tiers, and leaves memory without a copy ("save once"). Seam: call tick()
a few times a second and after each completion of the flash tier; give Balance's evictions no wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from evoke.core import native
from evoke.policy import Policy
from evoked.flash import Block, FlashTier, Saved
from evoked.sessions import NamespaceEntry
from evoked.tiers import U32, U64

__all__ = ["Demoter", "DemotionRules"]


@dataclass(frozen=True, kw_only=True)
class DemotionRules:
    ahead_blocks: int = 256  # of those that memory would give up next, how many are to be on flash
    above_percent: int = 70  # of memory in use: below, nothing is copied
    started_max: int = 8  # copies that one tick starts


class Demoter:
    """Chooses by the policy's order. A row is held while it is copied: its memory stays."""

    def __init__(
        self,
        index: native.Index,
        policy: Policy,
        flash: FlashTier,
        namespaces: Mapping[int, NamespaceEntry],
        rules: DemotionRules,
        *,
        used_percent: Callable[[], int],
        free: Callable[[U64], None],
    ) -> None:
        """free: takes the refs of rows that were erased while they were copied."""
        self._index, self.policy, self._flash = index, policy, flash
        self._namespaces, self._rules = namespaces, rules
        self._used_percent, self._free = used_percent, free
        self.under_way = 0

    def tick(self) -> int:
        """Starts copies; how many."""
        if self._used_percent() < self._rules.above_percent:
            return 0
        started = 0
        for row in self.policy.victims(self._rules.ahead_blocks, 0).tolist():
            if started >= self._rules.started_max:
                break
            outcome = self.save(row)
            started += outcome is Saved.STARTED
            if outcome not in (Saved.STARTED, Saved.PRESENT, Saved.REFUSED):
                break  # the next one would meet the same
        return started

    def save(self, row: int) -> Saved:
        """Starts to copy one block of memory."""
        rows = np.array([row], np.uint32)
        outcome = self._flash.save(self._block(row), partial(self._ended, rows))
        if outcome is Saved.STARTED:
            self._index.lend(rows)  # its turn to leave stays what it is
            self.under_way += 1
        return outcome

    def _ended(self, rows: U32, written: bool) -> None:
        self.under_way -= 1
        self._free(self._index.take_back(rows))

    def _block(self, row: int) -> Block:
        about = self._index.row(row)
        rows = np.array([row], np.uint32)
        parts = [self._index.part(rows, part) for part in range(about["parts"])]
        parent = about["parent_row"]
        return Block(
            self._namespaces[about["namespace"]].id,
            about["key"],
            b"" if parent == native.NO_ROW else self._index.row(parent)["key"],
            about["chain_index"],
            np.concatenate([refs for refs, _, _ in parts]),
            np.concatenate([lengths for _, lengths, _ in parts]),
            np.concatenate([sums for _, _, sums in parts]),
        )
