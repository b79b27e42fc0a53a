"""The published test vectors against the code, and against second implementations made here."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash

from evoke.client import wire
from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.core import native

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("vectors.json").read_text()
)


def _cases(section: str, name: str = "name") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[section], ids=lambda case: str(case[name]))


def _plain(value: Any) -> Any:
    """Vectors write bytes as {"hex": ...}."""
    if isinstance(value, dict):
        if set(value) == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _namespace(fields: dict[str, Any]) -> Namespace:
    parts = tuple(
        Part(
            groups=tuple(Group(**group) for group in part["groups"]), part_bytes=part["part_bytes"]
        )
        for part in fields["parts"]
    )
    salt = NO_SALT if fields["salt"] is None else fields["salt"]
    rank_parts = tuple(fields["rank_parts"])
    return Namespace(**{**fields, "parts": parts, "salt": salt, "rank_parts": rank_parts})


@_cases("namespaces")
def test_namespace(case: dict[str, Any]) -> None:
    """A namespace has the encoding and the id of its vector, and is decoded from it."""
    namespace = _namespace(case["fields"])
    assert namespace.encoded().hex() == case["encoded"]
    assert namespace.id.hex() == case["id"]
    assert Namespace.decode(bytes.fromhex(case["encoded"])) == namespace


def _by_hand(fields: dict[str, Any]) -> bytes:
    """The encoding as docs/protocol.md describes it."""
    kinds = {"block_tokens": b"u", "parts": b"p", "rank_parts": b"l", "salt": b"s"}
    names = "model weights_epoch position dtype scales block_tokens parts rank_parts format lora"
    out = b"evoke-namespace-1"
    for tag, name in enumerate([*names.split(), "salt", "key_kind"], 1):
        value = fields[name]
        if name == "block_tokens":
            data = struct.pack("<Q", value)
        elif name == "rank_parts":
            data = b"".join(struct.pack("<Q", part) for part in value)
        elif name == "salt":
            data = b"" if value is None else b"\x01" + value.encode()
        elif name == "parts":
            data = b""
            for part in value:
                data += struct.pack("<QQ", part["part_bytes"], len(part["groups"]))
                for group in part["groups"]:
                    numbers = (group["layers"], group["kv_heads"], group["head_size"])
                    data += struct.pack("<QQQB", *numbers, group["kind"] == "kv")
        else:
            data = value.encode()
        out += struct.pack("<BcI", tag, kinds.get(name, b"t"), len(data)) + data
    return out


@_cases("namespaces")
def test_namespace_by_the_document(case: dict[str, Any]) -> None:
    """An encoder written from the document alone gives the same bytes; the id is their SHA-256."""
    encoded = _by_hand(case["fields"])
    assert encoded.hex() == case["encoded"]
    assert hashlib.sha256(encoded).hexdigest() == case["id"]


@_cases("keys")
def test_keys(case: dict[str, Any]) -> None:
    """Chain keys are those of the vector, and hashlib agrees."""
    (namespace,) = [n for n in VECTORS["namespaces"] if n["name"] == case["namespace"]]
    identity, size = bytes.fromhex(namespace["id"]), case["block_tokens"]
    extra = {int(block): bytes.fromhex(data) for block, data in case["extra"].items()}
    ids = np.array(case["token_ids"], np.uint32)
    parent = bytes.fromhex(case["parent"])
    keys = native.chain_keys(identity, ids, size, parent, list(extra.items()))
    assert [keys[i : i + 32].hex() for i in range(0, len(keys), 32)] == case["keys"]
    key = parent
    for block, expected in enumerate(case["keys"]):
        tokens = case["token_ids"][block * size : block * size + size]
        data = b"evoke-block-1" + identity + key + struct.pack("<I", size)
        data += struct.pack(f"<{size}I", *tokens)
        data += struct.pack("<I", len(extra.get(block, b""))) + extra.get(block, b"")
        key = hashlib.sha256(data).digest()
        assert key.hex() == expected


def test_each_verb_has_a_vector() -> None:
    """One request and one reply of each verb are published."""
    for section in ("requests", "replies"):
        assert {case["verb"] for case in VECTORS[section]} == set(wire.VERBS)


@_cases("requests", "verb")
def test_request(case: dict[str, Any]) -> None:
    """A request is read and written as its vector, and another codec reads the same."""
    frame = bytes.fromhex(case["frame"])
    token = bytes.fromhex(case["token"])
    expected = [1, token, case["request"], case["verb"], _plain(case["arguments"])]
    assert msgpack.unpackb(frame) == expected
    request, args = wire.decode_request(frame)
    assert (request.request, request.verb, request.token) == (case["request"], case["verb"], token)
    assert wire.encode_request(token, request.request, request.verb, args) == frame


@_cases("replies", "verb")
def test_reply(case: dict[str, Any]) -> None:
    """A reply is read and written as its vector, and another codec reads the same."""
    frame = bytes.fromhex(case["frame"])
    boot = bytes.fromhex(case["boot"])
    result = _plain(case["result"])
    assert msgpack.unpackb(frame) == [case["request"], boot, case["code"], result]
    reply = wire.decode_reply(frame)
    assert (reply.request, reply.boot, reply.code) == (case["request"], boot, case["code"])
    assert reply.result == result
    assert wire.encode_reply(reply.request, boot, reply.code, reply.result) == frame


@_cases("liveness", "packet")
def test_liveness_packet(case: dict[str, Any]) -> None:
    """Packets of the liveness socket are the msgpack arrays of their vectors."""
    assert msgpack.unpackb(bytes.fromhex(case["bytes"])) == _plain(case["values"])
    assert case["values"][0] == case["packet"]


@_cases("checksums", "xxh3_64")
def test_checksum(case: dict[str, Any]) -> None:
    """The checksum of stored bytes is XXH3-64 of them, padded with zeros to 256 bytes."""
    data = bytes.fromhex(case["bytes"])
    assert native.xxh3_64(data) == case["xxh3_64"]
    assert xxhash.xxh3_64_intdigest(data.ljust(256, b"\0")) == case["xxh3_64"]
