"""What the client raises. Expected outcomes (miss, refused, busy) are values, never exceptions."""

from __future__ import annotations

__all__ = [
    "BadArgument",
    "DaemonError",
    "EvokeError",
    "Forked",
    "LayoutError",
    "SlotsInDoubt",
    "Unavailable",
    "UnsupportedInput",
]


class EvokeError(Exception):
    """Base of everything this package raises on purpose."""


class BadArgument(EvokeError, ValueError):
    """An argument of the caller is wrong; the message names it and the number."""


class LayoutError(BadArgument):
    """A pool's strides cannot be used; the message names the axis and the number."""


class UnsupportedInput(BadArgument):
    """An integration met a layer kind or an input that it does not understand."""


class Unavailable(EvokeError):
    """No daemon, or no answer in time; callers that did not ask for exceptions see a miss."""


class Forked(EvokeError):
    """A client was used in a forked child; the child must call connect() itself."""


class SlotsInDoubt(EvokeError):
    """A copy that was given up on may still be running: the pool must not be used any more."""


class DaemonError(EvokeError):
    """The daemon refused a request: `code` (wire.Code), `field` (may be empty), `sentence`."""

    def __init__(self, code: int, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}" if field else sentence)
        self.code = code
        self.field = field
        self.sentence = sentence
