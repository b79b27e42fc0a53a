"""The one error of this package."""

from __future__ import annotations

__all__ = ["ConfigError"]


class ConfigError(ValueError):
    """A setting cannot be used; nothing was applied.

    `file` is the path, or where else the setting came from ("--set", "$EVOKE_SOCKET"); `line`
    counts from 1 and is None where it is not known; `key` is "section.key" ("" when the file as a
    whole is wrong); `reason` names the value; `allowed` says what would be accepted.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str = "",
        line: int | None = None,
        key: str = "",
        allowed: str = "",
    ) -> None:
        place = f"{file}:{line}" if line is not None else file
        text = ": ".join(part for part in (place, key, reason) if part)
        super().__init__(f"{text} (allowed: {allowed})" if allowed else text)
        self.file = file
        self.line = line
        self.key = key
        self.reason = reason
        self.allowed = allowed

    def brief(self) -> str:
        """`file:line key: reason`, without what is not known: the form that scripts read."""
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        head = " ".join(part for part in (place, self.key) if part)
        return f"{head}: {self.reason}" if head else self.reason
