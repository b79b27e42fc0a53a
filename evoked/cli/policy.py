"""evokectl policy: look at the policy in force, check another, and replace it."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.table import Table

from evoke.client import wire
from evoke.config import ConfigError
from evoke.config.tables import read
from evoked.cli.control import connected, json_option, socket_option

__all__ = ["policy"]

WAIT_S: Final = 60.0


@click.group()
def policy() -> None:
    """The rules by which blocks stay or leave."""


@policy.command()
@socket_option
@json_option
def show(directory: str, as_json: bool) -> None:
    """Version, source and every value of the policy in force."""
    with connected(directory) as ask:
        state = ask("policy_show", wire.Empty())
    if as_json:
        click.echo(json.dumps(state))
        return
    click.echo(f"version {state['version']}, from {state['source']}")
    for section, values in state["effective"].items():
        if isinstance(values, dict):
            click.echo(f"\n[{section}]")
            for key, value in values.items():
                click.echo(f"{key} = {json.dumps(value)}")
    _warn(state["warnings"])


@policy.command()
@socket_option
@json_option
@click.argument("file", type=click.Path(path_type=Path))
def check(directory: str, as_json: bool, file: Path) -> None:
    """Whether FILE could be put into force; nothing changes. Exit 1 if not."""
    content = _content(file, as_json)
    with connected(directory, WAIT_S) as ask:
        result = ask("policy_check", wire.PolicyText(content, str(file)))
    if as_json:
        click.echo(json.dumps(result))
    elif result["good"]:
        click.echo(f"{file} is good")
        _warn(result["warnings"])
    _end(result["error"])


@policy.command()
@socket_option
@json_option
@click.option("--wait", is_flag=True, help=f"Up to {WAIT_S:.0f} s for a policy of your own.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
def reload(directory: str, as_json: bool, wait: bool, file: Path | None) -> None:
    """Put FILE into force, or, without one, the daemon's own file. A file with an error changes
    nothing; exit 1."""
    args = wire.PolicyReload(None, "")
    if file is not None:
        args = wire.PolicyReload(_content(file, as_json), str(file.absolute()))
    started_s = time.monotonic()
    with connected(directory, WAIT_S if wait else None) as ask:
        result = ask("policy_reload", args)
    if as_json:
        click.echo(json.dumps(result))
    elif result["applied"]:
        what = "is in force" if result["changed"] else "was in force already"
        took_ms = (time.monotonic() - started_s) * 1000
        click.echo(f"version {result['version']} {what} ({took_ms:.0f} ms)")
        _warn(result["warnings"])
    _end(result["error"])


@policy.command()
@socket_option
@json_option
def history(directory: str, as_json: bool) -> None:
    """What was put into force or refused, and when."""
    with connected(directory) as ask:
        rows = ask("policy_history", wire.Empty())
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table(box=None)
    for title in ("when", "version", "outcome", "formula", "source", "reason"):
        table.add_column(title, overflow="fold")
    for row in rows:
        when = datetime.fromtimestamp(row["unix_ms"] / 1000).isoformat(" ", "seconds")
        texts = (row["outcome"], row["formula"], row["source"], row["reason"])
        table.add_row(when, str(row["version"]), *texts)
    Console(markup=False, highlight=False).print(table)


def _content(file: Path, as_json: bool) -> str:
    try:
        return read(file)
    except ConfigError as error:
        if as_json:
            row = {"file": error.file, "line": error.line, "key": "", "reason": error.reason}
            click.echo(json.dumps({"error": {**row, "text": error.brief()}}))
        _end({"text": error.brief()})


def _warn(sentences: list[str]) -> None:
    for sentence in sentences:
        click.echo(f"evokectl: warning: {sentence}", err=True)


def _end(error: dict[str, Any] | None) -> NoReturn:
    """Exit 0, or 1 with `file:line key: reason` as the whole line."""
    if error is not None:
        click.echo(error["text"], err=True)
    sys.exit(0 if error is None else 1)
