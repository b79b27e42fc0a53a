"""Blocks out of and into the tensors of a transformers cache, by the core's strided copy.

A cache keeps [1, head, token, element] per layer and kind; a stored block is
[layer][k/v][token][head][element]. One native Layout describes all tensors of a cache at once, so
that moving any number of blocks is one call and no torch operation per block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from evoke.client.errors import UnsupportedInput
from evoke.client.hf_model import Geometry
from evoke.core import native

__all__ = [
    "BlockTensors",
    "cache_tensors",
    "cached_tokens",
    "empty_tensors",
    "hand_over",
    "is_static",
]

ALIGN_BYTES: Final = 64


def cached_tokens(cache: Any, geometry: Geometry) -> int:
    """Tokens whose keys and values the cache holds; UnsupportedInput for foreign layer kinds."""
    if len(cache.layers) not in (0, geometry.layers):
        raise UnsupportedInput(
            f"cache: {len(cache.layers)} layers, the model has {geometry.layers}"
        )
    counts = set()
    for index, layer in enumerate(cache.layers):
        if type(layer).__name__ not in ("DynamicLayer", "StaticLayer"):
            raise UnsupportedInput(f"cache: layer {index} is a {type(layer).__name__}")
        counts.add(int(layer.get_seq_length()))
    if len(counts) > 1:
        raise UnsupportedInput(f"cache: layers hold {sorted(counts)} tokens")
    if getattr(cache, "offloading", False):
        raise UnsupportedInput("cache: offloading moves its layers to and fro")
    return counts.pop() if counts else 0


def is_static(cache: Any) -> bool:
    return bool(cache.layers) and type(cache.layers[0]).__name__ == "StaticLayer"


def cache_tensors(cache: Any, geometry: Geometry) -> list[torch.Tensor]:
    """[keys, values, keys, ...] of an initialised cache; UnsupportedInput on another geometry."""
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    for number, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        if shape != (1, geometry.kv_heads, shape[2], geometry.head_size):
            raise UnsupportedInput(
                f"cache: layer {number // 2} has shape {shape}, expected "
                f"(1, {geometry.kv_heads}, tokens, {geometry.head_size})"
            )
        if tensor.dtype != geometry.dtype:
            raise UnsupportedInput(f"cache: dtype {tensor.dtype}, the model's is {geometry.dtype}")
    return tensors


def empty_tensors(geometry: Geometry, tokens: int) -> list[torch.Tensor]:
    """[keys, values, keys, ...] in one piece of CPU memory, uninitialised."""
    shape = (1, geometry.kv_heads, tokens, geometry.head_size)
    size = math.prod(shape) * geometry.dtype.itemsize
    step = -(-size // ALIGN_BYTES) * ALIGN_BYTES
    # From numpy, which asks for huge pages: first-touch faults would take longer than the copy.
    memory = np.empty(2 * geometry.layers * step + ALIGN_BYTES, np.uint8)
    flat = torch.from_numpy(memory[-memory.ctypes.data % ALIGN_BYTES :])
    starts = range(0, 2 * geometry.layers * step, step)
    return [flat[at : at + size].view(geometry.dtype).view(shape) for at in starts]


def hand_over(cache: Any, tensors: list[torch.Tensor], tokens: int, device: torch.device) -> None:
    """Make the first `tokens` tokens of [keys, values, keys, ...] the content of an empty cache.

    The tensors of a StaticCache itself are left as they are.
    """
    for index in range(len(tensors) // 2):
        keys, values = (tensor[:, :, :tokens] for tensor in tensors[2 * index : 2 * index + 2])
        if not is_static(cache):
            # An update of no tokens sets the layer up; one of all would copy them once more.
            cache.update(keys[:, :, :0].to(device), values[:, :, :0].to(device), index)
        layer = cache.layers[index]
        if not is_static(cache):
            layer.keys, layer.values = keys.to(device), values.to(device)
            continue
        if layer.keys.data_ptr() != keys.data_ptr():
            layer.keys[:, :, :tokens].copy_(keys)
            layer.values[:, :, :tokens].copy_(values)
        if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
            layer.cumulative_length.fill_(tokens)


class BlockTensors:
    """Tensors [1, head, token, element] as whole blocks; block i is tokens from i * block_tokens.

    Tensors of an accelerator are copied to the CPU first (all tokens below `blocks` at once).
    """

    def __init__(self, tensors: Sequence[torch.Tensor], blocks: int, block_tokens: int) -> None:
        tokens = blocks * block_tokens
        # Detached, so that gradients never enter; on the CPU these stay views of the same bytes.
        self._tensors = [tensor.detach()[:, :, :tokens].cpu() for tensor in tensors]
        self._address = min(tensor.data_ptr() for tensor in self._tensors)
        self._layout = native.Layout(
            [_segment(tensor, self._address, block_tokens) for tensor in self._tensors],
            blocks,
            max(_end(tensor) for tensor in self._tensors) - self._address,
        )
        self.block_bytes = self._layout.block_bytes

    def gather(self, first: int, count: int, out: Any) -> None:
        """Blocks first..first+count-1 into the buffer `out`, in stored order."""
        self._layout.gather(self._address, _slots(first, count), out)

    def scatter(self, first: int, count: int, source: Any) -> None:
        """The inverse. Writes only these blocks. For CPU tensors: the tensors' own memory."""
        self._layout.scatter(self._address, _slots(first, count), source)


def _slots(first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.arange(first, first + count, dtype=np.uint32)


def _segment(
    tensor: torch.Tensor, address: int, block_tokens: int
) -> tuple[int, int, list[tuple[int, int]], int]:
    item = tensor.element_size()
    head, token, element = (stride * item for stride in tensor.stride()[1:])
    dims = [(block_tokens, token), (tensor.shape[1], head), (tensor.shape[3], element)]
    return tensor.data_ptr() - address, block_tokens * token, dims, item


def _end(tensor: torch.Tensor) -> int:
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr() + (last + 1) * tensor.element_size()
