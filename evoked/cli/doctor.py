"""evokectl doctor: is this host fit, and what to do about it where it is not."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from evoke.client import wire
from evoke.config import ConfigError, default_socket_dir, load
from evoke.core import native
from evoked.cli.control import connected, json_option, size_text, socket_option

__all__ = ["doctor"]

_GOOD, _NOTE, _BAD = "good", "note", "bad"
_STYLES: Final = {_GOOD: "green", _NOTE: "yellow", _BAD: "bold red"}


class Finding(NamedTuple):
    """state: good, note (works, could be better) or bad (does not work)."""

    check: str
    state: str
    found: str
    advice: str


@click.command()
@socket_option
@json_option
@click.option("--config", "path", metavar="FILE", help="Configuration to check.")
@click.option("--audit", is_flag=True, help="Also walk the daemon's index and arenas.")
def doctor(directory: str, as_json: bool, path: str | None, audit: bool) -> None:
    """Check configuration and host; with --audit prove the daemon's accounts. Exit 1 if bad."""
    findings = [_configuration(path), *(check() for check in _CHECKS)]
    findings.append(_sockets(directory))
    if audit:
        with connected(directory) as ask:
            findings.append(_audited(ask("audit", wire.Empty())))
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        _print(findings)
    sys.exit(1 if any(finding.state == _BAD for finding in findings) else 0)


def _print(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("check", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        style = _STYLES[finding.state]
        state = f"[{style}]{finding.state}[/{style}]"
        table.add_row(finding.check, state, finding.found, finding.advice)
    Console().print(table)


def _configuration(path: str | None) -> Finding:
    try:
        config = load(path)
    except ConfigError as error:
        return Finding("configuration", _BAD, str(error), "correct it; see config/evoked.toml")
    found = f"host tier {size_text(config.host.capacity_bytes)}"
    return Finding("configuration", _GOOD, found, "")


def _memory() -> Finding:
    available_bytes = native.memory_available_bytes()
    wanted_bytes = load(None).host.capacity_bytes
    found = f"{size_text(available_bytes)} available"
    if available_bytes < wanted_bytes:
        return Finding("memory", _BAD, found, "lower host.capacity, or free memory")
    return Finding("memory", _GOOD, found, "")


def _memlock() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    wanted_bytes = load(None).host.capacity_bytes
    if os.geteuid() == 0 or limit == resource.RLIM_INFINITY or limit >= wanted_bytes:
        return Finding("memlock", _GOOD, "the arena can be locked", "")
    advice = "LimitMEMLOCK=infinity in the unit, or `ulimit -l`; host.lock stays without effect"
    return Finding("memlock", _NOTE, f"limit {size_text(limit)}", advice)


def _hugepages() -> Finding:
    free = _number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    mode = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    if free:
        return Finding("huge pages", _GOOD, f"{free} pages of 2 MiB are free", "")
    if "[never]" in mode or not mode:
        advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("huge pages", _NOTE, "none reserved, THP off", advice)
    return Finding("huge pages", _GOOD, "none reserved; THP serves", "")


def _numa() -> Finding:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    without_cpus = [n.name for n in nodes if not _text(str(n / "cpulist"))]
    found = f"{max(1, len(nodes))} nodes"
    if without_cpus:
        found += f", without CPUs: {', '.join(without_cpus)}"
    return Finding("NUMA", _GOOD, found, "")


def _io_uring() -> Finding:
    disabled = _number("/proc/sys/kernel/io_uring_disabled")
    if disabled == 2 or (disabled == 1 and os.geteuid() != 0):
        return Finding("io_uring", _NOTE, "switched off", "sysctl kernel.io_uring_disabled=0")
    return Finding("io_uring", _GOOD, "allowed", "")


def _gpu() -> Finding:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:  # the driver's library raises types of its own
        return Finding("GPU", _GOOD, f"none ({type(error).__name__})", "")
    return Finding("GPU", _GOOD, f"{count} devices", "")


def _kernel() -> Finding:
    speeds = native.self_test()
    name = native.kernel_name()
    return Finding("copy kernel", _GOOD, f"{name}, {speeds[name] / 1e9:.1f} GB/s", "")


def _sockets(directory: str) -> Finding:
    try:
        place = default_socket_dir(directory)
    except ConfigError as error:
        return Finding("sockets", _BAD, str(error), "choose a shorter --socket")
    path = place / "session.sock"
    if not path.exists():
        return Finding("sockets", _NOTE, f"no daemon in {place}", "start evoked")
    if not os.access(path, os.R_OK | os.W_OK):
        advice = f"join the group of {path}, then log in again"
        return Finding("sockets", _BAD, f"{path} may not be opened", advice)
    return Finding("sockets", _GOOD, str(place), "")


def _audited(result: dict[str, Any]) -> Finding:
    found = f"{result['indexed_places']} places indexed, {result['arena_blocks']} allocated"
    if result["good"]:
        return Finding("audit", _GOOD, found, "")
    return Finding("audit", _BAD, "; ".join(result["findings"]), "report it with the daemon's log")


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _number(path: str) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


_CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    _memory, _memlock, _hugepages, _numa, _io_uring, _gpu, _kernel,
)  # fmt: skip
