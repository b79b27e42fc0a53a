"""The numpy runner in two ranks, and with mistakes that integrations make."""

from __future__ import annotations

import multiprocessing
import secrets
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from evoke.client import NO_SALT, Client, Group, Part, PoolMemory, connect
from evoke.client.conformance_runner import Generated, Options
from examples.numpy_runner import BLOCK, HEAD_SIZE, HEADS, LAYERS, SLOTS, Adapter, EvokeCache

SHAPE = (SLOTS, LAYERS, 2, BLOCK, HEADS, HEAD_SIZE)

# ---------------------------------------------------------------- ranks


class Rank:
    """One head of every block: the rank's own client, namespace and pool in common memory."""

    def __init__(self, client: Client, memory: PoolMemory, model: str, **namespace: Any) -> None:
        part = Part(groups=(Group(layers=LAYERS, kv_heads=1, head_size=HEAD_SIZE),))
        self.space = client.namespace(
            model=model, position="rope:theta=10000", dtype="float32", block_tokens=BLOCK,
            parts=(part, part), rank_parts=(0, 1), **namespace,
        )  # fmt: skip
        mine = memory.array(SHAPE, np.float32)[..., client.rank : client.rank + 1, :]
        self.pool = self.space.register_pool(memory, mine, "slot layer kv token head element")

    def lookup(self, token_ids: list[int]) -> int:
        return self.space.lookup(self.space.keys(token_ids))

    def fetch(self, token_ids: list[int], slots: list[int]) -> int:
        chain = self.space.keys(token_ids)[: len(slots)]
        return self.space.fetch(self.pool, chain, slots, timeout_s=0.5).leading

    def store(self, token_ids: list[int], slots: list[int], first: int) -> None:
        self.space.store(self.pool, self.space.keys(token_ids), slots, first=first)


def serve_rank(
    pipe: Connection, other: Connection, memory: PoolMemory, directory: str, **how: Any
) -> None:
    """The process of the second rank, for as long as the first one lives."""
    other.close()
    with connect(directory, timeout_s=0.5, rank=1, **how) as client:
        try:
            model, namespace = pipe.recv()
            rank = Rank(client, memory, model, **namespace)
            while True:
                verb, *arguments = pipe.recv()
                pipe.send(getattr(rank, verb)(*arguments))
        except (EOFError, ConnectionResetError, BrokenPipeError):
            pass


class TwoRanks(EvokeCache):
    """What the first rank does itself and has the second one do."""

    def __init__(
        self, pipe: Connection, memory: PoolMemory, client: Client, model: str, **namespace: Any
    ) -> None:
        self.pipe = pipe
        pipe.send((model, namespace))
        self.first = Rank(client, memory, model, **namespace)
        self.space, self.kv = self.first.space, memory.array(SHAPE, np.float32)

    def _both(self, verb: str, *arguments: Any) -> tuple[Any, Any]:
        self.pipe.send((verb, *arguments))
        return getattr(self.first, verb)(*arguments), self.pipe.recv()

    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        known = min(self._both("lookup", token_ids[:-1]))
        return min(self._both("fetch", token_ids[:-1], slots[:known])) * BLOCK if known else 0

    def save(self, token_ids: list[int], slots: list[int], restored: int) -> None:
        first, last = restored // BLOCK, len(token_ids) // BLOCK
        if first < last:
            self._both("store", token_ids, slots[first:last], first)


class TrustsFirstRank(TwoRanks):
    """Takes what the first rank fetched for what both did."""

    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        known = min(self._both("lookup", token_ids[:-1]))
        return self._both("fetch", token_ids[:-1], slots[:known])[0] * BLOCK if known else 0


class Ranked(Adapter):
    """An engine of two processes; it ends with either of them."""

    patience_s = 0.5 + 0.5

    def __init__(
        self, options: Options, *, together: bool = True, cache: type[TwoRanks] = TwoRanks
    ) -> None:
        # A token that nobody knows founds the instance, so neither rank need be first.
        how = {"join": secrets.token_bytes(16)} if together else {}
        memory = PoolMemory(int(np.prod(SHAPE)) * 4)
        # Forked while there is no other thread, to inherit the memory.
        context = multiprocessing.get_context("fork")
        pipe, theirs = context.Pipe()
        arguments = (theirs, pipe, memory, options.socket_dir)
        self.second = context.Process(target=serve_rank, args=arguments, kwargs=how)
        self.second.start()
        theirs.close()
        self.pipe = pipe
        super().__init__(options, partial(cache, pipe, memory), **how)

    def close(self) -> None:
        self.pipe.close()
        self.second.join()
        super().close()


# The second rank is an engine of its own.
ranks_apart = partial(Ranked, together=False)
trusts_first_rank = partial(Ranked, cache=TrustsFirstRank)


# ---------------------------------------------------------------- mistakes


class SwappedSlots(EvokeCache):
    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        known = self.space.lookup(self.space.keys(token_ids[:-1]))
        return super().restore(token_ids, slots[:known][::-1] + slots[known:])


class TrustsLookup(EvokeCache):
    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        known = self.space.lookup(self.space.keys(token_ids[:-1]))
        super().restore(token_ids, slots)
        return known * BLOCK


class ForgetsSalt(EvokeCache):
    def __init__(self, client: Client, fingerprint: str, salt: str, weights_epoch: str) -> None:
        super().__init__(client, fingerprint, NO_SALT, weights_epoch)


class LastToken(Adapter):
    """Stores the block of the answer's last token as well, whose KV was never computed."""

    def generate(self, prompt: list[int], steps: int) -> Generated:
        given = super().generate(prompt, steps)
        tokens = [*prompt, *given.token_ids]
        if len(tokens) % BLOCK == 0:
            self.runner.cache.save(tokens, list(range(SLOTS)), len(tokens) - BLOCK)
        return given


class NeverRestores(EvokeCache):
    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        return 0


class Impatient(Adapter):
    """Promises more than its timeouts keep."""

    patience_s = 0.0


swapped_slots = partial(Adapter, make_cache=SwappedSlots)
trusts_lookup = partial(Adapter, make_cache=TrustsLookup)
forgets_salt = partial(Adapter, make_cache=ForgetsSalt)
never_restores = partial(Adapter, make_cache=NeverRestores)
needs_daemon = partial(Adapter, raise_errors=True)


def raises(options: Options) -> Adapter:
    """Lets errors of a daemon that it has seen through to its users."""
    return Adapter(options, raise_errors=Path(options.socket_dir, "session.sock").exists())
