"""Chains: token ids in, keys out."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evoke.client.errors import BadArgument
from evoke.client.keys import Chain, chain_of_keys, chain_of_tokens

ID = hashlib.sha256(b"namespace").digest()
Tokens = st.lists(st.integers(0, (1 << 32) - 1), max_size=40)


def keys_of(tokens: Any, block: int = 4, extra: Any = None, parent: Chain | None = None) -> Chain:
    return chain_of_tokens(ID, tokens, block, extra, parent)


def reference(tokens: list[int], block: int, extras: dict[int, bytes]) -> list[bytes]:
    """The definition of a key, written down once more."""
    keys, before = [], bytes(32)
    for i in range(len(tokens) // block):
        ids = struct.pack(f"<{block}I", *tokens[i * block : (i + 1) * block])
        extra = extras.get(i, b"")
        text = b"evoke-block-1" + ID + before + struct.pack("<I", block) + ids
        before = hashlib.sha256(text + struct.pack("<I", len(extra)) + extra).digest()
        keys.append(before)
    return keys


@given(Tokens, st.integers(1, 7))
def test_keys_follow_their_definition(tokens: list[int], block: int) -> None:
    """Every full block has the key that the definition gives it, a partial one has none."""
    assert list(keys_of(tokens, block)) == reference(tokens, block, {})


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        lambda t: np.array(t, np.int16),
        lambda t: np.array(t, np.uint64),
        lambda t: np.array(t, np.int64)[::1],
        lambda t: np.repeat(np.array(t, np.uint32), 2)[::2],
        lambda t: np.array(t, ">i4"),
        lambda t: torch.tensor(t),
        lambda t: torch.tensor(t, dtype=torch.int32),
        lambda t: [np.int32(token) for token in t],
    ],
)
def test_form_of_tokens_does_not_matter(form: Any) -> None:
    """Lists, tuples, arrays of any integer type and tensors of the same ids have the same keys."""
    tokens = list(range(100, 117))
    assert keys_of(form(tokens)) == keys_of(tokens)


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        ([1, 2, -3], "token_ids[2]: -3"),
        ([1, 1 << 32], f"token_ids[1]: {1 << 32}"),
        ([1, 1 << 70], f"token_ids[1]: {1 << 70}"),
        ([0, 1, 2.0], "token_ids[2]: 2.0"),
        ([0, True], "token_ids[1]: True"),
        ([0, "7"], "token_ids[1]: '7'"),
        ([0, None], "token_ids[1]: None"),
        (np.array([1.0, 2.0]), "token_ids[0]: float64"),
        (np.array([True]), "token_ids[0]: bool"),
        (np.array([5, -1], np.int8), "token_ids[1]: -1"),
        (np.array([5, 1 << 40], np.uint64), "token_ids[1]"),
        (np.zeros((2, 2), np.int64), "2 dimensions"),
        (torch.tensor([1.0]), "token_ids[0]: float32"),
        (torch.tensor([1.0], dtype=torch.bfloat16), "token_ids[0]: torch.bfloat16"),
        (torch.tensor([True]), "token_ids[0]: bool"),
        ("tokens", "token_ids: str"),
        ({1: 2}, "token_ids: dict"),
    ],
)
def test_bad_token_is_named(tokens: Any, named: str) -> None:
    """What is no token id is refused with its position; nothing is cut to size silently."""
    with pytest.raises(BadArgument) as caught:
        keys_of(tokens)
    assert named in str(caught.value)


@given(Tokens, st.integers(0, 40))
def test_parent_continues_a_chain(tokens: list[int], at: int) -> None:
    """Keys of a prompt in two pieces, cut between blocks, equal the keys of the whole."""
    whole = keys_of(tokens)
    cut = min(at, len(tokens)) // 4 * 4
    head = keys_of(tokens[:cut])
    tail = keys_of(tokens[cut:], parent=head)
    assert head.keys + tail.keys == whole.keys
    assert tail == whole[len(head) :]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_slice_is_the_same_chain(begin: int, end: int, index: int) -> None:
    """A slice names the same blocks at the same places of the sequence, with the key before it."""
    whole = keys_of(list(range(36)))
    part = whole[begin:end]
    assert list(part) == list(whole)[begin:end]
    assert part.first == min(begin, 9)
    assert part.parent == (whole.key(begin - 1) if begin else b"")
    if index < len(part):
        assert part.key(index) == whole.key(begin + index) == whole[begin + index]


def test_extra_changes_its_block_and_what_follows() -> None:
    """Content at a token changes the key of its block and all later ones, not the earlier."""
    tokens = list(range(16))
    plain, marked = keys_of(tokens), keys_of(tokens, extra={6: b"image"})
    assert [a == b for a, b in zip(plain, marked, strict=True)] == [True, False, False, False]


def test_extra_is_encoded_without_ambiguity() -> None:
    """A block's extra is offset, length and bytes of each content, in order of position."""
    tokens = list(range(8))
    got = keys_of(tokens, extra={7: b"bb", 5: b"a"})
    encoded = struct.pack("<II", 1, 1) + b"a" + struct.pack("<II", 3, 2) + b"bb"
    assert list(got) == reference(tokens, 4, {1: encoded})
    assert got != keys_of(tokens, extra={5: b"bb", 7: b"a"})
    assert got != keys_of(tokens, extra={6: b"bb", 5: b"a"})


@pytest.mark.parametrize("extra", [{16: b""}, {-1: b""}, {True: b""}, {0: "text"}])
def test_bad_extra_is_refused(extra: Any) -> None:
    """Extra content must be bytes at a token of this prompt."""
    with pytest.raises(BadArgument, match="extra"):
        keys_of(list(range(16)), extra=extra)


def test_extra_of_a_partial_block_is_of_no_matter() -> None:
    """Content behind the last full block names nothing that has a key."""
    tokens = list(range(18))
    assert keys_of(tokens, extra={17: b"x"}) == keys_of(tokens)


def test_engine_keys_are_taken_as_they_are() -> None:
    """Keys that an engine made are kept; a block that is not the first needs the key before it."""
    keys = [bytes([i]) * 32 for i in range(3)]
    assert list(chain_of_keys(ID, keys, 0, b"")) == keys
    assert chain_of_keys(ID, b"".join(keys), 5, b"p" * 32).parent_of(0) == b"p" * 32
    for bad in ([b"short"], ["x" * 32], b"y" * 33):
        with pytest.raises(BadArgument, match="keys"):
            chain_of_keys(ID, bad, 0, b"")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="parent"):
        chain_of_keys(ID, keys, 5, b"")
