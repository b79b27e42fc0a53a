"""Opens trace files; the format is told by the first bytes, also inside xz and gzip."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, cast

from evoke.policy.sessions import Session, load_sessions
from evoke.policy.trace_format import MAGIC
from evoke.policy.trace_reader import Recording, read_recording
from evoke.policy.traces import Trace, read_jsonl

__all__ = ["BadTrace", "Loaded", "load_requests", "load_trace"]

_XZ: Final = b"\xfd7zXZ\x00"
_GZIP: Final = b"\x1f\x8b"
_SESSION_KINDS: Final = {"session", "turn", "block"}


class BadTrace(ValueError):
    """The sentence names the file and what is wrong with it."""


@dataclass(frozen=True)
class Loaded:
    """format: mooncake, evoke-trace (also has a recording) or sessions (has no trace)."""

    format: str
    trace: Trace | None = None
    recording: Recording | None = None
    sessions: list[Session] | None = None


def load_trace(path: str) -> Loaded:
    """BadTrace: it cannot be read, or is of no known format."""
    try:
        with Path(path).open("rb") as file:
            return _load(_unpacked(file))
    except OSError as error:
        raise BadTrace(f"trace {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise BadTrace(f"trace {path}: {error}") from None


def load_requests(path: str) -> Trace:
    """Of a file that lists requests. BadTrace."""
    loaded = load_trace(path)
    if loaded.trace is None:
        raise BadTrace(f"trace {path}: holds {loaded.format}, not requests")
    return loaded.trace


def _unpacked(file: BinaryIO) -> io.BufferedReader:
    buffered = cast(io.BufferedReader, file)
    start = buffered.peek(len(_XZ))
    if start.startswith(_XZ):
        return io.BufferedReader(cast(io.RawIOBase, lzma.open(file)))
    if start.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, gzip.open(file)))
    return buffered


def _load(file: io.BufferedReader) -> Loaded:
    if file.peek(len(MAGIC)).startswith(MAGIC):
        recording = read_recording(file)
        return Loaded("evoke-trace", recording.trace, recording)
    first = file.readline()
    lines = chain([first], file)
    if _is_session(first):
        return Loaded("sessions", sessions=load_sessions(map(json.loads, lines)))
    return Loaded("mooncake", read_jsonl(lines))


def _is_session(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("type") in _SESSION_KINDS
