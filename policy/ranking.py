"""The policy of a tier: an order of the core over the rows of an index.

The index notes what happens to its rows; the ranker mirrors it and remembers identities beyond
their eviction. So whoever stores, moves or drops blocks need not tell the policy.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from evoke.core import native, scores
from evoke.policy.base import Rows
from evoke.policy.formula import Formula

__all__ = ["Ranking"]

SECRET_BYTES: Final = 16
DEFAULT_ALPHA: Final = 0.05


class Ranking:
    """Ranks the rows of one tier by a formula, which can be exchanged; what was learned stays."""

    def __init__(self, index: native.Index, formula: Formula, capacity_bytes: int) -> None:
        self._index, self._capacity_bytes = index, capacity_bytes
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._known = scores.Identities()
        self._ranker = scores.Ranker(
            self._known, scores.Scores(self._known, DEFAULT_ALPHA, True), 1
        )
        self._requests = 0
        index.follow()
        self._use(formula)

    @property
    def name(self) -> str:
        return self._formula.name

    def _use(self, formula: Formula) -> None:
        self._formula = formula
        self._ranker.use(formula.order(self._known, self._capacity_bytes))

    def swap(self, formula: Formula, alpha: float, *, keep: bool, remembered_factor: float) -> None:
        """Rank by this formula from now on. Scores stay as they are and age by the new alpha."""
        self._follow()
        self._ranker.set_rules(remembered_factor, 4096, keep)
        self._ranker.rescale(alpha, float(self._requests), float(self._requests))
        if formula != self._formula:
            self._use(formula)

    def add_namespace(self, number: int, namespace_id: bytes, block_bytes: int) -> None:
        """Keys of a namespace are hashed with a secret of its own: nobody can make them collide
        with another tenant's."""
        digest = hashlib.blake2b(namespace_id, key=self._secret, digest_size=SECRET_BYTES)
        self._ranker.set_space(number, digest.digest(), block_bytes)

    def asked(self, namespace: int, keys: bytes, now_s: float) -> None:
        """A request asked for the blocks of these keys, in chain order, stored or not."""
        self._follow()
        self._requests += 1
        self._ranker.asked(namespace, keys, float(self._requests), now_s)

    def touched(self, rows: Rows) -> None:
        """An access of resident blocks, in chain order, that no request will report."""
        self._follow()
        self._ranker.used(rows, float(self._requests))

    def victims(self, count: int, bytes_wanted: int, namespace: int = -1) -> Rows:
        """See base.Policy. Of one namespace: its least recent ones, where too many blocks of others
        would have to be passed over."""
        self._follow()
        clock = float(self._requests)
        rows, _, is_short = self._ranker.make_room(count, bytes_wanted, namespace, clock=clock)
        return self._index.victims(count, bytes_wanted, namespace) if is_short else rows

    def row(self, row: int) -> dict[str, object]:
        """What is known of a row: see scores.Ranker.row."""
        self._follow()
        return self._ranker.row(row, float(self._requests))

    def _follow(self) -> None:
        self._ranker.apply(*self._index.take_changes(), float(self._requests))
