"""evokectl doctor: is this host fit, and what to do about it where it is not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evoke.client import wire
from evoke.config import Config, ConfigError, default_socket_dir, load
from evoked.cli.control import connected, json_option, size_text, socket_option
from evoked.cli.doctor_host import BAD, GOOD, NOTE, Finding, host_findings, is_served
from evoked.policy_texts import load_configured

__all__ = ["doctor"]

_STYLES: Final = {GOOD: "green", NOTE: "yellow", BAD: "bold red"}
SYSTEM_FILE: Final = "/etc/evoked/evoked.toml"  # what the unit reads


@click.command()
@socket_option
@json_option
@click.option("--config", "path", metavar="FILE", help=f"To check; {SYSTEM_FILE} if it is there.")
@click.option("--audit", is_flag=True, help="Also walk the daemon's index and arenas.")
def doctor(directory: str, as_json: bool, path: str | None, audit: bool) -> None:
    """Check configuration and host; with --audit prove the daemon's accounts. Exit 1 if bad."""
    if path is None and os.path.exists(SYSTEM_FILE):
        path = SYSTEM_FILE
    config, findings = _configuration(path)
    sockets, is_up = _sockets(directory, config.daemon.socket)
    findings += [*host_findings(config, is_up=is_up), sockets]
    if audit:
        with connected(directory) as ask:
            findings.append(_audited(ask("audit", wire.Empty())))
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        _print(findings)
    sys.exit(1 if any(finding.state == BAD for finding in findings) else 0)


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("check", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        style = _STYLES[finding.state]
        state = f"[{style}]{finding.state}[/{style}]"
        table.add_row(finding.check, state, escape(finding.found), escape(finding.advice))
    Console().print(table)


def _configuration(path: str | None) -> tuple[Config, list[Finding]]:
    """The configuration, or the defaults where it is bad, and what was found in it."""
    try:
        config = load(path)
    except ConfigError as error:
        advice = "correct it; see config/evoked.toml. What follows is for the defaults"
        return load(None), [Finding("configuration", BAD, str(error), advice)]
    found = f"{path or 'the defaults'}: host tier {size_text(config.host.capacity_bytes)}"
    findings = [Finding("configuration", GOOD, found, "")]
    try:
        policy = load_configured(config.daemon.policy)
    except ConfigError as error:
        findings.append(Finding("policy", BAD, str(error), "correct it; see config/policy.toml"))
    else:
        found = f"{config.daemon.policy or 'the default'}: formula {policy.priority.formula}"
        state, advice = (NOTE, "; ".join(policy.warnings)) if policy.warnings else (GOOD, "")
        findings.append(Finding("policy", state, found, advice))
    return config, findings


def _sockets(directory: str, configured: str) -> tuple[Finding, bool]:
    """Also whether a daemon is there."""
    try:
        place: Path = default_socket_dir(directory, configured=configured)
    except ConfigError as error:
        return Finding("sockets", BAD, str(error), "choose a shorter --socket"), False
    path = place / "session.sock"
    try:
        if is_served(path):
            return Finding("sockets", GOOD, f"a daemon serves {place}", ""), True
    except PermissionError:
        advice = f"join the group of {path}, then log in again"
        return Finding("sockets", BAD, f"{path} may not be opened", advice), False
    except OSError as error:  # its queue of newcomers is full, or it hangs
        advice = "evokectl status; systemctl restart evoked if that hangs too"
        return Finding("sockets", BAD, f"{path} does not answer: {error}", advice), True
    return Finding("sockets", NOTE, f"no daemon in {place}", "start evoked"), False


def _audited(result: dict[str, Any]) -> Finding:
    found = f"{result['indexed_places']} places indexed, {result['arena_blocks']} allocated"
    if result["good"]:
        return Finding("audit", GOOD, found, "")
    return Finding("audit", BAD, "; ".join(result["findings"]), "report it with the daemon's log")
