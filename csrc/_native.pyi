"""Types of evoke.core._native, the C++ core: it owns bytes and never decides.

Addresses of stored bytes are `refs`: u64 = (memory number << 56) | byte offset in that memory.
`rows` are u32 numbers of index entries; NO_ROW marks "none". Keys are n x 32 bytes, packed.
Results per block are u8 (see the constants); arrays are C-contiguous numpy arrays.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.core._native_memory import (
    Arena as Arena,
)
from evoke.core._native_memory import (
    check_pool_memfd as check_pool_memfd,
)
from evoke.core._native_memory import (
    guard_accept as guard_accept,
)
from evoke.core._native_memory import (
    make_pool_memfd as make_pool_memfd,
)
from evoke.core._native_memory import (
    memory_available_bytes as memory_available_bytes,
)
from evoke.core._native_memory import (
    numa_nodes as numa_nodes,
)

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

NO_ROW: Final[int]  # 0xFFFFFFFF
NO_REF: Final[int]  # 0xFFFFFFFFFFFFFFFF

# outcome of one block of a copy job
COPIED: Final[int]  # 0: copied; for a fetch with verify: and the checksum agreed
CORRUPT: Final[int]  # 1: the stored bytes do not have the stored checksum
FAULT: Final[int]  # 2: the peer's memory faulted (truncated, punched, unmapped)
LATE: Final[int]  # 3: not started before the deadline
CANCELLED: Final[int]  # 4: the client raised its fence before this block was started

# ---------------------------------------------------------------- hashing

def sha256(data: bytes, portable: bool = False) -> bytes:
    """portable: without the SHA instructions of the processor (equal results; for tests)."""

def chain_keys(
    namespace_id: bytes,
    token_ids: U32,
    block_tokens: int,
    parent: bytes,
    extras: Sequence[tuple[int, bytes]],
    portable: bool = False,
) -> bytes:
    """Keys of the full blocks of token_ids (a trailing partial block has none): n x 32 bytes.

    key[i] = SHA-256("evoke-block-1" || namespace_id || key[i-1] || u32 count || token ids as
    u32 little-endian || extra), parent = key of the block before (32 bytes; 32 zero bytes at
    position 0). `extras` = (block number, bytes): extra = u32 length || bytes, else u32 0.
    ValueError names the argument (an extra's block is not a full one, or is named twice, too).
    Arrays are taken as they are: another dtype than u32 that could lose a bit is a TypeError.
    """

def xxh3_64(data: Any) -> int:
    """XXH3 64-bit (seed 0, default secret) of a contiguous buffer, zero-padded to at least 256
    bytes: the checksum of stored blocks."""

def kernel_name() -> str:
    """Copy kernel chosen by the self-test of this process ("avx2_nt", "memcpy", ...)."""

def use_kernel(name: str) -> None:
    """Use that kernel from now on instead. ValueError when this CPU has none of that name."""

def self_test(milliseconds: int = 20) -> dict[str, float]:
    """Measure each kernel (bytes per second) and choose; {"avx2_nt": ..., "memcpy": ...}."""

# ---------------------------------------------------------------- memory

# ---------------------------------------------------------------- index

class Index:
    """Which blocks are where: key -> parts, holds, chain links; publishes the look-up table.

    Owned by one thread. A row is visible from insert to erase. A held row that is erased
    disappears at once and its memory is given back at the last unhold. Row numbers are reused as
    late as can be; IndexError when a row is not visible (hold, touch, erase, ...), or is dead
    (part,
    row, unhold); nothing has changed then. After close() everything raises ValueError.
    """

    def __init__(self, buckets: int = 1 << 14, max_buckets: int = 1 << 24) -> None:
        """buckets (64 bytes, about two entries each) of the first published table; it doubles by
        itself up to max_buckets, above 2 MiB a few rows with each insert."""

    def add_namespace(self, parts: int) -> tuple[int, bytes]:
        """(namespace number, 16-byte tag secret: random)."""

    def drop_namespace(self, namespace: int) -> U64:
        """Erase every row; refs to free now (all parts)."""

    def find(self, namespace: int, keys: bytes) -> U32: ...
    def insert(
        self,
        namespace: int,
        key: bytes,
        chain_index: int,
        parent: bytes,
        refs: U64,
        lengths: U32,
        sums: U64,
        tier: int,
    ) -> int:
        """Insert and publish one block (refs, lengths, sums: one per part; tier 1 host, 2 cxl,
        3 flash).
        Returns the row, or NO_ROW when the key is present. parent: 32 bytes or empty."""

    def insert_many(
        self,
        namespace: int,
        keys: bytes,
        first_index: int,
        parent: bytes,
        refs: U64,
        lengths: U32,
        sums: U64,
        tier: int,
    ) -> U32:
        """insert() for consecutive blocks of one chain of a one-part namespace; key[i-1] is the
        parent of key[i], parent that of key[0]. NO_ROW where the key was present."""

    def link(self, namespace: int, keys: bytes) -> None:
        """Consecutive keys of one chain: set missing parent links between resident ones. Here and
        in insert a link needs the child's chain index to be the parent's + 1 (so that links have
        no cycle, whatever a client claims), else there is none."""

    def erase(self, rows: U32) -> U64:
        """Unpublish; refs (all parts) that can be freed now. A row named twice counts once."""

    def relocate(self, rows: U32, refs: U64, tier: int) -> U64:
        """Rows that nobody holds (else ValueError) have moved: new refs (all parts, row by row) and
        tier. The refs they had, to free now."""

    def follow(self) -> None:
        """From now on changes of visible rows are noted until they are taken."""

    def take_changes(self) -> tuple[U32, bytes]:
        """(five numbers for each change, in order, the 32-byte keys of stored rows): what
        scores.Ranker.apply() takes."""

    changes: int  # not taken yet

    def hold(self, rows: U32) -> None: ...
    def unhold(self, rows: U32) -> U64:
        """Refs that became free (erased while held). What nothing holds any more, at or below it,
        becomes the most recent."""

    def lend(self, rows: U32) -> None:
        """Holds that keep the rows' recency: for a few at a time, since victims() passes them over.
        ValueError when one is lent already."""

    def take_back(self, rows: U32) -> U64:
        """Ends lend() (ValueError without one): refs that became free."""

    def is_visible(self, rows: U32) -> U8: ...
    def touch(self, rows: U32) -> None:
        """Most recent: the rows, last to first, each with all its ancestors after it (child to
        root), so that a parent is always more recent than its children."""

    def victims(self, count: int, bytes_wanted: int = 0, namespace: int = -1) -> U32:
        """Least recent rows that are not held and have no resident child left (counting earlier
        victims as gone), until count rows and bytes_wanted bytes are reached. Chooses only, and
        does not look at what is held."""

    def descendants(self, rows: U32) -> U32:
        """rows and everything below them, children before parents."""

    def rows_in(self, begin_ref: int, end_ref: int) -> U32:
        """Visible rows with a part in [begin_ref, end_ref)."""

    def oldest(self) -> int:
        """Least recent row with nothing held at or below it, or NO_ROW."""

    def part(self, rows: U32, part: int) -> tuple[U64, U32, U64]:
        """(refs, lengths, sums) of one part of each row. IndexError on a dead row."""

    def keys(self, rows: U32) -> bytes: ...
    def facts(self, rows: U32) -> tuple[U32, U32, U8]:
        """(namespace, parts, 1 when it is held or anything below it is) of each row."""

    def row(self, row: int) -> dict[str, Any]:
        """{namespace, key, chain_index, parent_row, children, holds, tier, parts, bytes,
        generation (rises when the row number dies)}"""

    def rows_of(self, namespace: int, count: int = 2**64 - 1) -> U32:
        """Up to count, the least recent first, then those with something held at or below."""

    def usage(self) -> list[dict[str, int]]:
        """Per namespace {namespace, blocks, bytes, gaps (blocks that have, as far as is known,
        no stored parent: no prefix reaches them), leaving_bytes (of erased blocks that are
        held)}, counted from the rows on each change."""

    def check(self) -> None:
        """Walk everything and prove it (links, counts, published table); RuntimeError says what."""

    def __len__(self) -> int: ...
    def metadata_bytes(self) -> int: ...
    def table_fd(self) -> int:
        """memfd of the published table, sealed SHRINK|GROW|FUTURE_WRITE|SEAL. The index owns it
        and closes it when table_epoch rises."""

    def is_growing(self) -> bool:
        """The published table is."""

    table_epoch: int  # rises with each resize; a new memfd then
    unpublished: int  # rows that found no bucket (look-ups miss them; fetch finds them)
    def close(self) -> None: ...

class TableView:
    """A client's read-only view of a published table. Thread-safe."""

    def __init__(self, fd: int) -> None:
        """Maps fd (which may be closed afterwards). ValueError when it is not a table."""

    epoch: int
    def superseded(self) -> bool:
        """True when the daemon has published another table; this one no longer changes."""

    def lookup(self, secret: bytes, keys: bytes) -> U8:
        """Tier of each key (0 = miss). No lock, bounded retries."""

    def leading(self, secret: bytes, keys: bytes) -> int:
        """How many keys are present before the first that is not."""

    def close(self) -> None: ...

# ---------------------------------------------------------------- copying

class Layout:
    """Where the bytes of a block lie in a pool, in stored order. Immutable.

    segments: (base, slot_stride, dims, item_bytes), all in bytes; dims = (count, stride), outermost
    first, in stored order ([layer][k/v][token][head][element] for plain). The stored bytes of a
    slot are the segments one after another. Strides may be negative. ValueError (naming segment
    and number) when bytes of a slot fall outside [0, pool_bytes) or two bytes coincide.
    """

    def __init__(
        self,
        segments: Sequence[tuple[int, int, Sequence[tuple[int, int]], int]],
        slots: int,
        pool_bytes: int,
    ) -> None: ...
    block_bytes: int
    slots: int
    runs_per_block: int
    run_bytes: int  # the shortest run
    def gather(self, pool_address: int, slots: U32, out: Any) -> U64:
        """Copy slots into the contiguous buffer out (len(slots) x block_bytes); checksums. In the
        calling thread, without the GIL. No fault guard: for the caller's own memory."""

    def scatter(self, pool_address: int, slots: U32, source: Any) -> U64: ...

class Pool:
    """A peer's pool: the daemon's mapping of its memfd and the layout in it."""

    def __init__(self, fd: int, pool_bytes: int, layout: Layout) -> None: ...
    layout: Layout
    pool_bytes: int
    # True when a page that the peer never touched is a FAULT; else a copy brings it in, and it
    # counts as the daemon's memory.
    guards_holes: bool
    def close(self) -> None:
        """No new job may name it; unmapped when the last running job has ended."""

class FencePage:
    """64 words shared between a client and the daemon; see docs/protocol.md, "Fences"."""

    def __init__(self, fd: int) -> None: ...
    @staticmethod
    def make() -> int:
        """memfd for a new page (sealed SHRINK|GROW|SEAL)."""

    def arm(self, word: int) -> None:
        """Client: reset to 0 before naming it in a request. ValueError while a copy is active."""

    def cancel(self, word: int, wait_ms: int) -> bool:
        """Client: no block starts any more; True when none is being copied, after up to
        wait_ms."""

    def close(self) -> None: ...

class CopyEngine:
    """Worker threads that copy and checksum batches of blocks; results through an eventfd."""

    def __init__(self, workers: int) -> None: ...
    eventfd: int  # readable when take_completed has something
    workers: int
    def add_memory(self, address: int, length_bytes: int) -> int:
        """Register tier memory; the number that goes into refs. The caller keeps it mapped."""

    def store(
        self,
        pool: Pool, slots: U32, refs: U64, deadline_ms: int = 0,
        fence: FencePage | None = None, fence_word: int = 0,
    ) -> int:  # fmt: skip
        """Ticket. Copies pool slots to refs; sums are of the bytes written. deadline_ms: from
        now, 0 = none. ValueError (before anything moves) on a bad slot or ref."""

    def fetch(
        self,
        pool: Pool, slots: U32, refs: U64, sums: U64, verify: bool, deadline_ms: int = 0,
        fence: FencePage | None = None, fence_word: int = 0,
    ) -> int:  # fmt: skip
        """Ticket. Copies refs to pool slots; duplicates in slots are refused (ValueError)."""

    def move(self, source_refs: U64, target_refs: U64, length_bytes: int, sums: U64) -> int:
        """Ticket. Between tier memories, verified."""

    def take_completed(self) -> list[tuple[int, U8, U64]]:
        """(ticket, outcome per block, checksum per block)."""

    def in_flight(self) -> int: ...
    def heartbeats(self) -> list[float]:
        """Per worker: seconds since it last took or finished a block, 0 when idle."""

    def stats(self) -> dict[str, int]:
        """{bytes_stored, bytes_fetched, bytes_moved, blocks, faults, cpu_ns}"""

    def close(self) -> None:
        """Ends the workers; running blocks are finished, the rest come back CANCELLED."""
