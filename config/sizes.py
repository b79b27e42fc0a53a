"""Sizes in configuration are texts with a unit: "8GiB", "512 MiB", "1.5GB", "10%"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from evoke.config.machine import machine_memory_bytes

__all__ = ["UNITS", "format_size", "is_share", "parse_size"]

UNITS: Final = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*|%)", re.ASCII)


def is_share(text: str) -> bool:
    """Whether the size is a share of the machine's memory ("10%")."""
    return text.rstrip().endswith("%")


def parse_size(text: str, memory_bytes: int | None = None) -> int:
    """Bytes, rounded down. "10%" is a share of `memory_bytes` (by default machine_memory_bytes()).

    ValueError says what is wrong: no number, no unit (a bare number is refused), unknown unit,
    a share above 100 %.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    number, unit = Fraction(match[1]), match[2]
    if unit == "%":
        if number > 100:
            raise ValueError(f"{text!r} is more than all of the memory")
        whole = machine_memory_bytes() if memory_bytes is None else memory_bytes
        return int(whole * number / 100)
    if not unit:
        raise ValueError(f"{text!r} has no unit")
    if unit not in UNITS:
        raise ValueError(f"{unit!r} in {text!r} is not a unit")
    return int(number * UNITS[unit])


def format_size(size_bytes: int) -> str:
    """The size in the largest binary unit that leaves at least 1: exact where it comes out even,
    else with one decimal, rounded down."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit]:
            whole, rest = divmod(size_bytes, UNITS[unit])
            return f"{whole}{unit}" if not rest else f"{whole}.{rest * 10 // UNITS[unit]}{unit}"
    return f"{size_bytes}B"
