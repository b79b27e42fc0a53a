"""Pools of other shapes: exact round trips, untouched padding, refused lies."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.client.namespace import Group, Namespace, Part
from evoke.client.wire import Code, Fetched, SegmentArgs, Stored
from evoke.core import native
from tests.daemon.peer import DaemonProcess, Engine, chain, make_namespace

SLOTS, LAYERS, HEADS, HEAD, TOKENS = 6, 3, 2, 32, 16
NUMBERS = LAYERS * 2 * TOKENS * HEADS * HEAD
SHAPE = (SLOTS, LAYERS, 2, TOKENS, HEADS, HEAD)  # the logical order of the stored bytes
AXES = "slkthd"


def _namespace() -> Namespace:
    group = Group(layers=LAYERS, kv_heads=HEADS, head_size=HEAD)
    return make_namespace(parts=(Part(groups=(group,)),))


class View:
    """A pool seen as an array of SHAPE with strides, whatever its memory order."""

    def __init__(self, strides: dict[str, int], base: int = 0, pool_bytes: int = 0) -> None:
        self.strides, self.base = strides, base
        reach = base + sum((n - 1) * abs(strides[a]) for n, a in zip(SHAPE, AXES, strict=True)) + 4
        self.pool_bytes = pool_bytes or reach

    def segments(self) -> list[SegmentArgs]:
        dims = [(n, self.strides[a]) for n, a in zip(SHAPE[1:], AXES[1:], strict=True)]
        return [SegmentArgs(self.base, self.strides["s"], dims, 4)]

    def of(self, pool: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The pool's numbers in logical order; writes go through."""
        flat = pool.view(np.float32)
        return np.lib.stride_tricks.as_strided(
            flat[self.base // 4 :], SHAPE, [self.strides[axis] for axis in AXES]
        )


def _dense(order: str, *, pad: dict[str, int] | None = None) -> View:
    """Memory order of the axes, outermost first, with pad[axis] unused elements behind each."""
    sizes = dict(zip(AXES, SHAPE, strict=True))
    stride, strides = 4, {}
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis] + (pad or {}).get(axis, 0)
    return View(strides)


def _reversed_kv() -> View:
    """Values before keys."""
    view = _dense("slkthd")
    strides = {**view.strides, "k": -view.strides["k"]}
    return View(strides, base=view.strides["k"], pool_bytes=view.pool_bytes)


VIEWS = {
    "contiguous": _dense("slkthd"),
    "layer first": _dense("lkshtd"),
    "transformers": _dense("lkhstd"),  # [layer][k/v][head][sequence][number]
    "vllm": _dense("lksthd"),
    "head size outside": _dense("sdlkth"),
    "padded slots": _dense("slkthd", pad={"l": 1}),
    "padded everywhere": _dense("lkshtd", pad={"d": 5, "h": 1, "s": 2, "t": 3, "k": 1}),
    "values first": _reversed_kv(),
}


def _engine(peer: Any, namespace: Namespace, view: View) -> Engine:
    segments = view.segments()
    return Engine(peer, namespace, SLOTS, segments=segments, pool_bytes=view.pool_bytes)


@pytest.mark.parametrize("target", sorted(VIEWS))
@pytest.mark.parametrize("source", ["contiguous", "transformers", "padded everywhere"])
def test_from_one_layout_to_another(daemon: DaemonProcess, source: str, target: str) -> None:
    """Logical values survive from one layout to another; all other bytes of the target stay."""
    namespace = _namespace()
    keys = chain(namespace, 4)
    with daemon.peer() as a, daemon.peer() as b:
        writer = _engine(a, namespace, VIEWS[source])
        reader = _engine(b, namespace, VIEWS[target])
        values = np.random.default_rng(1).random((4, *SHAPE[1:]), np.float32)
        VIEWS[source].of(writer.bytes)[:4] = values
        assert writer.store(keys) == [Stored.STORED] * 4
        reader.bytes[:] = 0xA5
        order = [5, 0, 3, 2]
        assert reader.fetch(keys, order) == [Fetched.HOST] * 4
        assert (VIEWS[target].of(reader.bytes)[order] == values).all()
        expected = np.full(len(reader.bytes), 0xA5, np.uint8)
        VIEWS[target].of(expected)[order] = values
        assert (reader.bytes == expected).all()
        writer.close()
        reader.close()


def test_segments_in_order(daemon: DaemonProcess) -> None:
    """A pool of one segment for each layer's keys and values stores them in the order given."""
    namespace = _namespace()
    keys = chain(namespace, SLOTS)
    piece = NUMBERS * 4 // (LAYERS * 2)
    count = LAYERS * 2
    segments = [SegmentArgs(n * SLOTS * piece, piece, [], piece) for n in range(count)]
    with daemon.peer() as a, daemon.engine(namespace, SLOTS) as plain:
        engine = Engine(a, namespace, SLOTS, segments=segments)
        engine.fill(3)
        engine.store(keys)
        plain.fetch(keys)
        pieces = engine.bytes.reshape(count, SLOTS, piece).transpose(1, 0, 2).copy()
        assert (plain.blocks.reshape(SLOTS, count, piece) == pieces).all()
        engine.close()


def _with(segment: SegmentArgs, **changes: Any) -> SegmentArgs:
    values = {name: getattr(segment, name) for name in segment.__struct_fields__}
    return SegmentArgs(**{**values, **changes})


GOOD = VIEWS["layer first"].segments()[0]
LIES = {
    "a stride too long": [_with(GOOD, slot_stride=GOOD.slot_stride * 2)],
    "an overlap": [_with(GOOD, slot_stride=GOOD.slot_stride // 2)],
    "stride zero": [_with(GOOD, dims=[(LAYERS, 0), *GOOD.dims[1:]])],
    "before the pool": [_with(GOOD, slot_stride=-GOOD.slot_stride)],
    "behind the pool": [_with(GOOD, base=4)],
    "one layer too few": [_with(GOOD, dims=[(LAYERS - 1, GOOD.dims[0][1]), *GOOD.dims[1:]])],
    "no elements": [_with(GOOD, dims=[(0, 4), *GOOD.dims[1:]])],
    "twice": [GOOD, GOOD],
    "far away": [_with(GOOD, base=(1 << 63) - 1)],
    "huge stride": [_with(GOOD, slot_stride=1 << 62)],
    "huge counts": [_with(GOOD, dims=[(0xFFFFFFFF, 1 << 62)] * 8)],
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_lies_are_refused(daemon: DaemonProcess, lie: str) -> None:
    """A descriptor that is wrong by one stride, count or base is refused with the reason."""
    namespace = _namespace()
    pool_bytes = VIEWS["layer first"].pool_bytes
    with daemon.peer() as peer:
        engine = _engine(peer, namespace, VIEWS["layer first"])
        code, result = _register(engine, LIES[lie], pool_bytes)
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "segments")
        assert len(result[1]) > 10
        assert _register(engine, [GOOD], pool_bytes)[0] == Code.OK
        engine.close()


def _register(engine: Engine, segments: list[SegmentArgs], pool_bytes: int) -> tuple[Code, Any]:
    fd = native.make_pool_memfd(pool_bytes, "pool")
    memory = engine.peer.send_memory(fd)
    os.close(fd)
    return engine.peer.call(
        "register_pool", engine.handle, "cpu", pool_bytes, SLOTS, segments, memory
    )


def test_other_device(daemon: DaemonProcess) -> None:
    """A device that this version does not know is answered "unsupported"."""
    with daemon.engine(make_namespace()) as engine:
        memory = engine.peer.send_memory(0)
        args: Any = (engine.handle, "cuda:0", 4096, 1, [(0, 4096, [], 4096)], memory)
        code, result = engine.peer.call("register_pool", *args)
        assert (code, result[0]) == (Code.UNSUPPORTED, "device")
