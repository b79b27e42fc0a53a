"""Runs as root in the booted container: asks systemd and the kernel what became of the unit.

    python3 check.py REPORT

One line for each promise goes into the report, "good" last when all held.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evoke.client import NO_SALT, Client, Group, Part, connect

__all__: list[str] = []

SOCKETS = Path("/run/evoked")
PATIENCE_S = 60.0
IPC_LOCK = 1 << 14
GUEST_UID = 4321


def command(*words: str) -> str:
    result = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0, f"{words}: {result.returncode} {result.stdout}{result.stderr}"
    return result.stdout


def unit() -> dict[str, str]:
    lines = command("systemctl", "show", "evoked.service").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def eventually(check: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < end_s, f"{what}: not within {PATIENCE_S} s; {unit()}"
        time.sleep(0.1)


def serves() -> dict[str, Any]:
    """The status of a daemon that is ready, as root sees it."""
    eventually(lambda: unit()["ActiveState"] == "active", "the unit is active")
    state: dict[str, Any] = json.loads(command("evokectl", "status", "--json"))
    assert state["health"]["state"] == "green"
    return state


def as_guest(groups: list[int], task: Callable[[], str]) -> str:
    """What task returns, or its exception, in a child that is an ordinary user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(100, 100, 100)
            os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
            text = task()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode()[:4000])
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return file.read()


def round_trip(client: Client, seed: int) -> str:
    """ "same" when eight blocks come back as they were."""
    group = Group(layers=2, kv_heads=1, head_size=32)
    space = client.namespace(
        model="boot", weights_epoch="1", position="none", dtype="float32", block_tokens=16,
        parts=(Part(groups=(group,)),), salt=NO_SALT,
    )  # fmt: skip
    memory = client.pool_memory(8 * space.namespace.parts[0].part_bytes)
    array = memory.array((8, 2, 2, 16, 1, 32), np.float32)
    pool = space.register_pool(memory, array, "slot layer kv token head element")
    array[:] = wanted = np.random.default_rng(seed).random(array.shape, np.float32)
    chain = space.keys(np.arange(128) + seed * 1000)
    stored = space.store(pool, chain, range(8)).stored
    array[:] = 0
    hits = space.fetch(pool, chain, range(8)).hits
    same = stored == hits == 8 and (array == wanted).all()
    return "same" if same else f"stored {stored}, fetched {hits}"


def guest_round_trip() -> str:
    with connect(SOCKETS, raise_errors=True, timeout_s=10) as client:
        return round_trip(client, 1)


# ---------------------------------------------------------------------- the promises
def started_by_notification() -> None:
    """Type=notify: active only when the daemon says it serves, with its status line."""
    state = serves()
    shown = unit()
    assert shown["StatusText"] == f"serving {SOCKETS}", shown["StatusText"]
    assert (shown["Type"], shown["NRestarts"]) == ("notify", "0")
    assert state["pid"] == int(shown["MainPID"])


def runs_as_its_user() -> None:
    """The user of sysusers.conf, one capability, no new privileges, a filter of system calls."""
    user = pwd.getpwnam("evoked")
    rows = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{unit()['MainPID']}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert rows["Uid"].split() == [str(user.pw_uid)] * 4, rows["Uid"]
    assert int(rows["CapEff"], 16) == int(rows["CapBnd"], 16) == IPC_LOCK, rows["CapEff"]
    assert (rows["NoNewPrivs"], rows["Seccomp"]) == ("1", "2")
    place = SOCKETS.stat()
    assert (place.st_uid, place.st_gid) == (user.pw_uid, user.pw_gid)
    assert place.st_mode & 0o777 == 0o750
    assert (SOCKETS / "control.sock").stat().st_mode & 0o777 == 0o660


def arena_is_locked() -> None:
    """LimitMEMLOCK and CAP_IPC_LOCK are enough: the whole arena is locked, under all hardening."""
    text = Path(f"/proc/{unit()['MainPID']}/status").read_text()
    locked = next(line.split()[1] for line in text.splitlines() if line.startswith("VmLck"))
    assert int(locked) >= 64 << 10, f"{locked} KiB"


def serves_its_group_only() -> None:
    """An ordinary user in the group evoked stores and fetches; one who is not is refused."""
    assert as_guest([grp.getgrnam("evoked").gr_gid], guest_round_trip) == "same"
    refused = as_guest([], lambda: str(os.stat(SOCKETS / "control.sock")))
    assert refused.startswith("PermissionError"), refused


def logs_json() -> None:
    """What the journal has of the unit is JSON with the boot id."""
    boot = serves()["boot_id"]
    lines = command("journalctl", "-u", "evoked", "-o", "cat", "--no-pager").splitlines()
    own = [json.loads(line) for line in lines if line.startswith("{")]
    assert any(row.get("boot") == boot or row.get("boot_id") == boot for row in own), lines


def watchdog_restarts_who_hangs() -> None:
    """A stopped daemon is killed and started again; a client that stayed goes on with it."""
    before = serves()
    kept = SOCKETS.stat().st_ino
    with connect(SOCKETS, timeout_s=5) as client:
        assert round_trip(client, 2) == "same"
        os.kill(int(unit()["MainPID"]), signal.SIGSTOP)
        eventually(lambda: unit()["NRestarts"] == "1", "the watchdog restarts")
        after = serves()
        assert after["boot_id"] != before["boot_id"]
        assert SOCKETS.stat().st_ino == kept, "RuntimeDirectoryPreserve"
        eventually(lambda: round_trip(client, 3) == "same", "the client is served again")


def restarts_after_a_kill() -> None:
    """SIGKILL: started again, nothing left in shared memory."""
    os.kill(int(unit()["MainPID"]), signal.SIGKILL)
    eventually(lambda: unit()["NRestarts"] == "2", "systemd restarts")
    serves()
    assert os.listdir("/dev/shm") == []


def reloads() -> None:
    """`systemctl reload` runs ExecReload to its end, and the daemon serves on."""
    before = serves()
    command("systemctl", "reload", "evoked")
    assert serves()["boot_id"] == before["boot_id"]


def stops_in_order() -> None:
    """`systemctl stop`: exit status 0, within its time, nothing left behind."""
    command("systemctl", "stop", "evoked")
    shown = unit()
    told = (shown["ActiveState"], shown["Result"], shown["ExecMainStatus"])
    assert told == ("inactive", "success", "0"), told
    assert os.listdir("/dev/shm") == []


def main() -> None:
    promises = [
        started_by_notification, runs_as_its_user, arena_is_locked, serves_its_group_only,
        logs_json, watchdog_restarts_who_hangs, restarts_after_a_kill, reloads, stops_in_order,
    ]  # fmt: skip
    failed = 0
    with open(sys.argv[1], "w") as report:
        for promise in promises:
            sentence = (promise.__doc__ or promise.__name__).strip()
            try:
                promise()
            except Exception:
                failed += 1
                report.write(f"FAILED: {sentence}\n{traceback.format_exc()}")
            else:
                report.write(f"held: {sentence}\n")
            report.flush()
        report.write("good\n" if not failed else f"{failed} failed\n")


if __name__ == "__main__":
    main()
