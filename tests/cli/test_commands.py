"""evokectl as a person and as a script use it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evoke.client.wire import Stored
from tests.daemon.peer import DaemonProcess, chain, make_namespace

EVOKECTL = [sys.executable, "-c", "import sys; from evoked.cli import main; sys.exit(main())"]


def evokectl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*EVOKECTL, *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    process = DaemonProcess(tmp_path_factory.mktemp("cli"), {"host.capacity": "8MiB"})
    try:
        yield process
        process.stop()
    finally:
        process.kill()


@pytest.fixture
def place(daemon: DaemonProcess) -> str:
    return str(daemon.directory)


def test_status_json_has_its_fields(daemon: DaemonProcess, place: str) -> None:
    """Scripts find every field of `status --json` that is promised."""
    with daemon.engine(make_namespace(), name="runner") as engine:
        keys = chain(engine.namespace, 3)
        assert list(engine.store(keys, range(3))) == [Stored.STORED] * 3
        result = evokectl("status", "--json", "--socket", place)
    assert result.returncode == 0, result.stderr
    state: dict[str, Any] = json.loads(result.stdout)
    assert len(bytes.fromhex(state["boot_id"])) == 16
    assert state["health"]["state"] == "green"
    assert [thread["name"] for thread in state["health"]["threads"]] == ["loop", "copy-0"]
    tier = state["tiers"][0]
    assert (tier["name"], tier["blocks"], tier["used_bytes"]) == ("host", 3, 3 * 4096)
    assert {"pid", "uid", "instance", "rank", "pools", "grants"} <= set(state["sessions"][0])
    assert set(state["lookups"]) == {
        "asked", "hit_host", "hit_cxl", "hit_flash", "missed", "unknown",
    }  # fmt: skip
    assert state["copy"]["gbps"] > 0
    assert state["copy"]["kernel"]
    assert state["uptime_s"] > 0


def test_status_for_people(place: str) -> None:
    """Without --json a table is printed."""
    result = evokectl("status", "--socket", place)
    assert result.returncode == 0
    assert "host" in result.stdout
    assert "green" in result.stdout


def test_flush_all_frees_everything(daemon: DaemonProcess, place: str) -> None:
    """flush --all removes all blocks and says how many."""
    with daemon.engine(make_namespace()) as engine:
        engine.store(chain(engine.namespace, 4), range(4))
        evokectl("flush", "--all", "--socket", place)
        engine.store(chain(engine.namespace, 4), range(4))
        result = evokectl("flush", "--all", "--json", "--socket", place)
    assert json.loads(result.stdout) == {"blocks": 4, "bytes": 4 * 4096}
    assert json.loads(evokectl("status", "--json", "--socket", place).stdout)["tiers"][0][
        "used_bytes"
    ] == 0  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [(), ("--all", "--epoch", "x"), ("--namespace", "xyz"), ("--namespace", "abcd")]
)
def test_flush_usage(place: str, arguments: tuple[str, ...]) -> None:
    """flush without one clear target, or with a malformed one, is a usage error."""
    assert evokectl("flush", *arguments, "--socket", place).returncode == 2


def test_flush_of_an_unknown_namespace_fails(place: str) -> None:
    """A namespace that nobody registered is an error with exit status 1."""
    result = evokectl("flush", "--namespace", "00" * 32, "--socket", place)
    assert result.returncode == 1
    assert "namespace_id" in result.stderr


@pytest.mark.parametrize("command", ["status", "metrics", "sessions", "events"])
def test_absent_daemon_is_exit_3(tmp_path: Path, command: str) -> None:
    """Without a daemon the exit status is 3 and the sentence says so."""
    result = evokectl(command, "--socket", str(tmp_path))
    assert result.returncode == 3
    assert "daemon unreachable" in result.stderr


def test_too_long_socket_path_is_a_usage_error() -> None:
    """A directory whose sockets would not fit in a Unix path is refused by name."""
    result = evokectl("status", "--socket", "/tmp/" + "x" * 120)
    assert result.returncode == 2
    assert "--socket" in result.stderr


def test_metrics_are_valid_and_agree_with_status(daemon: DaemonProcess, place: str) -> None:
    """The Prometheus text parses, and its counters are those of status."""
    with daemon.engine(make_namespace()) as engine:
        engine.store(chain(engine.namespace, 2), range(2))
    text = evokectl("metrics", "--socket", place).stdout
    families = {family.name: family for family in text_string_to_metric_families(text)}
    state = json.loads(evokectl("status", "--json", "--socket", place).stdout)
    stored = families["evoke_blocks_stored"].samples[0].value
    assert stored == state["counters"]["blocks_stored"] > 0
    count = next(
        s.value for s in families["evoke_store_small_seconds"].samples if s.name.endswith("_count")
    )
    assert count > 0


def test_doctor_audits_a_sound_daemon(daemon: DaemonProcess, place: str) -> None:
    """doctor --audit finds index and arena in agreement."""
    with daemon.engine(make_namespace()) as engine:
        engine.store(chain(engine.namespace, 5), range(5))
    result = evokectl("doctor", "--audit", "--json", "--socket", place)
    findings = {row["check"]: row for row in json.loads(result.stdout)}
    assert findings["audit"]["state"] == "good", findings["audit"]
    assert findings["configuration"]["state"] == "good"


def test_doctor_names_a_bad_configuration(tmp_path: Path) -> None:
    """doctor --config says which line and key are wrong, and exits 1."""
    file = tmp_path / "bad.toml"
    file.write_text("[host]\ncapacity = 5\n")
    result = evokectl("doctor", "--json", "--config", str(file), "--socket", str(tmp_path))
    row = json.loads(result.stdout)[0]
    assert (result.returncode, row["state"]) == (1, "bad")
    assert "bad.toml:2" in row["found"]
    assert "capacity" in row["found"]


def test_events_tell_each_block_once(daemon: DaemonProcess, place: str) -> None:
    """A follower sees stored and flushed blocks with rising sequence numbers."""
    with daemon.engine(make_namespace()) as engine:
        follower = subprocess.Popen(
            [*EVOKECTL, "events", "--json", "--count", "3", "--socket", place],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            rows = []
            for seed in range(200):  # until the subscription has arrived
                keys = chain(engine.namespace, 2, seed=seed)
                engine.store(keys, range(2))
                time.sleep(0.05)
                if follower.poll() is not None:
                    break
            assert follower.stdout is not None
            rows = [json.loads(line) for line in follower.stdout.read().splitlines()]
        finally:
            follower.kill()
            follower.wait()
            follower.stdout.close()  # type: ignore[union-attr]
        known = {chain(engine.namespace, 2, seed=seed).hex() for seed in range(200)}
    assert [row["kind"] for row in rows] == ["stored"] * 3
    assert [row["sequence"] - rows[0]["sequence"] for row in rows] == [0, 1, 2]
    assert all("".join(row["keys"]) in known for row in rows)
