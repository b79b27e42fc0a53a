"""evokectl sweep: grids of options and capacities over a recorded trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evoke.policy.traces import Trace
from evoked.cli.control import fail, json_option
from evoked.cli.simulate import Job, Row, make_jobs, print_rows, simulation_options
from evoked.cli.trace_files import BadTrace, load_requests

__all__ = ["Grid", "expand", "sweep"]

USAGE: Final = 2
RUNS_MAX: Final = 10_000


@dataclass(frozen=True)
class Grid:
    """A SPEC with several values per key: `axes` are the keys that vary, in their order; `specs`
    one SPEC for each combination of their values."""

    text: str
    axes: dict[str, tuple[str, ...]]
    specs: dict[tuple[str, ...], str]


def expand(text: str) -> Grid:
    """`lrfu:alpha=0.3/0.05,state=keep` is two SPECs. ValueError: more than 10,000 of them."""
    name, colon, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",")] if colon else []
    values = [tuple(value.split("/")) for _, _, value in pairs]
    axes = {key: v for (key, _, _), v in zip(pairs, values, strict=True) if len(v) > 1}
    count = 1
    for choices in values:
        count *= len(choices)
    if count > RUNS_MAX:
        raise ValueError(f"policy {name}: {count} combinations, at most {RUNS_MAX}")
    specs = {}
    for chosen in product(*values):
        joined = ",".join(
            f"{key}{equals}{value}" for (key, equals, _), value in zip(pairs, chosen, strict=True)
        )
        varied = tuple(v for (key, _, _), v in zip(pairs, chosen, strict=True) if key in axes)
        specs[varied] = name + colon + joined
    return Grid(text, axes, specs)


@click.command()
@click.argument("trace")
@click.option("--policy", "policies", multiple=True, required=True, metavar="SPEC",
              help="As in simulate; a key takes several values: alpha=0.3/0.1/0.03.")  # fmt: skip
@click.option("--capacity", "capacities", multiple=True, metavar="SIZE",
              help="As in simulate; also several: 1%/2%/5%.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 256), help="Runs at the same time; all cores.")
@click.option("--plot", metavar="FILE.png", help="Draw it: curves, or heat maps of two keys.")
@simulation_options
@json_option
def sweep(
    trace: str,
    policies: tuple[str, ...],
    capacities: tuple[str, ...],
    jobs: int | None,
    plot: str | None,
    touch: str,
    block_bytes: str | None,
    as_json: bool,
) -> None:
    """Run a grid of policies and capacities over TRACE.

    For example --policy product:alpha=0.1/0.01/0.001,beta=1/0.1/0.01,state=keep --capacity 1%/10%,
    --policy lrfu:half_life=20/200,clock=request/second or --policy thresholds:keep=0.05/0.1. Rows
    and columns are those of simulate. --plot needs matplotlib (pip install 'evoked[plot]').
    """
    try:
        if plot is not None:
            _check_plot(plot)
        loaded = load_requests(trace)
        grids = [expand(text) for text in policies]
        sizes = [size for text in capacities for size in text.split("/")]
        specs = [spec for grid in grids for spec in grid.specs.values()]
        runs = make_jobs(trace, loaded, specs, sizes, touch, block_bytes)
        rows = _run(runs, loaded, jobs or len(os.sched_getaffinity(0)), as_json)
        if plot is not None:
            from evoked.cli.plots import draw  # matplotlib takes a second to load

            draw(plot, grids, rows, loaded)
    except (BadTrace, ValueError) as error:
        fail(str(error), USAGE)
    except OSError as error:
        fail(f"plot {plot}: {error.strerror or error}")
    if as_json:
        click.echo(json.dumps([row.as_dict() for row in rows]))
    else:
        print_rows(rows, loaded)


def _check_plot(path: str) -> None:
    if Path(path).suffix != ".png":
        raise ValueError(f"plot: {path!r} does not end in .png")
    if find_spec("matplotlib") is None:
        raise ValueError("plot: matplotlib is missing; pip install 'evoked[plot]'")


def _run(runs: Iterable[Job], trace: Trace, at_once: int, as_json: bool) -> list[Row]:
    """Rows in the order of runs. Threads: the core runs without Python's lock."""
    runs = list(runs)
    console = Console(stderr=as_json)
    columns = TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(at_once) as pool,
    ):
        task = progress.add_task("", total=len(runs))
        futures = [pool.submit(run.run, trace) for run in runs]
        try:
            for future in as_completed(futures):
                future.result()
                progress.advance(task)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]
