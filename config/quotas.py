"""Quotas of single tenants, as a setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from evoke.config.rules import Integer, Rule, Text, type_name

__all__ = ["Quota", "Quotas"]

_LIMITS: Final = {
    "host_percent": Integer(1, 100),
    "grants": Integer(1, 10_000_000),
    "requests_per_s": Integer(1, 10_000_000),
}
_SALT: Final = Text(256)


@dataclass(frozen=True, kw_only=True)
class Quota:
    """What one salt ("": none) may use; None: as every tenant."""

    salt: str
    host_percent: int | None = None
    grants: int | None = None
    requests_per_s: int | None = None


@dataclass(frozen=True)
class Quotas(Rule):
    """A list of tables, each of another salt."""

    def check(self, value: object) -> tuple[Quota, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is {type_name(value)}, not a list")
        quotas = tuple(_quota(item) for item in value)
        salts = [quota.salt for quota in quotas]
        for salt in salts:
            if salts.count(salt) > 1:
                raise ValueError(f"salt {salt!r} is named twice")
        return quotas

    def allowed(self) -> str:
        return f"a list of {{salt, {', '.join(_LIMITS)}}}"


def _quota(item: object) -> Quota:
    if not isinstance(item, dict) or "salt" not in item:
        raise ValueError(f"{item!r} is not a table with a salt")
    fields: dict[str, Any] = {}
    for key, value in item.items():
        rule: Rule | None = _SALT if key == "salt" else _LIMITS.get(key)
        if rule is None:
            raise ValueError(f"{key!r} is no quota")
        try:
            fields[key] = rule.check(value)
        except ValueError as error:
            raise ValueError(f"{key} of salt {item['salt']!r}: {error}") from None
    return Quota(**fields)
