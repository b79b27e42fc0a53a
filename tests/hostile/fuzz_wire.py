"""Fuzz target of what decodes strangers' bytes: requests, replies, namespaces.

    python -m tests.hostile.fuzz_wire [SECONDS]

With atheris (the extra `fuzz`) the mutations follow the coverage, else they are random. The corpus
lies beside this file; an input that fails is written there, so that it is tried ever after.
`make fuzz` installs atheris where it can be had, and runs this for 60 s.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from evoke.client import messages, wire
from evoke.client import namespace as namespaces
from evoke.client.errors import BadArgument
from evoke.client.namespace import Namespace

__all__ = ["CORPUS", "corpus", "mutate", "target"]

CORPUS = Path(__file__).with_name("corpus")
# Lengths, signs and types of msgpack at their edges.
EDGES = [bytes([byte]) for byte in (0x80, 0x90, 0xC0, 0xC1, 0xC4, 0xC6, 0xCB, 0xD9, 0xDF, 0xFF)]
EDGES += [b"\xdd\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xcf" + b"\xff" * 8, b"\x00" * 8]


def target(data: bytes) -> None:
    """Raises when a decoder does anything but accept or refuse as it says."""
    try:
        request, args = wire.decode_request(data)
    except wire.WireError as refusal:
        error: wire.WireError | None = refusal
    else:
        error = None
        again = wire.encode_request(request.token, request.request, request.verb, args)
        assert wire.decode_request(again)[1] == args
    assert error is None or (error.sentence and error.code in wire.Code)
    try:
        wire.decode_reply(data)
    except (ValueError, RecursionError):
        pass
    try:
        namespace = Namespace.decode(data)
    except BadArgument:
        pass
    else:
        assert namespace.encoded() == data, "two encodings of one namespace"


def corpus() -> list[bytes]:
    return [file.read_bytes() for file in sorted(CORPUS.iterdir())]


def mutate(rng: random.Random, inputs: list[bytes]) -> bytes:
    data = bytearray(rng.choice(inputs))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.choice(EDGES)
        elif kind == 2:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 3:
            other = rng.choice(inputs)
            begin = rng.randrange(len(other) + 1)
            data[at:] = other[begin:]
        elif kind == 4 and data:
            data[at % len(data)] = rng.randrange(256)
        else:
            data[at:at] = data[at : at + rng.randint(1, 16)] * rng.randint(1, 4)
    return bytes(data)


def keep(data: bytes) -> Path:
    path = CORPUS / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def run(seconds: float, seed: int) -> int:
    """How many inputs were tried. What fails is kept, and raised."""
    rng, inputs, count = random.Random(seed), corpus(), 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(100):
            data = mutate(rng, inputs)
            try:
                target(data)
            except BaseException:
                print(f"kept as {keep(data)}")
                raise
        count += 100
    return count


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The module's own functions and its classes' methods."""
    for item in vars(module).values():
        if getattr(item, "__module__", "") != module.__name__:
            continue
        for part in vars(item).values() if isinstance(item, type) else (item,):
            function = getattr(part, "__func__", part)  # of a classmethod
            if not isinstance(function, FunctionType):
                continue
            if function.__code__.co_filename == module.__file__:  # not a generated method
                yield function


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    try:
        engine: Any = importlib.import_module("atheris")
    except ImportError:
        print(f"{run(seconds, seed=time.time_ns())} inputs, random (no atheris)")
        return
    for module in (wire, messages, namespaces):
        for function in functions(module):
            engine.instrument_func(function)
    with tempfile.TemporaryDirectory() as found:  # what is new and does not fail is not kept
        options = [f"-max_total_time={int(seconds)}", f"-artifact_prefix={CORPUS}/"]
        engine.Setup([sys.argv[0], *options, found, str(CORPUS)], target)
        engine.Fuzz()


if __name__ == "__main__":
    main()
