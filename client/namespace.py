"""What must be equal for KV bytes to be interchangeable, and its one canonical encoding.

The encoding (docs/protocol.md, "Namespaces") is a list of fields in ascending tag order, each
u8 tag, u8 type, u32 length, payload; integers are u64 little-endian. The id is SHA-256 of it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from evoke.client.errors import BadArgument

__all__ = ["DTYPE_BYTES", "NO_SALT", "Group", "Namespace", "NoSalt", "Part"]

MAGIC: Final = b"evoke-namespace-1"
TEXT_BYTES_MAX: Final = 1024
PART_BYTES_MAX: Final = 1 << 30
DTYPE_BYTES: Final = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1, "int8": 1,
}  # fmt: skip


class NoSalt(Enum):
    """Said, never defaulted: the blocks of this namespace belong to no tenant."""

    NO_SALT = "no salt"


NO_SALT: Final = NoSalt.NO_SALT


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers of one shape. kind: "kv" (keys and values) or "latent" (one vector, as in MLA)."""

    layers: int
    kv_heads: int
    head_size: int
    kind: str = "kv"

    def numbers(self) -> int:
        """Numbers that one token has in this group."""
        return self.layers * self.kv_heads * self.head_size * (2 if self.kind == "kv" else 1)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank holds of a block. `part_bytes` may be left 0 for format "plain"."""

    groups: tuple[Group, ...]
    part_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """Identity of interchangeable KV. `rank_parts[r]` is the part of rank r: equal numbers say
    that these ranks hold identical bytes, which are then stored once."""

    model: str  # fingerprint: digest of config and weights, or the caller's word
    weights_epoch: str
    position: str  # position scheme with its parameters, e.g. "rope:theta=100000"
    dtype: str
    block_tokens: int
    parts: tuple[Part, ...]
    salt: str | NoSalt
    rank_parts: tuple[int, ...] = (0,)
    scales: str = ""
    format: str = "plain"  # or "opaque:TAG"
    lora: str = ""
    key_kind: str = "tokens"  # or "engine:NAME" for keys that an engine made

    def __post_init__(self) -> None:
        _check(self)
        if self.format == "plain":
            object.__setattr__(self, "parts", tuple(self._sized(p) for p in self.parts))
        for i, part in enumerate(self.parts):
            if not 1 <= part.part_bytes <= PART_BYTES_MAX:
                raise BadArgument(
                    f"parts[{i}].part_bytes: {part.part_bytes}, allowed 1 to {PART_BYTES_MAX}"
                )

    def _sized(self, part: Part) -> Part:
        numbers = sum(group.numbers() for group in part.groups)
        part_bytes = numbers * self.block_tokens * DTYPE_BYTES[self.dtype]
        if part.part_bytes not in (0, part_bytes):
            raise BadArgument(f"part_bytes: {part.part_bytes}, the groups make {part_bytes}")
        return Part(groups=part.groups, part_bytes=part_bytes)

    def encoded(self) -> bytes:
        """The canonical bytes; equal namespaces and only these have equal ones."""
        salt = b"" if isinstance(self.salt, NoSalt) else b"\x01" + self.salt.encode()
        parts = b"".join(_encode_part(part) for part in self.parts)
        fields = (
            (1, b"t", self.model.encode()),
            (2, b"t", self.weights_epoch.encode()),
            (3, b"t", self.position.encode()),
            (4, b"t", self.dtype.encode()),
            (5, b"t", self.scales.encode()),
            (6, b"u", struct.pack("<Q", self.block_tokens)),
            (7, b"p", parts),
            (8, b"l", struct.pack(f"<{len(self.rank_parts)}Q", *self.rank_parts)),
            (9, b"t", self.format.encode()),
            (10, b"t", self.lora.encode()),
            (11, b"s", salt),
            (12, b"t", self.key_kind.encode()),
        )
        return MAGIC + b"".join(
            struct.pack("<BcI", tag, kind, len(data)) + data for tag, kind, data in fields
        )

    @property
    def id(self) -> bytes:
        """SHA-256 of the encoding, 32 bytes."""
        return hashlib.sha256(self.encoded()).digest()

    @classmethod
    def decode(cls, encoded: bytes) -> Namespace:
        """Strict inverse of encoded(): BadArgument unless re-encoding gives the same bytes."""
        if not encoded.startswith(MAGIC):
            raise BadArgument(f"encoded: does not begin with {MAGIC!r}")
        try:
            value = cls(**_decode_fields(encoded[len(MAGIC) :]))
        except (UnicodeDecodeError, struct.error, KeyError, IndexError) as error:
            raise BadArgument(f"encoded: {error!r}"[:200]) from None
        if value.encoded() != encoded:
            raise BadArgument("encoded: not the canonical form")
        return value


_NAMES: Final = {
    1: "model", 2: "weights_epoch", 3: "position", 4: "dtype", 5: "scales", 6: "block_tokens",
    7: "parts", 8: "rank_parts", 9: "format", 10: "lora", 11: "salt", 12: "key_kind",
}  # fmt: skip

_KINDS: Final = {"block_tokens": b"u", "parts": b"p", "rank_parts": b"l", "salt": b"s"}


def _decode_fields(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, kind, length = struct.unpack_from("<BcI", data, at)
        at += 6
        payload = data[at : at + length]
        if len(payload) != length:
            raise BadArgument(f"encoded: field {tag} has {len(payload)} of {length} bytes")
        at += length
        if kind != _KINDS.get(_NAMES[tag], b"t"):
            raise BadArgument(f"encoded: {_NAMES[tag]} has type {kind!r}")
        fields[_NAMES[tag]] = _decode_payload(kind, payload)
    missing = set(_NAMES.values()) - set(fields)
    if missing:
        raise BadArgument(f"encoded: no {sorted(missing)[0]}")
    return fields


def _decode_payload(kind: bytes, payload: bytes) -> object:
    if kind == b"t":
        return payload.decode()
    if kind == b"u":
        return int(struct.unpack("<Q", payload)[0])
    if kind == b"l":
        return struct.unpack(f"<{len(payload) // 8}Q", payload)
    if kind == b"s":
        return payload[1:].decode() if payload else NO_SALT
    if kind == b"p":
        return tuple(_decode_parts(payload))
    raise BadArgument(f"encoded: type {kind!r} is unknown")


def _encode_part(part: Part) -> bytes:
    head = struct.pack("<QQ", part.part_bytes, len(part.groups))
    return head + b"".join(
        struct.pack("<QQQB", g.layers, g.kv_heads, g.head_size, g.kind == "kv") for g in part.groups
    )


def _decode_parts(payload: bytes) -> Iterator[Part]:
    at = 0
    while at < len(payload):
        part_bytes, count = struct.unpack_from("<QQ", payload, at)
        at += 16
        groups = []
        for _ in range(min(count, 65536)):
            layers, heads, size, is_kv = struct.unpack_from("<QQQB", payload, at)
            at += 25
            kind = "kv" if is_kv else "latent"
            groups.append(Group(layers=layers, kv_heads=heads, head_size=size, kind=kind))
        yield Part(groups=tuple(groups), part_bytes=part_bytes)


def _check(n: Namespace) -> None:
    for name in ("model weights_epoch position dtype scales format lora key_kind").split():
        _check_text(name, getattr(n, name))
    if not isinstance(n.salt, NoSalt):
        _check_text("salt", n.salt)
    for name in ("model", "weights_epoch", "position", "key_kind"):
        if not getattr(n, name):
            raise BadArgument(f"{name}: empty; say what it is")
    if n.dtype not in DTYPE_BYTES:
        raise BadArgument(f"dtype: {n.dtype!r}, known: {', '.join(DTYPE_BYTES)}")
    if n.format != "plain" and not (n.format.startswith("opaque:") and len(n.format) > 7):
        raise BadArgument(f'format: {n.format!r}, allowed "plain" and "opaque:TAG"')
    if n.key_kind != "tokens" and not (n.key_kind.startswith("engine:") and len(n.key_kind) > 7):
        raise BadArgument(f'key_kind: {n.key_kind!r}, allowed "tokens" and "engine:NAME"')
    if not _is_count(n.block_tokens, 65536):
        raise BadArgument(f"block_tokens: {n.block_tokens!r}, allowed 1 to 65536")
    if not 1 <= len(n.parts) <= 256:
        raise BadArgument(f"parts: {len(n.parts)} of them, allowed 1 to 256")
    if not 1 <= len(n.rank_parts) <= 256:
        raise BadArgument(f"rank_parts: {len(n.rank_parts)} ranks, allowed 1 to 256")
    if set(n.rank_parts) != set(range(len(n.parts))):
        raise BadArgument(f"rank_parts: {n.rank_parts} must name each of {len(n.parts)} parts")
    for i, part in enumerate(n.parts):
        _check_groups(i, part)


def _check_groups(number: int, part: Part) -> None:
    if not part.groups:
        raise BadArgument(f"parts[{number}].groups: empty")
    for j, group in enumerate(part.groups):
        for name in ("layers", "kv_heads", "head_size"):
            if not _is_count(getattr(group, name), 1 << 20):
                value = getattr(group, name)
                raise BadArgument(f"parts[{number}].groups[{j}].{name}: {value!r}, from 1")
        if group.kind not in ("kv", "latent"):
            raise BadArgument(f'parts[{number}].groups[{j}].kind: {group.kind!r}, "kv" or "latent"')
    if not math.isfinite(sum(group.numbers() for group in part.groups)):
        raise BadArgument(f"parts[{number}].groups: too large")


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadArgument(f"{name}: {value!r} is not a text")
    if len(value.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
        raise BadArgument(f"{name}: over {TEXT_BYTES_MAX} bytes")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise BadArgument(f"{name}: has a lone surrogate")
