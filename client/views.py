"""From an engine's arrays to the strides that the daemon copies by.

Arrays are named by their axes: "slot", "layer", "kv" (keys, values), "token", "head", "element",
and "seq" for slots and tokens in one (a whole sequence). An axis that an engine has split is named
once for each piece, outermost first ("head element token element"). An axis of length 1 may be
missing. The stored order is [layer][kv][token][head][element], whatever the order of the axes.

Several arrays are given layer by layer, keys before values: an array without "layer" is one
layer, an array without "kv" is keys or values in turn (K0 V0 K1 V1 ... without both, K V without
"kv"). Groups of layers follow each other. Opaque formats know "slot", "run" and "byte" and are
stored array by array in the order given, each in the order of its axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client.errors import LayoutError
from evoke.client.memory import PoolMemory
from evoke.client.namespace import DTYPE_BYTES, Group, Namespace
from evoke.client.wire import SegmentArgs

__all__ = ["View", "read_views", "segments_of", "stored_parts"]

_PLAIN: Final = ("slot", "seq", "layer", "kv", "token", "head", "element")
_OPAQUE: Final = ("slot", "run", "byte")
_ORDER: Final = ("layer", "kv", "token", "head", "element")


@dataclass(frozen=True)
class Need:
    """Lengths that the axes of one array of a plain format must have."""

    layer: int
    kv: int
    token: int
    head: int
    element: int


@dataclass(frozen=True)
class Piece:
    """A view in its place in the stored order; `layer`: only this one of its layers."""

    view: View
    layer: int | None = None


@dataclass(frozen=True)
class View:
    """One array of the engine: where it is, the names and extents of its axes, in bytes."""

    address: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    block_tokens: int

    def dims(self, axis: str) -> list[tuple[int, int]]:
        """(count, stride) of each piece of an axis, outermost first."""
        found = [
            (count, stride)
            for name, count, stride in zip(self.axes, self.shape, self.strides, strict=True)
            if name == axis
        ]
        if axis in ("slot", "token") and "seq" in self.axes:
            ((count, stride),) = self.dims("seq")
            of_token = axis == "token"
            step = stride if of_token else stride * self.block_tokens
            return [(self.block_tokens if of_token else count // self.block_tokens, step)]
        return found

    def length(self, axis: str) -> int:
        """1 for an axis that is missing."""
        return math.prod(count for count, _ in self.dims(axis))

    @property
    def slots(self) -> int:
        return self.length("slot")

    def byte_range(self) -> tuple[int, int]:
        """First address and end of what the array touches."""
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(span for span in spans if span < 0)
        high = self.address + sum(span for span in spans if span > 0) + self.item_bytes
        return low, high


def read_views(
    memory: PoolMemory, namespace: Namespace, arrays: Any, axes: str | Sequence[str]
) -> list[View]:
    """Checked views of numpy arrays or torch tensors that lie in the memory. LayoutError names
    the array, the axis and the number."""
    items = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
    names = [axes] * len(items) if isinstance(axes, str) else list(axes)
    if not items or len(names) != len(items):
        raise LayoutError(f"axes: {len(names)} of them for {len(items)} arrays")
    views: list[View] = []
    for i, (array, text) in enumerate(zip(items, names, strict=True)):
        view = _view(f"views[{i}]", array, text, namespace)
        low, high = view.byte_range()
        if low < memory.address or high > memory.address + memory.pool_bytes:
            raise LayoutError(
                f"views[{i}]: bytes {low - memory.address} to {high - memory.address} are not "
                f"within the memory's {memory.pool_bytes}"
            )
        if view.slots != (views or [view])[0].slots:
            raise LayoutError(f"views[{i}].slot: {view.slots} slots, views[0] has {views[0].slots}")
        views.append(view)
    return views


def _view(where: str, array: Any, text: str, namespace: Namespace) -> View:
    address, shape, strides, item_bytes = _strided(where, array)
    axes = tuple(text.split())
    known = _PLAIN if namespace.format == "plain" else _OPAQUE
    for name in axes:
        if name not in known:
            raise LayoutError(f"{where}: axis {name!r}, known: {', '.join(known)}")
    if len(axes) != len(shape):
        raise LayoutError(f"{where}: {len(axes)} axes named, the array has {len(shape)}")
    for name, count in zip(axes, shape, strict=True):
        if count < 1:
            raise LayoutError(f"{where}.{name}: {count}, from 1")
    if axes.count("slot") + axes.count("seq") != 1:
        raise LayoutError(f"{where}: one axis must be slot (or seq), got {text!r}")
    if "seq" in axes:
        count = shape[axes.index("seq")]
        if "token" in axes:
            raise LayoutError(f"{where}.token: a seq axis has the tokens already")
        if count % namespace.block_tokens:
            raise LayoutError(
                f"{where}.seq: {count} tokens, not a multiple of {namespace.block_tokens}"
            )
    if namespace.format == "plain" and item_bytes != DTYPE_BYTES[namespace.dtype]:
        raise LayoutError(
            f"{where}: items of {item_bytes} bytes, {namespace.dtype} has another size"
        )
    return View(address, axes, shape, strides, item_bytes, namespace.block_tokens)


def _strided(where: str, array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data), array.shape, array.strides, array.itemsize
    if hasattr(array, "data_ptr") and hasattr(array, "stride"):
        if array.device.type != "cpu":
            raise LayoutError(f"{where}: on {array.device}, only cpu memory can be a pool yet")
        size = int(array.element_size())
        strides = tuple(int(step) * size for step in array.stride())
        return int(array.data_ptr()), tuple(map(int, array.shape)), strides, size
    raise LayoutError(f"{where}: {type(array).__name__} is neither a numpy array nor a tensor")


def _pieces(views: Sequence[View], namespace: Namespace, part: int) -> Iterator[Piece]:
    """What a stored block consists of, in stored order."""
    if namespace.format != "plain":
        yield from map(Piece, views)
        return
    rest = list(enumerate(views))
    for number, group in enumerate(namespace.parts[part].groups):
        yield from _group_pieces(rest, number, group, namespace.block_tokens)
    if rest:
        raise LayoutError(f"views[{rest[0][0]}]: more arrays than the namespace's layers take")


def _group_pieces(
    rest: list[tuple[int, View]], number: int, group: Group, block_tokens: int
) -> Iterator[Piece]:
    halves = 2 if group.kind == "kv" else 1
    layers = 0
    while layers < group.layers:
        if not rest:
            raise LayoutError(f"views: groups[{number}].layers is {group.layers}, got {layers}")
        i, view = rest.pop(0)
        count = view.length("layer")
        in_turn = halves == 2 and "kv" not in view.axes
        need = Need(count, 1 if in_turn else halves, block_tokens, group.kv_heads, group.head_size)
        _check(f"views[{i}]", view, need)
        layers += count
        if layers > group.layers:
            raise LayoutError(
                f"views[{i}].layer: layer {layers}, groups[{number}].layers is {group.layers}"
            )
        if not in_turn:
            yield Piece(view)
            continue
        if not rest:
            raise LayoutError(f"views[{i}].kv: keys without the values in a next array")
        j, values = rest.pop(0)
        _check(f"views[{j}]", values, need)
        for layer in range(count):
            yield Piece(view, layer)
            yield Piece(values, layer)


def _check(where: str, view: View, need: Need) -> None:
    for axis in _ORDER:
        count, wanted = view.length(axis), getattr(need, axis)
        if count != wanted:
            raise LayoutError(f"{where}.{axis}: {count}, the namespace says {wanted}")


def segments_of(
    memory: PoolMemory, views: Sequence[View], namespace: Namespace, part: int
) -> list[SegmentArgs]:
    """The strides of a slot in stored order, as the wire has them."""
    segments = []
    for piece in _pieces(views, namespace, part):
        view, layer = piece.view, piece.layer
        base = view.address - memory.address
        if layer is not None:
            base += _offset(view.dims("layer"), layer)
        ((_, slot_stride),) = view.dims("slot")
        if namespace.format == "plain":
            axes = _ORDER if layer is None else _ORDER[1:]
            dims = [dim for axis in axes for dim in view.dims(axis)]
        else:
            extents = zip(view.axes, view.shape, view.strides, strict=True)
            dims = [(count, stride) for name, count, stride in extents if name != "slot"]
        segments.append(SegmentArgs(base, slot_stride, dims, view.item_bytes))
    return segments


def _offset(dims: Sequence[tuple[int, int]], index: int) -> int:
    offset = 0
    for count, stride in reversed(dims):
        index, digit = divmod(index, count)
        offset += digit * stride
    return offset


def stored_parts(
    memory: PoolMemory, views: Sequence[View], namespace: Namespace, part: int, slot: int
) -> list[NDArray[Any]]:
    """Writable numpy views of one slot, which one after another are its stored bytes. Made by
    numpy's own indexing and transposing, so that they can prove segments_of()."""
    parts = []
    for piece in _pieces(views, namespace, part):
        view, layer = piece.view, piece.layer
        array = memory.view_at(view.address, view.shape, view.strides, view.item_bytes)
        axes = list(view.axes)
        if "seq" in axes:
            at = axes.index("seq")
            begin = slot * view.block_tokens
            array = array[(slice(None),) * at + (slice(begin, begin + view.block_tokens),)]
            axes[at] = "token"
        else:
            at = axes.index("slot")
            array = array[(slice(None),) * at + (slot,)]
            del axes[at]
        if namespace.format == "plain":
            order = [i for name in _ORDER for i, axis in enumerate(axes) if axis == name]
            array = array.transpose(order)
            if layer is not None:
                pieces = axes.count("layer")
                index = np.unravel_index(layer, array.shape[:pieces]) if pieces else ()
                array = array[tuple(index)]
        parts.append(array)
    return parts
