"""What the conformance kit drives: the author's Runner, in a process of its own.

    python -m evoke.client.conformance_runner FACTORY OPTIONS FD

is how the kit starts one; requests and replies are msgpack arrays on the connection FD. Importing
this needs no pytest: an adapter imports Generated, Options and Runner from here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from evoke.client.errors import BadArgument
from evoke.client.namespace import Namespace

__all__ = ["BLOCKS_MIN", "Generated", "Options", "Runner", "load_factory"]

BLOCKS_MIN: Final = 14  # that prompt and answer together may have


@dataclass(frozen=True)
class Options:
    """What a factory is called with.

    socket_dir: for connect(); there may be no daemon there. salt, weights_epoch: for the namespace;
    the runner's answers may, but need not depend on the epoch.
    """

    socket_dir: str
    salt: str = "conformance"
    weights_epoch: str = "1"


@dataclass(frozen=True)
class Generated:
    """What a prompt gave.

    token_ids: the answer, `steps` of them. forwarded: tokens that the model computed for it, of
    prompt and answer together. evidence: bytes that must be equal whenever the same prompt is
    answered, e.g. the last logits; empty if the runner's rounding depends on how many tokens it
    computes at once.
    """

    token_ids: Sequence[int]
    forwarded: int
    evidence: bytes = b""


class Runner(Protocol):
    """An engine with evoke, all of its ranks, as the kit sees it.

    vocabulary: prompts hold token ids 0 to vocabulary - 1. context_tokens: of prompt and answer
    together, at least BLOCKS_MIN blocks. patience_s: how much longer than without a daemon one
    generate() may take while the daemon answers nothing: the sum of the timeouts on its way.
    namespace: the one that is registered.
    """

    vocabulary: int
    context_tokens: int
    patience_s: float

    @property
    def namespace(self) -> Namespace:
        """What the runner registered."""
        ...

    def generate(self, prompt: list[int], steps: int) -> Generated:
        """Answer greedily. Returns when what it offers to the cache was stored or given up."""
        ...

    def close(self) -> None:
        """End it in order."""
        ...


def load_factory(name: str) -> Callable[[Options], Runner]:
    """The callable that "module:name" or "path/file.py:name" names. BadArgument if none is."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise BadArgument(f"evoke-runner: {name!r}, wanted module:name or path/file.py:name")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None or not Path(place).is_file():
            raise BadArgument(f"evoke-runner: there is no file {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        sys.path.insert(0, str(Path(place).resolve().parent))  # as `python file.py` does
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise BadArgument(f"evoke-runner: {attribute!r} of {place} is not callable")
    made: Callable[[Options], Runner] = factory
    return made


def _describe(runner: Runner) -> list[Any]:
    namespace = runner.namespace
    block_bytes = sum(part.part_bytes for part in namespace.parts)
    return [
        namespace.encoded(),
        namespace.block_tokens,
        block_bytes,
        len(namespace.rank_parts),
        runner.vocabulary,
        runner.context_tokens,
        runner.patience_s,
    ]


def _generate(runner: Runner, prompt: list[int], steps: int) -> list[Any]:
    begun_s = time.monotonic()
    given = runner.generate(prompt, steps)
    took_s = time.monotonic() - begun_s
    tokens = [int(token) for token in given.token_ids]
    return [tokens, int(given.forwarded), bytes(given.evidence), took_s]


def serve(connection: Connection, factory: str, options: Options) -> None:
    """Make the runner and do what the kit says until it says close or goes."""
    runner = load_factory(factory)(options)
    connection.send_bytes(msgspec.msgpack.encode(["ok", _describe(runner)]))
    while True:
        try:
            verb, *args = msgspec.msgpack.decode(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        try:
            reply: list[Any] = ["ok", None]
            if verb == "close":
                runner.close()
            else:
                reply[1] = _generate(runner, *args)
        except Exception:
            reply = ["raised", traceback.format_exc()]
        connection.send_bytes(msgspec.msgpack.encode(reply))
        if verb == "close":
            return


def main() -> None:
    factory, options, fd = sys.argv[1:]
    connection = Connection(int(fd))
    try:
        serve(connection, factory, msgspec.json.decode(options, type=Options))
    except Exception:
        reply = ["raised", traceback.format_exc()]
        connection.send_bytes(msgspec.msgpack.encode(reply))


if __name__ == "__main__":
    main()
