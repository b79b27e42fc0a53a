"""The policy in force: its text, version and history, and replacing it while the daemon runs.

A reload checks the whole text first and then swaps between two requests of the loop, keeping what
was learned; or it changes nothing and says which line and key are wrong.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from evoke.client import wire
from evoke.client.wire import Code
from evoke.config import ConfigError, PolicyConfig, load_policy
from evoke.config.tables import FILE_BYTES_MAX
from evoke.policy.classics import Lru
from evoke.policy.spec import parse_spec
from evoked.counters import Counters
from evoked.events import EventSink
from evoked.server import Refusal
from evoked.sessions import Session

__all__ = ["BUILT_IN", "FORMULAS", "Policies", "PolicyHolder", "load_configured"]

# What the index can rank by.
FORMULAS: Final[dict[str, type[Any]]] = {Lru.name: Lru}
BUILT_IN: Final = "built in"
HISTORY_MAX: Final = 100
INLINE: Final = "(content)"


class PolicyHolder(Protocol):
    """What a policy is put into force in."""

    def swap(self, config: PolicyConfig) -> None:
        """Rank by this policy from now on; what was learned is kept, and scaled where the
        half-life changed. Called between two requests; does not fail."""


@dataclass(frozen=True)
class Version:
    """One line of the history. `outcome`: start, applied, unchanged, refused or reverted."""

    number: int  # of the policy in force afterwards
    unix_ms: int
    outcome: str
    source: str
    formula: str
    reason: str = ""

    def row(self) -> dict[str, Any]:
        return {
            "version": self.number,
            "unix_ms": self.unix_ms,
            "outcome": self.outcome,
            "source": self.source,
            "formula": self.formula,
            "reason": self.reason,
        }


class Policies:
    """Built before the sockets serve. ConfigError: the configured file cannot be used."""

    def __init__(self, file: str, holder: PolicyHolder, counters: Counters) -> None:
        self._file = os.path.abspath(file) if file else ""
        self._holder, self._counters = holder, counters
        self._log = structlog.get_logger()
        self.sink: EventSink | None = None
        self.history: deque[Version] = deque(maxlen=HISTORY_MAX)
        self.trouble = ""  # why health is yellow: a policy that failed
        self.version = 1
        self.source = self._file or BUILT_IN
        self.config = load_configured(self._file)
        holder.swap(self.config)
        self._note("start", self.source, self.config)

    # ------------------------------------------------------------------ verbs
    def policy_show(self, session: Session, number: int, args: wire.Empty) -> Any:
        return {
            "version": self.version,
            "source": self.source,
            "effective": {"preset": self.config.preset, **self.config.effective()},
            "warnings": list(self.config.warnings),
        }

    def policy_check(self, session: Session, number: int, args: wire.PolicyText) -> Any:
        """Whether a text could be put into force; nothing changes."""
        _need_admin(session)
        try:
            config = load(_text(args.content, args.file), args.file or INLINE)
        except ConfigError as error:
            return {"good": False, "error": error_row(error), "warnings": []}
        return {"good": True, "error": None, "warnings": list(config.warnings)}

    def policy_reload(self, session: Session, number: int, args: wire.PolicyReload) -> Any:
        _need_admin(session)
        if args.content is None:
            return self.reload_configured()
        content = args.content
        return self.reload(lambda: content, args.file or INLINE)

    def policy_history(self, session: Session, number: int, args: wire.Empty) -> Any:
        _need_admin(session)
        return [version.row() for version in self.history]

    # ------------------------------------------------------------------ reload
    def reload_configured(self) -> dict[str, Any]:
        """Of the file in the daemon's configuration, or back to the default policy without one."""
        if not self._file:
            return self._reload("", BUILT_IN)
        return self.reload(lambda: read_policy(self._file), self._file)

    def reload(self, read: Callable[[], str], source: str) -> dict[str, Any]:
        """What became of it: {applied, changed, version, source, error, warnings}."""
        try:
            text = _text(read(), source)
        except ConfigError as error:
            return self._refused(error, source)
        return self._reload(text, source)

    def _reload(self, text: str, source: str) -> dict[str, Any]:
        try:
            config = load(text, source)
        except ConfigError as error:
            return self._refused(error, source)
        changed = config != self.config
        self.source = source
        if changed:
            self._apply(config)
        self._note("applied" if changed else "unchanged", source, config)
        return self._outcome(None, changed)

    def _apply(self, config: PolicyConfig) -> None:
        self._holder.swap(config)
        self.config = config
        self.version += 1
        self._counters.add("policy_reloads")
        if self.sink is not None:
            self.sink.policy(f"version {self.version}: {config.priority.formula}")
        for sentence in config.warnings:
            self._log.warning("policy", source=self.source, why=sentence)

    def _refused(self, error: ConfigError, source: str) -> dict[str, Any]:
        self._counters.add("policy_refused")
        self._note("refused", source, self.config, error.brief())
        return self._outcome(error, False)

    def _outcome(self, error: ConfigError | None, changed: bool) -> dict[str, Any]:
        return {
            "applied": error is None,
            "changed": changed,
            "version": self.version,
            "source": self.source,
            "error": None if error is None else error_row(error),
            "warnings": [] if error is not None else list(self.config.warnings),
        }

    def _note(self, outcome: str, source: str, config: PolicyConfig, reason: str = "") -> None:
        unix_ms = time.time_ns() // 1_000_000
        formula = config.priority.formula
        self.history.append(Version(self.version, unix_ms, outcome, source, formula, reason))
        log = self._log.warning if outcome == "refused" else self._log.info
        log(f"policy {outcome}", version=self.version, source=source, formula=formula, why=reason)


def load(text: str, source: str) -> PolicyConfig:
    """The policy that the text means to this daemon. ConfigError."""
    return load_policy(text, source, formulas=FORMULAS, check_spec=parse_spec)


def load_configured(file: str) -> PolicyConfig:
    """Of the setting daemon.policy; "" is the default policy. ConfigError."""
    return load(_text(read_policy(file), file), file) if file else load("", BUILT_IN)


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


def _text(content: str, source: str) -> str:
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


def _need_admin(session: Session) -> None:
    if session.peer.uid not in (0, os.geteuid()):
        raise Refusal(Code.DENIED, "verb", "policies are for the daemon's user and root")
