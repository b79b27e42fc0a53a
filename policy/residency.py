"""Which blocks of one sequence stay resident from turn to turn: budget, splices, protection.

A turn resends the whole prompt. begin() walks it: a resident block at its position is free, a block
that was evicted and kept below comes back (`splice`) when its content is the same at the same
position, and the first difference ends the walk: what lies behind is dropped, and the caller
computes the rest and add()s it. relieve() makes room when more than `high` of the budget is
resident: the least relevant blocks go until `low` of it is left.

Two orders of precedence:
- `splice_protection = "last"`, ours: room is made at the end of the turn only, and the blocks that
  were spliced in this turn go last. At the end of a turn resident tokens are within the budget, but
  for pins and sinks, which are counted in `over_budget_tokens`.
- `"exempt"`, the source's: room is made before generation and after it, a block is safe while its
  recovery strength (1 at its splice, times `recovery_decay` each turn) is at least `protect_above`,
  and the budget loses where that leaves nothing to evict. Equal scores go by arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evoke.policy.relevance import Relevance, coherence, recency

__all__ = ["Block", "Counts", "Residency", "TurnRules", "Walk", "choose", "may_leave_early", "walk"]


@dataclass
class Block:
    """Consecutive tokens of a sequence. `content` is what its identity is compared by."""

    number: int  # rises with each arrival; a splice is one
    start: int
    tokens: int
    content: Any
    role: str = "none"
    priority: float = 1.0
    pinned: bool = False
    sink: bool = False
    reply: bool = False  # of the running turn
    embedding: Any = None
    strength: float = 0.0

    @property
    def end(self) -> int:
        return self.start + self.tokens


@dataclass(frozen=True)
class TurnRules:
    """ValueError names the option and its number."""

    budget_tokens: int
    high: float = 0.92
    low: float = 0.70
    gap_fill: str = "everything"  # or budget_aware: only what fits, nearest to the tail first
    reserve_tokens: int = 0  # for generation, in budget_aware
    splice_protection: str = "last"
    protect_above: float = 0.5  # with exempt; 0: no protection
    recovery_decay: float = 0.7
    relevance: Relevance = field(default_factory=Relevance)

    def __post_init__(self) -> None:
        if self.budget_tokens < 1:
            raise ValueError(f"budget_tokens: {self.budget_tokens} is not at least 1")
        if not 0 < self.low <= self.high <= 1:
            raise ValueError(f"low: {self.low}, allowed above 0 to high = {self.high}, at most 1")
        for name, allowed in (
            ("gap_fill", ("everything", "budget_aware")),
            ("splice_protection", ("last", "exempt")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r}, allowed {', '.join(allowed)}")

    @property
    def trigger_tokens(self) -> int:
        return int(self.high * self.budget_tokens)

    @property
    def target_tokens(self) -> int:
        return int(self.low * self.budget_tokens)


@dataclass
class Counts:
    """Of one turn."""

    peak_resident: int = 0
    resident_end: int = 0
    blocks_evicted: int = 0
    tokens_evicted: int = 0
    blocks_recovered: int = 0
    tokens_recovered: int = 0
    recovered_then_evicted: int = 0  # blocks: the churn
    over_budget_tokens: int = 0


@dataclass(frozen=True)
class Walk:
    kept: list[Block]
    holes: list[Block]  # evicted, with the same content at the same position
    cursor: int  # tokens before it need not be computed


def walk(
    resident: Mapping[int, Block], saved: Mapping[int, Block], matches: Callable[[Block], bool]
) -> Walk:
    """Along the resent prompt, block by block; both maps are by start."""
    kept: list[Block] = []
    holes: list[Block] = []
    cursor = 0
    while True:
        block = resident.get(cursor)
        if block is not None and matches(block):
            kept.append(block)
        else:
            block = saved.get(cursor)
            if block is None or not matches(block):
                return Walk(kept, holes, cursor)
            holes.append(block)
        cursor = block.end


def choose(tokens: Iterable[int], resident_tokens: int, trigger: int, target: int) -> int:
    """How many of the blocks with these sizes, worst first, have to leave: none up to the trigger,
    else as many as it takes to come down to the target; may overshoot by less than one block."""
    if resident_tokens <= trigger:
        return 0
    count = 0
    for size in tokens:
        if resident_tokens <= target:
            break
        resident_tokens -= size
        count += 1
    return count


def may_leave_early(block: Block, value: float, head: int, protect_above: float) -> bool:
    """Whether the source's rules let it go while a turn runs: not the sink, pins, the running
    reply, the block at `head` where decoding goes on, a score of 1, or what came back lately."""
    spliced_lately = protect_above > 0 and block.strength >= protect_above
    held = block.sink or block.pinned or block.reply or block.start == head
    return not (held or value >= 1.0 or spliced_lately)


class Residency:
    """One sequence. Turn: begin(), add() for what was computed, relieve() where the rules have it,
    end()."""

    def __init__(self, rules: TurnRules) -> None:
        self.rules = rules
        self.resident: dict[int, Block] = {}
        self.saved: dict[int, Block] = {}
        self.focus: Any = None  # vector, see evoke.policy.focus
        self.counts = Counts()
        self._next = 0

    @property
    def resident_tokens(self) -> int:
        return sum(block.tokens for block in self.resident.values())

    def begin(self, matches: Callable[[Block], bool], prompt_tokens: int) -> Walk:
        """matches: whether the resent prompt has the block's content at its position."""
        self.counts = Counts()
        for block in self.resident.values():
            block.strength *= self.rules.recovery_decay
        walked = walk(self.resident, self.saved, matches)
        self.resident = {block.start: block for block in walked.kept}
        spliced = self._fitting(walked, prompt_tokens - walked.cursor)
        for block in spliced:
            del self.saved[block.start]
            block.strength = 1.0
            self.add(block)
        self.counts.blocks_recovered = len(spliced)
        self.counts.tokens_recovered = sum(block.tokens for block in spliced)
        return walked

    def _fitting(self, walked: Walk, tail_tokens: int) -> list[Block]:
        if self.rules.gap_fill == "everything":
            return walked.holes
        kept_tokens = sum(block.tokens for block in walked.kept)
        room = self.rules.target_tokens - kept_tokens - tail_tokens - self.rules.reserve_tokens
        chosen = []
        for block in reversed(walked.holes):
            if block.end == walked.cursor or block.pinned or block.tokens <= room:
                chosen.append(block)
                room -= block.tokens
        return chosen[::-1]

    def add(self, block: Block) -> None:
        """Resident from now on; it is the newest arrival."""
        block.number = self._next
        self._next += 1
        self.resident[block.start] = block
        self.saved.pop(block.start, None)
        self.counts.peak_resident = max(self.counts.peak_resident, self.resident_tokens)

    def relieve(self, position: int) -> list[Block]:
        """Evicts when there is too much; who left, first victim first. position: tokens of the
        sequence now."""
        queue = self._queue(position)
        limits = self.rules.trigger_tokens, self.rules.target_tokens
        count = choose((block.tokens for block in queue), self.resident_tokens, *limits)
        for block in queue[:count]:
            del self.resident[block.start]
            self.saved[block.start] = block
            self.counts.recovered_then_evicted += block.strength == 1.0
        self.counts.blocks_evicted += count
        self.counts.tokens_evicted += sum(block.tokens for block in queue[:count])
        return queue[:count]

    def end(self, position: int) -> Counts:
        """The last relieve() of the turn."""
        self.relieve(position)
        for block in self.resident.values():
            block.reply = False
        self.counts.resident_end = self.resident_tokens
        excess = self.counts.resident_end - self.rules.budget_tokens
        self.counts.over_budget_tokens = max(0, excess)
        return self.counts

    def values(self, blocks: list[Block], position: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Relevance of blocks, not capped."""
        formula = self.rules.relevance
        near = [
            0.5 if block.embedding is None else float(coherence(block.embedding, self.focus)[0])
            for block in blocks
        ]
        distances = [position - block.end for block in blocks]
        raw = formula.blend({"coherence": near, "recency": recency(distances, formula.decay)})
        floors = [formula.floor(block.role) for block in blocks]
        return formula.value(raw, floors, [block.priority for block in blocks])

    def _queue(self, position: int) -> list[Block]:
        """Who may leave, worst first."""
        blocks = [b for b in self.resident.values() if not b.sink and not b.pinned]
        if not blocks:
            return []
        values = dict(zip(map(id, blocks), self.values(blocks, position).tolist(), strict=True))
        if self.rules.splice_protection == "last":
            return sorted(blocks, key=lambda b: (b.strength == 1.0, values[id(b)], b.end, b.number))
        head = max(self.resident)
        above = self.rules.protect_above
        left = [b for b in blocks if may_leave_early(b, values[id(b)], head, above)]
        return sorted(left, key=lambda b: (values[id(b)], b.number))
