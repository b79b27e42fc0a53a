"""Types of evoke.core._signals: attention weights of many heads, reduced to numbers per block."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Reducer:
    """One pass over the weights of a step: a head's mass in a block is the sum over its tokens,
    mean over the query rows; channels fold the heads. Not thread-safe."""

    def __init__(
        self,
        layers: int,
        heads: int,
        block_tokens: int,
        channels: Sequence[tuple[str, int, NDArray[np.float32]]],
    ) -> None:
        """channels: up to 8 of (fold, count, weights); weights: layers x heads, 0 leaves a head
        out. fold: `mean` (weighted), `max`, or `largest` (mean of the count largest). ValueError
        names the field and its number."""

    def add(self, layer: int, weights: NDArray[Any]) -> None:
        """heads x tokens or heads x rows x tokens, float16 or float32, any strides; each layer
        once. ValueError names layer, head and block of a mass outside 0 to 1 (or NaN); the layer
        counts as not added then."""

    def take(self) -> NDArray[np.float16]:
        """channels x blocks; the next add() begins anew. ValueError: a layer in which a channel
        takes part was not added."""

    blocks: int  # of the step that is being added
