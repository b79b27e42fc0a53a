"""Start and stop: one daemon for a path, orderly ends, clear refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evoke.client.wire import Code
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, chain, eventually, make_namespace


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evoked", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_second_daemon(start: Start) -> None:
    """A second daemon on the path exits 1, names the first, and leaves it serving."""
    daemon = start()
    with daemon.peer() as peer:
        second = _run("--socket", str(daemon.directory), "--set=host.capacity=2MiB")
        assert second.returncode == 1
        assert f"pid {daemon.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert peer.call("ping")[0] == Code.OK
        with daemon.peer() as other:
            assert other.call("ping")[0] == Code.OK


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_while_copies_run(start: Start, number: signal.Signals) -> None:
    """A stop in the middle of many copies is orderly: exit 0, clients see the end, no files."""
    daemon = start(host__capacity="64MiB")
    namespace = make_namespace(blocks_4k=256)
    with daemon.engine(namespace) as engine:
        engine.pin(chain(namespace, 4))
        engine.reserve(chain(namespace, 4, 1))
        for seed in range(2, 12):
            engine.peer.send("store", *engine.store_args(chain(namespace, 16, seed)))
        daemon.process.send_signal(number)
        assert engine.peer.ended()
        assert daemon.process.wait(10) == 0
    assert os.listdir(daemon.directory) == ["control.lock"]
    assert "Traceback" not in daemon.log()


def test_stops_with_its_parent(start: Start, tmp_path: Path) -> None:
    """An embedded daemon ends in order when the process of its parent descriptor ends."""
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(parent.pid)
    os.set_inheritable(pidfd, True)
    directory = tmp_path / "s"
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "evoked", "--socket", str(directory)]
    command += ["--parent-fd", str(pidfd), "--ready-fd", str(writer), "--set=host.capacity=2MiB"]
    with open(tmp_path / "log", "wb") as log:
        child = subprocess.Popen(command, pass_fds=[pidfd, writer], stderr=log)
    os.close(writer)
    os.close(pidfd)
    try:
        assert os.read(reader, 100).startswith(b"ready ")
        assert os.read(reader, 100) == b""
        parent.communicate(b"\n")
        assert child.wait(10) == 0
        assert not directory.exists()
    finally:
        os.close(reader)
        child.kill()
        child.wait()


def test_restart_on_the_same_path(start: Start) -> None:
    """A path is served again after a stop, with another boot id and nothing of before."""
    daemon = start()
    with daemon.peer() as peer:
        boot = peer.boot
    daemon.stop()
    again = DaemonProcess(daemon.directory.parent, {})
    try:
        with again.peer() as peer:
            assert peer.boot != boot
        again.stop()
    finally:
        again.kill()


def test_path_that_cannot_be_used(tmp_path: Path) -> None:
    """A directory that is a file is refused with exit 1 and a sentence."""
    (tmp_path / "file").write_text("")
    result = _run("--socket", str(tmp_path / "file"), "--set=host.capacity=2MiB")
    assert result.returncode == 1
    assert result.stderr.startswith("evoked: ")
    assert "Traceback" not in result.stderr


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    """A capacity beyond the machine's memory is refused with exit 1 and names the setting."""
    result = _run("--socket", str(tmp_path / "s"), "--set=host.capacity=100%")
    assert result.returncode == 1
    assert "host.capacity" in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_configuration(tmp_path: Path) -> None:
    """A bad setting is refused with exit 2 and its name."""
    result = _run("--socket", str(tmp_path / "s"), "--set=host.capacity=lots")
    assert result.returncode == 2
    assert "host.capacity" in result.stderr


def test_idle_daemon_sleeps(start: Start) -> None:
    """A daemon with idle sessions uses next to no processor."""
    daemon = start()
    with daemon.engine(make_namespace()) as engine:
        engine.store(chain(engine.namespace, 2))
        time.sleep(0.3)
        before_s = daemon.cpu_s()
        time.sleep(1)
        assert daemon.cpu_s() - before_s <= 0.05


def test_stopped_in_a_busy_moment(start: Start) -> None:
    """A stop is seen although requests arrive without end."""
    daemon = start()
    with daemon.engine(make_namespace()) as engine:
        for seed in range(300):
            engine.peer.send("store", *engine.store_args(chain(engine.namespace, 1, seed)))
        daemon.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: daemon.process.poll() == 0, 5)
