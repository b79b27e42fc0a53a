"""TOML text into tables, and where in the text a setting stands. Shared by the loaders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from evoke.config.errors import ConfigError
from evoke.config.rules import Rule, type_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FILE_BYTES_MAX", "Keys", "check", "check_table", "guess", "line_of", "parse", "read"]

FILE_BYTES_MAX: Final = 64 << 10
Keys = Mapping[str, tuple[str, Rule]]  # key in the file -> (field of the schema, rule)
_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


def read(path: Path) -> str:
    """The file's text. ConfigError: it cannot be read, is too long, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ConfigError(reason, file=str(path)) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("is too long", file=str(path), allowed=f"{FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", file=str(path), line=line) from error


def parse(text: str) -> dict[str, Any]:
    """Tables of the text. ConfigError with the line: it is not TOML, or says something twice."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # numbers of 5,000 digits, lists in lists in lists
        message = str(error)
        found = _LINE.search(message)
        # The end of the document is the one place that the parser names without a line.
        line = int(found[1]) if found else text.count("\n") + 1
        reason = f"is not TOML: {_LINE.sub('', message)}"
        if message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
            reason = "names a section or a setting twice"
        raise ConfigError(reason, line=line) from error
    return table


def check_table(section: str, table: object, keys: Keys) -> dict[str, Any]:
    """The section's values by the schema's field. ConfigError names the key."""
    if not isinstance(table, dict):
        reason = f"is {type_name(table)}, not a section"
        raise ConfigError(reason, key=section, allowed=f"[{section}] and keys below it")
    checked = {}
    for key, value in table.items():
        field, rule = rule_of(section, keys, key)
        checked[field] = check(rule, f"{section}.{key}", value)
    return checked


def rule_of(section: str, keys: Keys, key: str) -> tuple[str, Rule]:
    """(field, rule). ConfigError: there is no such key."""
    if key not in keys:
        reason = f"is not a setting{guess(key, keys)}"
        raise ConfigError(reason, key=f"{section}.{key}", allowed=", ".join(keys))
    return keys[key]


def guess(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def check(rule: Rule, key: str, value: object) -> Any:
    """The schema's value. ConfigError names the key, and what would be accepted."""
    try:
        return rule.check(value)
    except ValueError as error:
        raise ConfigError(str(error), key=key, allowed=rule.allowed()) from error


def line_of(text: str, key: str) -> int | None:
    """The line that sets `key` ("section" or "section.key"): the first that mentions its name and
    with which the file, up to there, has it. None where TOML's escapes hide the name."""
    if not key:
        return None
    section, _, name = key.partition(".")
    lines = text.splitlines(keepends=True)
    for start, line in enumerate(lines):
        if (name or section) not in line:
            continue
        for end in range(start + 1, len(lines) + 1):
            try:
                table = tomllib.loads("".join(lines[:end]))
            except ValueError:  # inside a value of several lines
                continue
            found = table.get(section)
            if section in table and (not name or (isinstance(found, dict) and name in found)):
                return start + 1
            break
    return None
