"""What the policy learned outlives the daemon, is passed over when damaged, and is never leaked."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.client import wire
from evoke.core import native
from evoke.policy.classics import Lfu
from evoke.policy.ranking import Ranking
from evoked import learned
from evoked.counters import Counters
from evoked.timers import Timers
from tests.daemon.conftest import Start
from tests.daemon.helpers import BLOCK, chain, eventually, make_namespace
from tests.daemon.peer import DaemonProcess, Engine

REQUESTS = itertools.count(1)
CAPACITY_BLOCKS = 512  # of 2 MiB
NAMESPACE = make_namespace("learned")
FAVOURITES = [chain(NAMESPACE, 1, seed=number) for number in range(4)]
LFU = "[priority]\nformula = 'lfu'\n[score]\nstate = 'keep'\n"


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "policy.toml"
    file.write_text(LFU)
    return str(file)


def settings(policy: str, state: Path) -> dict[str, Any]:
    return {"host__capacity": "2MiB", "daemon__policy": policy, "daemon__state_dir": str(state)}


def ask(engine: Engine, keys: list[bytes]) -> None:
    """A request for each of these blocks."""
    for at in range(0, len(keys), 64):
        reports = [wire.Report(engine.handle, k, 0, 0, next(REQUESTS)) for k in keys[at : at + 64]]
        engine.peer.ok("asked", reports)


def learn(start: Start, options: dict[str, Any]) -> DaemonProcess:
    """A daemon that is asked for the favourites five times; still running."""
    daemon = start(**options)
    with daemon.engine(NAMESPACE) as engine:
        for _ in range(5):
            ask(engine, FAVOURITES)
    return daemon


def survivors(start: Start, options: dict[str, Any]) -> tuple[int, DaemonProcess]:
    """How many favourites a new daemon keeps that stores them and then a tier full of blocks that
    are used twice."""
    daemon = start(**options)
    with daemon.engine(NAMESPACE) as engine:
        for key in FAVOURITES:
            engine.store(key, [0])
        others = [chain(NAMESPACE, 1, seed=1000 + number) for number in range(CAPACITY_BLOCKS)]
        for _ in range(2):
            ask(engine, others)
        for key in others:
            engine.store(key, [0])
        return sum(map(bool, engine.lookup(b"".join(FAVOURITES)))), daemon


def test_learned_state_outlives_the_daemon(start: Start, policy: str, tmp_path: Path) -> None:
    """Blocks that one daemon saw often are worth more to the next, and to one after a kill -9."""
    options = settings(policy, tmp_path / "state with a space")
    learn(start, options).stop()
    kept, second = survivors(start, options)
    assert kept == len(FAVOURITES)
    second.kill()
    assert survivors(start, options)[0] == len(FAVOURITES)
    forgetful = survivors(start, settings(policy, tmp_path / "another"))[0]
    assert forgetful == 0, "the test would pass without what was learned"


def test_another_half_life_keeps_scores(start: Start, tmp_path: Path) -> None:
    """A restart with another half-life ages from the same scores on, and so does a reload."""
    file = tmp_path / "policy.toml"
    texts = [f"[priority]\nformula='lrfu'\n[score]\nhalf_life={h}\n" for h in (1e6, 1e3)]
    file.write_text(texts[0])
    options = settings(str(file), tmp_path / "state")
    daemon = learn(start, options)
    with daemon.peer() as peer:
        assert peer.ok("policy_reload", texts[1], "")["applied"]
    daemon.stop()
    first = scores_of(tmp_path / "state")
    file.write_text(texts[0])
    start(**options).stop()
    daemon = start(**options)
    with daemon.engine(NAMESPACE) as engine:
        ask(engine, [chain(NAMESPACE, 1, seed=99)])
    daemon.stop()
    second = scores_of(tmp_path / "state")
    # 5 uses at the slow rate count alike; one request more at 1e6 takes less than a millionth.
    assert len(first) == 4
    assert np.allclose(first, math.log(5 * -math.expm1(-math.log(2) / 1e6)), atol=0.1)
    assert np.allclose(np.sort(second)[1:], np.sort(first), atol=1e-5)


def scores_of(state: Path) -> Any:
    image = learned.read(state / learned.NAME)
    assert image is not None
    kind = np.dtype("<u8,<u8,<f8,<f8,<u4,<u2,u1,u1")
    return np.frombuffer(image.records, kind)["f2"].copy()


@pytest.mark.parametrize("spoil", ["cut", "flip", "header", "empty", "readable", "link", "pipe"])
def test_what_cannot_be_trusted_is_passed_over(
    start: Start, policy: str, tmp_path: Path, spoil: str
) -> None:
    """A file that is damaged, or not the daemon's alone, is as none, with a warning; the next stop
    writes a good one."""
    state = tmp_path / "state"
    options = settings(policy, state)
    learn(start, options).stop()
    file = state / learned.NAME
    content = bytearray(file.read_bytes())
    assert (file.stat().st_mode & 0o777, os.listdir(state)) == (0o600, [learned.NAME])
    if spoil in ("flip", "header"):
        content[100 if spoil == "flip" else 30] ^= 1
    if spoil == "readable":
        file.chmod(0o640)
    elif spoil in ("link", "pipe"):
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere") if spoil == "link" else os.mkfifo(file, 0o600)
    else:
        file.write_bytes(bytes({"cut": content[:-1], "empty": b""}.get(spoil, content)))
    kept, daemon = survivors(start, options)
    assert kept == 0
    assert "what was learned is lost" in daemon.log()
    daemon.stop()
    image = learned.read(file)
    assert image is not None
    assert len(image.records) == 40 * (CAPACITY_BLOCKS + len(FAVOURITES))


def test_newer_version_is_left_alone(start: Start, policy: str, tmp_path: Path) -> None:
    """A file of a newer evoke stays as it is, and the daemon serves without it."""
    state = tmp_path / "state"
    learn(start, settings(policy, state)).stop()
    file = state / learned.NAME
    content = bytearray(file.read_bytes())
    struct.pack_into("<I", content, 8, learned.VERSION + 1)
    struct.pack_into("<Q", content, 56, native.xxh3_64(bytes(content[:56])))
    file.write_bytes(content)
    daemon = learn(start, settings(policy, state))
    assert "knows 1" in daemon.log()
    daemon.stop()
    assert file.read_bytes() == content


def test_secret_is_not_what_clients_know(start: Start, policy: str, tmp_path: Path) -> None:
    """A client cannot make the tags of the file from what it was told."""
    state = tmp_path / "state"
    daemon = start(**settings(policy, state))
    with daemon.engine(NAMESPACE) as engine:
        ask(engine, FAVOURITES)
        told = engine.secret
    daemon.stop()
    image = learned.read(state / learned.NAME)
    assert image is not None
    digest = hashlib.blake2b(NAMESPACE.id, key=image.secret, digest_size=16).digest()
    assert told not in (image.secret, digest)


def refused(state: Path, sockets: Path) -> str:
    """What a daemon says that does not start with this state directory."""
    command = [sys.executable, "-m", "evoked", "--socket", str(sockets)]
    settings = [f"--set=daemon.state_dir={state}", "--set=host.capacity=2MiB"]
    ended = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    return ended.stderr


def test_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The daemon does not start with a state directory that is a file."""
    (tmp_path / "file").write_text("")
    assert "daemon.state_dir: " in refused(tmp_path / "file", tmp_path / "s")


def test_directory_of_another_daemon_is_refused(start: Start, policy: str, tmp_path: Path) -> None:
    """A second daemon does not take the file of one that runs; after a kill its successor does."""
    state = tmp_path / "state"
    first = learn(start, settings(policy, state))
    assert "another daemon" in refused(state, tmp_path / "s")
    first.kill()
    start(**settings(policy, state)).stop()


def test_failed_save_is_counted(tmp_path: Path) -> None:
    """What cannot be written is counted and tried again; the file before stays whole."""
    index = native.Index()
    ranking = Ranking(index, Lfu(chains=True), 1 << 20)
    number, _ = index.add_namespace(1)
    ranking.add_namespace(number, NAMESPACE.id, BLOCK)
    counters, timers, now_s = Counters(), Timers(), 0.0
    state = tmp_path / "state"
    file = learned.LearnedFile(str(state), ranking, counters, timers, lambda: now_s)

    def save() -> None:
        nonlocal now_s
        ranking.asked(number, FAVOURITES[0], now_s)
        now_s += learned.SAVE_S
        timers.run_due(now_s)

    save()
    assert eventually(lambda: (state / learned.NAME).exists())
    before = (state / learned.NAME).read_bytes()
    (state / "learned.new").mkdir()
    assert eventually(lambda: file.idle)
    save()
    assert eventually(lambda: counters["learned_failed"] == 1)
    assert (state / learned.NAME).read_bytes() == before
    (state / "learned.new").rmdir()
    file.close()
    assert (state / learned.NAME).read_bytes() != before
    index.close()
