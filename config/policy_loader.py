"""Reads the text of a policy into a PolicyConfig, or says which setting is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import resources
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from evoke.config.errors import ConfigError
from evoke.config.policy_schema import PolicyConfig, Priority, Score, policy_rules
from evoke.config.rules import Choice, Flag, Integer, Number, Rule, Text, type_name
from evoke.config.tables import Keys, check, check_table, guess, line_of, parse

__all__ = ["PRESETS", "load_policy"]

PRESETS: Final = ("source",)
DEFAULT_HALF_LIFE: Final = 13.5
USER_PREFIXES: Final = ("file:", "entry:")
# Options of formulas that [score] sets, so that one number is written in one place.
SCORE_KEYS: Final = ("alpha", "half_life", "clock", "state")
# In the daemon chains always leave from their tails.
FIXED: Final = {"chains": True}
Tables = dict[str, dict[str, Any]]


def load_policy(
    text: str,
    file: str = "",
    *,
    formulas: Mapping[str, type[Any]],
    check_spec: Callable[[str], object],
) -> PolicyConfig:
    """The policy that the text describes; "" is the default one.

    `formulas` are frozen dataclasses by name, whose fields are the keys that [priority] takes
    besides `formula`; check_spec raises ValueError for a bad shadow candidate. ConfigError on the
    first thing that is wrong, with `file` (a name for people), line and key.
    """
    try:
        tables, preset = _tables(text, formulas)
        config = _assemble(tables, preset, formulas)
        _check_shadow(config, check_spec)
    except ConfigError as error:
        line = error.line or line_of(text, error.key)
        raise ConfigError(
            error.reason, file=file, line=line, key=error.key, allowed=error.allowed
        ) from error.__cause__
    return config


def _tables(text: str, formulas: Mapping[str, type[Any]]) -> tuple[Tables, str]:
    """Checked values by section and field, those of the preset beneath those of the text."""
    raw = parse(text)
    preset = check(Choice(("", *PRESETS)), "preset", raw.pop("preset", ""))
    if not preset:
        return _check_sections(raw, formulas, Priority().formula), preset
    path = resources.files("evoke.config").joinpath(f"policy_{preset}.toml")
    base = _check_sections(parse(path.read_text()), formulas, Priority().formula)
    given = _check_sections(raw, formulas, base["priority"]["formula"])
    if given.get("priority", base["priority"])["formula"] != base["priority"]["formula"]:
        base["priority"] = {}  # its options are those of another formula
    if {"alpha", "half_life"} & set(given.get("score", {})):
        base["score"] = {k: v for k, v in base["score"].items() if k not in ("alpha", "half_life")}
    merged = {name: {**base.get(name, {}), **given.get(name, {})} for name in {*base, *given}}
    return merged, preset


def _check_sections(
    raw: Mapping[str, Any], formulas: Mapping[str, type[Any]], default: str
) -> Tables:
    sections = policy_rules()
    checked: Tables = {}
    for name, table in raw.items():
        if name not in sections:
            reason = f"is not a section{guess(name, sections)}"
            raise ConfigError(reason, key=name, allowed=", ".join(("preset", *sections)))
        keys: Keys = sections[name][1]
        if name == "priority" and isinstance(table, dict):
            checked[name] = _check_priority(table, keys, formulas, default)
        else:
            checked[name] = check_table(name, table, keys)
    return checked


def _check_priority(
    table: Mapping[str, Any], keys: Keys, formulas: Mapping[str, type[Any]], default: str
) -> dict[str, Any]:
    formula = check(keys["formula"][1], "priority.formula", table.get("formula", default))
    if formula.startswith(USER_PREFIXES):
        for key, value in table.items():
            if not isinstance(value, str | int | float | bool):
                reason = f"is {type_name(value)}"
                raise ConfigError(reason, key=f"priority.{key}", allowed="a text, number or switch")
        return {**table, "formula": formula}
    if formula not in formulas:
        hint = guess(formula, formulas)
        allowed = ", ".join([*sorted(formulas), "file:NAME.py", "entry:NAME"])
        raise ConfigError(
            f"{formula!r} is not known{hint}", key="priority.formula", allowed=allowed
        )
    options = option_rules(formulas[formula])
    for key in table:
        if key in SCORE_KEYS and key in options:
            raise ConfigError("is set in [score]", key=f"priority.{key}")
    own = {key: rule for key, rule in options.items() if key not in (*SCORE_KEYS, *FIXED)}
    known = {**keys, **{key: (key, rule) for key, rule in own.items()}}
    return {**check_table("priority", table, known), "formula": formula}


def option_rules(kind: type[Any]) -> dict[str, Rule]:
    """Rules for the fields of a formula's dataclass, by their types; the class checks the rest."""
    hints = get_type_hints(kind)
    return {item.name: _rule_of_type(hints[item.name]) for item in fields(kind) if item.init}


def _rule_of_type(kind: Any) -> Rule:
    if get_origin(kind) is Literal:
        return Choice(tuple(get_args(kind)))
    parts = [part for part in get_args(kind) if part is not type(None)]
    if len(parts) == 1:  # T | None
        return _rule_of_type(parts[0])
    if kind is bool:
        return Flag()
    if kind is int:
        return Integer(-(1 << 62), 1 << 62)
    if kind is float:
        return Number()
    assert kind is str, f"a formula has an option of type {kind}"
    return Text(256)


def _assemble(tables: Tables, preset: str, formulas: Mapping[str, type[Any]]) -> PolicyConfig:
    score = _score(tables.get("score", {}))
    given = tables.get("priority", {})
    formula = given.get("formula", Priority().formula)
    options = {key: value for key, value in given.items() if key != "formula"}
    built = None
    if not formula.startswith(USER_PREFIXES):
        built = _build(formulas[formula], options, score)
        options = {
            item.name: getattr(built, item.name)
            for item in fields(built)
            if item.init and item.name not in (*SCORE_KEYS, *FIXED)
        }
    sections = policy_rules()
    parts = {
        name: sections[name][0](**tables.get(name, {})) for name in ("signal", "protect", "place")
    }
    shadow = sections["shadow"][0](**tables.get("shadow", {}))
    priority = Priority(formula=formula, options=options, built=built)
    config = PolicyConfig(preset=preset, score=score, priority=priority, shadow=shadow, **parts)
    warnings = _check_bands(config)
    return PolicyConfig(
        preset=preset, score=score, priority=priority, shadow=shadow, warnings=warnings, **parts
    )


def _score(values: Mapping[str, Any]) -> Score:
    if {"alpha", "half_life"} <= set(values):
        raise ConfigError("is the same setting as half_life: give one of them", key="score.alpha")
    if not {"alpha", "half_life"} & set(values):
        values = {**values, "half_life": DEFAULT_HALF_LIFE}
    return Score(**values)


def _build(kind: type[Any], options: Mapping[str, Any], score: Score) -> Any:
    """The formula's own object. Its ValueError ("field: reason") names the key."""
    names = {item.name for item in fields(kind) if item.init}
    shared: dict[str, Any] = {"clock": score.clock, "state": score.state, **FIXED}
    if score.half_life is not None and "half_life" in names:
        shared["half_life"] = score.half_life
    else:
        shared["alpha"] = score.weight
    own = {key: value for key, value in shared.items() if key in names}
    try:
        return kind(**own, **options)
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        section = "score" if field in SCORE_KEYS else "priority"
        if field not in names:
            raise ConfigError(str(error), key="priority.formula") from error
        raise ConfigError(reason, key=f"{section}.{field}") from error


def _check_bands(config: PolicyConfig) -> tuple[str, ...]:
    """Sentences of warning. ConfigError: bands that could never keep anything, or that cross."""
    place, alpha = config.place, config.score.weight
    if place.evict > place.keep:
        raise ConfigError(f"{place.evict:g} is above keep ({place.keep:g})", key="place.evict")
    if place.units == "quantile" and place.keep > 1:
        raise ConfigError(f"{place.keep:g} is not a quantile", key="place.keep", allowed="0 to 1")
    if place.units != "absolute":
        return ()
    if place.evict >= alpha:
        reason = (
            f"{place.evict:g} is not below alpha ({alpha:g}): one access lifts a block to alpha, "
            "so nothing could ever be kept"
        )
        raise ConfigError(reason, key="place.evict", allowed=f"less than {alpha:g}")
    if place.keep > alpha:
        return (
            f"place.keep: {place.keep:g} is above alpha ({alpha:g}): no block gets there by one "
            "access",
        )
    return ()


def _check_shadow(config: PolicyConfig, check_spec: Callable[[str], object]) -> None:
    for text in config.shadow.candidates:
        try:
            check_spec(text)
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}", key="shadow.candidates") from error
