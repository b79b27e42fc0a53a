"""evoke's own trace file: who asked for which blocks when, without a key in it.

    "evoke-trace 1\\n", then chunks:   u32 payload bytes, u32 CRC-32 of the payload, payload
    payload = zlib of records:         varint kind, varint body bytes, body (varints)
      1 namespace   block_tokens, block_bytes                      numbered from 0 in this order
      2 request     namespace, ms since the request before, first index, leading hits, runs:
                    (zigzag(first block - the one after the run before), blocks) ...
      3 end         reason: 0 asked to, 1 full

Integers are little-endian; varints carry 7 bits a byte, low ones first. Blocks are numbered from 0
as they are first seen, and a key of one namespace is another block than the same key of another.
So a file tells how much is reused, by requests of which namespace and when since the recording
began; it holds no key, no hash of one, no salt and no wall time, and nobody can test it for a
prompt. The table from keys to numbers is in the recorder's memory only.

A file that ends inside a chunk, as after a crash, is read up to there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

__all__ = ["CHUNK", "CHUNK_BYTES_MAX", "MAGIC", "RUN_BLOCKS_MAX", "Kind", "TraceEncoder"]

MAGIC: Final = b"evoke-trace 1\n"
KEY_BYTES: Final = 32
CHUNK_BYTES: Final = 1 << 16  # of records, before they are compressed
CHUNK_BYTES_MAX: Final = 1 << 24
RUN_BLOCKS_MAX: Final = 1 << 20
CHUNK: Final = struct.Struct("<II")


class Kind(IntEnum):
    """Of a record."""

    NAMESPACE = 1
    REQUEST = 2
    END = 3


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else ~value << 1 | 1


class TraceEncoder:
    """Turns what was asked into the bytes of a file, which the caller writes in this order. Memory:
    some 150 bytes for each block seen, up to blocks_max of them."""

    def __init__(self, blocks_max: int = 4_000_000) -> None:
        if blocks_max < 1:
            raise ValueError(f"blocks_max: {blocks_max} is not at least 1")
        self._blocks_max = blocks_max
        self._blocks = 0
        self._tables: dict[bytes, tuple[int, dict[bytes, int]]] = {}  # by namespace id
        self._records = bytearray()
        self._now_ms: int | None = None

    @property
    def full(self) -> bool:
        """No room for another block: requests are not taken any more."""
        return self._blocks >= self._blocks_max

    def begin(self) -> bytes:
        return MAGIC

    def namespace(self, identity: bytes, block_tokens: int, block_bytes: int) -> None:
        """To be told before its first request; again is without effect."""
        if identity in self._tables:
            return
        self._tables[identity] = (len(self._tables), {})
        self._record(Kind.NAMESPACE, _varint(block_tokens) + _varint(block_bytes))

    def request(
        self, identity: bytes, keys: bytes, first_index: int, hits: int, now_s: float
    ) -> bytes:
        """keys: 32 bytes each, in chain order; now_s of a steady clock. What is to be written now,
        often nothing. ValueError: no whole number of keys; KeyError: the namespace was not told."""
        if len(keys) % KEY_BYTES:
            raise ValueError(f"keys: {len(keys)} bytes are no whole number of keys")
        namespace, table = self._tables[identity]
        if self.full:
            return b""
        now_ms = round(now_s * 1000)
        step_ms = max(0, now_ms - self._now_ms) if self._now_ms is not None else 0
        self._now_ms = max(now_ms, self._now_ms or now_ms)
        body = bytearray(b"".join(map(_varint, (namespace, step_ms, first_index, hits))))
        after = 0
        for first, blocks in self._runs(table, keys):
            body += _varint(_zigzag(first - after)) + _varint(blocks)
            after = first + blocks
        self._record(Kind.REQUEST, bytes(body))
        return self.flush() if len(self._records) >= CHUNK_BYTES else b""

    def flush(self) -> bytes:
        """All that is pending, as a chunk."""
        if not self._records:
            return b""
        payload = zlib.compress(bytes(self._records), 6)
        self._records.clear()
        return CHUNK.pack(len(payload), zlib.crc32(payload)) + payload

    def end(self) -> bytes:
        self._record(Kind.END, _varint(int(self.full)))
        return self.flush()

    def _record(self, kind: Kind, body: bytes) -> None:
        self._records += _varint(kind) + _varint(len(body)) + body

    def _runs(self, table: dict[bytes, int], keys: bytes) -> Iterator[tuple[int, int]]:
        """(first block, how many) of neighbouring numbers."""
        first = after = -1
        for at in range(0, len(keys), KEY_BYTES):
            number = table.setdefault(keys[at : at + KEY_BYTES], self._blocks)
            self._blocks += number == self._blocks
            if number != after or after - first >= RUN_BLOCKS_MAX:
                if first >= 0:
                    yield first, after - first
                first = number
            after = number + 1
        if first >= 0:
            yield first, after - first
