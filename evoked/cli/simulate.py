"""evokectl simulate: what policies would have had on a recorded trace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evoke.config.sizes import parse_size
from evoke.policy.formula import Formula
from evoke.policy.sessions import Session, replay
from evoke.policy.simulate import TOUCHES
from evoke.policy.simulate import simulate as run
from evoke.policy.spec import parse_spec
from evoke.policy.thresholds import Thresholds
from evoke.policy.traces import Trace
from evoked.cli.attention import is_attention, simulate_attention
from evoked.cli.control import fail, json_option
from evoked.cli.trace_files import BadTrace, load_trace
from evoked.policy_files import user_formula

__all__ = [
    "Job",
    "Row",
    "capacity_blocks",
    "make_jobs",
    "print_rows",
    "simulate",
    "simulation_options",
]

USAGE: Final = 2
Command = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One run; `policy` and `trace` as they were given. No capacity: tiers of thresholds."""

    trace: str
    policy: str
    touch: str
    capacity_blocks: int | None
    accesses: int
    hits: int
    prefix_hits: int
    evictions: int
    seconds: float
    tiers: dict[str, float] | None = None  # of thresholds only

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self)
        return row | (row.pop("tiers") or {})


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    trace_name: str
    spec: str
    policy: Formula | Thresholds
    touch: str
    capacity_blocks: int | None

    def run(self, trace: Trace) -> Row:
        """ValueError: the policy cannot run over this trace."""
        start = time.perf_counter()
        tiers = None
        if isinstance(self.policy, Thresholds):
            counts = asdict(self.policy.simulate(trace))
            names = "hot", "cold", "resident_mean", "resident_max", "resident_hot_mean"
            tiers = {name: counts.pop(name) for name in names}
            counts["hits"] = tiers["hot"] + tiers["cold"]
        else:
            assert self.capacity_blocks is not None
            counts = asdict(run(trace, self.policy, self.capacity_blocks, self.touch))
        seconds = time.perf_counter() - start
        return Row(
            trace=self.trace_name,
            policy=self.spec,
            touch=self.touch,
            capacity_blocks=self.capacity_blocks,
            seconds=seconds,
            tiers=tiers,
            **counts,
        )


def capacity_blocks(text: str, trace: Trace, block_bytes: int | None) -> int:
    """Of "1%" (of the distinct blocks of the trace), "20000" (blocks) or "4GiB" (of blocks of
    block_bytes), rounded down. ValueError: another text, or less than one block."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII):
        blocks = int(text)
    elif match := re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*%", text, re.ASCII):
        blocks = int(Fraction(match[1]) * trace.identities / 100)
    else:
        try:
            size_bytes = parse_size(text)
        except ValueError as error:
            raise ValueError(f"capacity: {error}") from None
        if block_bytes is None:
            raise ValueError(f"capacity: {text!r} needs --block-bytes")
        blocks = size_bytes // block_bytes
    if blocks < 1:
        raise ValueError(f"capacity: {text!r} is {blocks} of {trace.identities} blocks")
    return blocks


def simulation_options(command: Command) -> Command:
    """What simulate and sweep share."""
    text = "Order in which a request touches its blocks."
    choice = click.Choice(TOUCHES)
    touch = click.option("--touch", type=choice, default="tail-first", show_default=True, help=text)
    block = click.option("--block-bytes", metavar="SIZE", help="Of one block, as in 5MiB.")
    return touch(block(command))


@click.command()
@click.argument("trace")
@click.option("--policy", "policies", multiple=True, default=["default"], metavar="SPEC",
              help="name[:key=value,...]; several are compared. Without: default.")  # fmt: skip
@click.option("--capacity", "capacities", multiple=True, metavar="SIZE",
              help="As in 1% (of the distinct blocks), 20000 (blocks), 4GiB.")  # fmt: skip
@click.option("--splice-protection", type=click.Choice(("exempt", "last")), default="exempt",
              show_default=True, help="Agent sessions only: the rule they were recorded under, "
              "or evoke's own.")  # fmt: skip
@click.option("--horizon-steps", type=click.IntRange(1), default=64, show_default=True,
              help="Attention only: decode steps that a choice is judged on.")  # fmt: skip
@simulation_options
@json_option
def simulate(
    trace: str,
    policies: tuple[str, ...],
    capacities: tuple[str, ...],
    splice_protection: str,
    horizon_steps: int,
    touch: str,
    block_bytes: str | None,
    as_json: bool,
) -> None:
    """Run policies over TRACE and count hits.

    TRACE is a file of requests (Mooncake's JSONL or a recording of evoke's own, also packed with xz
    or gzip), of agent sessions, or of attention (NAME.npz with NAME.json beside it; policies are
    then attention[:signal=mean|max|two,...], newest and best, capacities percentages). A policy is,
    for example, lru, lfu:state=keep, lrfu:half_life=200,clock=second,state=keep. Exit status 2 when
    an argument is wrong.
    """
    try:
        if is_attention(trace):
            simulate_attention(trace, policies, capacities, horizon_steps, as_json)
            return
        loaded = load_trace(trace)
        if loaded.sessions is not None:
            _print_turns(loaded.sessions, splice_protection, as_json)
            return
        assert loaded.trace is not None
        jobs = make_jobs(trace, loaded.trace, policies, capacities, touch, block_bytes)
        rows = [job.run(loaded.trace) for job in jobs]
    except (BadTrace, ValueError) as error:
        fail(str(error), USAGE)
    if as_json:
        click.echo(json.dumps([row.as_dict() for row in rows]))
    else:
        print_rows(rows, loaded.trace)


def make_jobs(
    trace_name: str,
    trace: Trace,
    specs: Iterable[str],
    capacities: Iterable[str],
    touch: str,
    block_bytes: str | None,
) -> list[Job]:
    """All policies at all capacities; thresholds once. ValueError names what is wrong."""
    block = None if block_bytes is None else parse_size(block_bytes)
    if block == 0:
        raise ValueError("block-bytes: 0 is not at least 1")
    blocks = [capacity_blocks(text, trace, block) for text in capacities]
    jobs = []
    for spec in specs:
        policy = user_formula(spec) if spec.startswith("file:") else parse_spec(spec)
        is_free = isinstance(policy, Thresholds)
        if not (blocks or is_free):
            raise ValueError(f"capacity: none is given, and policy {spec} needs one")
        for capacity in [None] if is_free else blocks:
            jobs.append(Job(trace_name, spec, policy, touch, capacity))
    return jobs


# ---------------------------------------------------------------- for people


def print_rows(rows: list[Row], trace: Trace) -> None:
    console = Console()
    best = 100 * (1 - trace.identities / trace.accesses)
    title = f"{escape(rows[0].trace)}: {trace.accesses:,} accesses of {trace.identities:,} blocks"
    table = Table(title=title, caption=f"at most {best:.2f} % can be hits")
    for column in ("policy", "blocks", "prefix hit %", "hit %", "evictions", "M accesses/s"):
        if column == "policy":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(row.policy),
            "-" if row.capacity_blocks is None else f"{row.capacity_blocks:,}",
            f"{100 * row.prefix_hits / row.accesses:.2f}",
            f"{100 * row.hits / row.accesses:.2f}",
            f"{row.evictions:,}",
            f"{row.accesses / row.seconds / 1e6:.1f}",
        )
    console.print(table)
    _print_tiers(console, [row for row in rows if row.tiers is not None])


def _print_tiers(console: Console, rows: list[Row]) -> None:
    if not rows:
        return
    table = Table(title="tiers of thresholds")
    for column in ("policy", "hits in first", "in second", "mean blocks", "in first", "most"):
        if column == "policy":
            table.add_column(column, overflow="fold")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        assert row.tiers is not None
        tiers = row.tiers
        counts = f"{tiers['hot']:,}", f"{tiers['cold']:,}", f"{tiers['resident_mean']:,.1f}"
        more = f"{tiers['resident_hot_mean']:,.1f}", f"{tiers['resident_max']:,}"
        table.add_row(escape(row.policy), *counts, *more)
    console.print(table)


def _print_turns(sessions: list[Session], splice_protection: str, as_json: bool) -> None:
    rows = [row.as_dict() for one in sessions for row in replay(one, splice_protection)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table(title=f"agent sessions, splice_protection = {splice_protection}")
    for column in rows[0]:
        table.add_column(
            column.replace("_", " "), justify="left" if column == "session" else "right"
        )
    for row in rows:
        table.add_row(*("-" if value is None else escape(str(value)) for value in row.values()))
    Console().print(table)
