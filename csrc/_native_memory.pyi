"""Types of evoke.core._native that concern memory: arenas, NUMA nodes, memfds. _native itself has
them; there is no module of this name."""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

class Arena:
    """One tier memory: anonymous or hugetlb pages, carved into extents of one block size each.

    Extents are runs of 2 MiB granules, never across a 1 GiB boundary, sized so that at most
    1/32 is wasted where the space allows. Single-threaded except prefault and close. After
    close() calls that need the memory raise ValueError.
    """

    def __init__(
        self, capacity_bytes: int, backing: str = "auto", lock: bool = False, node: int = -1
    ) -> None:
        """backing: the best to try, auto | hugetlb | thp | 4k; the next worse one follows when the
        machine lacks it. Capacity is rounded up to 2 MiB. node: the NUMA node that all pages come
        from, -1 for any. MemoryError when nothing is mapped or there is no such node."""

    @staticmethod
    def on_device(path: str, capacity_bytes: int) -> Arena:
        """The first bytes of a devdax character device. ValueError when it is something else or
        smaller, MemoryError when it can't be mapped."""

    def placement(self, node: int) -> dict[str, int]:
        """{on_node_bytes, elsewhere_bytes, unknown_bytes}: where the pages are now, asked of the
        kernel without the GIL; after prefault."""

    node: int

    def prefault(self, threads: int) -> None:
        """Touch all pages (MADV_POPULATE_WRITE) without the GIL; progress in prefaulted_bytes.
        Locks afterwards if asked to. MemoryError with the bytes done when the kernel refuses;
        ValueError when close() ended it."""

    prefaulted_bytes: int
    address: int
    capacity_bytes: int
    backing: str  # what it got: hugetlb | thp | 4k | device
    locked: bool  # mlock succeeded (ENOMEM is an answer, not an error)

    def allocate(self, block_bytes: int, count: int) -> U64:
        """Byte offsets (4 KiB aligned) of up to count blocks; shorter when there is no room."""

    def free(self, offsets: U64) -> None:
        """ValueError on an offset that is not allocated (nothing is freed then)."""

    def extents(self) -> list[dict[str, int]]:
        """[{offset, bytes, block_bytes, blocks_used, blocks}] of the extents in use."""

    def can_ever_hold(self, block_bytes: int) -> bool: ...
    def stats(self) -> dict[str, int]:
        """{capacity_bytes, allocated_bytes (sum of block sizes given out), extent_bytes,
        free_granule_bytes, largest_free_run_bytes, wasted_bytes (rounding and extent tails),
        blocks}"""

    def close(self) -> None: ...

def numa_nodes(sys: str = "/sys", proc: str = "/proc") -> list[dict[str, int]]:
    """[{number, has_cpu, memory_bytes, free_bytes, movable_bytes (online as movable: a long-term
    pin moves such pages away), free_huge_bytes}] of the nodes with memory, by number."""

def make_pool_memfd(pool_bytes: int, name: str, huge: bool = False) -> int:
    """A memfd for an engine's pool: sized, sealed SHRINK|GROW|SEAL, close-on-exec."""

def check_pool_memfd(fd: int, pool_bytes: int) -> None:
    """ValueError unless fd is a memfd of at least pool_bytes sealed against SHRINK."""

def guard_accept() -> int:
    """From now on a libzmq that is loaded survives a process without free descriptors: it hears
    ENFILE from accept(), and tries again, where EMFILE would make it end the process. How many of
    its calls are guarded, 0 where it is linked in a way that leaves none to guard."""

def memory_available_bytes(proc: str = "/proc") -> int:
    """The least of MemAvailable and what the cgroups (v1 and v2, up to the root) leave; inactive
    page cache counts as free. proc: where procfs is."""
