"""evokectl doctor, with a daemon and without one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.daemon.conftest import Start, start

__all__ = ["start"]

CHECKS = [
    "configuration", "policy", "memory", "memlock", "huge pages", "huge pages of pools", "NUMA",
    "io_uring", "userfaultfd", "GPU", "copy kernel", "permissions", "sockets",
]  # fmt: skip


def doctor(place: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """(exit status, findings by check)."""
    code = "from evoked.cli import main; main()"
    words = [sys.executable, "-c", code, "doctor", "--json", "--socket", str(place), *arguments]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60)
    rows = json.loads(result.stdout)
    assert result.stderr == ""
    return result.returncode, {row["check"]: row for row in rows}


def settings(folder: Path, text: str) -> str:
    file = folder / "evoked.toml"
    file.write_text(text)
    return f"--config={file}"


def test_without_a_daemon(tmp_path: Path) -> None:
    """Every check is there, and whatever is not good comes with what to do about it."""
    config = settings(tmp_path, '[host]\ncapacity = "2MiB"\n')
    status, found = doctor(tmp_path, config)
    assert list(found) == CHECKS
    assert all(row["advice"] for row in found.values() if row["state"] != "good")
    assert found["sockets"]["state"] == "note"
    assert status == any(row["state"] == "bad" for row in found.values())


def test_dead_daemons_sockets_are_not_a_daemon(tmp_path: Path) -> None:
    """A socket file at which nobody listens is not taken for a daemon."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "session.sock"))
    _, found = doctor(tmp_path)
    assert found["sockets"]["state"] == "note"
    assert "no daemon" in found["sockets"]["found"]


def test_host_is_measured_by_the_file(tmp_path: Path) -> None:
    """Memory and huge pages are held against the file that was named, not against the defaults."""
    _, found = doctor(tmp_path, settings(tmp_path, '[host]\ncapacity = "3MiB"\n'))
    assert "3.0 MiB wanted" in found["memory"]["found"]
    config = settings(tmp_path, '[host]\ncapacity = "90%"\nbacking = "hugetlb"\n')
    status, found = doctor(tmp_path, config)
    assert (status, found["huge pages"]["state"]) == (1, "bad"), found["huge pages"]
    assert "vm.nr_hugepages=" in found["huge pages"]["advice"]


def test_running_daemon_has_its_memory(start: Start, tmp_path: Path) -> None:
    """Beside a daemon that serves, what it took is not missed again."""
    daemon = start()
    _, found = doctor(daemon.directory, settings(tmp_path, '[host]\ncapacity = "99%"\n'))
    assert found["sockets"]["state"] == found["memory"]["state"] == "good"


def test_policy_with_an_error_is_named(tmp_path: Path) -> None:
    """An error in the policy's file is found before the daemon refuses it."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[priority]\nformula = "nonsense"\n')
    status, found = doctor(tmp_path, settings(tmp_path, f'[daemon]\npolicy = "{policy}"\n'))
    assert (status, found["policy"]["state"]) == (1, "bad")
    assert "policy.toml:2" in found["policy"]["found"]
