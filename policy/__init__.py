"""evoke.policy: what is worth keeping. Pure: no I/O, no clock; choosing is apart from doing."""

from evoke.policy.base import Policy

__all__ = ["Policy"]
