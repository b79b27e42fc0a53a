"""Namespaces and their encoding: different fields never meet in one id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evoke.client.errors import BadArgument
from evoke.client.namespace import DTYPE_BYTES, NO_SALT, Group, Namespace, NoSalt, Part

# Few letters and many separators, so that equal concatenations are common.
TEXTS = st.text(alphabet="ab/|:\x00=,é", max_size=4)
NAMES = st.text(alphabet="ab/|:\x00=,é", min_size=1, max_size=4)
GROUPS = st.builds(
    Group,
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_size=st.integers(1, 3),
    kind=st.sampled_from(["kv", "latent"]),
)


@st.composite
def namespaces(draw: st.DrawFn) -> Namespace:
    form = draw(st.sampled_from(["plain", "opaque:a", "opaque:a/b"]))
    sizes = st.just(0) if form == "plain" else st.integers(1, 3)
    part = st.builds(
        Part, groups=st.lists(GROUPS, min_size=1, max_size=2).map(tuple), part_bytes=sizes
    )
    parts = draw(st.lists(part, min_size=1, max_size=3).map(tuple))
    more = draw(st.lists(st.integers(0, len(parts) - 1), max_size=2))
    rank_parts = tuple(draw(st.permutations([*range(len(parts)), *more])))
    return Namespace(
        model=draw(NAMES),
        weights_epoch=draw(NAMES),
        position=draw(NAMES),
        dtype=draw(st.sampled_from(sorted(DTYPE_BYTES))),
        scales=draw(TEXTS),
        block_tokens=draw(st.sampled_from([1, 16, 65536])),
        parts=parts,
        rank_parts=rank_parts,
        format=form,
        lora=draw(TEXTS),
        salt=draw(st.just(NO_SALT) | TEXTS),
        key_kind=draw(st.sampled_from(["tokens", "engine:a", "engine:a:b"])),
    )


@given(namespaces())
def test_decode_is_the_inverse(namespace: Namespace) -> None:
    """decode(encoded) is the namespace, and its id is the same."""
    again = Namespace.decode(namespace.encoded())
    assert again == namespace
    assert again.id == namespace.id


@given(namespaces(), namespaces())
def test_different_fields_have_different_encodings(a: Namespace, b: Namespace) -> None:
    """Namespaces are equal exactly when their encodings are, separators in texts or not."""
    assert (a == b) == (a.encoded() == b.encoded()) == (a.id == b.id)


@given(namespaces(), st.sampled_from(["scales", "lora", "salt"]), TEXTS)
def test_one_field_apart(namespace: Namespace, field: str, text: str) -> None:
    """A change of one field alone changes the id."""
    assume(getattr(namespace, field) != text)
    fields: dict[str, Any] = dict(vars(namespace))
    assert Namespace(**{**fields, field: text}).id != namespace.id


@given(namespaces(), namespaces())
def test_texts_do_not_flow_into_each_other(a: Namespace, b: Namespace) -> None:
    """Moving letters from one text to the next makes another namespace."""
    joined = a.model + a.weights_epoch + a.position
    assume(joined == b.model + b.weights_epoch + b.position)
    if (a.model, a.weights_epoch) != (b.model, b.weights_epoch):
        assert a.id != b.id


@given(namespaces(), st.data())
def test_damaged_encodings(namespace: Namespace, data: st.DataObject) -> None:
    """One changed byte is refused, or makes another id."""
    encoded = bytearray(namespace.encoded())
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    _refused_or_another(bytes(encoded), namespace)


@given(namespaces(), st.data())
def test_cut_and_prolonged_encodings(namespace: Namespace, data: st.DataObject) -> None:
    """An encoding that was cut, prolonged, or has fields twice or in another order is refused."""
    encoded = namespace.encoded()
    at = data.draw(st.integers(0, len(encoded) - 1))
    some = data.draw(st.binary(min_size=1, max_size=8))
    for damaged in (encoded[:at], encoded + some, encoded[:at] + some + encoded[at:]):
        _refused_or_another(damaged, namespace)
    body = encoded[17:]
    with pytest.raises(BadArgument):
        Namespace.decode(encoded + body)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Any bytes behind the magic text are refused with BadArgument, or are an encoding."""
    for encoded in (data, b"evoke-namespace-1" + data):
        try:
            namespace = Namespace.decode(encoded)
        except BadArgument:
            continue
        assert namespace.encoded() == encoded


def _refused_or_another(encoded: bytes, namespace: Namespace) -> None:
    try:
        other = Namespace.decode(encoded)
    except BadArgument:
        return
    assert other.id != namespace.id


def make(**fields: Any) -> Namespace:
    values: dict[str, Any] = {
        "model": "m",
        "weights_epoch": "e",
        "position": "p",
        "dtype": "float32",
        "block_tokens": 16,
        "parts": (Part(groups=(Group(layers=1, kv_heads=1, head_size=1),)),),
        "salt": NO_SALT,
    }
    return Namespace(**{**values, **fields})


HUGE = Group(layers=1 << 20, kv_heads=1 << 20, head_size=1 << 20)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""), ("model", "x" * 1025), ("model", "\ud800"), ("model", b"m"),
        ("weights_epoch", ""), ("position", ""), ("dtype", "float64"), ("dtype", "x" * 5000),
        ("block_tokens", 0), ("block_tokens", 65537), ("block_tokens", True),
        ("block_tokens", 16.0),
        ("parts", ()), ("parts", (Part(groups=()),)), ("parts", (Part(groups=(HUGE,)),)),
        ("parts", (Part(groups=(Group(layers=0, kv_heads=1, head_size=1),)),)),
        ("parts", (Part(groups=(Group(layers=1, kv_heads=1, head_size=1, kind="x"),)),)),
        ("parts", (Part(groups=(Group(layers=1, kv_heads=1, head_size=1),), part_bytes=7),)),
        ("rank_parts", ()), ("rank_parts", (1,)), ("rank_parts", (0, 1)),
        ("rank_parts", (0,) * 257),
        ("format", "packed"), ("format", "opaque:"), ("key_kind", ""), ("key_kind", "engine:"),
        ("salt", None), ("salt", 5), ("salt", "x" * 1025),
    ],
)  # fmt: skip
def test_bad_fields(field: str, value: object) -> None:
    """A field that is empty, too long, of another type or out of range is refused by its name."""
    with pytest.raises(BadArgument) as caught:
        make(**{field: value})
    assert len(str(caught.value)) < 2000
    assert field in str(caught.value) or "part_bytes" in str(caught.value)


def test_no_salt_is_not_the_empty_salt() -> None:
    """ "No salt" has to be said, and differs from a tenant of the empty name."""
    assert isinstance(NO_SALT, NoSalt)
    assert make().id != make(salt="").id
