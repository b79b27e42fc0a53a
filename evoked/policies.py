"""The policy in force: its text, version and history, and replacing it while the daemon runs.

A reload checks the whole text first and then swaps between two requests of the loop, keeping what
was learned; or it changes nothing and says which line and key are wrong.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from evoke.client import wire
from evoke.client.wire import Code
from evoke.config import ConfigError, PolicyConfig
from evoked.counters import Counters
from evoked.events import EventSink
from evoked.policy_texts import (
    BUILT_IN,
    checked_text,
    error_row,
    load,
    load_configured,
    read_policy,
)
from evoked.server import DEFERRED, Refusal, Replier
from evoked.sessions import Session
from evoked.user_policies import UserPolicies, UserRanks

__all__ = ["Policies", "PolicyHolder"]

HISTORY_MAX: Final = 100
INLINE: Final = "(content)"
FORMULA: Final = "priority.formula"
Tell = Callable[[dict[str, Any]], None]


class PolicyHolder(Protocol):
    """What a policy is put into force in."""

    @property
    def takes_users(self) -> bool:
        """Whether a policy of a user can rank here."""

    def swap(self, config: PolicyConfig) -> UserRanks | None:
        """Rank by this policy from now on; what was learned is kept, and scaled where the
        half-life changed. Called between two requests; does not fail. Of a user's policy: where
        its ranks go, which come in a tick's time."""


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
    """Built before the sockets serve. ConfigError: the configured file cannot be used.

    A user's policy of that file is tried when the loop runs; until then the default one holds.
    """

    def __init__(
        self,
        file: str,
        holder: PolicyHolder,
        counters: Counters,
        replier: Replier,
        make_users: Callable[[Callable[[str], None]], UserPolicies] | None = None,
    ) -> None:
        """make_users(on_failed); None: users' policies are refused."""
        self._file = os.path.abspath(file) if file else ""
        self._holder, self._counters, self._replier = holder, counters, replier
        self._log = structlog.get_logger()
        self.sink: EventSink | None = None
        self.users = make_users(self._revert) if make_users is not None else None
        self.history: deque[Version] = deque(maxlen=HISTORY_MAX)
        self.trouble = ""  # why health is yellow: a policy that failed
        self.version = 1
        self._settled = 0  # reloads that were not refused
        configured = load_configured(self._file)
        self.config, self.source = configured, self._file or BUILT_IN
        if _is_users(configured):
            self.config, self.source = load("", BUILT_IN), BUILT_IN
        self._last_good = (self.config, self.source)
        holder.swap(self.config)
        self._note("start", self.source, self.config)
        if _is_users(configured):
            self._begin(configured, self._file, self._started)

    def _started(self, outcome: dict[str, Any]) -> None:
        if outcome["error"] is not None:
            self.trouble = f"{outcome['error']['text']}; the default policy is in force"

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
        source = args.file or INLINE

        def answer(error: ConfigError | None, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
            row = None if error is None else error_row(error)
            return {"good": error is None, "error": row, "warnings": list(warnings)}

        def tried(reason: str) -> None:
            if self.users is not None:
                self.users.discard()
            error = _users_error(reason, source) if reason else None
            self._replier.reply(session, number, Code.OK, answer(error, config.warnings))

        try:
            config = load(checked_text(args.content, source), source)
            if not _is_users(config):
                return answer(None, config.warnings)
            self._users(source).prepare(config, tried)
        except ConfigError as error:
            return answer(error)
        return DEFERRED

    def policy_reload(self, session: Session, number: int, args: wire.PolicyReload) -> Any:
        """The reply comes when the policy is in force, or refused."""
        _need_admin(session)
        content = args.content
        answered: list[dict[str, Any]] = []
        now = True

        def tell(outcome: dict[str, Any]) -> None:
            if now:
                answered.append(outcome)
            else:
                self._replier.reply(session, number, Code.OK, outcome)

        if content is None:
            self.reload_configured(tell)
        else:
            self.reload(lambda: content, args.file or INLINE, tell)
        now = False
        return answered[0] if answered else DEFERRED

    def policy_history(self, session: Session, number: int, args: wire.Empty) -> Any:
        _need_admin(session)
        return [version.row() for version in self.history]

    # ------------------------------------------------------------------ reload
    def reload_configured(self, tell: Tell = lambda outcome: None) -> None:
        """Of the file in the daemon's configuration, or back to the default policy without one."""
        if self._file:
            self.reload(lambda: read_policy(self._file), self._file, tell)
        else:
            self._begin(load("", BUILT_IN), BUILT_IN, tell)

    def reload(self, read: Callable[[], str], source: str, tell: Tell) -> None:
        """tell(what became of it), now or when a user's policy has been tried: {applied, changed,
        version, source, error, warnings}."""
        try:
            config = load(checked_text(read(), source), source)
        except ConfigError as error:
            tell(self._refused(error, source))
            return
        self._begin(config, source, tell)

    def _begin(self, config: PolicyConfig, source: str, tell: Tell) -> None:
        if not _is_users(config):
            tell(self._settle(config, source))
            return

        settled = self._settled

        def tried(reason: str) -> None:
            if settled != self._settled:
                reason = reason or "another policy came into force meanwhile"
            if reason:
                users.discard()
                tell(self._refused(_users_error(reason, source), source))
            else:
                tell(self._settle(config, source))

        try:
            users = self._users(source)
            users.prepare(config, tried)
        except ConfigError as error:
            tell(self._refused(error, source))

    def _users(self, source: str) -> UserPolicies:
        """ConfigError: no policy of a user can be tried now."""
        if self.users is None or not self._holder.takes_users:
            raise ConfigError("no policy of a user can rank here", file=source, key=FORMULA)
        if self.users.busy:
            raise ConfigError("another one is being tried", file=source, key=FORMULA)
        return self.users

    def _settle(self, config: PolicyConfig, source: str) -> dict[str, Any]:
        # The author's file may have changed while the policy that names it did not.
        changed = config != self.config or _is_users(config)
        self.source = source
        if changed:
            self._apply(config)
            self._counters.add("policy_reloads")
        if not _is_users(config):
            self._last_good = (config, source)
        self.trouble = ""
        self._settled += 1
        self._note("applied" if changed else "unchanged", source, config)
        return self._outcome(None, changed)

    def _apply(self, config: PolicyConfig) -> None:
        ranks = self._holder.swap(config)
        if self.users is not None:
            if ranks is None:
                self.users.stop()
            else:
                self.users.adopt(ranks)
        self.config = config
        self.version += 1
        if self.sink is not None:
            self.sink.policy(f"version {self.version}: {config.priority.formula}")
        for sentence in config.warnings:
            self._log.warning("policy", source=self.source, why=sentence)

    def _revert(self, reason: str) -> None:
        """A user's policy has failed: the last one of the built-in ones again."""
        sentence = f"policy {self.config.priority.formula}: {reason}"
        config, self.source = self._last_good
        self._apply(config)
        self.trouble = f"{sentence}; the last good policy is in force"
        self._counters.add("policy_reverts")
        self._note("reverted", self.source, config, sentence)

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
        log = self._log.warning if outcome in ("refused", "reverted") else self._log.info
        log(f"policy {outcome}", version=self.version, source=source, formula=formula, why=reason)

    def close(self) -> None:
        """Ends the processes of users' policies."""
        if self.users is not None:
            self.users.close()


def _is_users(config: PolicyConfig) -> bool:
    return config.priority.built is None


def _users_error(reason: str, source: str) -> ConfigError:
    return ConfigError(reason, file=source, key=FORMULA)


def _need_admin(session: Session) -> None:
    if session.peer.uid not in (0, os.geteuid()):
        raise Refusal(Code.DENIED, "verb", "policies are for the daemon's user and root")
