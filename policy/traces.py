"""Recorded streams of requests, as arrays; readers of the formats that hold one.

A trace lists for each request the blocks of its prompt, in chain order. A block's number stands for
its whole prefix: it is always at the same depth and after the same block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Trace", "read_jsonl"]

ACCESSES_MAX: Final = (1 << 32) - 1  # the simulator's sequence numbers are u32
_TIME_MS_MAX: Final = 1e15
_TABLE_FACTOR: Final = 16  # ids up to so many times the accesses are renumbered by a table


@dataclass(frozen=True)
class Trace:
    """Request i asked at now_s[i] for ids[starts[i]:starts[i + 1]]; first_index[i] is the depth of
    the first of them in its chain. Ids are dense from 0."""

    ids: NDArray[np.uint32]
    starts: NDArray[np.uint64]
    now_s: NDArray[np.float64]
    first_index: NDArray[np.uint32]
    identities: int

    @property
    def requests(self) -> int:
        return len(self.now_s)

    @property
    def accesses(self) -> int:
        return len(self.ids)

    def broken_prefix(self) -> str | None:
        """A sentence on the first access where an id does not stand for its whole prefix; None when
        all do. Orders that evict tails only need it."""
        if not self.accesses:
            return None
        starts = self.starts.astype(np.int64)
        lengths = np.diff(starts)
        position = np.arange(self.accesses) - np.repeat(starts[:-1], lengths)
        depth = position + np.repeat(self.first_index.astype(np.int64), lengths)
        parent = np.concatenate(([0], self.ids[:-1].astype(np.int64)))
        known_depth = np.full(self.identities, -1)
        known_depth[self.ids[::-1]] = depth[::-1]
        known_parent = np.full(self.identities, -1)
        inner = np.flatnonzero(position > 0)
        known_parent[self.ids[inner][::-1]] = parent[inner][::-1]
        wrong = depth != known_depth[self.ids]
        wrong[inner] |= parent[inner] != known_parent[self.ids[inner]]
        if not wrong.any():
            return None
        at = int(np.argmax(wrong))
        request = int(np.searchsorted(starts, at, side="right"))
        return f"request {request}, block {int(position[at]) + 1}: it had another prefix before"


def dense(ids: NDArray[np.int64]) -> tuple[NDArray[np.uint32], int]:
    """The same stream with numbers from 0 without holes, and how many there are."""
    if not len(ids):
        return ids.astype(np.uint32), 0
    if 0 <= ids.min() and ids.max() < _TABLE_FACTOR * len(ids):
        seen = np.zeros(int(ids.max()) + 1, np.uint32)
        seen[ids] = 1
        numbers = np.cumsum(seen, dtype=np.uint32) - 1
        return numbers[ids].astype(np.uint32), int(numbers[-1]) + 1
    distinct, inverse = np.unique(ids, return_inverse=True)
    return inverse.astype(np.uint32), len(distinct)


def read_jsonl(lines: Iterable[bytes]) -> Trace:
    """Mooncake's form: one JSON object a line with `timestamp` (ms) and `hash_ids` (integers);
    other fields are not read. ValueError names the line and the field."""
    times: list[float] = []
    lengths: list[int] = []
    pieces: list[NDArray[np.int64]] = []
    for time_ms, ids in _requests(lines):
        times.append(time_ms / 1000)
        lengths.append(len(ids))
        pieces.append(ids)
    if not times:
        raise ValueError("there is no request in it")
    starts = np.cumsum([0, *lengths], dtype=np.uint64)
    if int(starts[-1]) > ACCESSES_MAX:
        raise ValueError(f"{int(starts[-1])} accesses, at most {ACCESSES_MAX}")
    numbers, identities = dense(np.concatenate(pieces))
    first_index = np.zeros(len(times), np.uint32)
    return Trace(numbers, starts, np.array(times, np.float64), first_index, identities)


def _requests(lines: Iterable[bytes]) -> Iterator[tuple[float, NDArray[np.int64]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:  # also bytes that are not UTF-8
            raise ValueError(f"line {number}: not JSON: {error}") from None
        try:
            yield _time_ms(record), _ids(record)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def _time_ms(record: Any) -> float:
    if not isinstance(record, dict):
        raise ValueError("not an object")
    time_ms: Any = record.get("timestamp")
    is_number = isinstance(time_ms, int | float) and not isinstance(time_ms, bool)
    if not is_number or not abs(time_ms) < _TIME_MS_MAX:
        raise ValueError(f"timestamp: {time_ms!r} is not a number of milliseconds")
    return float(time_ms)


def _ids(record: dict[str, Any]) -> NDArray[np.int64]:
    listed = record.get("hash_ids")
    if not isinstance(listed, list) or not all(type(block) is int for block in listed):
        raise ValueError("hash_ids: not a list of integers")
    try:
        return np.array(listed, np.int64)
    except OverflowError:
        raise ValueError("hash_ids: a number does not fit in 64 bits") from None
