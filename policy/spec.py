"""SPEC texts: a formula and its options in one word, `name[:key=value,...]`.

    default    lru    lfu:state=keep    lrfu:alpha=0.05,clock=request,state=keep

Keys are the fields of the formula's dataclass; what is left out has the dataclass's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

from evoke.policy.clairvoyant import Clairvoyant
from evoke.policy.classics import Fifo, Lfu, Lru
from evoke.policy.formula import Formula
from evoke.policy.lrfu import Lrfu
from evoke.policy.product import Product
from evoke.policy.relevance import Relevance
from evoke.policy.return_index import ReturnIndex
from evoke.policy.thresholds import Thresholds

__all__ = ["DEFAULT", "FORMULAS", "make_formula", "parse_spec"]

# name -> dataclass; what a daemon can use
FORMULAS: Final[dict[str, type[Formula]]] = {
    kind.name: kind for kind in (Lru, Fifo, Lfu, Lrfu, Product, Relevance, ReturnIndex, Clairvoyant)
}
DEFAULT: Final = "return_index"  # what `default` means: the best for access signals
_Kind = TypeVar("_Kind", Formula, Thresholds)
_TRUTHS: Final = {"true": True, "false": False}


def parse_spec(text: str) -> Formula | Thresholds:
    """What a SPEC means. ValueError names what is wrong."""
    name, _, rest = (DEFAULT if text == "default" else text).partition(":")
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"policy {name}: {pair!r} is not key=value")
        if key in options:
            raise ValueError(f"policy {name}: {key} is given twice")
        options[key] = value
    if name == Thresholds.name:
        return _make(Thresholds, options)
    return make_formula(name, options)


def make_formula(name: str, options: Mapping[str, Any]) -> Formula:
    """Of a name in FORMULAS; values are of the field's type or texts of it. ValueError."""
    kind = FORMULAS.get(name)
    if kind is None:
        raise ValueError(f"policy: {name!r} is none of {', '.join(sorted(FORMULAS))}")
    return _make(kind, options)


def _make(kind: type[_Kind], options: Mapping[str, Any]) -> _Kind:
    name = kind.name
    assert is_dataclass(kind)
    types = {field.name: str(field.type) for field in fields(kind)}
    for key in options:
        if key not in types:
            known = ", ".join(types) or "no options"
            raise ValueError(f"policy {name}: unknown key {key!r}, known: {known}")
    try:
        return kind(**{key: _value(key, value, types[key]) for key, value in options.items()})
    except ValueError as error:
        raise ValueError(f"policy {name}: {error}") from None


def _value(key: str, value: Any, kind: str) -> Any:
    """value as the field's annotation (`float`, `int | None`, ...) has it."""
    if not isinstance(value, str) or kind.startswith("str"):
        return value
    if kind.startswith("bool"):
        if value not in _TRUTHS:
            raise ValueError(f"{key}: {value!r} is neither true nor false")
        return _TRUTHS[value]
    try:
        return int(value) if kind.startswith("int") else float(value)
    except ValueError:
        raise ValueError(f"{key}: {value!r} is not a number") from None
