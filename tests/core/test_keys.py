"""SHA-256 and the chained block keys."""

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evoke.core import native

NAMESPACE = bytes(range(32))
ROOT = bytes(32)

# First three keys of tokens 0, 1, 2, ... in blocks of 16 under NAMESPACE, computed with hashlib.
VECTOR = [
    "7b22d9e577a215e66f16bb8dfa3a7aa0de87d94a5e4c4b1dc44afcbeb7e3143a",
    "eb90c7f6288f0964b0c29a9eee6d9e81e474bbced9eeae4c64e081d1e83f5b2b",
    "d0e57815a8983214e31ba165d1c38dc07ef1c1e86c39d536d5447c03a7227656",
]


def keys_by_definition(
    namespace_id: bytes,
    token_ids: NDArray[np.uint32],
    block_tokens: int,
    parent: bytes,
    extras: Mapping[int, bytes],
) -> bytes:
    keys = b""
    for block in range(len(token_ids) // block_tokens):
        ids = token_ids[block * block_tokens : (block + 1) * block_tokens]
        extra = extras.get(block, b"")
        parent = hashlib.sha256(
            b"evoke-block-1"
            + namespace_id
            + parent
            + struct.pack("<I", block_tokens)
            + struct.pack(f"<{block_tokens}I", *ids.tolist())
            + struct.pack("<I", len(extra))
            + extra
        ).digest()
        keys += parent
    return keys


@pytest.mark.parametrize("portable", [False, True])
def test_sha256_equals_hashlib(portable: bool) -> None:
    """Every length from 0 to 300 bytes, and a long one, hashes as hashlib says."""
    data = np.random.default_rng(1).bytes(100_000)
    for length in [*range(301), len(data)]:
        expected = hashlib.sha256(data[:length]).digest()
        assert native.sha256(data[:length], portable=portable) == expected, length


def test_known_keys() -> None:
    """Keys of a fixed input never change: stored blocks are found by them after an upgrade."""
    keys = native.chain_keys(NAMESPACE, np.arange(48, dtype=np.uint32), 16, ROOT, [])
    assert [keys[i : i + 32].hex() for i in range(0, 96, 32)] == VECTOR


@given(
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=200),
    block_tokens=st.integers(1, 40),
    parent=st.binary(min_size=32, max_size=32),
    extra=st.binary(max_size=300),
    data=st.data(),
)
def test_keys_follow_their_definition(
    token_ids: list[int], block_tokens: int, parent: bytes, extra: bytes, data: st.DataObject
) -> None:
    """Any tokens, block size, parent and extras give what the written definition gives."""
    tokens = np.array(token_ids, np.uint32)
    blocks = len(tokens) // block_tokens
    extras = {}
    if blocks:
        extras[data.draw(st.integers(0, blocks - 1))] = extra
    for portable in (False, True):
        keys = native.chain_keys(
            NAMESPACE, tokens, block_tokens, parent, list(extras.items()), portable=portable
        )
        assert keys == keys_by_definition(NAMESPACE, tokens, block_tokens, parent, extras)


def test_parent_continues_a_chain() -> None:
    """Hashing a chain in two calls, the second from the last key of the first, changes nothing."""
    tokens = np.random.default_rng(2).integers(0, 2**32, 640, dtype=np.uint32)
    whole = native.chain_keys(NAMESPACE, tokens, 16, ROOT, [])
    first = native.chain_keys(NAMESPACE, tokens[:320], 16, ROOT, [])
    second = native.chain_keys(NAMESPACE, tokens[320:], 16, first[-32:], [])
    assert whole == first + second


def test_partial_block_has_no_key() -> None:
    """31 tokens in blocks of 16 have one key, 15 tokens none."""
    tokens = np.arange(31, dtype=np.uint32)
    assert len(native.chain_keys(NAMESPACE, tokens, 16, ROOT, [])) == 32
    assert native.chain_keys(NAMESPACE, tokens[:15], 16, ROOT, []) == b""


def test_strided_token_ids_are_read_in_order() -> None:
    """A view with strides hashes as the numbers that it shows."""
    tokens = np.arange(64, dtype=np.uint32)[::-2]
    contiguous = np.ascontiguousarray(tokens)
    assert native.chain_keys(NAMESPACE, tokens, 16, ROOT, []) == native.chain_keys(
        NAMESPACE, contiguous, 16, ROOT, []
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespace_id": b"x" * 31}, "namespace_id: 31 bytes"),
        ({"parent": b""}, "parent: 0 bytes"),
        ({"block_tokens": 0}, "block_tokens: 0"),
        ({"block_tokens": 2**32}, "block_tokens: 4294967296"),
        ({"extras": [(2, b"x")]}, "block 2 is not one of the 2 full blocks"),
        ({"extras": [(1, b"x"), (1, b"")]}, "block 1 is named twice"),
        ({"token_ids": np.zeros((2, 16), np.uint32)}, "token_ids: 2 dimensions"),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, object], message: str) -> None:
    """A bad argument is a ValueError with its name and number."""
    arguments: dict[str, object] = {
        "namespace_id": NAMESPACE,
        "token_ids": np.arange(40, dtype=np.uint32),
        "block_tokens": 16,
        "parent": ROOT,
        "extras": [],
    }
    with pytest.raises(ValueError, match=message):
        native.chain_keys(**{**arguments, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "token_ids",
    [
        np.array([2**32 + 1] * 16, np.int64),
        np.array([-1] * 16, np.int32),
        np.array([1.5] * 16),
        [2**32] * 16,
    ],
)
def test_token_ids_are_never_cut(token_ids: object) -> None:
    """What does not fit u32 without loss is a TypeError, not the key of other tokens."""
    with pytest.raises(TypeError):
        native.chain_keys(NAMESPACE, token_ids, 16, ROOT, [])  # type: ignore[arg-type]


def test_keys_do_not_depend_on_the_hash_seed() -> None:
    """Processes with different PYTHONHASHSEED compute the same keys."""
    program = (
        "import numpy as np; from evoke.core import native;"
        "print(native.chain_keys(bytes(32), np.arange(64, dtype=np.uint32), 16, bytes(32),"
        " [(1, b'image')]).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().strip()) == 4 * 64
