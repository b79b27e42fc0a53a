"""The control socket: codec and codes; evoke.client.messages has every verb's arguments.

A request is one msgpack array [version, token, request id, verb, arguments], a reply is
[request id, boot id, code, result]. Both sides of the product use this module only.
docs/protocol.md is the authority.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from evoke.client.messages import (
    DEADLINE_MS_MAX,
    FENCE_WORDS,
    FRAME_BYTES_MAX,
    HOLD_MS_MAX,
    KEY_BYTES,
    KEYS_MAX,
    LATER_VERBS,
    OBSERVE_KEYS_MAX,
    POLICY_BYTES_MAX,
    RANKS_MAX,
    REPORTS_MAX,
    SEGMENTS_MAX,
    TOKEN_BYTES,
    VERBS,
    VERSION,
    Args,
    Asked,
    Commit,
    Deadline,
    Digest,
    Empty,
    Events,
    Fence,
    Fetch,
    Flush,
    Grant,
    Hello,
    Hold,
    Id,
    Inject,
    KeyList,
    Keys,
    Observe,
    Parent,
    Pin,
    PolicyReload,
    PolicyText,
    ProvePool,
    Rank,
    RegisterNamespace,
    RegisterPool,
    Report,
    Reserve,
    SegmentArgs,
    Signed,
    Slots,
    Store,
    Text,
    Token,
    UnregisterPool,
    Word,
)

__all__ = [
    "DEADLINE_MS_MAX",
    "FENCE_WORDS",
    "FRAME_BYTES_MAX",
    "HOLD_MS_MAX",
    "KEYS_MAX",
    "KEY_BYTES",
    "LATER_VERBS",
    "OBSERVE_KEYS_MAX",
    "POLICY_BYTES_MAX",
    "RANKS_MAX",
    "REPORTS_MAX",
    "SEGMENTS_MAX",
    "TOKEN_BYTES",
    "VERBS",
    "VERSION",
    "Args",
    "Asked",
    "Code",
    "Commit",
    "Deadline",
    "Digest",
    "Empty",
    "Events",
    "Fence",
    "Fetch",
    "Fetched",
    "Flush",
    "Grant",
    "Hello",
    "Hold",
    "Id",
    "Inject",
    "KeyList",
    "Keys",
    "Observe",
    "Parent",
    "Pin",
    "PolicyReload",
    "PolicyText",
    "ProvePool",
    "Rank",
    "RegisterNamespace",
    "RegisterPool",
    "Reply",
    "Report",
    "Request",
    "Reserve",
    "SegmentArgs",
    "Signed",
    "Slots",
    "Store",
    "Stored",
    "Text",
    "Token",
    "UnregisterPool",
    "WireError",
    "Word",
    "decode_reply",
    "decode_request",
    "encode_reply",
    "encode_request",
]


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
