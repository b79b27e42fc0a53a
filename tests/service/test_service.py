"""The daemon as a service manager sees it: sd_notify, signals, the unit file."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "systemd" / "evoked.service"


class Manager:
    """Plays the service manager for one daemon: a datagram socket that names the sender."""

    def __init__(self, directory: Path, watchdog_s: float = 0.0, *more: str) -> None:
        self.address = str(directory / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.settimeout(20)
        environ = {**os.environ, "NOTIFY_SOCKET": self.address}
        if watchdog_s:
            environ["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        command = [sys.executable, "-m", "evoked", "--socket", str(directory / "s")]
        settings = ["--set=host.capacity=16MiB", "--set=host.backing=4k"]
        self.process = subprocess.Popen(
            [*command, *settings, *more], env=environ, stderr=subprocess.DEVNULL
        )

    def until(self, field: str) -> list[dict[str, str]]:
        """All messages up to the first that has the field."""
        messages = []
        while True:
            text = self.socket.recv(4096).decode()
            messages.append(dict(line.split("=", 1) for line in text.splitlines()))
            if field in messages[-1]:
                return messages

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path, watchdog_s=0.4)
    try:
        yield manager
    finally:
        manager.close()


def test_ready_comes_after_the_arena_is_faulted(manager: Manager) -> None:
    """STATUS and more time while pages are faulted in, then READY."""
    messages = manager.until("READY")
    assert "faulting in" in messages[0]["STATUS"]
    assert int(messages[0]["EXTEND_TIMEOUT_USEC"]) > 0
    assert "serving" in messages[-1]["STATUS"]


def test_watchdog_is_fed(manager: Manager) -> None:
    """Signs of life come twice in each watchdog interval."""
    manager.until("READY")
    start_s = time.monotonic()
    for _ in range(4):
        manager.until("WATCHDOG")
    assert time.monotonic() - start_s < 4 * 0.4


def test_stopped_loop_gives_no_sign_of_life(manager: Manager) -> None:
    """A loop that hangs (here: stopped) does not feed the watchdog."""
    manager.until("READY")
    manager.until("WATCHDOG")
    manager.process.send_signal(signal.SIGSTOP)
    manager.socket.settimeout(0.05)
    try:
        while True:
            manager.socket.recv(4096)  # what was under way
    except TimeoutError:
        manager.socket.settimeout(1.0)
    with pytest.raises(TimeoutError):
        manager.until("WATCHDOG")
    manager.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_ordered(manager: Manager, number: signal.Signals) -> None:
    """SIGTERM and SIGINT: STOPPING is told, sockets are removed, exit status 0."""
    manager.until("READY")
    manager.process.send_signal(number)
    assert manager.until("STOPPING")[-1]["STOPPING"] == "1"
    assert manager.process.wait(10) == 0
    place = Path(manager.address).parent / "s"
    assert os.listdir(place) == ["control.lock"]


def test_second_daemon_names_the_first(manager: Manager, tmp_path: Path) -> None:
    """A second daemon on the directory exits 1 and says whose it is; the first serves on."""
    manager.until("READY")
    command = [sys.executable, "-m", "evoked", "--socket", str(tmp_path / "s")]
    second = subprocess.run(
        [*command, "--set=host.capacity=2MiB"], capture_output=True, text=True, timeout=20
    )
    assert second.returncode == 1
    assert str(manager.process.pid) in second.stderr
    manager.until("WATCHDOG")


def test_check_config_exits_2_with_the_line(tmp_path: Path) -> None:
    """--check-config names file, line and key of a mistake."""
    file = tmp_path / "evoked.toml"
    file.write_text('[host]\ncapacity = "1GiB"\ncapacty = "2GiB"\n')
    command = [sys.executable, "-m", "evoked", "--check-config", "--config", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert result.returncode == 2
    assert "evoked.toml:3" in result.stderr
    assert "capacty" in result.stderr


def exec_reload(manager: Manager) -> subprocess.CompletedProcess[str]:
    """What the unit's ExecReload does with the manager's daemon."""
    line = UNIT.read_text().partition("\nExecReload=")[2].partition("\n")[0]
    program, *arguments = shlex.split(line)
    assert program == "/usr/bin/evokectl"
    code = "import sys; from evoked.cli import main; sys.exit(main())"
    environ = {**os.environ, "EVOKE_SOCKET": str(Path(manager.address).parent / "s")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_reload_waits_for_the_verdict(tmp_path: Path) -> None:
    """ExecReload succeeds when the policy's file was put into force, fails and names line and key
    when it was not, and the daemon lives on either way."""
    policy = tmp_path / "policy.toml"
    policy.write_text('[priority]\nformula = "lru"\n')
    manager = Manager(tmp_path, 0.4, f"--set=daemon.policy={policy}")
    try:
        manager.until("READY")
        good = exec_reload(manager)
        assert (good.returncode, good.stderr) == (0, "")
        policy.write_text('[priority]\nformula = "nonsense"\n')
        bad = exec_reload(manager)
        assert bad.returncode == 1
        assert "policy.toml:2" in bad.stderr
        assert "formula" in bad.stderr
        policy.write_text('# corrected\n[priority]\nformula = "lru"\n')
        assert exec_reload(manager).returncode == 0
        manager.until("WATCHDOG")
    finally:
        manager.close()


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60
    )


with_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here"
)


@with_systemd
def test_unit_verifies_without_a_word(tmp_path: Path) -> None:
    """systemd-analyze finds nothing to say of the unit (it exits 0 even on unknown values)."""
    unit = tmp_path / "evoked.service"
    # The programs are not installed where the unit looks for them on a checkout.
    text = UNIT.read_text().replace("/usr/bin/evoked ", "/bin/true ")
    unit.write_text(text.replace("/usr/bin/evokectl ", "/bin/true "))
    result = _analyze("verify", str(unit))
    assert result.returncode == 0
    assert result.stderr == ""


@with_systemd
def test_unit_is_hardened() -> None:
    """The exposure that systemd computes is at most 2.5."""
    result = _analyze("security", "--offline=yes", "--threshold=25", str(UNIT))
    assert result.returncode == 0, result.stdout[-400:]


def test_unit_keeps_peers_identifiable() -> None:
    """Hardening that would hide who connects, or count the arena as a leak, is not used."""
    settings = {line.split("=")[0] for line in UNIT.read_text().splitlines() if "=" in line}
    forbidden = {"PrivateUsers", "PrivateDevices", "PrivateIPC", "MemoryMax", "MemoryHigh"}
    assert not settings & forbidden
    assert "Type=notify\n" in UNIT.read_text()
