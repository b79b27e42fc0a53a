"""Replays recorded agent sessions (agent_session.jsonl) block by block under the turn rules.

A record is one parsed line: `session` (name, config), `turn` (token counts; `published` counters or
null) or `block` (an event of a turn). Of the events only what a client did is taken: which blocks
were computed (`decode`) and generated. Evictions and splices are decided here, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from evoke.policy.relevance import ROLES, Relevance
from evoke.policy.residency import Block, Counts, Residency, TurnRules

__all__ = ["COUNTERS", "Session", "TurnRow", "load_sessions", "replay"]

COUNTERS: Final = (
    "peak_resident",
    "resident_end",
    "blocks_evicted",
    "tokens_evicted",
    "blocks_recovered",
    "tokens_recovered",
)
_NO_BUDGET: Final = 1 << 62


@dataclass(frozen=True)
class Turn:
    number: int
    overhead_tokens: int  # of the prompt that are dropped after it (an injected template)
    decoded: list[Mapping[str, Any]]
    generated: list[Mapping[str, Any]]
    published: Mapping[str, int] | None


@dataclass(frozen=True)
class Session:
    name: str
    rules: TurnRules  # as recorded: the source's order of precedence
    turns: list[Turn]


@dataclass(frozen=True)
class TurnRow:
    """`published_equal`: whether all six counters are the published ones; None: none are known."""

    session: str
    turn: int
    counts: Counts
    published_equal: bool | None

    def as_dict(self) -> dict[str, Any]:
        row = {"session": self.session, "turn": self.turn, "published_equal": self.published_equal}
        return row | asdict(self.counts)


def load_sessions(records: Iterable[Mapping[str, Any]]) -> list[Session]:
    """ValueError names the record (from 1) and what is wrong with it."""
    configs: dict[str, Mapping[str, Any]] = {}
    turns: dict[str, dict[int, Mapping[str, Any]]] = {}
    events: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for number, record in enumerate(records, 1):
        try:
            kind, name = record["type"], record["session"]
            if kind == "session":
                configs[name] = record["config"]
                turns[name] = {}
            elif kind == "turn":
                turns[name][int(record["turn"])] = record
            elif kind == "block":
                _check_block(record)
                events.setdefault((name, int(record["turn"])), []).append(record)
            else:
                raise ValueError(f"type: {kind!r}, known: session, turn, block")
        except (KeyError, TypeError) as error:
            raise ValueError(f"record {number}: {error} is missing or of another type") from None
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from None
    return [
        Session(
            name,
            _rules(config),
            [_turn(record, events.get((name, t), [])) for t, record in sorted(turns[name].items())],
        )
        for name, config in configs.items()
        if any(key[0] == name for key in events)
    ]


def _check_block(record: Mapping[str, Any]) -> None:
    start, tokens = record["start"], record["tokens"]
    if not (isinstance(start, int) and isinstance(tokens, int) and start >= 0 and tokens >= 1):
        raise ValueError(f"start: {start!r}, tokens: {tokens!r}")
    for name in ("event", "content", "role"):
        if not isinstance(record[name], str):
            raise ValueError(f"{name}: {record[name]!r} is not a text")


def _rules(config: Mapping[str, Any]) -> TurnRules:
    evicts = config.get("eviction", True)
    return TurnRules(
        budget_tokens=config["budget"] if evicts else _NO_BUDGET,
        high=config.get("high", 0.92),
        low=config.get("low", 0.70),
        gap_fill=config.get("gap_fill", "everything"),
        reserve_tokens=config.get("reserve", 0),
        splice_protection="exempt",
        protect_above=config.get("protect_threshold", 0.0),
        recovery_decay=config.get("recovery_decay", 0.7),
        # Roles other than a reply's were not told to the source system.
        relevance=Relevance(user_floor=0.0),
    )


def _turn(record: Mapping[str, Any], events: list[Mapping[str, Any]]) -> Turn:
    return Turn(
        number=record["turn"],
        overhead_tokens=record.get("template_prefill_dropped", 0),
        decoded=[e for e in events if e["event"] == "decode"],
        generated=[e for e in events if e["event"] == "generate"],
        published=record.get("published"),
    )


def replay(session: Session, splice_protection: str = "exempt") -> list[TurnRow]:
    """One row a turn. "last" is this product's own order of precedence."""
    rules = replace(session.rules, splice_protection=splice_protection)
    residency = Residency(rules)
    prompt: dict[int, tuple[int, str]] = {}  # what the client resends, by start
    rows = []
    for turn in session.turns:
        new = [_block(event) for event in turn.decoded]
        first = min((block.start for block in new), default=None)
        if first is not None:
            prompt = {start: piece for start, piece in prompt.items() if start < first}
        tail_tokens = sum(block.tokens for block in new) + turn.overhead_tokens
        cursor = max((start + tokens for start, (tokens, _) in prompt.items()), default=0)
        residency.begin(
            lambda b, known=prompt: known.get(b.start) == (b.tokens, b.content),  # type: ignore[misc]
            cursor + tail_tokens,
        )
        counts = _run(residency, new, [_block(event) for event in turn.generated])
        prompt |= {e["start"]: (e["tokens"], e["content"]) for e in turn.decoded + turn.generated}
        rows.append(TurnRow(session.name, turn.number, counts, _equal(counts, turn.published)))
    return rows


def _run(residency: Residency, new: list[Block], replies: list[Block]) -> Counts:
    for block in new:
        residency.add(block)
    position = max(residency.resident, default=0)
    if residency.resident:
        position = residency.resident[position].end
    if residency.rules.splice_protection == "exempt":
        residency.relieve(position)
    for block in replies:
        block.reply = True
        residency.add(block)
    return residency.end(position + sum(block.tokens for block in replies))


def _block(event: Mapping[str, Any]) -> Block:
    role = event["role"] if event["role"] in ROLES else "none"
    return Block(
        0,
        event["start"],
        event["tokens"],
        event["content"],
        role=role,
        pinned=bool(event.get("pinned")),
        sink=bool(event.get("sink")),
    )


def _equal(counts: Counts, published: Mapping[str, int] | None) -> bool | None:
    if published is None:
        return None
    return all(getattr(counts, name) == published[name] for name in COUNTERS)
