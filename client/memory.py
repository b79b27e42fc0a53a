"""Memory that an engine shares with the daemon, as numpy arrays or torch tensors."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evoke.client.errors import BadArgument
from evoke.core import native

__all__ = ["PoolMemory"]

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; mmap has no name for it
_POPULATE_BYTES: Final = 64 << 20
_TORCH_NAMES: Final = {"float8_e4m3": "float8_e4m3fn"}


class PoolMemory:
    """Shared memory of `pool_bytes`, zeroed, resident from the start, gone with its last user.

    The daemon maps it when a pool in it is registered; nothing is left behind by any death.
    """

    def __init__(self, pool_bytes: int, *, huge: bool = False) -> None:
        """huge: of 2 MiB pages. OSError or MemoryError when there is no room."""
        if not isinstance(pool_bytes, int) or pool_bytes < 1:
            raise BadArgument(f"pool_bytes: {pool_bytes!r}, from 1")
        self.pool_bytes = pool_bytes
        self._fd = native.make_pool_memfd(pool_bytes, "evoke-pool", huge)
        try:
            self._map = mmap.mmap(self._fd, pool_bytes)
            _populate(self._map, pool_bytes)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = int(self._bytes.ctypes.data)

    @property
    def fd(self) -> int:
        """The memfd; BadArgument after close()."""
        if self._fd < 0:
            raise BadArgument("memory: closed")
        return self._fd

    def array(
        self, shape: int | Sequence[int], dtype: DTypeLike = np.uint8, offset: int = 0
    ) -> NDArray[Any]:
        """A C-contiguous numpy view that begins `offset` bytes in. bfloat16 and float8 are not
        numpy's: use tensor(), or an integer type of the same size."""
        kind = np.dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        self._check_range(dims, kind.itemsize, offset)
        view: NDArray[Any] = np.ndarray(dims, kind, buffer=self._map, offset=offset)
        return view

    def tensor(self, shape: int | Sequence[int], dtype: Any, offset: int = 0) -> Any:
        """A contiguous torch view that begins `offset` bytes in. dtype: torch's, or its name."""
        import torch

        kind = getattr(torch, _TORCH_NAMES.get(dtype, dtype)) if isinstance(dtype, str) else dtype
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        count = self._check_range(dims, int(kind.itemsize), offset)
        flat = torch.frombuffer(self._map, dtype=kind, count=count, offset=offset)
        return flat.reshape(dims)

    def view_at(
        self, address: int, shape: Sequence[int], strides: Sequence[int], item_bytes: int
    ) -> NDArray[Any]:
        """Unsigned integers of item_bytes (1, 2, 4 or 8) at an address within this memory, with
        strides in bytes."""
        offset = address - self.address
        kind = np.dtype(f"u{item_bytes}")
        view: NDArray[Any] = np.ndarray(tuple(shape), kind, self._map, offset, tuple(strides))
        return view

    def close(self) -> None:
        """Give the descriptor back. The memory itself goes when the last view of it does."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _check_range(self, dims: tuple[int, ...], item_bytes: int, offset: int) -> int:
        if any(count < 1 for count in dims):
            raise BadArgument(f"shape: {dims}, each from 1")
        count = 1
        for dim in dims:
            count *= dim
        if offset < 0 or offset % item_bytes or offset + count * item_bytes > self.pool_bytes:
            raise BadArgument(
                f"offset: {offset} with {count * item_bytes} bytes, the memory has "
                f"{self.pool_bytes} (an offset is a multiple of {item_bytes})"
            )
        return count


def _populate(memory: mmap.mmap, pool_bytes: int) -> None:
    """Fault all pages now, so that a lack of memory is an error here and no SIGBUS later."""
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)  # 2 MiB pages where shmem_enabled is "advise"
    for begin in range(0, pool_bytes, _POPULATE_BYTES):
        try:
            memory.madvise(_MADV_POPULATE_WRITE, begin, min(_POPULATE_BYTES, pool_bytes - begin))
        except OSError as error:
            if error.errno != 22:  # EINVAL: a kernel before 5.14
                raise
            for page in range(begin, min(begin + _POPULATE_BYTES, pool_bytes), mmap.PAGESIZE):
                memory[page] = 0
