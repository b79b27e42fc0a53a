"""evokectl trace: recorded streams of requests."""

from __future__ import annotations

import json
from typing import Any, Final

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evoke.policy.sessions import Session
from evoke.policy.traces import Trace
from evoked.cli.control import fail, json_option
from evoked.cli.trace_files import BadTrace, Loaded, load_trace

__all__ = ["trace"]

USAGE: Final = 2


@click.group()
def trace() -> None:
    """Recorded streams of requests."""


@trace.command()
@click.argument("file")
@json_option
def info(file: str, as_json: bool) -> None:
    """What FILE holds: requests, blocks, how much of it is reused."""
    try:
        loaded = load_trace(file)
    except BadTrace as error:
        fail(str(error), USAGE)
    facts = {"trace": file, "format": loaded.format, **_facts(loaded)}
    if as_json:
        click.echo(json.dumps(facts))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), _text(value))
    Console().print(table)


def _facts(loaded: Loaded) -> dict[str, Any]:
    if loaded.sessions is not None:
        return _session_facts(loaded.sessions)
    assert loaded.trace is not None
    facts = _request_facts(loaded.trace)
    if loaded.recording is not None:
        recording = loaded.recording
        facts["whole"] = recording.whole
        facts["namespaces"] = len(recording.block_sizes)
        facts["block_tokens"] = sorted({tokens for tokens, _ in recording.block_sizes})
        facts["block_bytes"] = sorted({size for _, size in recording.block_sizes})
        facts["recorded_hits"] = int(recording.hits.sum())
    return facts


def _request_facts(trace: Trace) -> dict[str, Any]:
    lengths = np.diff(trace.starts.astype(np.int64))
    uses = np.bincount(trace.ids, minlength=trace.identities)
    reuses = trace.accesses - trace.identities
    return {
        "requests": trace.requests,
        "accesses": trace.accesses,
        "distinct_blocks": trace.identities,
        "span_s": round(float(trace.now_s.max() - trace.now_s.min()), 3),
        "request_blocks_mean": round(float(lengths.mean()), 2),
        "request_blocks_max": int(lengths.max()),
        "hit_percent_max": round(100 * reuses / max(trace.accesses, 1), 2),
        "used_once_percent": round(100 * float((uses == 1).mean()), 2) if len(uses) else 0.0,
        "prefixes": trace.broken_prefix() or "each id stands for its prefix",
    }


def _session_facts(sessions: list[Session]) -> dict[str, Any]:
    return {
        "sessions": [session.name for session in sessions],
        "turns": sum(len(session.turns) for session in sessions),
        "blocks": sum(len(t.decoded) + len(t.generated) for s in sessions for t in s.turns),
    }


def _text(value: Any) -> str:
    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    return escape(f"{value:,}" if isinstance(value, int | float) else str(value))
