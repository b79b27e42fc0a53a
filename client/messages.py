"""Arguments of every verb of the control socket, and their limits. docs/protocol.md explains them.

Arguments are arrays by position, so that no map, and with it no duplicate or unknown name, occurs.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

VERSION: Final = 1
FRAME_BYTES_MAX: Final = 1 << 20
TOKEN_BYTES: Final = 16
KEY_BYTES: Final = 32
KEYS_MAX: Final = 8192  # keys of one request: 256 KiB of a 1 MiB frame
SEGMENTS_MAX: Final = 1024
RANKS_MAX: Final = 256
HOLD_MS_MAX: Final = 3_600_000
DEADLINE_MS_MAX: Final = 600_000
FENCE_WORDS: Final = 64
REPORTS_MAX: Final = 256
POLICY_BYTES_MAX: Final = 65_536
OBSERVE_KEYS_MAX: Final = 4096  # beside 8 channels of a long sequence

Id = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Word = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
Signed = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
Keys = Annotated[bytes, Meta(max_length=KEYS_MAX * KEY_BYTES)]
Slots = Annotated[bytes, Meta(max_length=KEYS_MAX * 4)]
Parent = Annotated[bytes, Meta(max_length=KEY_BYTES)]
Hold = Annotated[int, Meta(ge=1, le=HOLD_MS_MAX)]
Deadline = Annotated[int, Meta(ge=1, le=DEADLINE_MS_MAX)]
Fence = Annotated[int, Meta(ge=0, lt=FENCE_WORDS)]
Rank = Annotated[int, Meta(ge=0, lt=RANKS_MAX)]
Text = Annotated[str, Meta(max_length=256)]
Token = Annotated[bytes, Meta(max_length=TOKEN_BYTES)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Args(Struct, array_like=True, forbid_unknown_fields=True):
    """Base of all arguments."""


class Empty(Args):
    pass


class Hello(Args):
    join: Token  # empty: a new instance; else the join token of an existing one
    rank: Rank
    name: Text  # for status; "vllm worker"


class RegisterNamespace(Args):
    encoded: Annotated[bytes, Meta(min_length=1, max_length=65536)]


class SegmentArgs(Args):
    base: Word
    slot_stride: Signed
    dims: Annotated[list[tuple[Id, Signed]], Meta(max_length=8)]
    item_bytes: Annotated[int, Meta(ge=1, le=1 << 40)]


class RegisterPool(Args):
    namespace: Id
    device: Text  # "cpu"
    pool_bytes: Annotated[int, Meta(ge=1, le=1 << 50)]
    slots: Annotated[int, Meta(ge=1, le=0xFFFF_FFFE)]
    segments: Annotated[list[SegmentArgs], Meta(min_length=1, max_length=SEGMENTS_MAX)]
    memory: Id  # the number under which the memfd was sent over the liveness socket


class UnregisterPool(Args):
    pool: Id


class ProvePool(Args):
    pool: Id
    from_slot: Id
    to_slot: Id
    fence: Fence


class Store(Args):
    namespace: Id
    pool: Id
    keys: Keys
    first: Id
    parent: Parent
    slots: Slots
    deadline_ms: Deadline
    fence: Fence


class Reserve(Args):
    namespace: Id
    keys: Keys
    first: Id
    parent: Parent
    hold_ms: Hold


class Commit(Args):
    grant: Word
    pool: Id
    positions: Slots  # which of the reserved keys, as u32
    slots: Slots
    deadline_ms: Deadline
    fence: Fence


class Grant(Args):
    grant: Word


class Fetch(Args):
    namespace: Id
    pool: Id
    keys: Keys
    first: Id
    slots: Slots
    deadline_ms: Deadline
    fence: Fence
    grant: Word = 0  # a pin under which to fetch; 0: none


class Pin(Args):
    namespace: Id
    keys: Keys
    first: Id
    hold_ms: Hold


class KeyList(Args):
    namespace: Id
    keys: Keys
    first: Id


class Report(Args):
    namespace: Id
    keys: Keys
    first: Id
    hits: Id  # how many leading keys the client found
    ask: Word  # the engine's request: the same number is counted once


class Asked(Args):
    reports: Annotated[list[Report], Meta(max_length=REPORTS_MAX)]


class Observe(Args):
    """Without first, keys and signal: the sequence has ended."""

    namespace: Id
    sequence: Id  # the session's own number for it
    first: Id  # block that the keys begin at; without keys, how many blocks there are
    keys: Annotated[bytes, Meta(max_length=OBSERVE_KEYS_MAX * KEY_BYTES)]
    channels: Annotated[int, Meta(ge=1, le=8)]
    signal: Annotated[bytes, Meta(max_length=1 << 19)]  # half floats, channel after channel
    steps: Annotated[int, Meta(ge=1, le=65_536)]
    prefill: bool
    present: Annotated[bytes, Meta(max_length=1 << 17)]  # a bit per block; empty: all


class Flush(Args):
    namespace_id: Annotated[bytes, Meta(max_length=32)]  # empty: all
    weights_epoch: Text  # empty: all epochs


class Events(Args):
    namespace: Id  # 0xFFFFFFFF: everything, for admins


class PolicyText(Args):
    """A policy as TOML. `file` is its name for people; nothing is opened by it."""

    content: Annotated[str, Meta(max_length=POLICY_BYTES_MAX)]
    file: Annotated[str, Meta(max_length=4096)]


class PolicyReload(Args):
    """content None: the daemon reads the file that it is configured with."""

    content: Annotated[str, Meta(max_length=POLICY_BYTES_MAX)] | None
    file: Annotated[str, Meta(max_length=4096)]


class Inject(Args):
    """Test aid, denied unless debug.inject is set: flips one bit of a stored block."""

    namespace: Id
    key: Digest
    offset: Word


VERBS: Final[dict[str, type[Args]]] = {
    "hello": Hello,
    "ping": Empty,
    "register_namespace": RegisterNamespace,
    "register_pool": RegisterPool,
    "unregister_pool": UnregisterPool,
    "prove_pool": ProvePool,
    "store": Store,
    "reserve": Reserve,
    "commit": Commit,
    "abort": Grant,
    "fetch": Fetch,
    "pin": Pin,
    "unpin": Grant,
    "touch": KeyList,
    "lookup": KeyList,
    "asked": Asked,
    "observe": Observe,
    "flush": Flush,
    "status": Empty,
    "metrics": Empty,
    "audit": Empty,
    "events": Events,
    "inject": Inject,
    "policy_show": Empty,
    "policy_check": PolicyText,
    "policy_reload": PolicyReload,
    "policy_history": Empty,
}

# Verbs of the finished product that this version answers with UNSUPPORTED.
LATER_VERBS: Final = frozenset(
    "prefetch acquire release commit_managed begin_turn end_turn policy_shadow tiers drain "
    "block trace_start trace_stop sessions quota".split()
)
