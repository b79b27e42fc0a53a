"""Layouts: any strides that numpy can express round-trip exactly, and lies are refused."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoke.core import native

Segments = list[tuple[int, int, list[tuple[int, int]], int]]
U8 = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class Case:
    """A pool, a numpy view of it (slot first, bytes of an item last) and the same as segments."""

    pool: U8
    parts: list[U8]  # views in stored order, each (slots, ..., item_bytes)
    segments: Segments

    @property
    def slots(self) -> int:
        return int(self.parts[0].shape[0])

    def layout(self) -> native.Layout:
        return native.Layout(self.segments, self.slots, self.pool.size)

    def stored(self) -> U8:
        flat = [part.reshape(self.slots, -1) for part in self.parts]
        return np.ascontiguousarray(np.concatenate(flat, axis=1))


def make_segment(pool: U8, view: U8) -> tuple[int, int, list[tuple[int, int]], int]:
    base = view.ctypes.data - pool.ctypes.data
    dims = list(zip(view.shape[1:-1], view.strides[1:-1], strict=True))
    if view.shape[-1] > 1 and view.strides[-1] != 1:
        return base, view.strides[0], [*dims, (view.shape[-1], view.strides[-1])], 1
    return base, view.strides[0], dims, view.shape[-1]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Transposed, padded, sliced, reversed views; whole or cut into segments along an axis."""
    axes = draw(st.integers(2, 5))
    shape = [draw(st.integers(1, 5)) for _ in range(axes)]
    shape.append(draw(st.sampled_from([1, 2, 3, 6, 8, 16, 34, 64, 66, 128])))
    before, after = draw(st.integers(0, 70)), draw(st.integers(0, 70))
    size = int(np.prod(shape))
    seed = draw(st.integers(0, 2**32 - 1))
    pool = np.random.default_rng(seed).integers(0, 256, before + size + after, dtype=np.uint8)
    cuts = []
    for axis, length in enumerate(shape):
        begin = draw(st.integers(0, length - 1))
        steps = (
            st.sampled_from([1, 1, 1, 2, 3]) if axis == axes else st.sampled_from([1, 2, -1, -2])
        )
        cuts.append(slice(begin, None, draw(steps)))
    view: U8 = pool[before : before + size].reshape(shape)[tuple(cuts)]
    view = view.transpose([*draw(st.permutations(range(axes))), axes])
    parts = [view]
    if axes > 2 and draw(st.booleans()):
        order = draw(st.permutations(range(view.shape[1])))
        parts = [view[:, index] for index in order]
    return Case(pool, parts, [make_segment(pool, part) for part in parts])


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_gather_is_numpys_order(case: Case) -> None:
    """The stored bytes of each slot are numpy's C-order bytes of the view."""
    layout = case.layout()
    want = case.stored()
    assert layout.block_bytes == want.shape[1]
    out = np.full(want.shape, 0xEE, np.uint8)
    sums = layout.gather(case.pool.ctypes.data, np.arange(case.slots, dtype=np.uint32), out)
    assert np.array_equal(out, want)
    assert sums.tolist() == [native.xxh3_64(block) for block in want]


@settings(max_examples=300, deadline=None)
@given(case=cases(), data=st.data())
def test_scatter_restores_slots_and_nothing_else(case: Case, data: st.DataObject) -> None:
    """Scattering some slots writes exactly their bytes: other slots and padding are untouched."""
    chosen = data.draw(st.lists(st.integers(0, case.slots - 1), unique=True))
    slots = np.array(chosen, dtype=np.uint32)
    layout = case.layout()
    stored = case.stored()
    fill: U8 = np.frombuffer(np.random.default_rng(5).bytes(stored.size), np.uint8)
    fill = fill.reshape(stored.shape)
    want = case.pool.copy()
    at = 0
    for part in case.parts:
        width = int(np.prod(part.shape[1:]))
        mirror: U8 = np.ndarray(
            part.shape,
            np.uint8,
            want.data,
            part.ctypes.data - case.pool.ctypes.data,
            part.strides,
        )
        for slot in chosen:
            mirror[slot] = fill[slot, at : at + width].reshape(part.shape[1:])
        at += width
    layout.scatter(case.pool.ctypes.data, slots, np.ascontiguousarray(fill[slots]))
    assert np.array_equal(case.pool, want)


def bytes_of(segments: Segments, slots: int) -> list[int]:
    """Every pool offset that the segments name, by the definition."""
    offsets: list[int] = []
    for base, slot_stride, dims, item_bytes in segments:
        starts = [base + slot * slot_stride for slot in range(slots)]
        for count, stride in dims:
            starts = [start + i * stride for start in starts for i in range(count)]
        offsets += [start + i for start in starts for i in range(item_bytes)]
    return offsets


strides = st.one_of(st.integers(-40, 40), st.sampled_from([1, 2, 4, 8, 12, 16, 24, 48, 96]))
any_segments = st.lists(
    st.tuples(
        st.integers(-4, 150),
        strides,
        st.lists(st.tuples(st.integers(1, 4), strides), max_size=3),
        st.integers(1, 8),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=1000, deadline=None)
@given(segments=any_segments, slots=st.integers(1, 4), pool_bytes=st.integers(1, 400))
def test_accepts_exactly_the_disjoint_ones(segments: Segments, slots: int, pool_bytes: int) -> None:
    """A layout is accepted if and only if all its bytes are in the pool and differ."""
    offsets = bytes_of(segments, slots)
    inside = min(offsets) >= 0 and max(offsets) < pool_bytes
    zero_stride = (slots > 1 and any(segment[1] == 0 for segment in segments)) or any(
        count > 1 and stride == 0 for segment in segments for count, stride in segment[2]
    )
    if inside and not zero_stride and len(set(offsets)) == len(offsets):
        layout = native.Layout(segments, slots, pool_bytes)
        assert layout.block_bytes * slots == len(offsets)
    else:
        with pytest.raises(ValueError, match="segments"):
            native.Layout(segments, slots, pool_bytes)


def test_contiguous_dims_become_one_run() -> None:
    """Dims that continue each other are collapsed, so that a plain block is a single run."""
    layout = native.Layout([(0, 4096, [(4, 1024), (4, 256), (16, 16)], 16)], 8, 8 * 4096)
    assert (layout.runs_per_block, layout.run_bytes, layout.block_bytes) == (1, 4096, 4096)


def test_names_segment_and_offset_of_an_overlap() -> None:
    """The refusal of an overlap names both segments and where they meet."""
    segments: Segments = [(0, 64, [], 32), (64 * 8, 64, [], 32), (96, 64, [], 40)]
    with pytest.raises(ValueError, match=r"segments\[0\] and segments\[2\].*offset 128"):
        native.Layout(segments, 8, 2048)


@pytest.mark.parametrize(
    ("segments", "slots", "pool_bytes", "what"),
    [
        ([], 1, 64, "segments"),
        ([(0, 1, [], 1)] * 1025, 1, 64, "segments: 1025"),
        ([(0, 64, [(1, 0)] * 9, 64)], 1, 64, "dims: 9"),
        ([(0, 64, [], 0)], 1, 64, "item_bytes"),
        ([(0, 64, [], -1)], 1, 64, "item_bytes"),
        ([(0, 64, [(0, 1)], 64)], 1, 64, "count"),
        ([(0, 64, [(-1, 1)], 64)], 1, 64, "count"),
        ([(0, 64, [(2, 0)], 32)], 1, 64, "stride is 0"),
        ([(0, 0, [], 32)], 2, 64, "slot_stride is 0"),
        ([(0, 64, [], 64)], 0, 64, "slots"),
        ([(0, 64, [], 64)], 2**32, 2**40, "slots"),
        ([(0, 64, [], 64)], 1, 2**63, "pool_bytes"),
        ([(2**63, 64, [], 64)], 1, 64, "base"),
        ([(-1, 64, [], 64)], 1, 64, r"segments\[0\]"),
        ([(0, 2**62, [], 64)], 2**31, 64, r"segments\[0\]"),
        ([(0, -(2**63), [], 64)], 2**31, 64, r"segments\[0\]"),
        ([(2**63 - 1, 1, [], 2**30)], 1, 64, r"segments\[0\]"),
        ([(0, 1, [(2**30, 2**62)], 1)], 1, 2**50, "runs"),
        ([(0, 1, [(2**20, 2), (2, 2**40)], 1)], 1, 2**50, "runs"),
        ([(0, 2**30, [(2, 2**30)], 2**30)], 1, 2**31, "bytes"),
        ([(0, 64, [], 2**64)], 1, 64, "item_bytes"),
        ([(0, 64, 7, 64)], 1, 64, "dims"),
        ([(0, 64, [], "64")], 1, 64, "item_bytes"),
        ([(0, 64, [])], 1, 64, r"segments\[0\]"),
    ],
)
def test_hostile_numbers_are_refused(segments: Any, slots: int, pool_bytes: int, what: str) -> None:
    """Numbers out of any limit are a ValueError that names the field, without overflow."""
    with pytest.raises(ValueError, match=what):
        native.Layout(segments, slots, pool_bytes)


def test_large_nested_layouts_are_proved_quickly() -> None:
    """A thousand segments over a hundred thousand slots are proved without listing their runs."""
    slots, layer_bytes = 100_000, 100_000 * 4096
    segments: Segments = [
        (layer * layer_bytes, 4096, [(2, 128), (16, 256)], 128) for layer in range(1024)
    ]
    began = time.perf_counter()
    layout = native.Layout(segments, slots, 1024 * layer_bytes)
    assert time.perf_counter() - began < 0.25
    assert layout.runs_per_block == 1024 * 32
    interleaved: Segments = [(n * 128, 1024 * 128, [], 128) for n in range(1024)]
    began = time.perf_counter()
    native.Layout(interleaved, slots, slots * 1024 * 128)
    assert time.perf_counter() - began < 0.25


def test_strides_that_do_not_nest_are_compared_run_by_run() -> None:
    """Up to 131,072 runs are compared exactly; more are refused rather than trusted."""
    weave: Segments = [(0, 3, [(32, 5000)], 1)]  # 5000 % 3 != 0: slots weave without meeting
    native.Layout(weave, 4000, 3 * 4000 + 5000 * 32)
    with pytest.raises(ValueError, match="coincide"):
        native.Layout([(0, 3, [(32, 5001)], 1)], 4000, 3 * 4000 + 5001 * 32)
    with pytest.raises(ValueError, match="do not nest"):
        native.Layout(weave, 5000, 3 * 5000 + 5000 * 32)


def test_gather_checks_its_arguments() -> None:
    """Slots beyond the pool, slots that are no u32 and a buffer of another size are refused."""
    pool = np.zeros(1024, np.uint8)
    layout = native.Layout([(0, 128, [], 128)], 8, 1024)
    out = np.zeros(128, np.uint8)
    with pytest.raises(ValueError, match=r"slots\[0\]: 8"):
        layout.gather(pool.ctypes.data, np.array([8], np.uint32), out)
    with pytest.raises(ValueError, match="out: 128 bytes for 2"):
        layout.gather(pool.ctypes.data, np.array([1, 2], np.uint32), out)
    with pytest.raises(ValueError, match="out"):
        layout.gather(pool.ctypes.data, np.array([1], np.uint32), bytes(128))
    with pytest.raises(ValueError, match="2 dimensions"):
        layout.gather(pool.ctypes.data, np.zeros((1, 1), np.uint32), out)
    with pytest.raises(TypeError):
        layout.gather(pool.ctypes.data, np.array([2**32 + 1]), out)
    with pytest.raises(ValueError, match="named twice"):
        layout.scatter(pool.ctypes.data, np.array([1, 1], np.uint32), bytes(256))
