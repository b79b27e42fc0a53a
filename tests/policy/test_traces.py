"""Trace files: what is read of them, what is refused, and what a recording gives away."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoke.policy.trace_format import TraceEncoder
from evoke.policy.trace_reader import Recording, read_recording
from evoke.policy.traces import read_jsonl

A, B = b"namespace a", b"namespace b"


def key(number: int) -> bytes:
    return hashlib.sha256(f"key {number}".encode()).digest()


def keys(*numbers: int) -> bytes:
    return b"".join(map(key, numbers))


def recorded(requests: list[tuple[bytes, list[int], float]], end: bool = True) -> bytes:
    encoder = TraceEncoder()
    file = encoder.begin()
    encoder.namespace(A, 16, 4096)
    encoder.namespace(B, 64, 1 << 20)
    for namespace, numbers, now_s in requests:
        file += encoder.request(namespace, keys(*numbers), 0, 1, now_s)
    return file + (encoder.end() if end else encoder.flush())


def read(file: bytes) -> Recording:
    return read_recording(io.BytesIO(file))


def requests_of(recording: Recording) -> list[list[int]]:
    trace = recording.trace
    return [
        trace.ids[trace.starts[i] : trace.starts[i + 1]].tolist() for i in range(trace.requests)
    ]


def jsonl(*records: object) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def test_a_recording_comes_back() -> None:
    """Blocks are numbered as they are first seen; times, sizes and hits are as they were told."""
    recording = read(recorded([(A, [7, 8, 9], 5.0), (A, [7, 8, 3], 5.25), (A, [3, 9], 7.0)]))
    assert requests_of(recording) == [[0, 1, 2], [0, 1, 3], [3, 2]]
    assert recording.trace.now_s.tolist() == [0.0, 0.25, 2.0]
    assert recording.block_sizes == [(16, 4096), (64, 1 << 20)]
    assert recording.hits.tolist() == [1, 1, 1]
    assert recording.whole


def test_a_key_of_two_namespaces_is_two_blocks() -> None:
    """A recording shows no tenant's block as another's, whatever the keys."""
    recording = read(recorded([(A, [1, 2], 0.0), (B, [1, 2], 1.0), (A, [1], 2.0)]))
    assert requests_of(recording) == [[0, 1], [2, 3], [0]]
    assert recording.namespaces.tolist() == [0, 1, 0]


def test_a_recording_holds_no_key_and_no_namespace() -> None:
    """Recordings of other keys and namespaces with the same pattern are the same bytes: nothing in
    a file depends on a key, a salt or the time of day."""
    there = recorded([(A, [1, 2, 3], 100.0), (B, [1], 101.0)])
    other = recorded([(A, [70, 80, 90], 2e6), (B, [5], 2e6 + 1)])
    assert there == other


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=20, unique=True), min_size=1, max_size=30),
    st.integers(0, 400),
)
def test_a_cut_off_recording_is_read_up_to_there(requests: list[list[int]], cut: int) -> None:
    """Whatever the end of a file that a crash took, whole chunks before it come back unchanged, and
    nothing else does."""
    encoder = TraceEncoder()
    encoder.namespace(A, 16, 4096)
    chunks = []
    for number, blocks in enumerate(requests):
        encoder.request(A, keys(*blocks), 0, 0, float(number))
        chunks.append(encoder.flush())
    file = encoder.begin() + b"".join(chunks)
    kept = file[: max(len(encoder.begin()) + len(chunks[0]), len(file) - cut)]
    recording = read(kept)
    numbers: dict[int, int] = {}
    expected = [[numbers.setdefault(b, len(numbers)) for b in blocks] for blocks in requests]
    found = requests_of(recording)
    assert found == expected[: len(found)]
    assert not recording.whole
    if kept == file:
        assert len(found) == len(requests)


@given(st.integers(14, 400), st.integers(0, 255))
def test_a_damaged_recording_is_refused_or_unharmed(at: int, value: int) -> None:
    """A wrong byte anywhere behind the first line is a refusal, or an end before it."""
    file = bytearray(recorded([(A, [i, i + 1], float(i)) for i in range(9)]))
    at = min(at, len(file) - 1)
    whole = requests_of(read(bytes(file)))
    file[at] = value
    with contextlib.suppress(ValueError):
        assert requests_of(read(bytes(file))) == whole


def test_a_full_recorder_takes_no_more() -> None:
    """Memory is bounded: when the table is full requests are left out, and the file says so."""
    encoder = TraceEncoder(blocks_max=4)
    encoder.namespace(A, 16, 4096)
    file = encoder.begin() + encoder.request(A, keys(1, 2, 3, 4), 0, 0, 0.0)
    assert encoder.full
    file += encoder.request(A, keys(5), 0, 0, 1.0) + encoder.end()
    assert requests_of(read(file)) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"evoke-trace 2\n", "begins with"),
        (b"", "begins with"),
        (TraceEncoder().begin(), "no request"),
        (TraceEncoder().begin() + b"\xff" * 8, "a chunk of 4294967295 bytes"),
    ],
)
def test_other_files_are_refused(file: bytes, message: str) -> None:
    """A file of another version, without requests or with an impossible length says so."""
    with pytest.raises(ValueError, match=message):
        read(file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b'{"timestamp": 1, "hash_ids": [1]}', b"{"], "line 2: not JSON"),
        ([b"\xff"], "line 1: not JSON"),
        (jsonl([1]), "line 1: not an object"),
        (jsonl({"hash_ids": [1]}), "timestamp: None"),
        (jsonl({"timestamp": True, "hash_ids": [1]}), "timestamp: True"),
        (jsonl({"timestamp": 1}), "hash_ids: not a list"),
        (jsonl({"timestamp": 1, "hash_ids": [1.5]}), "hash_ids: not a list of integers"),
        (jsonl({"timestamp": 1, "hash_ids": [1 << 64]}), "does not fit in 64 bits"),
        ([], "no request"),
        (jsonl({"timestamp": 1, "hash_ids": [3, 3], "x": float("nan")}), ""),
    ],
)
def test_bad_lines_are_named(lines: list[bytes], message: str) -> None:
    """The sentence names the line and the field; fields that are not read do not matter."""
    if not message:
        assert read_jsonl(lines).accesses == 2
        return
    with pytest.raises(ValueError, match=message):
        read_jsonl(lines)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([[1, 2, 3], [1, 2, 4], [1]], None),
        ([[1, 2], [2]], "request 2, block 1"),
        ([[1, 2], [3, 2]], "request 2, block 2"),
        ([[1, 2, 1]], "request 1, block 3"),
        ([[], [-5, 1 << 62], [-5]], None),
    ],
)
def test_broken_prefixes_are_found(requests: list[list[int]], message: str | None) -> None:
    """An id that is seen after another block or at another depth does not stand for its prefix."""
    trace = read_jsonl(jsonl(*({"timestamp": 0, "hash_ids": ids} for ids in requests)))
    sentence = trace.broken_prefix()
    assert (sentence is None) if message is None else (message in str(sentence))
    assert np.array_equal(np.unique(trace.ids), np.arange(trace.identities))
