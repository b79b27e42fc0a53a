"""evoke.policy: what is worth keeping. Pure: no I/O, no clock; choosing is apart from doing."""

from evoke.policy.base import Policy
from evoke.policy.lru import Lru

__all__ = ["Lru", "Policy", "make"]

_POLICIES = {"lru": Lru}


def make(name: str, index: object) -> Policy:
    """The policy of that name over the rows of `index` (evoke.core.native.Index). ValueError when
    there is none."""
    kind = _POLICIES.get(name)
    if kind is None:
        raise ValueError(f"policy: {name!r}, known: {', '.join(sorted(_POLICIES))}")
    return kind(index)  # type: ignore[arg-type]
