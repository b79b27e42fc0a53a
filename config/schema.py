"""Every setting of the daemon, its type, its default and what it may be. evoked.toml explains them.

Values are resolved: sizes are bytes, the socket mode is a number. Config() holds the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, get_args, get_type_hints

from evoke.config.quotas import Quota, Quotas
from evoke.config.rules import Choice, Flag, Integer, Integers, Mode, Rule, Size, Text
from evoke.config.sizes import parse_size

__all__ = ["Access", "Config", "Daemon", "Debug", "Host", "Limits", "Tenants", "rules"]

Threads = Annotated[int, Integer(0, 256)]
Switch = Annotated[bool, Flag()]


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """The process itself."""

    socket: Annotated[str, Text(94)] = ""  # a directory; "": default_socket_dir()
    workers: Threads = 0  # 0: min(4, cores / 2), at least 1
    log: Annotated[str, Choice(("auto", "console", "json"))] = "auto"
    verify_fetch: Switch = True
    policy: Annotated[str, Text(1024)] = ""  # a file; "": the default policy
    policy_dir: Annotated[str, Text(1024)] = ""  # a directory; "": no policies in files
    policy_deadline_ms: Annotated[int, Integer(1, 60_000)] = 200
    state_dir: Annotated[str, Text(1024)] = ""  # a directory; "": $STATE_DIRECTORY, else none


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host tier."""

    capacity_bytes: Annotated[int, Size("2MiB", "64TiB", of_memory=True, key="capacity")] = field(
        default_factory=partial(parse_size, "10%")
    )
    backing: Annotated[str, Choice(("auto", "hugetlb", "thp", "4k"))] = "auto"
    lock: Switch = False
    prefault_threads: Threads = 0  # 0: one per core


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of queues, tables and waits; a peer that meets one gets the code BUSY."""

    sessions: Annotated[int, Integer(1, 65_536)] = 1024
    sessions_per_user: Annotated[int, Integer(1, 65_536)] = 512
    session_grants: Annotated[int, Integer(1, 1_000_000)] = 4096
    session_inflight_bytes: Annotated[int, Size("1MiB", "64TiB")] = parse_size("1GiB")
    session_requests_per_s: Annotated[int, Integer(1, 10_000_000)] = 100_000
    session_host_percent: Annotated[int, Integer(1, 100)] = 50
    pins_host_percent: Annotated[int, Integer(1, 100)] = 50
    session_pools: Annotated[int, Integer(1, 65_536)] = 64
    namespaces: Annotated[int, Integer(1, 65_536)] = 1024
    incomplete_ms: Annotated[int, Integer(10, 3_600_000)] = 30_000
    loop_memory_bytes: Annotated[int, Size("16MiB", "1TiB")] = parse_size("256MiB")


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """Quotas of each salt; the blocks without a salt are one tenant more."""

    host_percent: Annotated[int, Integer(1, 100)] = 100
    grants: Annotated[int, Integer(1, 10_000_000)] = 65_536
    requests_per_s: Annotated[int, Integer(1, 10_000_000)] = 1_000_000
    exceptions: Annotated[tuple[Quota, ...], Quotas()] = ()


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may connect."""

    uids: Annotated[tuple[int, ...], Integers(0, 0xFFFF_FFFE)] = ()  # (): whoever opens the socket
    group: Annotated[str, Text(32)] = "evoked"
    socket_mode: Annotated[int, Mode()] = 0o660


@dataclass(frozen=True, kw_only=True)
class Debug:
    """For tests of the daemon."""

    inject: Switch = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration of one daemon."""

    daemon: Daemon = field(default_factory=Daemon)
    host: Host = field(default_factory=Host)
    limits: Limits = field(default_factory=Limits)
    tenants: Tenants = field(default_factory=Tenants)
    access: Access = field(default_factory=Access)
    debug: Debug = field(default_factory=Debug)


def rules() -> dict[str, tuple[type[Any], dict[str, tuple[str, Rule]]]]:
    """Section -> (its class, {key in the file: (field, rule)}), in the schema's order."""
    result = {}
    for name, section in get_type_hints(Config).items():
        keys = {}
        hints = get_type_hints(section, include_extras=True)
        for item in fields(section):
            rule = next(part for part in get_args(hints[item.name]) if isinstance(part, Rule))
            keys[getattr(rule, "key", "") or item.name] = (item.name, rule)
        result[name] = (section, keys)
    return result
