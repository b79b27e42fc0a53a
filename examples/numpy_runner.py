"""A from-scratch paged runner in numpy, and what evoke adds to it (class EvokeCache, ~50 lines).

    python examples/numpy_runner.py

generates twice from one prompt with a daemon of its own, the second time in a new runner: the
prompt's blocks come back instead of being computed, and the tokens are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoke.client import NO_SALT, Client, Group, Part, connect
from evoke.client.conformance_runner import Generated, Options

LAYERS, HEADS, HEAD_SIZE, VOCABULARY, BLOCK, SLOTS = 2, 2, 16, 97, 16, 64
WIDTH = HEADS * HEAD_SIZE
F32 = NDArray[np.float32]


# --- evoke begins
class EvokeCache:
    """Keeps full blocks of token ids in the daemon. A failure of any kind is a miss."""

    def __init__(
        self, client: Client, fingerprint: str, salt: Any = NO_SALT, weights_epoch: str = "1"
    ) -> None:
        group = Group(layers=LAYERS, kv_heads=HEADS, head_size=HEAD_SIZE)
        self.space = client.namespace(
            model=fingerprint,  # whatever changes the weights must change this
            weights_epoch=weights_epoch,
            position="rope:theta=10000",
            dtype="float32",
            block_tokens=BLOCK,
            parts=(Part(groups=(group,)),),
            salt=salt,
        )
        shape = (SLOTS, LAYERS, 2, BLOCK, HEADS, HEAD_SIZE)
        self.memory = client.pool_memory(int(np.prod(shape)) * 4)
        self.kv: F32 = self.memory.array(shape, np.float32)  # the runner works in this array
        axes = "slot layer kv token head element"
        self.pool = self.space.register_pool(self.memory, self.kv, axes)

    def restore(self, token_ids: list[int], slots: list[int]) -> int:
        """Fill the first slots with the known prefix; how many tokens that is."""
        # The last token is computed in any case: its logits are wanted.
        chain = self.space.keys(token_ids[:-1])
        known = self.space.lookup(chain)
        if not known:
            return 0
        result = self.space.fetch(self.pool, chain[:known], slots[:known], timeout_s=1.0)
        return result.leading * BLOCK

    def save(self, token_ids: list[int], slots: list[int], restored: int) -> None:
        """Offer the full blocks that were computed. token_ids: those whose KV is in the slots."""
        chain = self.space.keys(token_ids)
        first = restored // BLOCK
        if first < len(chain):
            self.space.store(self.pool, chain, slots[first : len(chain)], first=first)


# --- evoke ends


class Runner:
    """One sequence at a time; a page table of slots; greedy decoding."""

    def __init__(
        self, client: Client, make_cache: Callable[..., EvokeCache] = EvokeCache, **namespace: Any
    ) -> None:
        rng = np.random.default_rng(1)

        def matrix(*shape: int) -> F32:
            scale = np.sqrt(shape[-2])
            values: F32 = (rng.standard_normal(shape) / scale).astype(np.float32)
            return values

        self.embedding = matrix(VOCABULARY, WIDTH) * 5
        self.projections = matrix(LAYERS, 4, WIDTH, WIDTH) * 2  # query, key, value, output
        self.head = matrix(WIDTH, VOCABULARY)
        weights = (self.embedding, self.projections, self.head)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in weights))
        self.cache = make_cache(client, digest.hexdigest(), **namespace)
        self.forwarded = 0
        self.logits = np.empty(0, np.float32)  # of the answer's last token

    def generate(self, prompt: list[int], steps: int) -> list[int]:
        tokens, slots = list(prompt), list(range(SLOTS))
        restored = self.cache.restore(tokens, slots)
        self.forwarded = 0
        for position in range(restored, len(prompt) + steps - 1):
            self.logits = self._forward(tokens[position], position, slots)
            if position >= len(prompt) - 1:
                tokens.append(int(self.logits.argmax()))
        self.cache.save(tokens[:-1], slots, restored)  # the last token's KV was never computed
        return tokens[len(prompt) :]

    def _forward(self, token: int, position: int, slots: list[int]) -> F32:
        self.forwarded += 1
        page, row = slots[position // BLOCK], position % BLOCK
        hidden = self.embedding[token]
        for layer in range(LAYERS):
            query, key, value = (hidden @ self.projections[layer, i] for i in range(3))
            self.cache.kv[page, layer, 0, row] = _rotate(key, position)
            self.cache.kv[page, layer, 1, row] = value.reshape(HEADS, HEAD_SIZE)
            pages = slots[: position // BLOCK + 1]
            keys = self.cache.kv[pages, layer, 0].reshape(-1, HEADS, HEAD_SIZE)[: position + 1]
            values = self.cache.kv[pages, layer, 1].reshape(-1, HEADS, HEAD_SIZE)[: position + 1]
            scores = np.einsum("hd,thd->ht", _rotate(query, position), keys) / np.sqrt(HEAD_SIZE)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            mixed = np.einsum("ht,thd->hd", weights, values).reshape(WIDTH)
            hidden = np.tanh(hidden + mixed @ self.projections[layer, 3])
        logits: F32 = hidden @ self.head
        return logits


def _rotate(vector: F32, position: int) -> F32:
    """RoPE: pairs of numbers turned by the position."""
    half = HEAD_SIZE // 2
    angles = position / 10000 ** (np.arange(half, dtype=np.float32) / half)
    pairs = vector.reshape(HEADS, 2, half)
    cos, sin = np.cos(angles), np.sin(angles)
    turned = [pairs[:, 0] * cos - pairs[:, 1] * sin, pairs[:, 0] * sin + pairs[:, 1] * cos]
    rotated: F32 = np.concatenate(turned, axis=1).astype(np.float32)
    return rotated


# --- conformance begins
class Adapter:
    """The runner as the conformance kit drives it."""

    vocabulary, context_tokens = VOCABULARY, SLOTS * BLOCK
    patience_s = 1.0 + 0.5  # restore() waits 1 s at most, save() the client's timeout

    def __init__(
        self, options: Options, make_cache: Callable[..., EvokeCache] = EvokeCache, **how: Any
    ) -> None:
        self.client = connect(options.socket_dir, timeout_s=0.5, **how)
        same = {"salt": options.salt, "weights_epoch": options.weights_epoch}
        self.runner = Runner(self.client, make_cache, **same)
        self.namespace = self.runner.cache.space.namespace

    def generate(self, prompt: list[int], steps: int) -> Generated:
        tokens = self.runner.generate(prompt, steps)
        return Generated(tokens, self.runner.forwarded, self.runner.logits.tobytes())

    def close(self) -> None:
        self.client.close()


# --- conformance ends


def main() -> None:
    prompt = [int(t) for t in np.random.default_rng(0).integers(0, VOCABULARY, 200)]
    answers = []
    with connect("embedded", config={"host.capacity": "16MiB"}) as client:
        for name in ("first", "second"):
            runner = Runner(client)
            answers.append(runner.generate(prompt, 24))
            print(f"{name} runner: computed {runner.forwarded} tokens, {answers[-1][:8]}...")
    assert answers[0] == answers[1]
    print("the same tokens")


if __name__ == "__main__":
    main()
