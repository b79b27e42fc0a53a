"""The numpy runner in two ranks, and with mistakes that integrations make."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evoke.client import NO_SALT, Client, Group, Part, connect
from evoke.client.conformance_runner import Generated, Options
from examples.numpy_runner import BLOCK, HEAD_SIZE, HEADS, LAYERS, SLOTS, Adapter, EvokeCache

# ---------------------------------------------------------------- ranks


class TwoRanks(EvokeCache):
    """Each rank holds one head of every block: two clients, each with its half of the array."""

    def __init__(self, second: Client, first: Client, fingerprint: str, **namespace: Any) -> None:
        part = Part(groups=(Group(layers=LAYERS, kv_heads=1, head_size=HEAD_SIZE),))
        self.second = second
        self.spaces = [
            client.namespace(
                model=fingerprint, position="rope:theta=10000", dtype="float32",
                block_tokens=BLOCK, parts=(part, part), rank_parts=(0, 1), **namespace,
            )
            for client in (first, second)
        ]  # fmt: skip
        self.space = self.spaces[0]
        shape = (SLOTS, LAYERS, 2, BLOCK, HEADS, HEAD_SIZE)
        self.memory = first.pool_memory(int(np.prod(shape)) * 4)
        self.kv = self.memory.array(shape, np.float32)
        axes = "slot layer kv token head element"
        self.pools = [
            space.register_pool(self.memory, self.kv[..., rank : rank + 1, :], axes)
            for rank, space in enumerate(self.spaces)
        ]

    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        chains = [space.keys(token_ids[:-1]) for space in self.spaces]
        known = min(map(lambda s, c: s.lookup(c), self.spaces, chains))
        leading = known
        for space, pool, chain in zip(self.spaces, self.pools, chains, strict=True):
            if known:
                fetched = space.fetch(pool, chain[:known], slots[:known], timeout_s=0.5)
                leading = min(leading, fetched.leading)
        return leading * BLOCK

    def save(self, token_ids: list[int], slots: list[int], restored: int) -> None:
        first = restored // BLOCK
        for space, pool in zip(self.spaces, self.pools, strict=True):
            chain = space.keys(token_ids)
            if first < len(chain):
                space.store(pool, chain, slots[first : len(chain)], first=first)


class Ranked(Adapter):
    patience_s = 2 * (0.5 + 0.5)

    def __init__(self, options: Options) -> None:
        # A token that nobody knows founds the instance, so neither rank need be first.
        join = secrets.token_bytes(16)
        self.second = connect(options.socket_dir, timeout_s=0.5, join=join, rank=1)
        super().__init__(options, partial(TwoRanks, self.second), join=join)

    def close(self) -> None:
        self.second.close()
        super().close()


class RankApart(Ranked):
    """The second rank is an engine of its own."""

    def __init__(self, options: Options) -> None:
        self.second = connect(options.socket_dir, timeout_s=0.5, rank=1)
        Adapter.__init__(self, options, partial(TwoRanks, self.second))


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
