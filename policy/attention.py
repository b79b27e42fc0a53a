"""Judges scoring rules on recorded attention: how much of the attention to come do they keep?

A trace has, for each decode step, the attention mass of every 16-token block. Block 0 and the two
newest blocks are always resident; every 8 steps a rule fills the rest of its budget, and is judged
on the next `horizon` steps: `kept` = share of the mass of all other blocks that falls on the chosen
ones. The signal goes through evoke.core.scores exactly as a report of an engine does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from evoke.core import scores

__all__ = ["AttentionRow", "AttentionRule", "AttentionTrace", "evaluate", "parse_rule", "resident"]

F16 = NDArray[np.float16]
U32 = NDArray[np.uint32]
Floats = NDArray[np.float64]

NEWEST: Final = 2
DECIDE_EVERY: Final = 8
_RETRIEVAL: Final = ("retrieval/copy", "copy")


@dataclass(frozen=True)
class AttentionTrace:
    """channels: name -> steps x blocks, half floats; blocks: how many exist at each step;
    prefills: (step before which it came, its last query rows: rows x blocks, by channel);
    facts: blocks that hold a planted fact; phases: (first step, end) of each answer."""

    name: str
    channels: Mapping[str, F16]
    blocks: U32
    prefills: Sequence[tuple[int, Mapping[str, F16]]]
    facts: list[int]
    phases: list[tuple[int, int]]

    @classmethod
    def load(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> AttentionTrace:
        """Of the arrays of NAME.npz and the object in NAME.json. ValueError names what is missing
        or does not fit."""
        for name in ("mean", "max"):
            if name not in arrays:
                raise ValueError(f"{name}: the file has no such array")
        mean = arrays["mean"]
        for name in ("decode", "events", "block", "every"):
            if name not in meta:
                raise ValueError(f"{name}: the object beside the arrays has no such field")
        block_tokens = int(meta["block"])
        blocks = np.asarray(meta["decode"]) // block_tokens + 1
        if mean.ndim != 2 or len(blocks) != len(mean) or int(blocks.max()) > mean.shape[1]:
            raise ValueError(f"mean: shape {mean.shape}, decode has {len(blocks)} steps")
        channels = {"mean": mean.astype(np.float16), "max": arrays["max"].astype(np.float16)}
        heads = [i for i, pick in enumerate(meta.get("head_picks", [])) if pick[2] in _RETRIEVAL]
        if "retrieval" in arrays:
            channels["retrieval"] = arrays["retrieval"].astype(np.float16)
        elif heads and "heads_log8" in arrays:
            rows = _log8(arrays["heads_log8"][:, heads]).mean(axis=1)
            rows = np.repeat(rows, int(meta["every"]), axis=0)[: len(mean)]
            channels["retrieval"] = rows.astype(np.float16)
        prefills = [
            (
                int(event["step"]),
                {c: arrays[f"prefill_win_{c}"][event["row"]] for c in ("mean", "max")},
            )
            for event in meta["events"]
            if event["kind"] == "prefill" and "prefill_win_mean" in arrays
        ]
        facts = [
            number
            for first, end in meta.get("marks", {}).get("fact", [])
            for number in range(first // block_tokens, (end - 1) // block_tokens + 1)
        ]
        phases = [(e["step"], e["step_end"]) for e in meta["events"] if "step_end" in e]
        name = str(meta.get("name", ""))
        return cls(name, channels, blocks.astype(np.uint32), prefills, facts, phases)


@dataclass(frozen=True)
class AttentionRule:
    """signal: mean or max over heads, or two: the mean, lifted where a few retrieval heads look
    (knee: see scores.SequenceSignal). every: steps per report; prefill_rows: of each prefill, at
    most 32. order: lrfu ranks by score, newest by position (a sliding window)."""

    name: ClassVar[str] = "attention"

    signal: str = "mean"
    alpha: float = 0.2
    knee: float = 12.0
    every: int = 1
    prefill_rows: int = 16
    order: str = "lrfu"

    def __post_init__(self) -> None:
        if self.signal not in ("mean", "max", "two"):
            raise ValueError(f"signal: {self.signal!r}, allowed mean, max, two")
        if self.order not in ("lrfu", "newest", "best"):
            raise ValueError(f"order: {self.order!r}, allowed lrfu, newest, best")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha: {self.alpha} is not between 0 and 1")
        if not 1 <= self.every <= 1024:
            raise ValueError(f"every: {self.every}, allowed 1 to 1024")
        if not 0 <= self.prefill_rows <= 32:
            raise ValueError(f"prefill_rows: {self.prefill_rows}, allowed 0 to 32")
        if not (math.isfinite(self.knee) and self.knee >= 0):
            raise ValueError(f"knee: {self.knee} is not a number of at least 0")

    @property
    def channels(self) -> tuple[str, ...]:
        return ("mean", "retrieval") if self.signal == "two" else (self.signal,)


@dataclass(frozen=True)
class AttentionRow:
    """fact_ranks: of the best fact block among the evictable ones, 1 the highest, at the eighth and
    the last step of each phase."""

    kept: float
    decisions: int
    fact_ranks: list[tuple[int, int]]


def evaluate(
    trace: AttentionTrace, rule: AttentionRule, budget: float = 0.2, horizon_steps: int = 64
) -> AttentionRow:
    """budget: share of the blocks that exist. ValueError names an argument out of range, or a
    trace too short for the horizon."""
    if not 0 < budget <= 1:
        raise ValueError(f"budget: {budget} is not in (0, 1]")
    steps = len(trace.blocks)
    if not 1 <= horizon_steps < steps - DECIDE_EVERY:
        raise ValueError(f"horizon_steps: {horizon_steps}, the trace has {steps}")
    _check_channels(trace, rule)
    mass = trace.channels["mean"].astype(np.float64)
    total = np.vstack([np.zeros(mass.shape[1]), np.cumsum(mass, axis=0)])
    watched = {step for first, end in trace.phases for step in (first + 8, end - 1)}
    kept, ranks = [], {}
    for step, worth in _values(trace, rule):
        evictable = _evictable(trace, step)
        if trace.facts and step in watched and rule.order != "best":
            ranks[step] = _best_rank(worth, evictable, trace.facts)
        if step % DECIDE_EVERY != DECIDE_EVERY - 1 or step + horizon_steps >= steps:
            continue
        future = total[step + 1 + horizon_steps] - total[step + 1]
        chosen = _top(
            future if rule.order == "best" else worth, evictable, _room(trace, step, budget)
        )
        kept.append(future[chosen].sum() / future[evictable].sum())
    pairs = [(ranks.get(a + 8, 0), ranks.get(b - 1, 0)) for a, b in trace.phases]
    return AttentionRow(float(np.mean(kept)), len(kept), pairs if ranks else [])


def resident(trace: AttentionTrace, rule: AttentionRule, step: int, budget: float) -> set[int]:
    """The blocks that the rule keeps after that step."""
    _check_channels(trace, rule)
    worth = next(values for number, values in _values(trace, rule) if number == step)
    evictable = _evictable(trace, step)
    chosen = _top(worth, evictable, _room(trace, step, budget))
    return set(range(int(trace.blocks[step]))) - set(evictable.tolist()) | set(chosen.tolist())


def _values(trace: AttentionTrace, rule: AttentionRule) -> Iterator[tuple[int, Floats]]:
    """(step, what each block is worth after it)."""
    known = scores.Identities()
    count = trace.channels["mean"].shape[1]
    known.grow(count)
    ids = np.arange(count, dtype=np.uint32)
    columns = scores.Scores(known, rule.alpha, True)
    sequence = scores.SequenceSignal(rule.alpha, rule.knee)
    prefills = dict(trace.prefills)
    clock = seq = 0
    for step, blocks in enumerate(trace.blocks.tolist()):
        if blocks > len(sequence):
            sequence.assign(len(sequence), ids[len(sequence) : blocks])
        rows = prefills.get(step)
        reports = []
        if rows is not None and rule.prefill_rows:
            name = "max" if rule.signal == "max" else "mean"
            last = rows[name][-rule.prefill_rows :, :blocks].astype(np.float64).mean(axis=0)
            reports.append((last.astype(np.float16), 1, rule.prefill_rows))
        if step % rule.every == rule.every - 1:
            masses = np.stack([trace.channels[name][step, :blocks] for name in rule.channels])
            reports.append((masses.ravel(), len(masses), rule.every))
        for masses, channels, weight in reports:
            sequence.report(np.ascontiguousarray(masses), channels, weight)
            clock += weight
            seq += sequence.fold(clock, weight, seq, known, columns)
        yield step, ids if rule.order == "newest" else columns.log_scores(ids, clock)  # type: ignore[misc]


def _check_channels(trace: AttentionTrace, rule: AttentionRule) -> None:
    for name in rule.channels:
        if name not in trace.channels:
            raise ValueError(f"signal: {rule.signal!r} needs {name}, which the trace lacks")


def _evictable(trace: AttentionTrace, step: int) -> U32:
    return np.arange(1, int(trace.blocks[step]) - NEWEST, dtype=np.uint32)


def _room(trace: AttentionTrace, step: int, budget: float) -> int:
    return max(0, math.ceil(budget * int(trace.blocks[step])) - 1 - NEWEST)


def _top(worth: Any, evictable: U32, count: int) -> U32:
    return evictable[np.argsort(-worth[evictable].astype(np.float64), kind="stable")[:count]]


def _best_rank(worth: Floats, evictable: U32, facts: list[int]) -> int:
    order = _top(worth, evictable, len(evictable))
    return int(np.flatnonzero(np.isin(order, facts))[0]) + 1


def _log8(codes: Any) -> Floats:
    """Code 0 is zero, else 2 ^ ((code - 255) / 16)."""
    values = np.exp2((codes.astype(np.float64) - 255.0) / 16.0)
    return np.asarray(np.where(codes == 0, 0.0, values))


def parse_rule(text: str) -> AttentionRule:
    """Of `name[:key=value,...]`: attention, or default (the same), newest or best; keys are the
    fields of AttentionRule. ValueError names what is wrong."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    if name in ("newest", "best"):
        options["order"] = name
    elif name not in ("attention", "default"):
        raise ValueError(f"policy: {name!r} does not rank attention; attention, newest and best do")
    types = {field.name: str(field.type) for field in fields(AttentionRule)}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key not in types:
            known = ", ".join(types)
            raise ValueError(f"policy {name}: {pair!r} is not key=value with a key of {known}")
        try:
            kind = {"int": int, "float": float}.get(types[key], str)
            options[key] = kind(value)
        except ValueError:
            raise ValueError(f"policy {name}: {key}: {value!r} is not a number") from None
    return AttentionRule(**options)
