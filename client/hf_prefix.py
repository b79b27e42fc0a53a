"""PrefixCache: the stored prefixes of one transformers model, restored and saved block-wise."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers

from evoke.client.errors import SlotsInDoubt, UnsupportedInput
from evoke.client.hf_model import (
    check_inputs,
    geometry_of,
    namespace_of,
    weights_mark,
)
from evoke.client.hf_staging import Staging
from evoke.client.hf_tensors import (
    BlockTensors,
    cache_tensors,
    cached_tokens,
    empty_tensors,
    hand_over,
    is_static,
)
from evoke.client.namespace import NoSalt

__all__ = ["POOL_BYTES", "PrefixCache", "Restored", "Saved"]

POOL_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Restored:
    """cache: what to pass to forward or generate; tokens: how many of the prompt it holds; mark:
    of the weights that they belong to."""

    cache: Any
    tokens: int
    mark: tuple[object, ...] = field(repr=False)


@dataclass(frozen=True)
class Saved:
    """Of the `blocks` complete ones: newly stored, present before, and not kept (no room)."""

    blocks: int
    stored: int
    present: int
    refused: int


class PrefixCache:
    """Stored prefixes of one model. Thread-safe; one transfer runs at a time."""

    def __init__(
        self,
        model: Any,
        client: Any,
        *,
        salt: str | NoSalt,
        block_tokens: int = 16,
        weights_epoch: str = "0",
        pool_bytes: int = POOL_BYTES,
    ) -> None:
        """Reads all weights for the fingerprint. salt: the tenant, or NO_SALT to share with all.

        pool_bytes: shared memory to copy through (rounded to whole blocks, at least one); longer
        prompts move in several rounds. UnsupportedInput for a model that isn't a plain-RoPE
        decoder; EvokeError when the daemon refuses the namespace.
        """
        self.model = model
        self.geometry = geometry_of(model)
        self.block_tokens = block_tokens
        self._client = client
        self._identity: dict[str, Any] = dict(
            salt=salt, block_tokens=block_tokens, weights_epoch=weights_epoch
        )
        self._pool_bytes = pool_bytes
        self._lock = threading.Lock()
        self._mark: tuple[object, ...] = ()
        self._staging: Staging | None = None
        with self._lock:
            self._current()

    def restore(
        self,
        inputs: Mapping[str, Any] | torch.Tensor,
        cache: Any = None,
        *,
        extra: Mapping[int, bytes] | None = None,
    ) -> Restored:
        """The longest stored prefix of inputs["input_ids"], in `cache` or a new DynamicCache.

        At least one token is always left to compute. A StaticCache is written in place; a cache
        that is not empty is refused. extra: {token index: bytes} names content that the token
        ids do not.
        """
        ids = check_inputs(self.model, _mapping(inputs), extra)
        if cache is None:
            cache = transformers.DynamicCache(config=self.model.config)
        if cached_tokens(cache, self.geometry) != 0:
            raise UnsupportedInput("cache: holds tokens already, an empty one is needed")
        room = ids.numel() - 1
        if is_static(cache):
            room = min(room, cache.layers[0].max_cache_len)
        with self._transfers() as staging:
            chain = staging.space.keys(ids, extra=extra)[: room // self.block_tokens]
            found = staging.space.lookup(chain)
            if found == 0:
                return Restored(cache, 0, self._mark)
            with torch.no_grad():
                tokens = self._fill(staging, chain, found, cache) * self.block_tokens
            return Restored(cache, tokens, self._mark)

    def save(
        self,
        inputs: Mapping[str, Any] | torch.Tensor,
        cache: Any,
        *,
        restored: Restored | None = None,
        extra: Mapping[int, bytes] | None = None,
    ) -> Saved:
        """Store the complete blocks that `cache` holds of inputs["input_ids"].

        The cache may hold fewer tokens than the ids (a sampled token has no keys yet), not more.
        restored: what restore() gave for this cache: its tokens are not offered again, and when
        the model has changed since, its new tokens are refused.
        """
        ids = check_inputs(self.model, _mapping(inputs), extra)
        held = cached_tokens(cache, self.geometry)
        if held > ids.numel():
            raise UnsupportedInput(f"cache: holds {held} tokens, input_ids names {ids.numel()}")
        blocks = held // self.block_tokens
        if restored is not None and restored.mark != weights_mark(self.model):
            raise UnsupportedInput("model: changed after restore(), the cache is of two models")
        begin = min(restored.tokens // self.block_tokens, blocks) if restored is not None else 0
        if begin == blocks:
            return Saved(blocks, 0, blocks, 0)
        tensors = cache_tensors(cache, self.geometry)
        stored, present = 0, begin
        with self._transfers() as staging:
            chain = staging.space.keys(ids, extra=extra)[:blocks]
            source = BlockTensors(tensors, blocks, self.block_tokens)
            for first, count in staging.rounds(begin, blocks):
                source.gather(first, count, staging.buffer(count))
                new, old = staging.store(chain, first, count)
                stored, present = stored + new, present + old
                if new + old < count:
                    break  # blocks behind one that has no room could not be reached
        return Saved(blocks, stored, present, blocks - stored - present)

    def chain(
        self,
        inputs: Mapping[str, Any] | torch.Tensor,
        *,
        extra: Mapping[int, bytes] | None = None,
    ) -> tuple[Any, Any]:
        """(space, keys of the full blocks): for verbs that this class does not have, as pin."""
        ids = check_inputs(self.model, _mapping(inputs), extra)
        with self._lock:
            space = self._current().space
        return space, space.keys(ids, extra=extra)

    def close(self) -> None:
        """Gives the shared memory back; the client stays connected."""
        with self._lock:
            if self._staging is not None:
                self._staging.close()
                self._staging = None

    @contextmanager
    def _transfers(self) -> Iterator[Staging]:
        with self._lock:
            try:
                yield self._current()
            except SlotsInDoubt:
                self._staging = None  # never to be used again; the next call makes another
                raise

    def _current(self) -> Staging:
        """The namespace of the weights as they are now."""
        mark = weights_mark(self.model)
        if self._staging is None or mark != self._mark:
            namespace = namespace_of(self.model, **self._identity)
            if self._staging is not None:
                self._staging.close()
                self._staging = None
            self._staging = Staging(self._client, namespace, self._pool_bytes)
            self._mark = mark
        return self._staging

    def _fill(self, staging: Staging, chain: Any, found: int, cache: Any) -> int:
        """Blocks 0..found-1 into an empty cache; how many arrived (fewer: the rest is gone)."""
        geometry, device = self.geometry, self.model.device
        in_place = is_static(cache) and device.type == "cpu"
        if is_static(cache):
            cache.early_initialization(
                1, geometry.kv_heads, geometry.head_size, geometry.dtype, device
            )
        if in_place:
            tensors = cache_tensors(cache, geometry)
        else:
            tensors = empty_tensors(geometry, found * self.block_tokens)
        target = BlockTensors(tensors, found, self.block_tokens)
        arrived = 0
        for first, count in staging.rounds(0, found):
            leading = staging.fetch(chain, first, count)
            target.scatter(first, leading, staging.buffer(leading))
            arrived += leading
            if leading < count:
                break
        if arrived:
            hand_over(cache, tensors, arrived * self.block_tokens, device)
        return arrived


def _mapping(inputs: Mapping[str, Any] | torch.Tensor) -> Mapping[str, Any]:
    return {"input_ids": inputs} if isinstance(inputs, torch.Tensor) else inputs
