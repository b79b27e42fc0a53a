"""Attention weights of an engine, reduced to what Observed.report() takes: a few numbers a block.

plan = [Channel.mean(30, 9), Channel.heads(30, 9, heads.of("retrieval"))]
reduction = Reduction(30, 9, block_tokens=16, channels=plan)
for layer, weights in enumerate(attentions):      # heads x query rows x tokens
    reduction.add(layer, weights)
observed.report(chain, reduction.take(len(chain)), steps=8)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from evoke.client.errors import BadArgument
from evoke.core import signals

__all__ = ["Channel", "HeadMap", "Reduction", "load_head_map"]

HEAD_FILE_BYTES_MAX = 1 << 20
Head = tuple[int, int]  # (layer, head), both from 0


class HeadMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What the heads of one model do. A head's role is a property of the model, not of the text."""

    model: str
    layers: int
    heads: int
    classes: dict[str, list[Head]]

    def of(self, name: str) -> list[Head]:
        """Heads of a class. BadArgument: there is none of that name."""
        if name not in self.classes:
            raise BadArgument(f"class: {name!r} is none of {', '.join(sorted(self.classes))}")
        return self.classes[name]


def load_head_map(path: str | Path) -> HeadMap:
    """A TOML file with `model`, `layers`, `heads` and a table `classes` of [layer, head] lists.
    BadArgument names what is wrong with it; OSError when it cannot be read."""
    content = Path(path).read_bytes()
    if len(content) > HEAD_FILE_BYTES_MAX:
        raise BadArgument(f"{path}: {len(content)} bytes, allowed {HEAD_FILE_BYTES_MAX}")
    try:
        found = msgspec.toml.decode(content, type=HeadMap)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadArgument(f"{path}: {error}") from None
    for name, heads in found.classes.items():
        for layer, head in heads:
            if not (0 <= layer < found.layers and 0 <= head < found.heads):
                raise BadArgument(
                    f"{path}: classes.{name}: [{layer}, {head}] is not one of {found.layers} layers"
                    f" of {found.heads} heads"
                )
    return found


@dataclass(frozen=True)
class Channel:
    """How a channel folds the heads: `mean` (weighted), `max`, or `largest` (mean of the `count`
    largest). weights: layers x heads, 0 leaves a head out."""

    fold: str
    weights: NDArray[np.float32]
    count: int = 1

    @classmethod
    def mean(cls, layers: int, heads: int) -> Channel:
        return cls("mean", np.ones((layers, heads), np.float32))

    @classmethod
    def highest(cls, layers: int, heads: int) -> Channel:
        """The maximum: what any head weights."""
        return cls("max", np.ones((layers, heads), np.float32))

    @classmethod
    def largest(cls, layers: int, heads: int, count: int) -> Channel:
        return cls("largest", np.ones((layers, heads), np.float32), count)

    @classmethod
    def heads(cls, layers: int, heads: int, chosen: Iterable[Head], fold: str = "mean") -> Channel:
        """Of those heads only."""
        weights = np.zeros((layers, heads), np.float32)
        for layer, head in chosen:
            if not (0 <= layer < layers and 0 <= head < heads):
                raise BadArgument(f"chosen: ({layer}, {head}) of {layers} layers, {heads} heads")
            weights[layer, head] = 1.0
        return cls(fold, weights)

    @classmethod
    def classes(cls, heads: HeadMap, shares: Mapping[str, float]) -> Channel:
        """The mean of each class of heads, weighted by its share."""
        weights = np.zeros((heads.layers, heads.heads), np.float32)
        for name, share in shares.items():
            members = heads.of(name)
            for layer, head in members:
                weights[layer, head] += share / len(members)
        return cls("mean", weights)


class Reduction:
    """Not thread-safe. BadArgument names what does not fit."""

    def __init__(
        self, layers: int, heads: int, block_tokens: int, channels: Sequence[Channel]
    ) -> None:
        plan = [
            (c.fold, c.count, np.ascontiguousarray(c.weights, np.float32).ravel()) for c in channels
        ]
        try:
            self._reducer = signals.Reducer(layers, heads, block_tokens, plan)
        except ValueError as error:
            raise BadArgument(str(error)) from None

    def add(self, layer: int, weights: Any) -> None:
        """Weights of one layer: heads x tokens or heads x rows x tokens, float16 or float32, any
        strides; each layer that a channel needs once."""
        try:
            self._reducer.add(layer, np.asarray(weights))
        except ValueError as error:
            raise BadArgument(str(error)) from None

    def take(self, blocks: int | None = None) -> NDArray[np.float16]:
        """channels x blocks, of the first `blocks` ones (a partial block at the end has no key)."""
        try:
            found = self._reducer.take()
        except ValueError as error:
            raise BadArgument(str(error)) from None
        if blocks is not None and not 0 <= blocks <= found.shape[1]:
            raise BadArgument(f"blocks: {blocks}, the weights have {found.shape[1]}")
        return found if blocks is None else np.ascontiguousarray(found[:, :blocks])
