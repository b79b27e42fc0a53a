"""Which single bit of a stored prompt shows most when it is wrong: the demo's control flips it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import transformers

__all__ = ["flipped_byte", "strongest_flip"]


def flipped_byte(
    layer: int, token: int, head: int, element: int, heads: int, size: int, item_bytes: int,
    block_tokens: int,
) -> int:  # fmt: skip
    """Offset in a stored block of the top byte of a key, whose lowest bit is flipped.

    Blocks are [layer][k/v][token][head][element], numbers are little-endian.
    """
    number = ((2 * layer * block_tokens + token) * heads + head) * size + element
    return number * item_bytes + item_bytes - 1


def strongest_flip(
    cache: Any, block_tokens: int, item_bytes: int, logits_of: Callable[[Any], torch.Tensor]
) -> int:
    """Offset of the byte in the stored first block, whose tokens all others attend to.

    For each layer the largest key that the flip makes four times as large (the bit is of its
    exponent, and clear) is tried on a copy; taken is the one under which some other token gets
    furthest ahead of the most likely next one. logits_of: of a forward over this cache, which may
    grow.
    """
    likely = int(logits_of(_shared(cache))[0, -1].argmax())
    word = {2: torch.int16, 4: torch.int32}[item_bytes]
    bit = 1 << (8 * (item_bytes - 1))
    best = (-math.inf, 0)
    for number, layer in enumerate(cache.layers):
        keys = layer.keys[0, :, :block_tokens].clone()
        heads, _, size = keys.shape
        clear = (keys.view(word) & bit) == 0
        place = int(torch.where(clear, keys.abs(), 0).argmax())
        head, rest = divmod(place, block_tokens * size)
        token, element = divmod(rest, size)
        trial = _shared(cache)
        wrong = layer.keys.clone()
        wrong.view(word)[0, head, token, element] ^= bit
        trial.layers[number].keys = wrong
        logits = logits_of(trial)[0, -1].clone()
        was = float(logits[likely])
        logits[likely] = -math.inf
        ahead = float(logits.max()) - was
        offset = flipped_byte(number, token, head, element, heads, size, item_bytes, block_tokens)
        best = max(best, (ahead, offset))
    return best[1]


def _shared(cache: Any) -> Any:
    """A cache of the same tensors, which grows apart."""
    copy: Any = transformers.DynamicCache()
    for number, layer in enumerate(cache.layers):
        copy.update(layer.keys[:, :, :0], layer.values[:, :, :0], number)
        copy.layers[number].keys, copy.layers[number].values = layer.keys, layer.values
    return copy
