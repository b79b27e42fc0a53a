"""Many client processes at once. EVOKE_LOAD_S=60 is the long form, with 64 of them.

EVOKE_LOAD_DAEMON="LD_PRELOAD=... PYTHONPATH=..." is the environment of the daemon alone: `make
sanitize-load-thread` runs it so; a sanitizer's memory and speed say nothing of the product's.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import assert_idle
from tests.daemon.peer import DaemonProcess, eventually

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("EVOKE_LOAD_S", "10"))
PROCESSES = 64 if SECONDS >= 60 else 16
GROWTH_BYTES_MAX = 8 << 20
DAEMON_ENVIRON = dict(
    word.split("=", 1) for word in shlex.split(os.environ.get("EVOKE_LOAD_DAEMON", ""))
)
SETTINGS = {"host.capacity": "24MiB"}


def watch(nursery: subprocess.Popen[str], daemon: DaemonProcess) -> list[tuple[int, int]]:
    """(resident bytes, descriptors) of the daemon, twice a second."""
    samples = []
    while nursery.poll() is None:
        samples.append((daemon.resident_bytes(), daemon.fds()))
        time.sleep(0.5)
    return samples


@pytest.mark.timeout(SECONDS + 120)
def test_clients_that_come_and_go(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrong byte, no error but to the killed, nobody gets half of another's share, and the
    daemon's memory and descriptors stay what they were."""
    with monkeypatch.context() as environ:
        for name, value in DAEMON_ENVIRON.items():
            environ.setenv(name, value)
        daemon = DaemonProcess(socket_dir, SETTINGS)
    try:
        check_environ(daemon)
        with daemon.peer() as first:
            first.ok("ping")
            fds = daemon.fds()  # with those of one session, three
        nursery = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.load.nursery"),
                *(str(daemon.directory), str(PROCESSES), str(SECONDS)),
            ],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            samples = watch(nursery, daemon)
            report: dict[str, Any] = json.loads(nursery.communicate()[0])
        finally:
            nursery.kill()
            nursery.wait()
        assert eventually(lambda: daemon.fds() < fds), (daemon.fds(), fds)
        assert daemon.pool_mappings() == 0
        with daemon.peer() as peer:
            lookups = peer.status()["lookups"]
            assert peer.ok("audit")["findings"] == []
        assert_idle(daemon)
        daemon.stop()
    finally:
        daemon.kill()
    check_report(report, lookups)
    if not DAEMON_ENVIRON:
        check_flat(samples)


def check_environ(daemon: DaemonProcess) -> None:
    """The daemon runs with the libraries that EVOKE_LOAD_DAEMON names."""
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    for library in DAEMON_ENVIRON.get("LD_PRELOAD", "").split():
        assert str(Path(library).resolve()) in maps
    if "PYTHONPATH" in DAEMON_ENVIRON:
        assert str(Path(DAEMON_ENVIRON["PYTHONPATH"], "evoke/core/_native")) in maps


def check_report(report: dict[str, Any], lookups: dict[str, int]) -> None:
    residents = report["residents"]
    everybody = [*residents, *report["guests"]]
    assert [error for seen in everybody for error in seen["errors"]] == []
    assert sum(seen["wrong"] for seen in everybody) == 0
    assert sum(seen["fetched"] for seen in everybody) > 1000
    assert report["killed"] >= PROCESSES // 4, "too few were killed to say anything"
    rounds = [seen["rounds"] for seen in residents]
    assert max(rounds) <= 2 * min(rounds), rounds
    hits = lookups["hit_host"] + lookups["hit_cxl"] + lookups["hit_flash"]
    assert hits + lookups["missed"] + lookups["unknown"] == lookups["asked"]


def check_flat(samples: list[tuple[int, int]]) -> None:
    """From the third third on nothing is above what the second third had."""
    third = len(samples) // 3
    middle, late = samples[third : 2 * third], samples[2 * third :]
    growth = max(size for size, _ in late) - max(size for size, _ in middle)
    assert growth <= GROWTH_BYTES_MAX, samples
    assert max(fds for _, fds in late) <= max(fds for _, fds in middle) + PROCESSES, samples
