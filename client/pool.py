"""A pool: the slots of an engine in shared memory, as the daemon knows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.errors import BadArgument, DaemonError, LayoutError, SlotsInDoubt, Unavailable
from evoke.client.memory import PoolMemory
from evoke.client.views import View, read_views, segments_of, stored_parts
from evoke.core import native

if TYPE_CHECKING:
    from evoke.client.space import Space

__all__ = ["Pool"]

_PROOF_WAIT_S: Final = 10.0


class Pool:
    """Made by Space.register_pool. `slots`: how many blocks it has room for."""

    def __init__(
        self, space: Space, memory: PoolMemory, arrays: Any, axes: str | Sequence[str], part: int
    ) -> None:
        self.space, self.memory = space, memory
        self._part = part
        self._views: list[View] = read_views(memory, space.namespace, arrays, axes)
        self.slots = self._views[0].slots
        self._segments = segments_of(memory, self._views, space.namespace, part)
        self._in_doubt = threading.Event()
        parts = [(s.base, s.slot_stride, s.dims, s.item_bytes) for s in self._segments]
        try:
            layout = native.Layout(parts, self.slots, memory.pool_bytes)
        except ValueError as error:
            raise LayoutError(f"views: {error}") from None
        wanted = space.namespace.parts[part].part_bytes
        if layout.block_bytes != wanted:
            raise LayoutError(
                f"views: a block has {layout.block_bytes} bytes, the namespace says {wanted}"
            )

    def close(self) -> None:
        """Unregister: the daemon unmaps it. No transfer may be under way. Again: nothing."""
        self.space.client.link.remove_pool(self)

    def check_usable(self) -> None:
        """SlotsInDoubt when a copy that was given up on may still be running."""
        if self._in_doubt.is_set():
            raise SlotsInDoubt("a copy may still be running in this pool: do not use its memory")

    def put_in_doubt(self) -> None:
        """No use of this pool is safe any more."""
        self._in_doubt.set()

    def pack_slots(self, slots: Any, *, distinct: bool) -> bytes:
        """Slots as the wire has them. BadArgument names the position and the number."""
        self.check_usable()
        array = np.asarray(slots)
        if not array.size:
            return b""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise BadArgument(f"slots: {array.ndim} dimensions of {array.dtype}, not integers")
        bad = np.flatnonzero((array < 0) | (array >= self.slots))
        if len(bad):
            at = int(bad[0])
            raise BadArgument(f"slots[{at}]: {array[at]}, the pool has {self.slots}")
        if distinct and len(np.unique(array)) != len(array):
            raise BadArgument("slots: one is listed twice")
        return array.astype("<u4").tobytes()

    def register(self, connection: Connection, namespace: int, deadline: float) -> int:
        """The pool's number in this session. DaemonError or Unavailable."""
        args = wire.RegisterPool(
            namespace=namespace,
            device="cpu",
            pool_bytes=self.memory.pool_bytes,
            slots=self.slots,
            segments=self._segments,
            memory=connection.send_memory(self.memory.fd),
        )
        number = connection.call("register_pool", args, deadline)
        if not isinstance(number, int):
            raise Unavailable(f"no pool number but {number!r:.80}")
        return number

    def prove(self, connection: Connection, number: int) -> None:
        """Have the daemon copy a pattern from the first slot to the last; both keep what they had.
        LayoutError when it arrives in another order than the namespace says."""
        first, last = self._slot(0), self._slot(self.slots - 1)
        kept = [[array.copy() for array in slot] for slot in (first, last)]
        pattern = np.random.default_rng(0).bytes(self.space.namespace.parts[self._part].part_bytes)
        _write(first, pattern)
        self._copy_one(connection, number, native.xxh3_64(pattern))
        arrived = b"".join(array.tobytes() for array in last)
        for slot, arrays in zip((first, last), kept, strict=True):
            for array, content in zip(slot, arrays, strict=True):
                array[...] = content
        if arrived != pattern:
            raise LayoutError("views: a block did not come back in the order of the namespace")

    def _copy_one(self, connection: Connection, number: int, checksum: int) -> None:
        deadline = time.monotonic() + _PROOF_WAIT_S
        word = connection.take_word(deadline)
        if word < 0:
            raise Unavailable("no fence word for the proof")
        args = wire.ProvePool(pool=number, from_slot=0, to_slot=self.slots - 1, fence=word)
        pending = connection.send("prove_pool", args, word)
        connection.wait(pending, deadline)
        error = pending.error()
        if not pending.done or pending.lost:
            if not connection.give_up(pending):
                self.put_in_doubt()
                self.check_usable()
            raise Unavailable(str(error))
        if isinstance(error, DaemonError) and error.code == wire.Code.BAD_ARGUMENT:
            raise LayoutError(f"proof: {error}")
        if error is not None:
            raise error
        if pending.result != checksum:
            raise LayoutError("views: the daemon read a block in another order")

    def _slot(self, slot: int) -> list[NDArray[Any]]:
        return stored_parts(self.memory, self._views, self.space.namespace, self._part, slot)


def _write(arrays: Iterable[NDArray[Any]], content: bytes) -> None:
    at = 0
    for array in arrays:
        source = np.frombuffer(content, array.dtype, array.size, at)
        array[...] = source.reshape(array.shape)
        at += array.nbytes
