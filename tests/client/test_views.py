"""Arrays of an engine: which bytes are a block's, in which order, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evoke.client.errors import LayoutError
from evoke.client.memory import PoolMemory
from evoke.client.namespace import Group, Namespace, Part
from evoke.client.views import read_views, segments_of, stored_parts
from evoke.core import native
from tests.client.peer import make_namespace

SLOTS, LAYERS, TOKENS, HEADS, SIZE = 3, 2, 4, 2, 8
FULL = "slot layer kv token head element"
DIMS = dict(zip(FULL.split(), (SLOTS, LAYERS, 2, TOKENS, HEADS, SIZE), strict=True))
Numbers = NDArray[Any]


@pytest.fixture(scope="module")
def memory() -> PoolMemory:
    return PoolMemory(1 << 16)


def logical(seed: int = 1) -> Numbers:
    """The values of all slots in the order in which they are stored."""
    shape = tuple(DIMS.values())
    return np.random.default_rng(seed).integers(0, 1 << 16, shape).astype(np.uint16)


def blocks(memory: PoolMemory, namespace: Namespace, arrays: Any, axes: Any) -> list[bytes]:
    """The stored bytes of each slot: by the segments, after checking numpy's own way to them."""
    views = read_views(memory, namespace, arrays, axes)
    segments = [
        (s.base, s.slot_stride, s.dims, s.item_bytes)
        for s in segments_of(memory, views, namespace, 0)
    ]
    layout = native.Layout(segments, views[0].slots, memory.pool_bytes)
    out = np.empty((layout.slots, layout.block_bytes), np.uint8)
    layout.gather(memory.address, np.arange(layout.slots, dtype=np.uint32), out)
    for slot in range(layout.slots):
        parts = stored_parts(memory, views, namespace, 0, slot)
        assert b"".join(part.tobytes() for part in parts) == out[slot].tobytes()
    return [row.tobytes() for row in out]


def half(**fields: Any) -> Namespace:
    return make_namespace(dtype="float16", **fields)


@given(st.permutations(FULL.split()), st.lists(st.booleans(), min_size=6, max_size=6))
def test_any_order_of_axes_is_stored_in_one(
    memory: PoolMemory, order: list[str], reversed_axes: list[bool]
) -> None:
    """Whatever the order and the direction of an array's axes, blocks have the stored order."""
    values = logical()
    array = memory.array([DIMS[axis] for axis in order], np.uint16)
    array[...] = values.transpose([FULL.split().index(axis) for axis in order])
    steps = tuple(slice(None, None, -1 if back else 1) for back in reversed_axes)
    flips = [FULL.split().index(a) for a, back in zip(order, reversed_axes, strict=True) if back]
    wanted = np.flip(values, tuple(flips))
    assert blocks(memory, half(), array[steps], " ".join(order)) == [b.tobytes() for b in wanted]


def test_padding_is_no_part_of_a_block(memory: PoolMemory) -> None:
    """Arrays that are cut out of larger ones leave out what is between."""
    values = logical()
    array = memory.array((SLOTS, LAYERS, 2, TOKENS, HEADS, 2 * SIZE + 1), np.uint16)
    array[..., :SIZE] = values
    cut = array[..., :SIZE]
    assert blocks(memory, half(), cut, FULL) == [b.tobytes() for b in values]


def test_split_axis_is_named_twice(memory: PoolMemory) -> None:
    """An engine that splits the elements around the tokens names the axis once for each piece."""
    values = logical()
    split = values.reshape(SLOTS, LAYERS, 2, TOKENS, HEADS, 2, 4).transpose(0, 1, 2, 4, 5, 3, 6)
    array = memory.array(split.shape, np.uint16)
    array[...] = split
    axes = "slot layer kv head element token element"
    assert blocks(memory, half(), array, axes) == [b.tobytes() for b in values]


def place(memory: PoolMemory, contents: list[Numbers]) -> list[Numbers]:
    arrays, offset = [], 0
    for content in contents:
        arrays.append(memory.array(content.shape, content.dtype, offset))
        arrays[-1][...] = content
        offset += content.nbytes + 64
    return arrays


def test_one_array_per_layer(memory: PoolMemory) -> None:
    """Arrays without a layer axis are the layers in turn."""
    values = logical()
    arrays = place(memory, [values[:, layer] for layer in range(LAYERS)])
    got = blocks(memory, half(), arrays, "slot kv token head element")
    assert got == [b.tobytes() for b in values]


def test_keys_and_values_apart_per_layer(memory: PoolMemory) -> None:
    """Arrays without layer and kv axes are K0, V0, K1, V1 and so on."""
    values = logical()
    parts = [values[:, layer, kv] for layer, kv in itertools.product(range(LAYERS), range(2))]
    got = blocks(memory, half(), place(memory, parts), "slot token head element")
    assert got == [b.tobytes() for b in values]


def test_keys_and_values_apart_with_all_layers(memory: PoolMemory) -> None:
    """Two arrays with a layer axis and no kv axis are K and V; each layer's are stored together."""
    values = logical()
    arrays = place(memory, [values[:, :, 0].copy(), values[:, :, 1].swapaxes(1, 3).copy()])
    axes = ["slot layer token head element", "slot head token layer element"]
    assert blocks(memory, half(), arrays, axes) == [b.tobytes() for b in values]


def test_sequence_axis_is_slots_of_tokens(memory: PoolMemory) -> None:
    """A contiguous sequence, as in transformers, is as many slots as it has blocks of tokens."""
    values = logical()
    sequences = values.transpose(1, 2, 4, 0, 3, 5).reshape(LAYERS, 2, HEADS, SLOTS * TOKENS, SIZE)
    arrays = place(memory, [sequences[n, kv] for n, kv in itertools.product(range(LAYERS), (0, 1))])
    assert blocks(memory, half(), arrays, "head seq element") == [b.tobytes() for b in values]


def test_tensor_is_as_good_as_an_array(memory: PoolMemory) -> None:
    """A torch view of the memory, transposed at will, has the same blocks; bfloat16 as well."""
    values = logical()
    flat = memory.tensor(tuple(DIMS.values()), "bfloat16")
    memory.array(values.shape, np.uint16)[...] = values
    views = read_views(memory, make_namespace(dtype="bfloat16"), flat.permute(3, 1, 2, 0, 4, 5),
                       "token layer kv slot head element")  # fmt: skip
    assert views[0].slots == SLOTS
    got = blocks(memory, make_namespace(dtype="bfloat16"), flat.transpose(3, 4),
                 "slot layer kv head token element")  # fmt: skip
    assert got == [b.tobytes() for b in values]


def test_groups_follow_each_other(memory: PoolMemory) -> None:
    """Layers of another shape are further arrays; a latent group has no keys and values apart."""
    groups = (
        Group(layers=2, kv_heads=2, head_size=8),
        Group(layers=3, kv_heads=1, head_size=5, kind="latent"),
    )
    namespace = half(parts=(Part(groups=groups),))
    rng = np.random.default_rng(3)
    first = logical()
    second = rng.integers(0, 1 << 16, (SLOTS, 3, TOKENS, 5)).astype(np.uint16)
    arrays = place(memory, [first, second])
    got = blocks(memory, namespace, arrays, [FULL, "slot layer token element"])
    assert got == [a.tobytes() + b.tobytes() for a, b in zip(first, second, strict=True)]


def test_opaque_arrays_are_stored_as_they_lie(memory: PoolMemory) -> None:
    """An opaque format's arrays are stored one after another, run by run."""
    namespace = half(
        format="opaque:kernel-1",
        parts=(Part(groups=(Group(layers=1, kv_heads=1, head_size=1),), part_bytes=3 * 40 + 16),),
    )
    rng = np.random.default_rng(4)
    first = rng.integers(0, 256, (3, SLOTS, 40)).astype(np.uint8)
    second = rng.integers(0, 256, (SLOTS, 16)).astype(np.uint8)
    got = blocks(memory, namespace, place(memory, [first, second]), ["run slot byte", "slot byte"])
    wanted = zip(first.swapaxes(0, 1), second, strict=True)
    assert got == [a.tobytes() + b.tobytes() for a, b in wanted]


@pytest.mark.parametrize(
    ("shape", "axes", "named"),
    [
        ((3, 2, 2, 4, 2, 8), "slot layer kv token head", "5 axes named, the array has 6"),
        ((3, 2, 2, 4, 2, 8), "slot layer kv token head depth", "axis 'depth'"),
        ((3, 2, 2, 4, 2, 8), "slot slot kv token head element", "one axis must be slot"),
        ((2, 2, 4, 2, 8), "layer kv token head element", "one axis must be slot"),
        ((3, 3, 2, 4, 2, 8), FULL, "views[0].layer: layer 3, groups[0].layers is 2"),
        ((3, 1, 2, 4, 2, 8), FULL, "groups[0].layers is 2, got 1"),
        ((3, 2, 3, 4, 2, 8), FULL, "views[0].kv: 3, the namespace says 2"),
        ((3, 2, 2, 5, 2, 8), FULL, "views[0].token: 5, the namespace says 4"),
        ((3, 2, 2, 4, 3, 8), FULL, "views[0].head: 3, the namespace says 2"),
        ((3, 2, 2, 4, 2, 7), FULL, "views[0].element: 7, the namespace says 8"),
        ((3, 2, 4, 2, 8), "slot layer token head element", "keys without the values"),
        ((2, 2, 2, 10, 8), "layer kv head seq element", "views[0].seq: 10 tokens"),
        ((3, 2, 2, 12, 4, 8), "slot layer kv seq token element", "one axis must be slot"),
    ],
)
def test_misfit_is_named(memory: PoolMemory, shape: Any, axes: str, named: str) -> None:
    """An array that does not fit the namespace is refused by array, axis and number."""
    with pytest.raises(LayoutError) as caught:
        blocks(memory, half(), memory.array(shape, np.uint16), axes)
    assert named in str(caught.value)


def test_foreign_memory_is_refused(memory: PoolMemory) -> None:
    """Arrays outside the pool's memory, of another item size or count are refused."""
    shape = tuple(DIMS.values())
    outside = np.zeros(shape, np.uint16)
    with pytest.raises(LayoutError, match="not within the memory"):
        read_views(memory, half(), outside, FULL)
    with pytest.raises(LayoutError, match="items of 4 bytes"):
        read_views(memory, half(), memory.array(shape, np.uint32), FULL)
    with pytest.raises(LayoutError, match="neither a numpy array nor a tensor"):
        read_views(memory, half(), b"bytes", FULL)
    with pytest.raises(LayoutError, match="2 of them for 1 arrays"):
        read_views(memory, half(), memory.array(shape, np.uint16), [FULL, FULL])
    with pytest.raises(LayoutError, match="on meta"):
        read_views(memory, half(), torch.empty(shape, dtype=torch.half, device="meta"), FULL)
    one, two = memory.array((3, 2, 4, 2, 8), np.uint16), memory.array((2, 2, 4, 2, 8), np.uint16)
    with pytest.raises(LayoutError, match=r"views\[1\].slot: 2 slots, views\[0\] has 3"):
        read_views(memory, half(), [one, two], "slot kv token head element")
    with pytest.raises(LayoutError, match="more arrays than"):
        blocks(memory, half(), [memory.array(shape, np.uint16)] * 2, FULL)


def test_memory_gives_views_of_itself(memory: PoolMemory) -> None:
    """Arrays and tensors of a memory share its bytes; what does not fit into it is refused."""
    array = memory.array((4, 8), np.float32, offset=128)
    tensor = memory.tensor((4, 8), torch.float32, offset=128)
    array[2, 3] = math.pi
    assert float(tensor[2, 3]) == np.float32(math.pi)
    assert array.ctypes.data == tensor.data_ptr() == memory.address + 128
    for shape, offset in (((1 << 16) + 1, 0), (1, 1 << 16), (1, -4), ((0, 1), 0)):
        with pytest.raises(ValueError, match=r"offset|shape"):
            memory.array(shape, np.uint8, offset)
    with pytest.raises(ValueError, match="multiple of 4"):
        memory.tensor(1, "float32", 2)
