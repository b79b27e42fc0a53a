"""evokectl status: what the daemon is, holds and serves."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evoke.client import wire
from evoked.cli.control import connected, json_option, size_text, socket_option

__all__ = ["metrics", "sessions", "status"]


@click.command()
@socket_option
@json_option
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option("--interval", "interval_s", default=1.0, show_default=True, help="Seconds.")
def status(directory: str, as_json: bool, watch: bool, interval_s: float) -> None:
    """Tiers, namespaces, sessions, hit rates. Exit 1 when health is not green."""
    with connected(directory) as ask:
        state = ask("status", wire.Empty())
        if watch and not as_json:
            with Live(_picture(state), console=Console()) as live:
                while True:
                    time.sleep(max(0.1, interval_s))
                    live.update(_picture(ask("status", wire.Empty())))
        while as_json and watch:
            click.echo(json.dumps(state))
            time.sleep(max(0.1, interval_s))
            state = ask("status", wire.Empty())
    if as_json:
        click.echo(json.dumps(state))
    else:
        Console().print(_picture(state))
    sys.exit(0 if state["health"]["state"] == "green" else 1)


@click.command()
@socket_option
def metrics(directory: str) -> None:
    """Prometheus text of all counters, gauges and distributions."""
    with connected(directory) as ask:
        click.echo(ask("metrics", wire.Empty()), nl=False)


@click.command()
@socket_option
@json_option
def sessions(directory: str, as_json: bool) -> None:
    """Who is connected, and what each holds."""
    with connected(directory) as ask:
        rows = ask("status", wire.Empty())["sessions"]
    if as_json:
        click.echo(json.dumps(rows))
    else:
        Console().print(_sessions(rows))


def _picture(state: dict[str, Any]) -> RenderableType:
    health = state["health"]["state"]
    head = Text(f"evoked {state['version']}, pid {state['pid']}, up {state['uptime_s']:.0f} s, ")
    head.append(health, style="green" if health == "green" else "bold red")
    head.append(f"; policy {state['policy']}, copy kernel {state['copy']['kernel']}")
    parts: list[RenderableType] = [head, _tiers(state), _lookups(state["lookups"])]
    if state["namespaces"]:
        parts.append(_namespaces(state["namespaces"]))
    if state["sessions"]:
        parts.append(_sessions(state["sessions"]))
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    return table


def _tiers(state: dict[str, Any]) -> Table:
    table = _table("tiers", "name", "capacity", "used", "blocks", "backing")
    for row in state["tiers"]:
        sizes = (size_text(row["capacity_bytes"]), size_text(row["used_bytes"]))
        table.add_row(row["name"], *sizes, str(row["blocks"]), row["backing"])
    return table


def _lookups(lookups: dict[str, int]) -> Text:
    hits = lookups["hit_host"] + lookups["hit_cxl"] + lookups["hit_flash"]
    share = f"{100 * hits / lookups['asked']:.1f} %" if lookups["asked"] else "no look-ups yet"
    return Text(f"blocks asked {lookups['asked']}, hits {hits} ({share})")


def _namespaces(rows: list[dict[str, Any]]) -> Table:
    table = _table("namespaces", "id", "model", "dtype", "sessions", "blocks", "bytes")
    for row in rows:
        counts = (str(row["sessions"]), str(row["blocks"]), size_text(row["bytes"]))
        table.add_row(row["id"][:12], _foreign(row["model"]), row["dtype"], *counts)
    return table


def _sessions(rows: list[dict[str, Any]]) -> Table:
    table = _table("sessions", "name", "pid", "uid", "rank", "pools", "grants", "instance")
    for row in rows:
        numbers = (str(row[key]) for key in ("pid", "uid", "rank", "pools", "grants"))
        table.add_row(_foreign(row["name"] or "-"), *numbers, row["instance"])
    return table


def _foreign(text: str) -> Text:
    """A peer's own words, without markup and control characters: they could forge the picture."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:40]))
