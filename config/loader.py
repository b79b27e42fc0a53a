"""Reads a configuration file and overrides into a Config, or says which setting is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from evoke.config.errors import ConfigError
from evoke.config.rules import Rule, type_name
from evoke.config.schema import Config, rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FILE_BYTES_MAX", "load"]

FILE_BYTES_MAX: Final = 64 << 10
OVERRIDE: Final = "--set"
_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


def load(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """The configuration in the file `path` (None: the defaults) with `overrides` applied.

    An override is "section.key=value"; texts and sizes need no quotes, the last of two wins.
    ConfigError on the first thing that is wrong: the file cannot be read, is not TOML, or names a
    setting twice; a section or key is unknown; a value has the wrong type or unit, or is out of
    range.
    """
    text = "" if path is None else _read(Path(path))
    values: dict[str, dict[str, Any]] = {}
    try:
        for section, table in _parse(text).items():
            values[section] = _check_section(section, table)
    except ConfigError as error:
        line = error.line or _line_of(text, error.key)
        raise ConfigError(
            error.reason, file=str(path), line=line, key=error.key, allowed=error.allowed
        ) from error.__cause__
    for override in overrides:
        section, field, value = _check_override(override)
        values.setdefault(section, {})[field] = value
    return Config(**{name: rules()[name][0](**fields) for name, fields in values.items()})


def _read(path: Path) -> str:
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


def _parse(text: str) -> dict[str, Any]:
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


def _check_section(section: str, table: object) -> dict[str, Any]:
    keys = _keys_of(section)
    if not isinstance(table, dict):
        reason = f"is {type_name(table)}, not a section"
        raise ConfigError(reason, key=section, allowed=f"[{section}] and keys below it")
    checked = {}
    for key, value in table.items():
        field, rule = _rule_of(section, keys, key)
        checked[field] = _check(rule, f"{section}.{key}", value)
    return checked


def _keys_of(section: str) -> dict[str, tuple[str, Rule]]:
    sections = rules()
    if section not in sections:
        reason = f"is not a section{_guess(section, sections)}"
        raise ConfigError(reason, key=section, allowed=", ".join(sections))
    return sections[section][1]


def _rule_of(section: str, keys: dict[str, tuple[str, Rule]], key: str) -> tuple[str, Rule]:
    if key not in keys:
        reason = f"is not a setting{_guess(key, keys)}"
        raise ConfigError(reason, key=f"{section}.{key}", allowed=", ".join(keys))
    return keys[key]


def _guess(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _check(rule: Rule, key: str, value: object) -> Any:
    try:
        return rule.check(value)
    except ValueError as error:
        raise ConfigError(str(error), key=key, allowed=rule.allowed()) from error


def _check_override(override: str) -> tuple[str, str, Any]:
    """(section, field, value); ConfigError names --set as the file."""
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot:
        reason = f"{override!r} is not an override"
        raise ConfigError(reason, file=OVERRIDE, allowed="section.key=value")
    try:
        field, rule = _rule_of(section, _keys_of(section), key)
        return section, field, _check(rule, f"{section}.{key}", _override_value(rule, text.strip()))
    except ConfigError as error:
        raise ConfigError(
            error.reason, file=OVERRIDE, key=error.key, allowed=error.allowed
        ) from error.__cause__


def _override_value(rule: Rule, text: str) -> object:
    quoted = text[:1] in {'"', "'"}
    if rule.is_text and not quoted:
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text  # of the wrong type for the rule, which says so
    return table["value"] if len(table) == 1 else text


def _line_of(text: str, key: str) -> int | None:
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
