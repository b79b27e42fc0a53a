"""evokectl policy as a person and as a script use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import evokectl
from tests.daemon.peer import DaemonProcess

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    configured = tmp_path / "configured.toml"
    configured.write_text("[score]\nhalf_life = 3\n")
    settings = {"host.capacity": "8MiB", "daemon.policy": str(configured)}
    daemon = DaemonProcess(tmp_path, settings)
    try:
        yield str(daemon.directory)
        daemon.stop()
    finally:
        daemon.kill()


def test_policy_commands(place: str, tmp_path: Path) -> None:
    """A person checks, reloads and looks back; a bad file exits 1 with `file:line key: reason`."""
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text("[score]\nhalf_life = 7\n[protect]\nsinks = 2\n")
    bad.write_text("[score]\n\nhalf_life = 0\n")
    socket = ("--socket", place)
    shown = json.loads(evokectl("policy", "show", "--json", *socket).stdout)
    assert (shown["version"], shown["effective"]["score"]["half_life"]) == (1, 3)
    assert shown["source"] == str(tmp_path / "configured.toml")
    assert evokectl("policy", "check", str(good), *socket).stdout == f"{good} is good\n"
    for verb in ("check", "reload"):
        refused = evokectl("policy", verb, str(bad), *socket)
        sentence = f"{bad}:3 score.half_life: 0 is out of range\n"
        assert (refused.returncode, refused.stderr) == (1, sentence)
    reloaded = evokectl("policy", "reload", "--wait", str(good), *socket)
    assert reloaded.returncode == 0
    assert reloaded.stderr.startswith("evokectl: warning: protect: read and checked, but not")
    assert "version 2 is in force" in reloaded.stdout
    assert "half_life = 7.0" in evokectl("policy", "show", *socket).stdout
    back = json.loads(evokectl("policy", "reload", "--json", *socket).stdout)
    assert (back["applied"], back["version"]) == (True, 3)
    rows = json.loads(evokectl("policy", "history", "--json", *socket).stdout)
    assert [row["outcome"] for row in rows] == ["start", "refused", "applied", "applied"]
    assert "refused" in evokectl("policy", "history", *socket).stdout


def test_file_that_is_not_there(place: str, tmp_path: Path) -> None:
    """A file that cannot be read exits 1 and is named; nothing is sent."""
    gone = tmp_path / "gone.toml"
    result = evokectl("policy", "reload", str(gone), "--socket", place)
    assert result.returncode == 1
    assert result.stderr == f"{gone}: cannot be read: No such file or directory\n"
    assert len(json.loads(evokectl("policy", "history", "--json", "--socket", place).stdout)) == 1


def test_daemon_refuses_to_start_with_a_bad_policy(tmp_path: Path) -> None:
    """`evoked --check-config` reads the policy, too: exit 2 and the place of the error."""
    file = tmp_path / "policy.toml"
    file.write_text("[scor]\n")
    command = [sys.executable, "-m", "evoked", "--check-config", f"--set=daemon.policy={file}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr == f"evoked: {file}:1 scor: is not a section, did you mean 'score'?\n"


def test_own_policy_in_the_simulator() -> None:
    """A file of one's own runs over a trace beside the built-in ones; the row echoes its SPEC."""
    mine = f"file:{ROOT / 'examples/policy_short_chats.py'}:once_idle=20,every=20"
    trace = str(ROOT / "tests/data/traces/mooncake_conversation.jsonl.xz")
    policies = ("--policy", mine, "--policy", "lru")
    result = evokectl("simulate", trace, *policies, "--capacity", "5%", "--json")
    assert result.returncode == 0, result.stderr
    first, second = json.loads(result.stdout)
    assert (first["policy"], second["policy"]) == (mine, "lru")
    assert first["accesses"] == second["accesses"]
    assert 0 < first["hits"] != second["hits"]
    bad = evokectl("simulate", trace, "--policy", mine + ",depth=1", "--capacity", "5%")
    assert bad.returncode == 2
    assert "unexpected keyword argument 'depth'" in bad.stderr
