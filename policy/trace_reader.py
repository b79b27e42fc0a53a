"""Reads evoke's own trace files; evoke.policy.trace_format says what is in them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from evoke.policy.trace_format import (
    CHUNK,
    CHUNK_BYTES_MAX,
    MAGIC,
    RUN_BLOCKS_MAX,
    Kind,
)
from evoke.policy.traces import ACCESSES_MAX, Trace

__all__ = ["Recording", "read_recording"]


@dataclass(frozen=True)
class Recording:
    """block_sizes: of the namespaces, (tokens, bytes); namespaces: by request; hits: by request,
    leading blocks that the daemon had; whole: the recording was ended, not cut off."""

    trace: Trace
    block_sizes: list[tuple[int, int]]
    namespaces: NDArray[np.uint32]
    hits: NDArray[np.uint32]
    whole: bool


class _Reader:
    """Records of a file, decoded; how it ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.whole = False  # ended by an `end` record
        self.sizes: list[tuple[int, int]] = []  # of namespaces: block_tokens, block_bytes
        self.times_ms: list[int] = []
        self.first_index: list[int] = []
        self.hits: list[int] = []
        self.namespaces: list[int] = []
        self.runs_before: list[int] = [0]  # by request
        self.firsts: list[int] = []  # by run
        self.blocks: list[int] = []
        self.identities = 0
        self._accesses = 0

    def read(self) -> None:
        while (payload := self._chunk()) is not None:
            records = _inflate(payload)
            at = 0
            while at < len(records):
                kind, at = _take(records, at)
                size, at = _take(records, at)
                if at + size > len(records):
                    raise ValueError("a record is longer than its chunk")
                self._record(kind, records[at : at + size])
                at += size

    def trace(self) -> Trace:
        blocks = np.array(self.blocks, np.int64)
        ends = np.cumsum(blocks)
        offsets = np.array(self.firsts, np.int64) - (ends - blocks)
        ids = np.arange(self._accesses) + np.repeat(offsets, blocks)
        return Trace(
            ids.astype(np.uint32),
            np.concatenate(([0], ends))[self.runs_before].astype(np.uint64),
            np.array(self.times_ms, np.float64) / 1000,
            np.array(self.first_index, np.uint32),
            self.identities,
        )

    def _chunk(self) -> bytes | None:
        head = self._file.read(CHUNK.size)
        if len(head) < CHUNK.size:
            return None
        size, checksum = CHUNK.unpack(head)
        if size > CHUNK_BYTES_MAX:
            raise ValueError(f"a chunk of {size} bytes, at most {CHUNK_BYTES_MAX}")
        payload = self._file.read(size)
        if len(payload) < size:
            return None
        if zlib.crc32(payload) != checksum:
            raise ValueError(f"request {len(self.times_ms) + 1}: the checksum of its chunk differs")
        return payload

    def _record(self, kind: int, body: bytes) -> None:
        if kind not in list(Kind):
            return  # of a later writer of the same version
        values = []
        at = 0
        while at < len(body):
            value, at = _take(body, at)
            values.append(value)
        if kind == Kind.REQUEST:
            self._request(values)
        elif kind == Kind.NAMESPACE and len(values) >= 2:
            self.sizes.append((values[0], values[1]))
        elif kind == Kind.END:
            self.whole = True
        else:
            raise ValueError("a namespace without sizes")

    def _request(self, values: list[int]) -> None:
        where = f"request {len(self.times_ms) + 1}"
        if len(values) < 4 or len(values) % 2:
            raise ValueError(f"{where}: {len(values)} numbers")
        namespace, step_ms, first_index, hits = values[:4]
        if namespace >= len(self.sizes):
            raise ValueError(f"{where}: namespace {namespace} of {len(self.sizes)}")
        if max(step_ms, first_index, hits) >= 1 << 32:
            raise ValueError(f"{where}: {step_ms} ms, first index {first_index}, {hits} hits")
        after = 0
        for moved, blocks in zip(values[4::2], values[5::2], strict=True):
            first = after + _unzigzag(moved)
            if not (0 <= first <= self.identities and 1 <= blocks <= RUN_BLOCKS_MAX):
                raise ValueError(f"{where}: a run of {blocks} blocks from {first}")
            after = first + blocks
            self.identities = max(self.identities, after)
            self._accesses += blocks
            self.firsts.append(first)
            self.blocks.append(blocks)
        if self._accesses > ACCESSES_MAX:
            raise ValueError(f"{where}: more than {ACCESSES_MAX} accesses")
        self.runs_before.append(len(self.firsts))
        self.times_ms.append((self.times_ms[-1] if self.times_ms else 0) + step_ms)
        self.first_index.append(first_index)
        self.hits.append(hits)
        self.namespaces.append(namespace)


def _unzigzag(value: int) -> int:
    return value >> 1 if not value & 1 else ~(value >> 1)


def _take(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number does not end")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _inflate(payload: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        records = inflater.decompress(payload, CHUNK_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(f"a chunk does not decompress: {error}") from None
    if not inflater.eof:
        raise ValueError(f"a chunk of more than {CHUNK_BYTES_MAX} bytes")
    return records


def read_recording(file: BinaryIO) -> Recording:
    """The requests of a file, which is at its beginning; one that was cut off is read up to there.
    ValueError: another format or version, a checksum that differs, an impossible number."""
    start = file.read(len(MAGIC))
    if start != MAGIC:
        raise ValueError(f"begins with {start!r}, not with {MAGIC!r}")
    reader = _Reader(file)
    reader.read()
    if not reader.times_ms:
        raise ValueError("there is no request in it")
    return Recording(
        reader.trace(),
        reader.sizes,
        np.array(reader.namespaces, np.uint32),
        np.array(reader.hits, np.uint32),
        reader.whole,
    )
