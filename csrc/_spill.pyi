"""Types of evoke.core._spill: flash directories as stores of blocks. It never decides.

A block is found by (namespace number, key) and named by its `slot`, a u32 number that is good from
the block's write to its removal. `refs` name places in tier memories as in evoke.core.native.
Arrays are C-contiguous numpy arrays of exactly the type that is said. ValueError names the
argument; nothing has changed then. docs/formats.md describes the files.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

NO_SLOT: Final[int]  # 0xFFFFFFFF
STATE_BYTES: Final[int]  # of a policy's state
PAGE_BYTES: Final[int]  # a slot has one for its header; each part begins on one

# outcome of a transfer
DONE: Final[int]  # 0
CORRUPT: Final[int]  # 1: not the block's bytes: it is erased, and a miss from now on
FAILED: Final[int]  # 2: an errno
LATE: Final[int]  # 3: the deadline passed; its places stay in use until the final result
CANCELLED: Final[int]  # 4: the deadline passed before it had started: no place is in use

# kind of a result
WRITE: Final[int]
READ: Final[int]
SYNC: Final[int]
PROBE: Final[int]

class Store:
    """One directory. Owned by one thread; transfers run in threads of their own.

    A block is found from the end of its write on. read() gives its bytes or a miss, whatever
    happened to process and files: what another process wrote is believed after its header (key,
    namespace, generation) and checksum agreed, what this one wrote or read before after its
    checksum agreed. The files' size never exceeds the capacity; the index comes on top.
    """

    def __init__(
        self,
        directory: str,
        capacity_bytes: int,
        memories: Sequence[tuple[int, int, int]],
        segment_bytes: int = 0,
        depth: int = 4,
        engine: str = "auto",
        direct: bool = True,
    ) -> None:
        """Opens the store, or makes one in an existing directory. May take a second.

        memories: (number as in refs, address, bytes); mapped until close. segment_bytes: of a new
        store, a multiple of 4096 (0: by capacity); no block can be larger. depth: transfers at a
        time, 1 to 64. engine: auto (io_uring where there is one) | threads. direct: bypass the page
        cache where the file system can.

        OSError: no directory, EWOULDBLOCK when another process has it, I/O. ValueError also when a
        newer version wrote the directory, which is left as it is.
        """

    fd: int  # readable while take() has something to give, or a deadline passed
    segment_bytes: int
    recovered: dict[str, Any]
    """{records, bad_records (unreadable: what they said is a miss), blocks, dropped_blocks (beyond
    the capacity, or their file is gone), damaged (the index was no index: all is forgotten)}"""

    def add_namespace(self, id: bytes) -> int:
        """The number of a namespace; the same id has the same number."""

    def namespace_id(self, namespace: int) -> bytes: ...
    def find(self, namespace: int, keys: bytes) -> U32:
        """Slots, NO_SLOT where there is no block."""

    def entry(self, slot: int) -> dict[str, Any]:
        """{key, namespace, chain_index, length_bytes (of several parts: their pages), parts, sum
        (of several parts: of their sums), generation, verified, reads, children, parent, segment,
        offset}"""

    def touch(self, slots: U32) -> None:
        """Most recent: the slots, last to first, each with all its ancestors after it."""

    def link(self, namespace: int, keys: bytes) -> None:
        """Consecutive keys of one chain: set missing parent links between those that are here."""

    def victims(self, count: int, bytes_wanted: int = 0, block_bytes: int = 0) -> U32:
        """Least recent slots that nobody reads and that have no child left here (counting earlier
        victims as gone), until count slots and bytes_wanted bytes of slots are reached.
        block_bytes: only slots for blocks of that many bytes (0: any). Chooses only."""

    def erase(self, slots: U32) -> None: ...
    def blocks_of(self, namespace: int) -> tuple[U32, bytes]:
        """Slots of all blocks, least recent first, and their keys."""

    def segments(self) -> list[dict[str, int]]:
        """[{slot_bytes (0: not carved), slots, used, live}]"""

    def slots_in(self, segment: int) -> U32:
        """Slots of the segment's blocks."""

    def write(
        self,
        namespace: int,
        key: bytes,
        parent: bytes,
        chain_index: int,
        refs: U64,
        lengths: U32,
        sums: U64,
        state: bytes = b"",
        deadline_ms: int = 0,
    ) -> int:
        """Starts to write a block of refs, lengths and sums for each part (1 to 256). parent: 32
        bytes or empty. state: STATE_BYTES that come back after a restart, or empty. The places stay
        in use until the final result. deadline_ms from now; 0: none.

        A ticket; 0 when there is no free slot, or when the key is here or being written.
        """

    def read(
        self, slot: int, refs: U64, lengths: U32, verify: bool = True, deadline_ms: int = 0
    ) -> int:
        """Starts to read a block into one place for each part. A place that begins on a page takes
        whole pages, another exactly its bytes. verify: compute the checksum, else whoever uses the
        bytes must, with the result's sums. A ticket; 0 when the slot is being read 255 times."""

    def sync(self) -> int:
        """Makes what has been written durable. A ticket."""

    def probe(self, deadline_ms: int) -> int:
        """Whether the directory takes and keeps a page. A ticket; ESTALE: its path names another
        directory now."""

    def prepare(self) -> None:
        """Take space for the segments that could not be had before (see stats)."""

    def take(self) -> list[tuple[int, int, int, int, bool, int, U64]]:
        """[(ticket, kind, outcome, errno, final, slot, sums of the parts read)]. Each ticket has
        one final result; a late one has another before it."""

    def take_states(self) -> list[tuple[int, bytes]]:
        """(slot, state) of recovered blocks that had one; once."""

    def stats(self) -> dict[str, Any]: ...
    def check(self) -> None:
        """Walks everything; RuntimeError says what is wrong."""

    def inject(self, what: str, error: int, delay_ms: int, operations: int) -> None:
        """For tests: the next operations of read, write or journal fail with errno `error` (0: do
        not fail) after delay_ms. -1 operations: all that follow; 0: none any more."""

    def close(self, wait_ms: int = 5000) -> bool:
        """Ends what was started, makes the index durable, gives the directory back. False when that
        took too long (a stalled device): the memories must then stay mapped."""
