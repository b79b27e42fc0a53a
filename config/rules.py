"""What a setting may be: each rule turns a TOML value into the schema's value or says why not."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from evoke.config.machine import machine_memory_bytes
from evoke.config.sizes import UNITS, format_size, is_share, parse_size

__all__ = [
    "Choice",
    "Flag",
    "Integer",
    "Integers",
    "Marks",
    "Mode",
    "Number",
    "Rule",
    "Size",
    "Text",
    "Texts",
]

TYPE_NAMES: Final[dict[type, str]] = {
    bool: "a switch",
    int: "a number",
    float: "a decimal number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


def type_name(value: object) -> str:
    """How an error calls the type of a TOML value."""
    return TYPE_NAMES.get(type(value), "a date or time")


@dataclass(frozen=True)
class Rule:
    """`check` returns the schema's value; ValueError carries the reason. `is_text`: an override's
    text is the value itself, not TOML."""

    is_text = False

    def check(self, value: object) -> Any:
        """The value as the schema holds it."""
        raise NotImplementedError

    def allowed(self) -> str:
        """What check accepts, for people."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flag(Rule):
    """true or false."""

    def check(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is {type_name(value)}")
        return value

    def allowed(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Integer(Rule):
    """A whole number in [low, high]."""

    low: int
    high: int

    def check(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{value!r} is {type_name(value)}, not a whole number")
        if not self.low <= value <= self.high:
            raise ValueError(f"{value} is out of range")
        return value

    def allowed(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True)
class Number(Rule):
    """A finite number in [low, high]; open_low, open_high: the end itself is excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def check(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{value!r} is {type_name(value)}, not a number")
        if not math.isfinite(value):
            raise ValueError(f"{value} is not finite")
        below = value <= self.low if self.open_low else value < self.low
        above = value >= self.high if self.open_high else value > self.high
        if below or above:
            raise ValueError(f"{value} is out of range")
        return float(value)

    def allowed(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return "a finite number"
        if self.high == math.inf:
            return f"a number {'above' if self.open_low else 'of at least'} {self.low:g}"
        ends = [f"{self.low:g}" + " (excluded)" * self.open_low]
        ends.append(f"{self.high:g}" + " (excluded)" * self.open_high)
        return " to ".join(ends)


@dataclass(frozen=True)
class Marks(Rule):
    """Two rising percentages: where making room ends, and where it begins."""

    def check(self, value: object) -> tuple[float, float]:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"{value!r} is not a list of two numbers")
        low, high = (Number(0, 100).check(item) for item in value)
        if low > high:
            raise ValueError(f"{value!r} falls")
        return low, high

    def allowed(self) -> str:
        return "two rising percentages such as [90, 95]"


@dataclass(frozen=True)
class Integers(Rule):
    """A list of different whole numbers in [low, high]."""

    low: int
    high: int

    def check(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is {type_name(value)}, not a list")
        numbers = tuple(Integer(self.low, self.high).check(item) for item in value)
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{value!r} names a number twice")
        return numbers

    def allowed(self) -> str:
        return f"a list of different numbers, each {self.low} to {self.high}"


@dataclass(frozen=True)
class Text(Rule):
    """One line of text of at most length_max characters."""

    length_max: int
    is_text = True

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is {type_name(value)}, not a text")
        if len(value) > self.length_max:
            raise ValueError(f"a text of {len(value)} characters is too long")
        if not value.isprintable():
            raise ValueError(f"{value!r} holds a character that cannot be printed")
        return value

    def allowed(self) -> str:
        return f"one line of at most {self.length_max} characters"


@dataclass(frozen=True)
class Texts(Rule):
    """At most count_max different texts, each one line of at most length_max characters."""

    count_max: int
    length_max: int

    def check(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is {type_name(value)}, not a list")
        if len(value) > self.count_max:
            raise ValueError(f"{len(value)} texts are too many")
        texts = tuple(Text(self.length_max).check(item) for item in value)
        if len(set(texts)) < len(texts):
            raise ValueError(f"{value!r} names a text twice")
        return texts

    def allowed(self) -> str:
        return f"a list of at most {self.count_max} different texts"


@dataclass(frozen=True)
class Choice(Rule):
    """One of a few words."""

    words: tuple[str, ...]
    is_text = True

    def check(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is {type_name(value)}, not a text")
        if value not in self.words:
            raise ValueError(f"{value!r} is not known")
        return value

    def allowed(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True)
class Mode(Rule):
    """The permission bits of a file, in octal digits; its owner may at least read and write."""

    is_text = True

    def check(self, value: object) -> int:
        if not isinstance(value, str) or re.fullmatch("0?[0-7]{3}", value, re.ASCII) is None:
            raise ValueError(f"{value!r} is not a text of three octal digits")
        mode = int(value, 8)
        if mode & 0o600 != 0o600:
            raise ValueError(f"{value!r} would lock the daemon itself out")
        return mode

    def allowed(self) -> str:
        return '"0600" to "0777"'


@dataclass(frozen=True)
class Size(Rule):
    """A size (evoke.config.sizes) in [low, high]; of_memory: a share such as "10%" is understood
    and nothing above the machine's memory is accepted. `key`: its name in the file, where that
    differs from the schema's (the text carries the unit)."""

    low: str
    high: str
    of_memory: bool = False
    key: str = ""
    is_text = True

    def check(self, value: object) -> int:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is {type_name(value)}, not a text with a unit")
        if is_share(value) and not self.of_memory:
            raise ValueError(f"{value!r} is a share, which has no meaning here")
        size_bytes = parse_size(value)
        if self.of_memory and size_bytes > machine_memory_bytes():
            raise ValueError(f"{value!r} is above the memory of this machine or its cgroup")
        if not parse_size(self.low) <= size_bytes <= self._high_bytes():
            raise ValueError(f"{value!r} ({format_size(size_bytes)}) is out of range")
        return size_bytes

    def _high_bytes(self) -> int:
        high_bytes = parse_size(self.high)
        return min(high_bytes, machine_memory_bytes()) if self.of_memory else high_bytes

    def allowed(self) -> str:
        share = ' or a share such as "10%"' if self.of_memory else ""
        units = ", ".join(UNITS)
        return f'"{self.low}" to "{format_size(self._high_bytes())}"{share}; units {units}'
