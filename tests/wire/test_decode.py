"""decode_request on whatever bytes: a good request or a WireError, quickly and in little memory."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evoke.client import wire
from evoke.client.wire import Code, WireError

TOKEN = bytes(range(16))
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "hello": (b"", 1, "name"),
    "ping": (),
    "register_pool": (3, "cpu", 4096, 2, [wire.SegmentArgs(0, 64, [(2, 8)], 8)], 1),
    "store": (3, 5, bytes(64), 1, bytes(32), bytes(8), 1000, 2),
    "fetch": (3, 5, bytes(64), 0, bytes(8), 1000, 2, 9),
    "asked": ([wire.Report(3, bytes(32), 0, 1, 77)],),
    "flush": (b"", "epoch"),
}
FRAMES = [
    wire.encode_request(TOKEN, number, verb, wire.VERBS[verb](*args))
    for number, (verb, args) in enumerate(ARGUMENTS.items(), 1)
]


def outcome(frame: bytes) -> Code:
    """OK for a good request, else the code of the error; anything else surfaces."""
    try:
        request, args = wire.decode_request(frame)
    except WireError as error:
        return _code_of(error)
    assert isinstance(args, wire.VERBS[request.verb])
    again = wire.encode_request(request.token, request.request, request.verb, args)
    assert wire.decode_request(again) == (request, args)
    return Code.OK


def _code_of(error: WireError) -> Code:
    assert error.code in set(Code) - {Code.OK}
    assert error.field
    assert len(error.sentence) <= 200
    assert 0 <= error.request < 1 << 63
    # What is answered can be encoded, whatever the peer sent.
    result = [error.field, error.sentence]
    wire.decode_reply(wire.encode_reply(error.request, TOKEN, error.code, result))
    return error.code


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x91" * 10_000)
@example(b"\x81" * 10_000)
@example(b"\x95\x01\xc4\x10" + TOKEN + b"\x07\xa4ping" + b"\x91" * 10_000)
@example(b"\xdf\x04\x00\x00\x00")
@example(b"\xdd\xff\xff\xff\xff" + b"\xc0" * 1000)
@example(b"\xc6\xff\xff\xff\xff")
@example(b"\xc9\x00\x00\x00\x01\x05x")
@example(b"\xd6\xff\x00\x00\x00\x00")
def test_any_bytes(frame: bytes) -> None:
    """Random bytes, deep nesting, declared sizes of 4 GiB, extensions: an error, no crash."""
    outcome(frame)


@given(st.sampled_from(FRAMES), st.data())
def test_damaged_requests(frame: bytes, data: st.DataObject) -> None:
    """Good requests with some bytes changed, cut out or put in: an error or another request."""
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        change = data.draw(st.sampled_from(["set", "cut", "put"]))
        some = data.draw(st.binary(min_size=1, max_size=4))
        end = at + len(some) if change != "put" else at
        damaged[at:end] = b"" if change == "cut" else some
    outcome(bytes(damaged))


@pytest.mark.parametrize("frame", FRAMES, ids=list(ARGUMENTS))
def test_truncated_requests(frame: bytes) -> None:
    """Each proper beginning of a good request is a bad frame, and so is one with a byte more."""
    assert outcome(frame) == Code.OK
    for end in range(len(frame)):
        assert outcome(frame[:end]) == Code.BAD_FRAME
    assert outcome(frame + b"\xc0") == Code.BAD_FRAME


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=16)),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=20,
)


@given(st.sampled_from(sorted(wire.VERBS)), VALUES)
@example("lookup", [0, b"", 1 << 63])
@example("lookup", [0, b"", -1])
@example("lookup", [0, b"", float("nan")])
@example("lookup", [0, b"", 1e300])
@example("lookup", [0, b"", True])
@example("store", {"namespace": 0})
@example("register_pool", [0, "cpu", 1, 1, [[0, -(1 << 63), [[1, 1]] * 9, 1]], 0])
def test_any_arguments(verb: str, arguments: Any) -> None:
    """Arguments of any types, depth and size are taken or refused; the id comes back."""
    frame = msgspec.msgpack.encode((1, TOKEN, 7, verb, arguments))
    try:
        answered = (Code.OK, wire.decode_request(frame)[0].request)
    except WireError as error:
        answered = (error.code, error.request)
    assert answered in ((Code.OK, 7), (Code.BAD_ARGUMENT, 7), (Code.BAD_FRAME, 0))
    outcome(frame)


@given(st.lists(VALUES, max_size=7))
def test_any_envelope(values: list[Any]) -> None:
    """Envelopes of any values are an error."""
    if values[:2] != [1, TOKEN]:
        assert outcome(msgspec.msgpack.encode(values)) != Code.OK


@pytest.mark.parametrize("number", [-1, 1 << 63, (1 << 64) - 1, 1.5, float("nan"), "1", None, True])
def test_bad_numbers(number: object) -> None:
    """Counts and ids that are negative, 2^63 and more, fractions or no numbers are refused."""
    for position in (0, 2):
        arguments: list[object] = [0, b"", 0]
        arguments[position] = number
        frame = msgspec.msgpack.encode((1, TOKEN, 7, "lookup", arguments))
        assert outcome(frame) == Code.BAD_ARGUMENT
    assert outcome(msgspec.msgpack.encode((1, TOKEN, number, "ping", ()))) == Code.BAD_FRAME


def test_field_is_named() -> None:
    """The argument that is wrong is named, also below a list."""
    with pytest.raises(WireError) as caught:
        wire.decode_request(msgspec.msgpack.encode((1, TOKEN, 7, "lookup", (0, b"", "x"))))
    assert (caught.value.field, caught.value.request) == ("first", 7)
    report = (0, b"", 0, -1, 0)
    with pytest.raises(WireError) as caught:
        wire.decode_request(msgspec.msgpack.encode((1, TOKEN, 7, "asked", ([report],))))
    assert caught.value.field == "reports"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"\xdf\x04\x00\x00\x00", id="map of 64 Mi pairs"),
        pytest.param(b"\xdd\x7f\xff\xff\xff", id="array of 2 Gi"),
        pytest.param(b"\xc6\x7f\xff\xff\xff", id="bytes of 2 GiB"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="text of 4 GiB"),
    ],
)
@pytest.mark.parametrize("place", ["frame", "arguments", "argument"])
def test_declared_sizes_take_no_memory(head: bytes, place: str) -> None:
    """Sizes that are declared and not sent are refused in less than 4 MiB of memory."""
    before = {
        "frame": b"",
        "arguments": _upto_arguments(),
        "argument": _upto_arguments() + b"\x93\x00",
    }
    frame = before[place] + head + bytes(1000)
    tracemalloc.start()
    try:
        assert outcome(frame) in (Code.BAD_FRAME, Code.BAD_ARGUMENT)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def _upto_arguments() -> bytes:
    return b"\x95\x01\xc4\x10" + TOKEN + b"\x07\xa6lookup"


def test_largest_frames() -> None:
    """A frame of 1 MiB is looked at, a larger one is not; 8192 keys fit, one more is refused."""
    padding = b"\xc6" + struct.pack(">I", (1 << 20) - 5 - len(_upto_arguments()) - 2)
    whole = _upto_arguments() + b"\x93\x00" + padding
    frame = whole.ljust(1 << 20, b"\0")
    assert outcome(frame) in (Code.BAD_FRAME, Code.BAD_ARGUMENT)
    with pytest.raises(WireError, match="limit 1048576"):
        wire.decode_request(frame + b"\0")
    for count, code in ((8192, Code.OK), (8193, Code.BAD_ARGUMENT)):
        keys = msgspec.msgpack.encode((1, TOKEN, 7, "lookup", (0, bytes(32 * count), 0)))
        assert outcome(keys) == code


@given(st.binary(max_size=200))
def test_replies_of_any_bytes(frame: bytes) -> None:
    """A client that reads any bytes as a reply gets a reply or a ValueError."""
    try:
        reply = wire.decode_reply(frame)
    except ValueError:
        return
    assert isinstance(reply.request, int)
