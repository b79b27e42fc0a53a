"""Every message of the control socket: codec, limits, codes. docs/protocol.md is the authority.

A request is one msgpack array [version, token, request id, verb, arguments], a reply is
[request id, boot id, code, result]. Arguments and results are arrays by position, so that no map,
and with it no duplicate or unknown name, occurs. Both sides of the product use this module only.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

import msgspec
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


class Code(enum.IntEnum):
    """Outcome of a whole request."""

    OK = 0
    BAD_FRAME = 1  # not a message of this protocol; request id 0 when it could not be read
    BAD_VERSION = 2
    BAD_TOKEN = 3  # no such session, or not its routing id
    BAD_ARGUMENT = 4
    UNKNOWN_VERB = 5
    UNSUPPORTED = 6  # a verb or a feature of a later version
    DENIED = 7
    NOT_FOUND = 8  # namespace, pool
    BAD_GRANT = 9  # released before, forged, foreign or expired
    BUSY = 10  # a limit of this session was reached; try again later
    INTERNAL = 11  # a fault of the daemon; its log has more
    STOPPING = 12


class Stored(enum.IntEnum):
    """Outcome of one block of store, reserve or commit."""

    STORED = 0  # readable now (reserve: room is granted)
    PRESENT = 1  # was readable before; nothing was copied
    REFUSED = 2  # no room
    FAULT = 3  # the pool's memory could not be read
    LATE = 4  # not copied before the deadline, or given up by the client
    INCOMPLETE = 5  # this rank's part is kept; other ranks' parts are missing


class Fetched(enum.IntEnum):
    """Outcome of one block of fetch, pin or lookup; 1 to 3 are the tier it came from."""

    MISS = 0
    HOST = 1
    CXL = 2
    FLASH = 3
    CORRUPT = 4  # the checksum disagreed: the slot's bytes are garbage, the block is dropped
    FAULT = 5  # the pool's memory could not be written
    LATE = 6  # not copied before the deadline, or given up by the client
    EXPIRED = 7  # the pin named in the request is over


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


class Flush(Args):
    namespace_id: Annotated[bytes, Meta(max_length=32)]  # empty: all
    weights_epoch: Text  # empty: all epochs


class Events(Args):
    namespace: Id  # 0xFFFFFFFF: everything, for admins


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
    "flush": Flush,
    "status": Empty,
    "metrics": Empty,
    "audit": Empty,
    "events": Events,
    "inject": Inject,
}

# Verbs of the finished product that this version answers with UNSUPPORTED.
LATER_VERBS: Final = frozenset(
    "prefetch observe acquire release commit_managed begin_turn end_turn policy_show policy_check "
    "policy_reload policy_history policy_shadow tiers drain block trace_start trace_stop sessions "
    "quota".split()
)


class Request(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    version: Id
    token: Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    request: Word  # 0: no reply is wanted (asked only)
    verb: Annotated[str, Meta(max_length=32)]
    args: msgspec.Raw


class Reply(Struct, array_like=True, frozen=True):
    request: int
    boot: bytes
    code: int
    result: Any  # by verb; of an error: [field, sentence]


class WireError(ValueError):
    """A frame that is not a good request: what to answer, and to which request id."""

    def __init__(self, code: Code, field: str, sentence: str, request: int = 0) -> None:
        super().__init__(sentence)
        self.code, self.field, self.sentence, self.request = code, field, sentence, request


_encoder = msgspec.msgpack.Encoder()
_request_decoder = msgspec.msgpack.Decoder(Request)
_reply_decoder = msgspec.msgpack.Decoder(Reply)
_args_decoders = {verb: msgspec.msgpack.Decoder(kind) for verb, kind in VERBS.items()}
# What msgspec can raise on hostile bytes; anything else is a defect and may surface.
_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError)


def encode_request(token: bytes, request: int, verb: str, args: Args) -> bytes:
    """One frame; args is the struct of VERBS[verb]."""
    return _encoder.encode((VERSION, token, request, verb, args))


def decode_request(frame: bytes) -> tuple[Request, Args]:
    """Raises WireError, and nothing else, for whatever bytes a peer sends."""
    if len(frame) > FRAME_BYTES_MAX:
        raise WireError(Code.BAD_FRAME, "frame", f"{len(frame)} bytes, limit {FRAME_BYTES_MAX}")
    try:
        request = _request_decoder.decode(frame)
    except _DECODE_ERRORS as error:
        raise WireError(Code.BAD_FRAME, "frame", _sentence(error)) from None
    if request.version != VERSION:
        raise WireError(
            Code.BAD_VERSION, "version", f"{request.version}, known: {VERSION}", request.request
        )
    decoder = _args_decoders.get(request.verb)
    if decoder is None:
        code = Code.UNSUPPORTED if request.verb in LATER_VERBS else Code.UNKNOWN_VERB
        raise WireError(code, "verb", f"{request.verb!r}", request.request)
    try:
        return request, decoder.decode(request.args)
    except _DECODE_ERRORS as error:
        raise WireError(
            Code.BAD_ARGUMENT, _field(request.verb, error), _sentence(error), request.request
        ) from None


def encode_reply(request: int, boot: bytes, code: int, result: Any) -> bytes:
    return _encoder.encode((request, boot, code, result))


def decode_reply(frame: bytes) -> Reply:
    """ValueError (msgspec.DecodeError) when the frame is not a reply."""
    return _reply_decoder.decode(frame)


def _sentence(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _field(verb: str, error: Exception) -> str:
    """Name of the argument in msgspec's path, `$[2]` being the third."""
    text = str(error)
    start = text.find("$[")
    if start < 0:
        return "arguments"
    number = text[start + 2 : text.find("]", start)]
    fields = VERBS[verb].__struct_fields__
    return fields[int(number)] if number.isdigit() and int(number) < len(fields) else "arguments"
