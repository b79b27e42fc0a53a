"""Every setting of a policy, its type, its default and what it may be. policy.toml explains them.

PolicyConfig() is not the default policy: load_policy("") is, since it also knows the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_args, get_type_hints

from evoke.config.rules import Choice, Flag, Integer, Marks, Number, Rule, Text, Texts

__all__ = [
    "Place",
    "PolicyConfig",
    "Priority",
    "Protect",
    "Score",
    "Shadow",
    "Signal",
    "policy_rules",
]

# A share of a half-life below which alpha is 1 in double precision.
HALF_LIFE_MIN = 0.02
HalfLife = Annotated[float, Number(HALF_LIFE_MIN, 1e12)]
WaterMarks = Annotated[tuple[float, float], Marks()]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """Attention or accesses become one number for each block."""

    absent: Annotated[str, Choice(("auto", "decay", "freeze", "reset"))] = "auto"
    knee: Annotated[float, Number(0, 1e6)] = 12.0


@dataclass(frozen=True, kw_only=True)
class Score:
    """score(t) = alpha x(t) + (1 - alpha) score(t - 1) per unit of the clock."""

    half_life: HalfLife | None = None
    alpha: Annotated[float | None, Number(0, 1, open_low=True, open_high=True)] = None
    clock: Annotated[str, Choice(("request", "turn", "second", "step"))] = "request"
    age_correction: Annotated[bool, Flag()] = False
    slow_half_life: Annotated[float, Number(0, 1e12)] = 0.0
    state: Annotated[str, Choice(("keep", "reset"))] = "keep"
    remembered_factor: Annotated[float, Number(1, 64)] = 8.0

    @property
    def weight(self) -> float:
        """alpha, given or from the half-life."""
        if self.alpha is not None:
            return self.alpha
        assert self.half_life is not None
        return -math.expm1(-math.log(2) / self.half_life)

    @property
    def half_life_units(self) -> float:
        """The half-life, given or from alpha: ln 0.5 / ln(1 - alpha) clock units."""
        if self.half_life is not None:
            return self.half_life
        assert self.alpha is not None
        return -math.log(2) / math.log1p(-self.alpha)


@dataclass(frozen=True, kw_only=True)
class Priority:
    """Who goes first. `options` are the formula's own; `built` is what its class made of them."""

    formula: Annotated[str, Text(256)] = "lru"
    options: Mapping[str, Any] = field(default_factory=dict)
    built: Any = None


@dataclass(frozen=True, kw_only=True)
class Protect:
    """Who does not leave, whatever its priority."""

    sinks: Annotated[int, Integer(0, 64)] = 1
    running_turn: Annotated[bool, Flag()] = True
    splice_protection: Annotated[str, Choice(("last", "exempt"))] = "last"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which tier: bands of the score, and marks of each tier in percent of its capacity."""

    units: Annotated[str, Choice(("quantile", "n_score", "absolute"))] = "quantile"
    keep: Annotated[float, Number(0, 1e9)] = 0.8
    evict: Annotated[float, Number(0, 1e9)] = 0.2
    move: Annotated[str, Choice(("pressure", "always"))] = "pressure"
    hbm: WaterMarks = (90.0, 95.0)
    host: WaterMarks = (90.0, 95.0)
    cxl: WaterMarks = (90.0, 95.0)
    flash: WaterMarks = (95.0, 98.0)


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """Candidates that run on the live accesses with keys only."""

    candidates: Annotated[tuple[str, ...], Texts(8, 256)] = ()
    core_percent: Annotated[float, Number(0.1, 100)] = 5.0


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """One whole policy. `warnings` are sentences about what is legal and hardly meant."""

    preset: str = ""
    signal: Signal = field(default_factory=Signal)
    score: Score = field(default_factory=Score)
    priority: Priority = field(default_factory=Priority)
    protect: Protect = field(default_factory=Protect)
    place: Place = field(default_factory=Place)
    shadow: Shadow = field(default_factory=Shadow)
    warnings: tuple[str, ...] = ()

    def effective(self) -> dict[str, dict[str, Any]]:
        """Section -> key -> value that holds, for people and JSON. Options of the formula stand in
        [priority]; both alpha and half_life are given."""
        result = {
            name: {item.name: _plain(getattr(section, item.name)) for item in fields(section)}
            for name in ("signal", "score", "priority", "protect", "place", "shadow")
            for section in (getattr(self, name),)
        }
        result["score"] |= {"alpha": self.score.weight, "half_life": self.score.half_life_units}
        result["priority"] = {"formula": self.priority.formula, **self.priority.options}
        return result


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def policy_rules() -> dict[str, tuple[type[Any], dict[str, tuple[str, Rule]]]]:
    """Section -> (its class, {key: (field, rule)}), in the schema's order. Of [priority] only
    `formula`: its other keys are those of the formula."""
    result = {}
    hints = get_type_hints(PolicyConfig)
    for name in ("signal", "score", "priority", "protect", "place", "shadow"):
        section = hints[name]
        keys = {}
        types = get_type_hints(section, include_extras=True)
        for item in fields(section):
            rule = _rule(types[item.name])
            if rule is not None:
                keys[item.name] = (item.name, rule)
        result[name] = (section, keys)
    return result


def _rule(kind: Any) -> Rule | None:
    """The rule of an annotation, also inside `| None`."""
    for part in get_args(kind):
        found = part if isinstance(part, Rule) else _rule(part)
        if found is not None:
            return found
    return None
