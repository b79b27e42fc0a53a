"""The policy of a tier: an order of the core over the rows of an index.

The index notes what happens to its rows; the ranker mirrors it and remembers identities beyond
their eviction. So whoever stores, moves or drops blocks need not tell the policy.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoke.core import native, scores
from evoke.policy.base import Rows
from evoke.policy.formula import Formula

__all__ = ["Learned", "Ranking"]

SECRET_BYTES: Final = 16
DEFAULT_ALPHA: Final = 0.05
NOTES_MOST: Final = 65_536  # of the index, 5 MB


class Learned:
    """A dump of what a ranking remembers, taken in pieces as of one time of its clock."""

    RECORD_BYTES: Final = 40

    def __init__(self, ranker: scores.Ranker, secret: bytes, requests: int) -> None:
        self._ranker, self._next = ranker, 0
        self.secret, self.requests, self.rows_most = secret, requests, ranker.rows_most
        self._records: list[bytes] = []
        self._seqs: list[NDArray[np.uint32]] = []

    def take(self, count: int) -> bool:
        """Of so many identities more; whether that was the end."""
        records, seqs, is_end = self._ranker.dump_part(float(self.requests), self._next, count)
        self._records.append(records)
        self._seqs.append(seqs)
        self._next += count
        return is_end

    def sorted(self) -> bytes:
        """The records, least recent first. Touches nothing of the ranking: for any thread."""
        kind = np.dtype((np.void, self.RECORD_BYTES))
        records = np.frombuffer(b"".join(self._records), kind)
        return records[np.argsort(np.concatenate(self._seqs), kind="stable")].tobytes()


class Ranking:
    """Ranks the rows of one tier by a formula, which can be exchanged; what was learned stays."""

    def __init__(self, index: native.Index, formula: Formula, capacity_bytes: int) -> None:
        self._index, self._capacity_bytes = index, capacity_bytes
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._known = scores.Identities()
        self._ranker = scores.Ranker(
            self._known, scores.Scores(self._known, DEFAULT_ALPHA, True), 1
        )
        self.requests = 0
        index.follow()
        self._use(formula)

    def learned(self) -> Learned:
        """What is remembered now, to be taken in pieces."""
        self._follow()
        return Learned(self._ranker, self._secret, self.requests)

    def restore(self, secret: bytes, records: bytes, rows_most: int) -> int:
        """What a ranking before had learned, before any namespace is added; how many identities
        were taken. No requests passed meanwhile, so nothing has aged. ValueError: damaged."""
        taken = self._ranker.load(records, float(self.requests), 0.0, rows_most)
        self._secret = secret
        return taken

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
        self._ranker.rescale(alpha, float(self.requests), float(self.requests))
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
        self.requests += 1
        self._ranker.asked(namespace, keys, float(self.requests), now_s)

    def touched(self, rows: Rows) -> None:
        """An access of resident blocks, in chain order, that no request will report."""
        self._follow()
        self._ranker.used(rows, float(self.requests))

    def victims(self, count: int, bytes_wanted: int, namespace: int = -1) -> Rows:
        """See base.Policy. Of one namespace: its least recent ones, where too many blocks of others
        would have to be passed over."""
        self._follow()
        clock = float(self.requests)
        rows, _, is_short = self._ranker.make_room(count, bytes_wanted, namespace, clock=clock)
        return self._index.victims(count, bytes_wanted, namespace) if is_short else rows

    def row(self, row: int) -> dict[str, object]:
        """What is known of a row: see scores.Ranker.row."""
        self._follow()
        return self._ranker.row(row, float(self.requests))

    def follow_when_many(self) -> None:
        """Notes that no request makes it read must not pile up."""
        if self._index.changes > NOTES_MOST:
            self._follow()

    def _follow(self) -> None:
        self._ranker.apply(*self._index.take_changes(), float(self.requests))
