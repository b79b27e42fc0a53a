"""Telling the daemon how much attention a running sequence pays to its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from evoke.client import wire
from evoke.client.errors import BadArgument, DaemonError
from evoke.client.keys import Chain

if TYPE_CHECKING:
    from evoke.client.client import Answer
    from evoke.client.space import Space

__all__ = ["CHANNELS_MAX", "Observed"]

CHANNELS_MAX = 8
STEPS_MAX = 65_536


class Observed:
    """One running sequence. Its keys travel once: a report costs 2 bytes a block and channel.

    Made by Space.observed(). Not thread-safe. Close it when the sequence has ended.
    """

    def __init__(self, space: Space, number: int) -> None:
        self._space, self.number = space, number
        self._chain: Chain | None = None
        self._announced = 0  # leading keys of _chain that the daemon has

    def report(
        self,
        chain: Chain,
        masses: Any,
        *,
        steps: int = 1,
        prefill: bool = False,
        present: Any = None,
        timeout_s: float | None = None,
    ) -> bool:
        """masses: channels x blocks of the chain (or blocks, for one channel), 0 to 1, float16 or
        convertible to it: evoke.client.signals makes them. steps: decode steps since the last
        report, or query rows of a prefill. present: which blocks were in the engine's memory, as
        booleans; None: all. False: the daemon is absent or late (raises if the client is told to).

        BadArgument: shapes that do not fit, or a number that is not from 0 to 1.
        """
        signal, channels = _packed(chain, masses, steps)
        bits = b""
        if present is not None:
            flags = np.asarray(present, bool)
            if flags.shape != (len(chain),):
                raise BadArgument(f"present: shape {flags.shape}, the chain has {len(chain)}")
            bits = np.packbits(flags, bitorder="little").tobytes()
        first = self._shared(chain)
        answer = self._send(chain, first, channels, signal, steps, prefill, bits, timeout_s)
        if answer is None:  # it has restarted
            answer = self._send(chain, 0, channels, signal, steps, prefill, bits, timeout_s)
        if answer is None or answer.error is not None:
            self._chain, self._announced = None, 0
            return False
        self._chain, self._announced = chain, len(chain)
        return True

    def close(self, timeout_s: float | None = None) -> None:
        """The sequence has ended; its blocks' scores age from now on."""
        if self._chain is None:
            return
        self._chain, self._announced = None, 0
        self._ask(wire.Observe(0, self.number, 0, b"", 1, b"", 1, False, b""), timeout_s)

    def _shared(self, chain: Chain) -> int:
        """How many leading keys the daemon has of this chain."""
        known = self._chain
        if known is None:
            return 0
        count = min(self._announced, len(chain)) * wire.KEY_BYTES
        if known.keys[:count] == chain.keys[:count]:
            return count // wire.KEY_BYTES
        same = np.frombuffer(known.keys[:count], np.uint8) == np.frombuffer(
            chain.keys[:count], np.uint8
        )
        return int(np.argmin(same)) // wire.KEY_BYTES

    def _send(
        self,
        chain: Chain,
        first: int,
        channels: int,
        signal: bytes,
        steps: int,
        prefill: bool,
        present: bytes,
        timeout_s: float | None,
    ) -> Answer | None:
        """Keys that one message cannot take go ahead of it."""
        while len(chain) - first > wire.OBSERVE_KEYS_MAX:
            end = first + wire.OBSERVE_KEYS_MAX
            piece = chain.cut(first, end)
            args = wire.Observe(0, self.number, first, piece.keys, 1, b"", 1, False, b"")
            answer = self._ask(args, timeout_s)
            if answer is None or answer.error is not None:
                return answer
            first = end
        keys = chain.keys[first * wire.KEY_BYTES :]
        args = wire.Observe(0, self.number, first, keys, channels, signal, steps, prefill, present)
        return self._ask(args, timeout_s)

    def _ask(self, args: wire.Observe, timeout_s: float | None) -> Answer | None:
        """None: the daemon does not know the sequence, and wants its keys."""

        def make(space: int) -> wire.Args:
            args.namespace = space
            return args

        try:
            answer = self._space.client.ask_space(self._space, "observe", make, timeout_s)
        except DaemonError as error:
            if error.code != wire.Code.NOT_FOUND or not args.first:
                raise
            return None
        if isinstance(answer.error, DaemonError) and answer.error.code == wire.Code.NOT_FOUND:
            return None if args.first else answer
        return answer


def _packed(chain: Chain, masses: Any, steps: int) -> tuple[bytes, int]:
    if chain.first:
        raise BadArgument(f"chain: begins at block {chain.first}, a sequence's at 0")
    if not 1 <= steps <= STEPS_MAX:
        raise BadArgument(f"steps: {steps}, allowed 1 to {STEPS_MAX}")
    rows = np.atleast_2d(np.asarray(masses))
    if rows.ndim != 2 or rows.shape[1] != len(chain) or not 1 <= len(rows) <= CHANNELS_MAX:
        raise BadArgument(
            f"masses: shape {rows.shape}, expected up to {CHANNELS_MAX} channels of {len(chain)}"
        )
    bad = ~((rows >= 0) & (rows <= 1))
    if bad.any():
        channel, block = np.argwhere(bad)[0]
        number = rows[channel, block]
        raise BadArgument(f"masses: channel {channel} block {block} is {number}, allowed 0 to 1")
    return np.ascontiguousarray(rows, np.float16).tobytes(), len(rows)
