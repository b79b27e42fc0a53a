"""Policies of users: real processes, a real order of the core, and the loop's own timers."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from evoke.client import wire
from evoke.client.wire import Code
from evoke.config import PolicyConfig
from evoke.core import scores
from evoked import user_policies
from evoked.counters import Counters
from evoked.policies import Policies
from evoked.policy_files import entry_point, read_source
from evoked.sessions import Session
from evoked.timers import Timers
from evoked.user_policies import OrderRanks, Sample, UserPolicies, UserRanks
from evoked.watcher import Watcher

BLOCKS = 50
LIVE = "blocks.now_s > 1e6"  # never in the made-up sample of a trial
GOOD = """
class Policy:
    def __init__(self, sign=1.0):
        self.sign = sign

    def rank(self, blocks):
        return self.sign * blocks.ids
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class Me:
    """The admin's session, as far as the verbs look at it."""

    class peer:
        uid = os.geteuid()


class Host:
    """A loop with a policy holder whose blocks are identities 0 to BLOCKS - 1."""

    takes_users = True

    def __init__(self, directory: Path, deadline_s: float, file: str = "") -> None:
        self.epoll = select.epoll()
        self.watcher = Watcher(self.epoll)
        self.timers = Timers()
        self.counters = Counters()
        self.replies: list[Any] = []
        self.swaps: list[str] = []
        self.order: scores.Ranked | None = None
        self.known = scores.Identities()
        self.known.grow(BLOCKS)
        self.made: list[UserPolicies] = []

        def make(on_failed: Callable[[str], None]) -> UserPolicies:
            clock = time.monotonic
            self.made.append(
                UserPolicies(
                    str(directory), deadline_s, self.watcher, self.timers, clock, on_failed
                )
            )
            return self.made[0]

        self.others = children()
        self.policies = Policies(file, self, self.counters, self, make)

    def swap(self, config: PolicyConfig) -> UserRanks | None:
        self.swaps.append(config.priority.formula)
        self.order = None
        if config.priority.built is not None:
            return None
        view = scores.Scores(self.known, config.score.weight)
        self.order = scores.Ranked(self.known)
        self.order.grow(BLOCKS)
        for block in range(BLOCKS):
            self.order.admit(block)
        self.ranks = OrderRanks(self.order, self.known, view, lambda: (1.0, 2e6))
        return self.ranks

    def reply(self, session: Session, number: int, code: Code, result: Any) -> None:
        assert code == Code.OK
        self.replies.append(result)

    def end_session(self, session: Session, reason: str) -> None:
        raise AssertionError(reason)

    def run_until(self, true: Callable[[], object], seconds: float = 60.0) -> None:
        end_s = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end_s
            for fd, _ in self.epoll.poll(0.01):
                self.watcher.handle(fd)
            self.timers.run_due(time.monotonic())

    def reload(self, content: str) -> dict[str, Any]:
        """The reply, whenever it comes."""
        args = wire.PolicyReload(content, "mine.toml")
        self.replies.clear()
        result = self.policies.policy_reload(cast(Session, Me()), 1, args)
        if isinstance(result, dict):
            return result
        self.run_until(lambda: self.replies)
        outcome: dict[str, Any] = self.replies[0]
        return outcome

    def worst(self) -> int | None:
        assert self.order is not None
        return self.order.worst(1.0)

    def pid(self) -> int:
        process = self.made[0]._active
        assert process is not None
        return process.pid

    def idle(self) -> bool:
        """No process of a policy is left."""
        return children() <= self.others

    def close(self) -> None:
        self.policies.close()
        self.run_until(self.idle)
        self.epoll.close()


def children() -> set[int]:
    """Pids of this process's children, ended ones that wait to be reaped too."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    tmp_path.chmod(0o755)
    made = Host(tmp_path, 30.0)
    try:
        yield made
    finally:
        made.close()


def write(directory: Path, source: str, name: str = "mine.py") -> str:
    """The TOML that names it."""
    (directory / name).write_text(source)
    (directory / name).chmod(0o644)
    return f'[priority]\nformula = "file:{name}"\n'


def test_policy_ranks_after_its_trial(host: Host, tmp_path: Path) -> None:
    """A good file is tried, put into force, and orders the blocks with its options; the same reload
    with other options replaces it, and a built-in policy ends its process."""
    content = write(tmp_path, GOOD)
    assert host.reload(content)["version"] == 2
    host.run_until(lambda: host.worst() == 0)
    first = host.pid()
    assert host.reload(content + "sign = -1.0\n")["version"] == 3
    host.run_until(lambda: host.worst() == BLOCKS - 1)
    assert host.pid() != first
    assert host.reload('[priority]\nformula = "lru"\n')["version"] == 4
    host.run_until(host.idle)
    assert host.swaps == ["lru", "file:mine.py", "file:mine.py", "lru"]
    assert (host.policies.trouble, host.counters["policy_reverts"]) == ("", 0)


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("import nothing_of_that_name", "", "ModuleNotFoundError"),
        ("class Policy:\n  pass", "", "no class with a method rank"),
        ("def rank(blocks): pass", "", "has no class Policy"),
        (GOOD, "weight = 3\n", "unexpected keyword argument 'weight'"),
        (GOOD.replace("blocks.ids", "blocks.ids[1:]"), "", "shape"),
        (GOOD.replace("blocks.ids", "float('nan') * blocks.ids"), "", "nan in row 0"),
        (
            "class Policy:\n  calls = 0\n  def rank(self, blocks):\n    self.calls += 1\n"
            "    if self.calls > 99: raise RuntimeError('tired')\n    return blocks.idle",
            "",
            "RuntimeError: tired",
        ),
        ("import os\nos._exit(3)", "", "has ended by itself"),
    ],
)
def test_bad_policy_is_refused_before_it_ranks(
    host: Host, tmp_path: Path, source: str, options: str, reason: str
) -> None:
    """A policy that fails to load, or in the run over the sample, changes nothing."""
    result = host.reload(write(tmp_path, source) + options)
    assert not result["applied"]
    assert result["version"] == 1
    assert result["error"]["text"].startswith("mine.toml priority.formula: ")
    assert reason in result["error"]["reason"]
    assert host.swaps == ["lru"]
    host.run_until(host.idle)


def test_sleeping_trial_is_ended(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that never answers its trial is ended at the deadline; a second reload meanwhile is
    refused at once."""
    monkeypatch.setattr(user_policies, "TRIAL_S", 0.3)
    content = write(tmp_path, GOOD.replace("return", "import time; time.sleep(1000); return"))
    args = wire.PolicyReload(content, "mine.toml")
    host.policies.policy_reload(cast(Session, Me()), 1, args)
    assert "another one is being tried" in host.reload(content)["error"]["reason"]
    host.run_until(lambda: host.replies)
    assert "trial took longer than 300 ms" in host.replies[0]["error"]["reason"]
    assert host.swaps == ["lru"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("raise RuntimeError('tired')", "RuntimeError: tired"),
        ("import time; time.sleep(1000)", "rank took longer than 300 ms"),
        ("return [0.0]", "shape"),
        ("import os; os.kill(os.getpid(), 9)", "has ended by itself"),
    ],
)
def test_policy_that_fails_later_gives_way(tmp_path: Path, failure: str, reason: str) -> None:
    """When a policy that ranks is late, dead or talks nonsense, its process is ended, the last good
    policy is in force, and health is yellow with the reason until the next reload."""
    tmp_path.chmod(0o755)
    host = Host(tmp_path, 0.3 if "longer" in reason else 30.0)
    body = f"if {LIVE}:\n            {failure}\n        return"
    try:
        assert host.reload(write(tmp_path, GOOD.replace("return", body)))["version"] == 2
        host.run_until(lambda: host.policies.version == 3)
        assert host.swaps == ["lru", "file:mine.py", "lru"]
        assert f"policy file:mine.py: {reason}".partition(":")[0] in host.policies.trouble
        assert reason in host.policies.trouble
        assert host.counters["policy_reverts"] == 1
        assert host.policies.history[-1].outcome == "reverted"
        host.run_until(host.idle)
        host.reload("[score]\nhalf_life = 3\n")
        assert host.policies.trouble == ""
    finally:
        host.close()


def test_killed_policy_gives_way(host: Host, tmp_path: Path) -> None:
    """A process that somebody kills is noticed without a tick."""
    host.reload(write(tmp_path, GOOD))
    host.run_until(lambda: host.worst() == 0)
    os.kill(host.pid(), signal.SIGKILL)
    host.run_until(lambda: host.policies.trouble)
    assert host.swaps[-1] == "lru"


def test_check_changes_nothing(host: Host, tmp_path: Path) -> None:
    """A check tries the policy and ends it."""
    args = wire.PolicyText(write(tmp_path, GOOD), "mine.toml")
    host.policies.policy_check(cast(Session, Me()), 1, args)
    host.run_until(lambda: host.replies)
    assert host.replies[0]["good"]
    host.run_until(host.idle)
    assert host.swaps == ["lru"]


def test_later_reload_wins(host: Host, tmp_path: Path) -> None:
    """A policy that came into force while a user's one was being tried is not replaced by it."""
    args = wire.PolicyReload(write(tmp_path, GOOD), "mine.toml")
    host.policies.policy_reload(cast(Session, Me()), 1, args)
    host.policies.reload(lambda: "[score]\nhalf_life = 3\n", "other.toml", lambda outcome: None)
    host.run_until(lambda: host.replies)
    assert "another policy came into force meanwhile" in host.replies[0]["error"]["reason"]
    assert host.swaps == ["lru", "lru"]
    host.run_until(host.idle)


@pytest.mark.parametrize("source", [GOOD, "raise ValueError('never')"])
def test_configured_policy_of_a_user(tmp_path: Path, source: str) -> None:
    """The configured file may name a user's policy: the default one holds until it has been tried,
    and for good, with yellow health, when it cannot be used."""
    tmp_path.chmod(0o755)
    file = tmp_path / "policy.toml"
    file.write_text(write(tmp_path, source))
    host = Host(tmp_path, 30.0, str(file))
    try:
        assert host.swaps == ["lru"]
        if source == GOOD:
            host.run_until(lambda: host.policies.version == 2)
            assert (host.swaps, host.policies.trouble) == (["lru", "file:mine.py"], "")
        else:
            host.run_until(lambda: host.policies.trouble)
            assert "ValueError: never; the default policy is in force" in host.policies.trouble
            assert host.policies.version == 1
    finally:
        host.close()


def test_unsafe_files_are_refused(tmp_path: Path) -> None:
    """A file or directory that others may write to, a link, another name or kind, or one that is
    too long is not read."""
    tmp_path.chmod(0o755)
    write(tmp_path, GOOD)
    assert read_source(str(tmp_path), "mine.py") == GOOD
    (tmp_path / "link.py").symlink_to(tmp_path / "mine.py")
    with pytest.raises(OSError, match="symbolic links"):
        read_source(str(tmp_path), "link.py")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ValueError, match="no regular file"):
        read_source(str(tmp_path), "pipe.py")
    write(tmp_path, "#" * 70_000, "long.py")
    with pytest.raises(ValueError, match="longer than"):
        read_source(str(tmp_path), "long.py")
    for name in ("../mine.py", "mine", ".mine.py", "a/b.py", ""):
        with pytest.raises(ValueError, match=r"is not the name of a \.py file"):
            read_source(str(tmp_path), name)
    with pytest.raises(ValueError, match=r"daemon\.policy_dir is not set"):
        read_source("", "mine.py")
    (tmp_path / "mine.py").chmod(0o664)
    with pytest.raises(ValueError, match=r"mine.py: others may write to it \(mode 0664\)"):
        read_source(str(tmp_path), "mine.py")
    (tmp_path / "mine.py").chmod(0o644)
    tmp_path.chmod(0o757)
    with pytest.raises(ValueError, match="others may write to it"):
        read_source(str(tmp_path), "mine.py")


@needs_root
def test_files_of_others_are_refused(tmp_path: Path) -> None:
    """A file that belongs neither to root nor to the daemon's user is not read."""
    tmp_path.chmod(0o755)
    write(tmp_path, GOOD)
    os.chown(tmp_path / "mine.py", 1234, -1)
    with pytest.raises(ValueError, match="belongs to user 1234"):
        read_source(str(tmp_path), "mine.py")


def test_installed_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group evoke.policies is found by its name."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[evoke.policies]\nmine = evoke_test_policy:Policy\n")
    (tmp_path / "evoke_test_policy.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    policy = entry_point("mine", {"sign": 2.0})
    assert policy.__class__.__module__ == "evoke_test_policy"
    with pytest.raises(ValueError, match=r"'other' of the group evoke\.policies"):
        entry_point("other", {})


def test_sample_is_bounded_and_holds_no_numbers_of_blocks() -> None:
    """The sample keeps the last requests, few blocks in all, and numbers them afresh."""
    sample = Sample()
    for number in range(1000):
        sample.add(np.arange(number, number + 200, dtype=np.uint32) * 7, float(number))
    (ids, starts, now_s), blocks = sample.packed()
    requests = len(starts) // 8 - 1
    assert len(ids) // 4 == 200 * requests <= user_policies.SAMPLE_BLOCKS
    dense = np.frombuffer(ids, np.uint32)
    assert (int(dense.max()) + 1, len(np.unique(dense))) == (blocks, blocks)
    assert np.frombuffer(now_s, np.float64)[-1] == 999.0
