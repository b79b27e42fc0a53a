"""Reads a configuration file and overrides into a Config, or says which setting is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from evoke.config.errors import ConfigError
from evoke.config.rules import Rule
from evoke.config.schema import Config, rules
from evoke.config.tables import Keys, check, check_table, guess, line_of, parse, read, rule_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["load"]

OVERRIDE: Final = "--set"


def load(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """The configuration in the file `path` (None: the defaults) with `overrides` applied.

    An override is "section.key=value"; texts and sizes need no quotes, the last of two wins.
    ConfigError on the first thing that is wrong: the file cannot be read, is not TOML, or names a
    setting twice; a section or key is unknown; a value has the wrong type or unit, or is out of
    range.
    """
    text = "" if path is None else read(Path(path))
    values: dict[str, dict[str, Any]] = {}
    try:
        for section, table in parse(text).items():
            values[section] = check_table(section, table, _keys_of(section))
    except ConfigError as error:
        line = error.line or line_of(text, error.key)
        raise ConfigError(
            error.reason, file=str(path), line=line, key=error.key, allowed=error.allowed
        ) from error.__cause__
    for override in overrides:
        section, field, value = _check_override(override)
        values.setdefault(section, {})[field] = value
    return Config(**{name: rules()[name][0](**fields) for name, fields in values.items()})


def _keys_of(section: str) -> Keys:
    sections = rules()
    if section not in sections:
        reason = f"is not a section{guess(section, sections)}"
        raise ConfigError(reason, key=section, allowed=", ".join(sections))
    return sections[section][1]


def _check_override(override: str) -> tuple[str, str, Any]:
    """(section, field, value); ConfigError names --set as the file."""
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot:
        reason = f"{override!r} is not an override"
        raise ConfigError(reason, file=OVERRIDE, allowed="section.key=value")
    try:
        field, rule = rule_of(section, _keys_of(section), key)
        return section, field, check(rule, f"{section}.{key}", _override_value(rule, text.strip()))
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
