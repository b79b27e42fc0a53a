"""Types of evoke.core._scores: what is remembered of blocks, and the orders that policies use.

Identities are u32 numbers, dense from 0. Arrays are C-contiguous numpy arrays of exactly the type
that is said; another is a TypeError.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Identities:
    """Columns of what is known of blocks, resident or not."""

    def grow(self, count: int) -> None:
        """Room for the identities below count."""

    def set_bytes(self, id: int, bytes: int) -> None:
        """Of the block; 1 before. ValueError: 0 bytes, or an id not grown to."""

    def set_role(self, id: int, role: int, priority: int = 16) -> None:
        """role: position in evoke.policy.relevance.ROLES; priority in sixteenths, 16 is 1.0. An
        order that has the block as a candidate is told by leave and admit. ValueError: an id not
        grown to."""

    def note(self, id: int, clock: float, seq: int) -> None:
        """An access without a score. ValueError: an id not grown to."""

class Scores:
    """LRFU scores: score(t) = alpha x(t) + (1 - alpha) score(t - 1) per clock unit."""

    def __init__(self, identities: Identities, alpha: float, weighted: bool = False) -> None:
        """weighted: keys include ln alpha, as `product` needs. ValueError: alpha not in (0, 1)."""

    def touch(self, id: int, signal: float, clock: float, seq: int) -> None:
        """An access, or the attention that a block got. ValueError: an id not grown to, a signal
        not above 0."""

    def log_scores(self, ids: NDArray[np.uint32], clock: float) -> NDArray[np.float64]:
        """ln of the scores at that time; -inf of identities never touched. ValueError: not one."""

class Order:
    """Ranks residents; names who should go first. Learns; never moves anything.

    ValueError of every step: an id that it has not grown to, or one in the wrong state; nothing has
    changed then. A candidate is resident, not held, and has no resident child.
    """

    def grow(self, count: int) -> None:
        """Room for the identities below count, which must have grown first (ValueError)."""

    def request(self, ids: NDArray[np.uint32], clock: float, now_s: float) -> None:
        """A request asked for these blocks, in chain order; told before its accesses are noted."""

    def admit(self, id: int, parent: int | None = None) -> None:
        """It is resident now; parent: the block before it in its chain."""

    def leave(self, id: int) -> None:
        """It is not resident any more."""

    def hold(self, id: int) -> None: ...
    def unhold(self, id: int) -> None: ...
    def forget(self, id: int) -> None:
        """What is not resident is dropped from memory; the number may come back as another."""

    def worst(self, clock: float) -> int | None:
        """The candidate that should go first."""

    def victims(self, count: int, clock: float) -> NDArray[np.uint32]:
        """Up to count, worst first, as if each had left before the next was chosen."""

    def refuses(self, newcomer: int, clock: float) -> bool:
        """Whether what is not resident is worth less than worst()."""

    def resident(self, id: int) -> bool: ...
    @property
    def residents(self) -> int: ...
    @property
    def candidates(self) -> int: ...

class Lru(Order):
    def __init__(self, identities: Identities) -> None: ...

class Fifo(Order):
    def __init__(self, identities: Identities) -> None: ...

class Product(Order):
    """(1 - score) * (1 - e^(-beta idle)), the highest first; keys must include ln alpha."""

    def __init__(
        self, identities: Identities, alpha: float, beta: float, rescaled: bool = False
    ) -> None:
        """rescaled: alpha / (score + alpha) in place of 1 - score. ValueError: alpha or beta."""

    def priority(self, key: float, at_clock: float, clock: float) -> float: ...

class Lfu(Order):
    def __init__(self, identities: Identities) -> None: ...

class Lrfu(Order):
    def __init__(self, identities: Identities) -> None: ...

class Clairvoyant(Order):
    """The bound: keeps what is used next, of equals what is nearer to the root. Needs the future:
    only simulate() can drive it."""

    def __init__(self, identities: Identities) -> None: ...

class ReturnIndex(Order):
    """Chains give up their tails where keeping them has been worth the least by the byte-second;
    evoke.policy.return_index has the formula. Takes all blocks of a request and then names who must
    go; ranks by the seconds of the requests."""

    def __init__(
        self,
        identities: Identities,
        capacity_bytes: int,
        classes: str = "shadow",
        memory_requests: float = 500000,
    ) -> None:
        """capacity_bytes: of the cache that is ordered, in units of the identities' sizes (blocks,
        where these are 1). classes: age, gap, count-new, or shadow, which chooses among them.
        memory_requests: what was counted so many requests ago weighs half. ValueError: capacity 0,
        an unknown name, a memory of at most 1."""

    def resize(self, capacity_bytes: int) -> None:
        """ValueError: 0."""
    @property
    def classes(self) -> str:
        """age, gap or count-new: what it tells apart now."""
    @property
    def cohorts(self) -> int:
        """Groups of blocks of one request that it remembers: at most 16 for each request that still
        owns a remembered block."""

def return_chances(
    returned: Sequence[float], survived: Sequence[float], prior: Sequence[float], weight: float
) -> list[float]:
    """The return index's q by bin of age: the chance to come back in the bin of those that reach
    it, from blocks counted and `weight` imagined ones that behave like `prior`; from the most
    eager bin on it does not grow by the second. Bin 0 ends at 1 s, bin k at 1.5^k s; 23 bins.
    ValueError: another number of bins."""

def hits_per_block_second(chances: Sequence[float]) -> list[float]:
    """By bin: the best over all later bins of hits by seconds of keeping. ValueError as above."""

class Relevance(Order):
    """Coherence, recency and attention with role floors; evoke.policy.relevance has the formula."""

    def __init__(
        self,
        identities: Identities,
        coherence: float,
        recency: float,
        attention: float,
        decay: float,
        alpha: float,
        floors: Sequence[float],
    ) -> None:
        """The weights; decay per clock unit; alpha: of the scores, which must be weighted; floors:
        six, by role number. ValueError names the argument."""

    def set_coherence(self, ids: NDArray[np.uint32], values: NDArray[np.float32]) -> None:
        """Of identities that the order has grown to; 0 to 1, 0.5 before. ValueError: another
        value or id; nothing has changed then."""

class Ranked(Order):
    """Ranks come from outside: the lowest goes first, the least recent of equals; who came or was
    used after the last ranking goes after all others."""

    def __init__(
        self,
        identities: Identities,
        every: int = 1,
        on_tick: Callable[[float, float], None] | None = None,
    ) -> None:
        """on_tick(clock, seconds) is called before every `every`th request. ValueError: every 0."""

    def columns(self, known: Identities, scores: Scores, clock: float) -> dict[str, NDArray[Any]]:
        """One row a resident: ids u32, log_score f64, idle f64 (clock units since the last access),
        count u16, role u8, priority u8, tail bool (no resident child, not held)."""

    def set_ranks(self, ids: NDArray[np.uint32], ranks: NDArray[np.float64]) -> None:
        """ValueError, and nothing changes: unequal lengths, an unknown id, a rank that is not
        finite."""

class Ranker:
    """Rows of an Index as identities in an order: mirrors what the index noted, takes accesses,
    and answers with rows. Keys are packed, 32 bytes each. ValueError: a row, namespace or number
    that it cannot know; nothing has changed then."""

    def __init__(
        self,
        identities: Identities,
        scores: Scores,
        tier: int = 1,
        remembered_factor: float = 8.0,
        remembered_least: int = 4096,
        keep_state: bool = True,
    ) -> None:
        """scores: weighted ones. tier: whose rows are ranked. remembered_factor: identities that
        are remembered, as a multiple of the most rows there have been; remembered_least in any
        case. keep_state: what was learned survives eviction."""

    def use(self, order: Order) -> None:
        """From now on. A new one, of the same identities."""

    def set_rules(
        self, remembered_factor: float, remembered_least: int, keep_state: bool
    ) -> None: ...
    def rescale(self, alpha: float, clock: float, next: float) -> None:
        """Scores at clock stay. next: what the clock reads from now on."""

    def set_space(self, number: int, secret: bytes, block_bytes: int) -> None:
        """A namespace of the index: the 16-byte secret that its keys are hashed with here."""

    def apply(self, changes: NDArray[np.uint32], keys: bytes, clock: float) -> None:
        """What Index.take_changes() gave."""

    def asked(self, space: int, keys: bytes, clock: float, now_s: float) -> None:
        """A request asked for these blocks, in chain order; stored or not, each is accessed."""

    def used(self, rows: NDArray[np.uint32], clock: float) -> None:
        """An access of rows in chain order; their ancestors become as recent."""

    def make_room(
        self,
        count: int,
        bytes_wanted: int,
        space: int = -1,
        newcomers: bytes = b"",
        newcomers_space: int = 0,
        clock: float = 0.0,
    ) -> tuple[NDArray[np.uint32], int, bool]:
        """(rows to give up, worst first, until count of them and bytes_wanted bytes; how many of
        the last newcomers are refused, for which no room is needed; whether it gave up looking for
        blocks of `space`). Fewer when no more may leave. Chooses only."""

    def row(self, row: int, clock: float) -> dict[str, Any]:
        """id, parent_row, held, resident (in the order), log_score, idle, seq, count."""

    def dump(self, clock: float) -> bytes:
        """Who is remembered, 40 bytes each (csrc/scores/remembered.hpp), least recent first."""

    def dump_part(
        self, clock: float, first: int, count: int
    ) -> tuple[bytes, NDArray[np.uint32], bool]:
        """The same of identities first to first + count, unordered; their seq; is_end."""

    def load(self, records: bytes, clock: float, elapsed: float, rows_most: int = 0) -> int:
        """What dump() gave elapsed clock units ago: how many, the most recent, were taken.
        rows_most: of the ranker then. ValueError: what dump() would not have written."""

    def set_seq(self, seq: int) -> None:
        """For tests: as after so many accesses."""

    def size_bytes(self) -> int: ...
    rows: int
    rows_most: int
    @property
    def remembered(self) -> int: ...
    @property
    def limit(self) -> int: ...

class Victims:
    """Who left in a run, in order; those of request i are ids[starts[i]:starts[i + 1]]."""

    def __init__(self) -> None: ...
    @property
    def ids(self) -> NDArray[np.uint32]: ...
    @property
    def starts(self) -> NDArray[np.uint64]: ...

def simulate(
    ids: NDArray[np.uint32],
    starts: NDArray[np.uint64],
    now_s: NDArray[np.float64],
    identities: int,
    capacity_blocks: int,
    tail_first: bool,
    clock: str,
    keep_state: bool,
    chains: bool,
    scored: bool,
    known: Identities,
    scores: Scores,
    order: Order,
    victims: Victims | None = None,
) -> dict[str, int]:
    """accesses, hits, prefix_hits, evictions of a run over requests; request i asked for
    ids[starts[i]:starts[i + 1]], in chain order, at now_s[i] seconds. `known`, `scores` and
    `order` are new ones."""

def simulate_thresholds(
    ids: NDArray[np.uint32],
    starts: NDArray[np.uint64],
    identities: int,
    alpha: float,
    keep: float,
    evict: float,
    keep_state: bool,
) -> dict[str, int]:
    """Tiers by score alone, without a capacity, over the requests of simulate(): hot, cold, miss
    (where a block was after the request before), prefix_hits, gone, resident_max, resident_sum and
    resident_hot_sum (over requests). ValueError: alpha, keep or evict not between 0 and 1, evict
    above keep."""

class SequenceSignal:
    """Attention mass that one running sequence reports, summed up until it is folded into keys.

    x = max(channel 0, channel c - knee / n); sum = (1-a)^steps sum + (1 - (1-a)^steps) x.
    """

    def __init__(self, alpha: float, knee: float = 12.0, absent: str = "freeze") -> None:
        """absent: what a report that lacks a block does to it: decay (as mass 0), freeze (its
        score waits while the sequence runs) or reset. ValueError names the field."""

    def __len__(self) -> int: ...
    def assign(self, first: int, ids: NDArray[np.uint32]) -> None:
        """The identities of the blocks from `first` on; 0xFFFFFFFF: not known. ValueError: gap."""

    def report(self, masses: Any, channels: int, steps: int, present: bytes = b"") -> None:
        """masses: half floats, 0 to 1, channel after channel, one per block. present: a bit per
        block, the least significant first; empty: all. ValueError names channel, block and number;
        nothing has changed then."""

    pending: bool  # something was reported since the last fold
    def fold(
        self,
        clock: float,
        elapsed: float,
        seq: int,
        known: Identities,
        scores: Scores,
        order: Order | None = None,
    ) -> int:
        """Add what was reported to the scores as of clock, which moved by elapsed since the last
        fold. Blocks with mass of at least 1/n in a report were accessed: they take numbers from seq
        on, the last block first; how many that were."""
