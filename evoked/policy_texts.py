"""Texts of policies: reading them, what they mean to this daemon, what is wrong with them."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import Any, Final

from evoke.config import ConfigError, PolicyConfig, load_policy
from evoke.config.tables import FILE_BYTES_MAX
from evoke.policy.classics import Fifo, Lfu, Lru
from evoke.policy.lrfu import Lrfu
from evoke.policy.product import Product
from evoke.policy.return_index import ReturnIndex
from evoke.policy.spec import parse_spec

__all__ = [
    "BUILT_IN",
    "FORMULAS",
    "checked_text",
    "error_row",
    "load",
    "load_configured",
    "read_policy",
]

# What the daemon can rank by.
FORMULAS: Final[dict[str, type[Any]]] = {
    kind.name: kind for kind in (Lru, Fifo, Lfu, Lrfu, Product, ReturnIndex)
}
# What nothing in the daemon looks at yet.
NOT_OBEYED: Final = ("signal", "protect", "place", "shadow")
SCORE_NOT_OBEYED: Final = ("clock", "age_correction", "slow_half_life")
BUILT_IN: Final = "built in"


def load(text: str, source: str) -> PolicyConfig:
    """The policy that the text means to this daemon. ConfigError."""
    config = load_policy(text, source, formulas=FORMULAS, check_spec=parse_spec)
    plain = load_policy("", formulas=FORMULAS, check_spec=parse_spec)
    ahead = [name for name in NOT_OBEYED if getattr(config, name) != getattr(plain, name)]
    ahead += [
        f"score.{key}"
        for key in SCORE_NOT_OBEYED
        if getattr(config.score, key) != getattr(plain.score, key)
    ]
    if not ahead:
        return config
    sentence = f"{', '.join(ahead)}: read and checked, but not obeyed by this version"
    return replace(config, warnings=(*config.warnings, sentence))


def load_configured(file: str) -> PolicyConfig:
    """Of the setting daemon.policy; "" is the default policy. ConfigError."""
    return load(checked_text(read_policy(file), file), file) if file else load("", BUILT_IN)


def read_policy(path: str) -> str:
    """The text of a policy file, without waiting. ConfigError: it is no regular file, is too long,
    cannot be read, or is not UTF-8."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError("is no regular file", file=path)
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError("is too long", file=path, allowed=f"{FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("is not UTF-8 text", file=path, line=line) from error


def checked_text(content: str, source: str) -> str:
    """An empty text is hardly meant: an editor or a full disk leaves it behind."""
    if not content.strip():
        allowed = "at least a comment; the default policy is config/policy.toml"
        raise ConfigError("is empty", file=source, allowed=allowed)
    return content


def error_row(error: ConfigError) -> dict[str, Any]:
    """For the wire: `text` is `file:line key: reason`."""
    return {
        "file": error.file,
        "line": error.line,
        "key": error.key,
        "reason": error.reason,
        "allowed": error.allowed,
        "text": error.brief(),
    }
