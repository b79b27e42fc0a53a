"""evokectl bench: what copies, look-ups and round trips cost here, beside baselines."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from evoke.client import Client, EvokeError, connect
from evoke.core import native
from evoked.cli.bench_memory import BATCH_BYTES, LAYOUTS, load_limit
from evoked.cli.bench_run import FIGURE_BATCHES, Bench, Raw, WrongBytes, lookup_us, round_trips_us
from evoked.cli.control import fail, json_option, socket_option
from evoked.cli.demo_run import Daemon, DemoError

__all__ = ["bench"]

ARENA_BATCHES: Final = 3 * FIGURE_BATCHES
SPARE_BYTES: Final = 96 << 20  # look-ups' blocks, and what extents of other sizes leave unused
ROUNDS, ROUNDS_QUICK = 15, 7
ROUND_TRIPS, ROUND_TRIPS_QUICK = 1000, 400
UNREACHABLE: Final = 3
Show = Callable[[], None]

# name in the output -> (sense, target, text); copies: CPU seconds, of client and daemon together
TARGETS: Final = {
    "copy_vs_limit": (">=", 0.9, "copy engine / non-temporal limit"),
    "two_workers_vs_one": (">=", 1.4, "two copy workers / one (two idle cores)"),
    "store_cpu_vs_memcpy": ("<=", 0.9, "store / one memcpy"),
    "fetch_cpu_vs_memcpy": ("<=", 0.9, "fetch / one memcpy"),
    "hf_store_cpu_vs_memcpy": ("<=", 1.5, "store, head-token-element / memcpy"),
    "hf_fetch_cpu_vs_memcpy": ("<=", 1.5, "fetch, head-token-element / memcpy"),
    "staged_store_cpu_vs_memcpy": ("<=", 2.5, "store from private memory / memcpy"),
    "staged_fetch_cpu_vs_memcpy": ("<=", 2.5, "fetch to private memory / memcpy"),
    "lookup_512_us_p50": ("<=", 50.0, "look-up of 512 keys, us"),
    "roundtrip_vs_echo": ("<=", 1.5, "slowest round trip / bare echo"),
}


@click.command()
@click.option("--layout", default="2mib", show_default=True,
              type=click.Choice([*LAYOUTS, "all"]), help="Geometry of the blocks.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Fewer rounds: less than 20 s for one layout.")
@click.option("--rounds", type=click.IntRange(7, 1000), help="Rounds of each layout.")
@socket_option
@json_option
def bench(layout: str, quick: bool, rounds: int | None, directory: str, as_json: bool) -> None:
    """Measure this host: ratios to plain memcpy and to a bare echo, in interleaved rounds.

    Starts a private daemon, unless --socket names one; that one's least recent blocks may then be
    evicted. Needs about 2 GiB. Exit status 1 when a block came back with other bytes.
    """
    names = list(LAYOUTS) if layout == "all" else [layout]
    rounds = rounds or (ROUNDS_QUICK if quick else ROUNDS)
    trips = ROUND_TRIPS_QUICK if quick else ROUND_TRIPS
    console = Console(stderr=as_json)
    try:
        with _progress(console, len(names) * (rounds + 1) + 2) as show:
            results = _run(names, rounds, trips, directory, show)
    except WrongBytes as error:
        fail(str(error))
    except DemoError as error:
        fail(str(error))
    except EvokeError as error:
        fail(f"daemon unreachable: {error}", UNREACHABLE)
    if as_json:
        more = {"layouts": results} if len(results) > 1 else {}
        click.echo(json.dumps({**results[0], **more}))
    else:
        _print(console, results)


@contextmanager
def _progress(console: Console, steps: int) -> Iterator[Show]:
    """A bar that is drawn between rounds only: a thread that draws would be measured as well."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task("measuring", total=steps)

        def show() -> None:
            progress.advance(task)
            progress.refresh()

        yield show


def _run(
    layouts: list[str], rounds: int, trip_rounds: int, directory: str, show: Show
) -> list[dict[str, Any]]:
    limit = load_limit()
    native.self_test()
    salt = f"bench {secrets.token_hex(8)}"  # nobody else's blocks
    with tempfile.TemporaryDirectory(prefix="evoke-bench-") as name:
        folder = Path(name)
        with _client(directory, folder) as client:
            arena_bytes = _arena_bytes(client)
            lookups = lookup_us(client, salt)
            show()
            trips = round_trips_us(client, salt, folder, trip_rounds)
            show()
            return [
                _result(
                    layout,
                    _measure(client, layout, salt, arena_bytes, limit, rounds, show),
                    lookups,
                    trips,
                )
                for layout in layouts
            ]


def _measure(
    client: Client, layout: str, salt: str, arena_bytes: int, limit: Any, rounds: int, show: Show
) -> Raw:
    bench = Bench(client, LAYOUTS[layout], salt, arena_bytes, limit)
    bench.warm()
    show()
    for _ in range(rounds):
        bench.measure()
        show()
    bench.close()
    return bench.raw


@contextmanager
def _client(directory: str, folder: Path) -> Iterator[Client]:
    """Of the daemon in `directory`, or of one of our own, which ends with this."""
    if directory:
        with connect(directory, name="evokectl bench", raise_errors=True) as client:
            yield client
        return
    capacity = f"{(ARENA_BATCHES * BATCH_BYTES + SPARE_BYTES) >> 20}MiB"
    daemon = Daemon(folder / "daemon", [f"host.capacity={capacity}"])
    try:
        with connect(daemon.directory, name="evokectl bench", raise_errors=True) as client:
            yield client
    finally:
        daemon.stop()


def _arena_bytes(client: Client) -> int:
    """What the bench may fill between two flushes of its own blocks."""
    capacity_bytes = int(client.status()["tiers"][0]["capacity_bytes"])
    arena_bytes = min(ARENA_BATCHES * BATCH_BYTES, capacity_bytes - SPARE_BYTES)
    if arena_bytes < FIGURE_BATCHES * BATCH_BYTES:
        least = (FIGURE_BATCHES * BATCH_BYTES + SPARE_BYTES) >> 20
        fail(f"host tier of {capacity_bytes >> 20} MiB: the bench needs {least} MiB")
    return arena_bytes


# ---------------------------------------------------------------- figures


def _result(name: str, raw: Raw, lookups: list[float], trips: Raw) -> dict[str, Any]:
    """The figures of one layout; ratios are medians of each round's own ratio."""
    shape = LAYOUTS[name]
    moved_bytes = BATCH_BYTES // shape.block_bytes * shape.block_bytes
    ratios = _cpu_ratios(raw)
    for key, found in _copy_ratios(raw).items():
        ratios[key] = found
    echo = statistics.median(trips["echo"])
    p50 = {key: statistics.median(values) for key, values in trips.items()}
    slowest = max(p50["ping"], p50["store_0"], p50["fetch_0"])
    figures: dict[str, Any] = {
        "layout": name,
        "block_bytes": shape.block_bytes,
        "copy_vs_limit": None,  # where there is no compiler to make the limit
        **{key: round(statistics.median(values), 4) for key, values in ratios.items()},
    }
    # Of the fastest rounds: what other processes take of two cores, they take of neither in these.
    figures["two_workers_vs_one"] = round(min(raw["wall/1"]) / min(raw["wall/2"]), 4)
    for key in ("store", "fetch", "memcpy"):
        seconds = statistics.median(raw[f"wall/{key}"])
        figures[f"{key}_gbps"] = round(moved_bytes / seconds / 1e9, 3)
    figures["lookup_512_us_p50"] = round(statistics.median(lookups), 2)
    figures["roundtrip_vs_echo"] = round(slowest / echo, 3)
    figures["roundtrip_us_p50"] = {key: round(value, 1) for key, value in p50.items()}
    figures["kernel"] = native.kernel_name()
    figures["cores"] = len(os.sched_getaffinity(0))
    figures["load_average"] = round(os.getloadavg()[0], 2)
    figures["spread"] = {
        key: [round(min(values), 4), round(max(values), 4)] for key, values in ratios.items()
    }
    figures["raw_s"] = {key: [round(value, 9) for value in values] for key, values in raw.items()}
    return figures


def _cpu_ratios(raw: Raw) -> Raw:
    ratios = Raw()
    for prefix in ("", "hf_", "staged_"):
        for verb in ("store", "fetch"):
            pairs = zip(raw[f"cpu/{prefix}{verb}"], raw[f"memcpy/{prefix}"], strict=True)
            ratios[f"{prefix}{verb}_cpu_vs_memcpy"] = [cpu / copy for cpu, copy in pairs]
    best = [min(pair) for pair in zip(raw["memcpy/"], raw["kernel"], strict=True)]
    for verb in ("store", "fetch"):
        pairs = zip(raw[f"cpu/{verb}"], best, strict=True)
        ratios[f"{verb}_cpu_vs_best_copy"] = [cpu / copy for cpu, copy in pairs]
    return ratios


def _copy_ratios(raw: Raw) -> Raw:
    """The engine against the limit, in its slower direction."""
    ratios = Raw()
    for name, key in (("plain", "copy_vs_limit"), ("hf", "hf_copy_vs_limit")):
        directions = [
            f"{name}/{way}" for way in ("gather", "scatter") if f"limit/{name}/{way}" in raw
        ]
        rows = [
            [bare / full for bare, full in zip(raw[f"limit/{d}"], raw[f"engine/{d}"], strict=True)]
            for d in directions
        ]
        if rows:
            ratios[key] = min(rows, key=statistics.median)
    return ratios


# ---------------------------------------------------------------- for people


def _print(console: Console, results: list[dict[str, Any]]) -> None:
    for figures in results:
        size = figures["block_bytes"]
        table = Table(title=f"{figures['layout']}: blocks of {size:,} bytes")
        for column in ("", "measured", "spread", "target"):
            table.add_column(column, justify="left" if column == "" else "right")
        for key, (sense, target, text) in TARGETS.items():
            value = figures[key]
            if value is None:
                table.add_row(text, "-", "", f"{sense} {target:g}")
                continue
            met = value <= target if sense == "<=" else value >= target
            low, high = figures["spread"].get(key, ("", ""))
            spread = f"{low:.2f} to {high:.2f}" if low != "" else ""
            colour = "green" if met else "yellow"
            table.add_row(text, f"[{colour}]{value:.2f}[/]", spread, f"{sense} {target:g}")
        console.print(table)
        rates = ", ".join(f"{k} {figures[f'{k}_gbps']:.2f}" for k in ("store", "fetch", "memcpy"))
        console.print(f"GB per second of wall time: {rates}")
    last = results[-1]
    trips = ", ".join(f"{k} {v:.0f}" for k, v in last["roundtrip_us_p50"].items())
    console.print(f"round trips, us: {trips}")
    console.print(
        f"kernel {last['kernel']}, {last['cores']} cores, load average {last['load_average']}"
    )
