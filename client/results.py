"""What store and fetch answer: one code per block, never an exception for an expected outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from evoke.client.errors import EvokeError
from evoke.client.wire import Fetched, Stored

__all__ = ["FetchResult", "StoreResult", "TransferResult"]


def _leading(good: NDArray[np.bool_]) -> int:
    return int(good.size if good.all() else np.argmin(good))


@dataclass(frozen=True, eq=False)
class TransferResult:
    """One code per block; `error` says why nothing came of the request, or of a part of it."""

    codes: NDArray[np.uint8]
    error: EvokeError | None = None

    # codes of blocks that the daemon said nothing about
    LATE: ClassVar[int]
    NO: ClassVar[int]
    EXPIRED: ClassVar[int]


@dataclass(frozen=True, eq=False)
class StoreResult(TransferResult):
    """`codes[i]` is the wire.Stored of block i."""

    LATE = int(Stored.LATE)
    NO = int(Stored.REFUSED)
    EXPIRED = int(Stored.REFUSED)

    @property
    def stored(self) -> int:
        """Blocks that this call made readable."""
        return int(np.count_nonzero(self.codes == Stored.STORED))

    @property
    def readable(self) -> int:
        """Blocks that can be fetched now, stored by this call or before."""
        return int(np.count_nonzero(self.codes <= Stored.PRESENT))

    @property
    def ok_blocks(self) -> int:
        """Leading blocks of which the daemon has what this rank can give."""
        codes = self.codes
        return _leading((codes <= Stored.PRESENT) | (codes == Stored.INCOMPLETE))


@dataclass(frozen=True, eq=False)
class FetchResult(TransferResult):
    """`codes[i]` is the wire.Fetched of block i.

    The slot of a block whose code is not a tier holds garbage.
    """

    LATE = int(Fetched.LATE)
    NO = int(Fetched.MISS)
    EXPIRED = int(Fetched.EXPIRED)

    @property
    def leading(self) -> int:
        """Leading blocks that are now valid in their slots."""
        return _leading(_is_tier(self.codes))

    @property
    def hits(self) -> int:
        """Blocks that are valid in their slots, wherever in the chain."""
        return int(np.count_nonzero(_is_tier(self.codes)))


def _is_tier(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return (codes >= Fetched.HOST) & (codes <= Fetched.FLASH)
