"""The verb `observe`: attention that engines report of their sequences' blocks becomes scores.

A sequence announces its keys once; a report then names it by number. Reports are summed up in the
core and folded into the scores once a tick, when the clock `step` moves: by the largest number of
decode steps that any sequence reported since the tick before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from evoke.client import wire
from evoke.client.wire import Code
from evoke.core import native, scores
from evoked.counters import Counters
from evoked.registry import Registry, Request
from evoked.server import Refusal
from evoked.sessions import NamespaceEntry, Session
from evoked.tiers import U32
from evoked.timers import Timers

__all__ = ["NO_IDENTITY", "Observe", "ScoreTable", "Scored"]

TICK_S: Final = 1.0
SEQUENCES_MAX: Final = 1024  # of a session
BLOCKS_MAX: Final = 1 << 20  # of a session's sequences together
NO_IDENTITY: Final = native.NO_ROW


class Scored(Protocol):
    """Where scores are kept: what ranks the tiers."""

    alpha: float
    knee: float
    absent: str

    def identities(self, namespace: int, keys: bytes) -> U32:
        """Of packed keys; NO_IDENTITY where there is no room to remember one."""

    def fold(self, sequence: scores.SequenceSignal, clock: float, elapsed: float) -> None:
        """Take what the sequence has summed up."""


class ScoreTable:
    """A bounded table of identities with their scores."""

    def __init__(
        self, alpha: float = 0.2, knee: float = 12.0, absent: str = "freeze", limit: int = 1 << 17
    ) -> None:
        self.alpha, self.knee, self.absent = alpha, knee, absent
        self.known = scores.Identities()
        self.scores = scores.Scores(self.known, alpha, True)
        self._limit = limit
        self._by_key: dict[bytes, int] = {}
        self._seq = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def identities(self, namespace: int, keys: bytes) -> U32:
        space = namespace.to_bytes(4, "little")
        size = wire.KEY_BYTES
        found = [self._identity(space + keys[at : at + size]) for at in range(0, len(keys), size)]
        self.known.grow(len(self._by_key))
        return np.array(found, np.uint32)

    def _identity(self, key: bytes) -> int:
        number = self._by_key.get(key)
        if number is None:
            if len(self._by_key) >= self._limit:
                return NO_IDENTITY
            number = self._by_key[key] = len(self._by_key)
        return number

    def fold(self, sequence: scores.SequenceSignal, clock: float, elapsed: float) -> None:
        self._seq += sequence.fold(clock, elapsed, self._seq, self.known, self.scores)


@dataclass
class _Sequence:
    entry: NamespaceEntry
    signal: scores.SequenceSignal
    steps: int = 0  # decode steps since the last tick


@dataclass
class _Reporter:
    sequences: dict[int, _Sequence] = field(default_factory=dict)
    blocks: int = 0


class Observe:
    """Owns the sequences of all sessions; a session's are forgotten with it."""

    def __init__(
        self,
        registry: Registry,
        counters: Counters,
        timers: Timers,
        clock: Callable[[], float],
        scored: Scored,
    ) -> None:
        self._registry, self._counters = registry, counters
        self._timers, self._clock, self._scored = timers, clock, scored
        self._reporters: dict[Session, _Reporter] = {}
        self._ticking = False
        self.steps = 0.0  # the clock `step`

    def observe(self, session: Session, number: int, args: wire.Observe) -> Any:
        """How many blocks the sequence has now; 0 when it was forgotten."""
        entry = self._registry.namespace(session, args.namespace)
        request = Request(entry, args.keys, args.first, b"")
        reporter = self._reporters.setdefault(session, _Reporter())
        if not (args.first or args.keys or args.signal):
            self._forget(reporter, args.sequence)
            return 0
        sequence = self._sequence(reporter, args, entry)
        count = args.first + request.count
        self._check(reporter, sequence, args, count)
        try:
            if request.count or count < len(sequence.signal):
                reporter.blocks += count - len(sequence.signal)
                identities = self._scored.identities(entry.number, args.keys)
                sequence.signal.assign(args.first, identities)
            reporter.sequences[args.sequence] = sequence
            if args.signal:
                sequence.signal.report(args.signal, args.channels, args.steps, args.present)
        except ValueError as error:
            name, _, sentence = str(error).partition(": ")
            raise Refusal(Code.BAD_ARGUMENT, name, sentence) from None
        if args.signal:
            self._counters.add("observed_reports")
            sequence.steps += 0 if args.prefill else args.steps
            self._arm()
        return count

    def _sequence(
        self, reporter: _Reporter, args: wire.Observe, entry: NamespaceEntry
    ) -> _Sequence:
        sequence = reporter.sequences.get(args.sequence)
        if sequence is not None:
            if sequence.entry is not entry:
                sentence = f"{args.sequence} is of namespace {sequence.entry.number}"
                raise Refusal(Code.BAD_ARGUMENT, "sequence", sentence)
            return sequence
        if args.first:
            raise Refusal(Code.NOT_FOUND, "sequence", f"{args.sequence} has not announced its keys")
        if len(reporter.sequences) >= SEQUENCES_MAX:
            raise Refusal(Code.BUSY, "sequence", f"{SEQUENCES_MAX} of this session are observed")
        rules = self._scored
        return _Sequence(entry, scores.SequenceSignal(rules.alpha, rules.knee, rules.absent))

    def _check(
        self, reporter: _Reporter, sequence: _Sequence, args: wire.Observe, count: int
    ) -> None:
        """All sizes, before anything changes."""
        length = len(sequence.signal)
        if args.first > length:
            sentence = f"{args.first}, the sequence has {length} blocks"
            raise Refusal(Code.BAD_ARGUMENT, "first", sentence)
        if reporter.blocks + count - length > BLOCKS_MAX:
            sentence = f"the sequences of this session would have more than {BLOCKS_MAX} blocks"
            raise Refusal(Code.BUSY, "keys", sentence)
        if args.signal and len(args.signal) != 2 * args.channels * count:
            sentence = f"{len(args.signal)} bytes, {args.channels} channels of {count} blocks"
            raise Refusal(
                Code.BAD_ARGUMENT, "signal", f"{sentence} take {2 * args.channels * count}"
            )
        if args.present and len(args.present) != (count + 7) // 8:
            sentence = f"{len(args.present)} bytes, {count} blocks take {(count + 7) // 8}"
            raise Refusal(Code.BAD_ARGUMENT, "present", sentence)

    def _forget(self, reporter: _Reporter, number: int) -> None:
        sequence = reporter.sequences.pop(number, None)
        if sequence is None:
            return
        reporter.blocks -= len(sequence.signal)
        if sequence.signal.pending:
            self._scored.fold(sequence.signal, self.steps, 0.0)

    def session_ended(self, session: Session) -> None:
        """What it reported last still counts."""
        reporter = self._reporters.pop(session, None)
        for number in list(reporter.sequences) if reporter is not None else ():
            assert reporter is not None
            self._forget(reporter, number)

    def _arm(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._timers.at(self._clock() + TICK_S, self.tick)

    def tick(self) -> None:
        """Moves the clock and folds what was reported since the last one."""
        self._ticking = False
        running = [
            sequence
            for reporter in self._reporters.values()
            for sequence in reporter.sequences.values()
            if sequence.signal.pending
        ]
        elapsed = max((sequence.steps for sequence in running), default=0)
        self.steps += elapsed
        for sequence in running:
            self._scored.fold(sequence.signal, self.steps, elapsed)
            sequence.steps = 0
