"""evokectl simulate X.npz: rules of attention judged on a recorded trace."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evoke.policy.attention import AttentionTrace, evaluate, parse_rule
from evoked.cli.trace_files import BadTrace

__all__ = ["is_attention", "simulate_attention"]

DEFAULT_RULES = (
    "attention",
    "attention:signal=max",
    "attention:signal=two",
    "newest",
    "best",
)


def is_attention(path: str) -> bool:
    return path.endswith(".npz")


def simulate_attention(
    path: str,
    specs: tuple[str, ...],
    capacities: tuple[str, ...],
    horizon_steps: int,
    as_json: bool,
) -> None:
    """Without specs, or with only `default`, the rules that the docs compare; without capacities
    20 %. BadTrace or ValueError: nothing was printed."""
    trace = load_attention(path)
    chosen = DEFAULT_RULES if specs in ((), ("default",)) else specs
    if "retrieval" not in trace.channels and chosen is DEFAULT_RULES:
        chosen = tuple(spec for spec in chosen if "two" not in spec)
    rows = []
    for spec in chosen:
        for capacity in capacities or ("20%",):
            found = evaluate(trace, parse_rule(spec), _share(capacity), horizon_steps)
            rows.append(
                {
                    "trace": path,
                    "policy": spec,
                    "capacity": capacity,
                    "horizon_steps": horizon_steps,
                    "decisions": found.decisions,
                    "kept": found.kept,
                    "fact_ranks": [list(pair) for pair in found.fact_ranks],
                }
            )
    if as_json:
        click.echo(json.dumps(rows))
    else:
        _print(rows)


def load_attention(path: str) -> AttentionTrace:
    """NAME.npz and the NAME.json beside it. BadTrace names the file and what is wrong."""
    beside = Path(path).with_suffix(".json")
    try:
        meta = json.loads(beside.read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise BadTrace(f"trace {beside}: holds no object")
        with np.load(path, allow_pickle=False) as arrays:
            return AttentionTrace.load(arrays, meta)
    except OSError as error:
        raise BadTrace(f"trace {error.filename or path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile, EOFError) as error:
        raise BadTrace(f"trace {path}: {error}") from None


def _share(capacity: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", capacity.strip(), re.ASCII)
    if match is None:
        raise ValueError(f"capacity: {capacity!r} is no percentage of the blocks that exist")
    return float(match[1]) / 100


def _print(rows: list[dict[str, Any]]) -> None:
    horizon = rows[0]["horizon_steps"]
    table = Table(
        title=f"{escape(rows[0]['trace'])}: attention kept over the next {horizon} steps",
        caption="ranks of the planted fact, 1 the highest: 8 steps into each answer / at its end",
    )
    for column, justify in (("policy", "left"), ("budget", "right"), ("kept", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("fact ranks")
    for row in rows:
        ranks = "  ".join(f"{early or '-'}/{late or '-'}" for early, late in row["fact_ranks"])
        table.add_row(escape(row["policy"]), row["capacity"], f"{row['kept']:.3f}", ranks or "-")
    Console().print(table)
