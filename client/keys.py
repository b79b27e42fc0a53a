"""Keys of token sequences: checked token ids in, an immutable chain of 32-byte keys out."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from evoke.client.errors import BadArgument
from evoke.client.wire import KEY_BYTES
from evoke.core import native

__all__ = ["Chain", "chain_of_keys", "chain_of_tokens"]

_NO_PARENT = bytes(KEY_BYTES)
_TOKEN_MAX = 0xFFFF_FFFF
_INDEX_MAX = 0xFFFF_FFFF


class Chain:
    """Consecutive blocks of one sequence, by key. Immutable; a slice is a chain as well.

    `first` is the index of the first key in the whole sequence, `parent` the key before it (empty
    when first is 0).
    """

    __slots__ = ("first", "keys", "namespace_id", "parent")

    def __init__(
        self, namespace_id: bytes, keys: bytes, first: int = 0, parent: bytes = b""
    ) -> None:
        self.namespace_id = namespace_id
        self.keys = keys
        self.first = first
        self.parent = parent

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    def key(self, index: int) -> bytes:
        """The 32 bytes of block `index` of this chain."""
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"block {index} of a chain of {len(self)}")
        return self.keys[at * KEY_BYTES : (at + 1) * KEY_BYTES]

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Chain: ...
    def __getitem__(self, index: int | slice) -> bytes | Chain:
        if not isinstance(index, slice):
            return self.key(index)
        begin, end, step = index.indices(len(self))
        if step != 1:
            raise BadArgument(f"slice: step {step}, only 1 leaves a chain")
        return self.cut(begin, max(begin, end))

    def __iter__(self) -> Iterator[bytes]:
        return (self.key(i) for i in range(len(self)))

    def cut(self, begin: int, end: int) -> Chain:
        """Blocks begin to end (exclusive), both within the chain."""
        if begin == 0 and end == len(self):
            return self
        keys = self.keys[begin * KEY_BYTES : end * KEY_BYTES]
        return Chain(self.namespace_id, keys, self.first + begin, self.parent_of(begin))

    def parent_of(self, index: int) -> bytes:
        """The key before block `index`; empty at the start of the sequence."""
        return self.key(index - 1) if index else self.parent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bytes, bytes, int, bytes]:
        return self.namespace_id, self.keys, self.first, self.parent

    def __repr__(self) -> str:
        return (
            f"Chain({len(self)} blocks from {self.first}, namespace {self.namespace_id.hex()[:8]})"
        )


def chain_of_tokens(
    namespace_id: bytes,
    token_ids: Any,
    block_tokens: int,
    extra: Mapping[int, bytes] | None,
    parent: Chain | None,
) -> Chain:
    """Keys of the full blocks of token_ids. BadArgument names the token that is none.

    `extra` names content that the tokens do not: {index into token_ids: bytes}. A block's extra
    bytes are, for each entry in order of index, u32 offset in the block, u32 length, the bytes.
    """
    tokens = token_array(token_ids)
    first, before = 0, b""
    if parent is not None and len(parent):
        if parent.namespace_id != namespace_id:
            raise BadArgument("parent: a chain of another namespace")
        first, before = parent.first + len(parent), parent.key(-1)
    elif parent is not None:
        first, before = parent.first, parent.parent
    if first + len(tokens) // block_tokens > _INDEX_MAX:
        raise BadArgument(f"token_ids: block {first + len(tokens) // block_tokens}, over 32 bits")
    extras = _block_extras(extra, len(tokens), block_tokens) if extra else []
    keys = native.chain_keys(namespace_id, tokens, block_tokens, before or _NO_PARENT, extras)
    return Chain(namespace_id, keys, first, before)


def chain_of_keys(
    namespace_id: bytes, keys: bytes | Sequence[bytes], first: int, parent: bytes
) -> Chain:
    """A chain of keys that an engine made: 32 bytes each."""
    packed = keys if isinstance(keys, bytes) else b"".join(_checked_keys(keys))
    if len(packed) % KEY_BYTES:
        raise BadArgument(f"keys: {len(packed)} bytes, not a multiple of {KEY_BYTES}")
    if not 0 <= first <= _INDEX_MAX - len(packed) // KEY_BYTES:
        raise BadArgument(f"first: {first}, allowed 0 to 32 bits")
    if len(parent) != (KEY_BYTES if first else 0):
        raise BadArgument(f"parent: {len(parent)} bytes; 32 if first is over 0, else none")
    return Chain(namespace_id, packed, first, parent)


def _checked_keys(keys: Sequence[bytes]) -> Sequence[bytes]:
    for i, key in enumerate(keys):
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise BadArgument(f"keys[{i}]: {key!r:.80} is not {KEY_BYTES} bytes")
    return keys


def token_array(token_ids: Any) -> NDArray[np.uint32]:
    """Token ids as u32, refusing what is no integer or does not fit; never truncates."""
    if isinstance(token_ids, (list, tuple)):
        array = _array_of_list(token_ids)
    elif isinstance(token_ids, np.ndarray):
        array = token_ids
    elif hasattr(token_ids, "detach") and hasattr(token_ids, "numpy"):
        array = _array_of_tensor(token_ids)
    else:
        kind = type(token_ids).__name__
        raise BadArgument(f"token_ids: {kind}, allowed list, tuple, numpy array and torch tensor")
    if array.dtype.kind not in "iu":
        raise BadArgument(f"token_ids[0]: {array.dtype} is not an integer type")
    if array.ndim != 1:
        raise BadArgument(f"token_ids: {array.ndim} dimensions, allowed 1")
    if array.dtype == np.uint32:
        return np.ascontiguousarray(array)
    if array.size and (int(array.min()) < 0 or int(array.max()) > _TOKEN_MAX):
        bad = int(np.argmax((array < 0) | (array > _TOKEN_MAX)))
        raise BadArgument(f"token_ids[{bad}]: {array[bad]}, allowed 0 to {_TOKEN_MAX}")
    return array.astype(np.uint32, order="C")


def _array_of_list(token_ids: Sequence[Any]) -> NDArray[Any]:
    for kind in set(map(type, token_ids)):
        if kind is not int and not issubclass(kind, np.integer):
            bad = next(i for i, token in enumerate(token_ids) if type(token) is kind)
            raise BadArgument(f"token_ids[{bad}]: {token_ids[bad]!r:.80} is not an integer")
    try:
        return np.array(token_ids, dtype=np.int64)
    except OverflowError:
        bad = next(i for i, token in enumerate(token_ids) if not 0 <= token <= _TOKEN_MAX)
        raise BadArgument(
            f"token_ids[{bad}]: {token_ids[bad]}, allowed 0 to {_TOKEN_MAX}"
        ) from None


def _array_of_tensor(tensor: Any) -> NDArray[Any]:
    try:
        return np.asarray(tensor.detach().cpu().numpy())
    except TypeError:  # a type that numpy lacks, as bfloat16: no token ids in any case
        raise BadArgument(f"token_ids[0]: {tensor.dtype} is not an integer type") from None


def _block_extras(
    extra: Mapping[int, bytes], tokens: int, block_tokens: int
) -> list[tuple[int, bytes]]:
    blocks: dict[int, bytes] = {}
    for index in sorted(extra):
        data = extra[index]
        if isinstance(index, bool) or not 0 <= index < tokens:
            raise BadArgument(f"extra: token index {index!r}, allowed 0 to {tokens - 1}")
        if not isinstance(data, bytes):
            raise BadArgument(f"extra[{index}]: {type(data).__name__} is not bytes")
        block, offset = divmod(index, block_tokens)
        entry = struct.pack("<II", offset, len(data)) + data
        blocks[block] = blocks.get(block, b"") + entry
    full = tokens // block_tokens
    return [(block, data) for block, data in sorted(blocks.items()) if block < full]
