"""The contract of a formula: options in, an order of blocks out. One formula, one file.

A formula is a frozen dataclass. Its fields are its options, with the same names and units in
`policy.toml` and in SPEC texts (evoke.policy.spec); bad options are a ValueError that names the
field and the number. Daemon and simulator ask it for the same objects of evoke.core.scores, which
do the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from evoke.core import scores

__all__ = ["CLOCKS", "STATES", "Formula", "check_above", "check_alpha", "check_name", "unscored"]

CLOCKS: Final = ("request", "access", "second", "turn", "step")
STATES: Final = ("keep", "reset")


class Formula(Protocol):
    """What a formula says of itself, and what it makes.

    - scored: it reads LRFU keys, so that accesses have to be written into `scores`
    - clock: unit in which scores age, one of CLOCKS
    - state: `keep`: what was learned of a block outlives its eviction; `reset`: it is forgotten
    - chains: only blocks without a resident child leave, as always in the daemon. Where a formula
      has it as an option, it is off by default, as the published form of the formula has no chains
    """

    name: ClassVar[str]
    scored: ClassVar[bool]

    @property
    def clock(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def chains(self) -> bool: ...

    def order(self, known: scores.Identities, capacity: int, /) -> scores.Order:
        """Ranks blocks of a tier for `capacity`, in blocks where all are of size 1, else bytes."""

    def scores(self, known: scores.Identities, /) -> scores.Scores:
        """What accesses are written into."""


def unscored(known: scores.Identities) -> scores.Scores:
    """For a formula that reads no LRFU keys: accesses are noted, and the alpha has no meaning."""
    return scores.Scores(known, 0.5)


def check_alpha(alpha: float | None, half_life: float | None, default: float) -> float:
    """The alpha that the two options mean: one that is given, else the default.

    A score halves in half_life clock units: alpha = 1 - 2^(-1 / half_life). ValueError: both are
    given, or one is out of range.
    """
    if alpha is not None and half_life is not None:
        raise ValueError(f"half_life: {half_life} is given and so is alpha: {alpha}")
    if half_life is not None:
        check_above("half_life", half_life)
        return -math.expm1(-math.log(2.0) / half_life)
    if alpha is None:
        return default
    if not 0 < alpha < 1:
        raise ValueError(f"alpha: {alpha} is not between 0 and 1")
    return alpha


def check_above(name: str, number: float, least: float = 0.0) -> None:
    """ValueError: not a finite number above `least`."""
    if not (math.isfinite(number) and number > least):
        raise ValueError(f"{name}: {number} is not a number above {least:g}")


def check_name(name: str, value: str, allowed: Sequence[str]) -> None:
    """ValueError: not one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}")
