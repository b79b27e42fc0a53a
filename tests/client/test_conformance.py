"""The conformance kit passes a right runner and names what is wrong with each wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKEN = "tests.client.conformance_runners"


def run_kit(place: Path, factory: str, only: str = "") -> tuple[int, set[str], set[str], str]:
    """(exit status, failed cases, passed cases, output) of the kit in an empty directory."""
    (place / "t").mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place / "t")}
    command = [sys.executable, "-m", "pytest", "-q", "-rfp", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "evoke.client.conformance", "--evoke-runner", factory]
    command += ["-k", only] if only else []
    result = subprocess.run(
        command, cwd=place, env=environ, capture_output=True, text=True, timeout=200
    )
    output = result.stdout + result.stderr
    failed, passed = (
        set(re.findall(rf"^{word} evoke-conformance::test_(\S+)", output, re.MULTILINE))
        for word in ("FAILED", "PASSED")
    )
    assert list((place / "t").iterdir()) == [], "the kit left something behind"
    return result.returncode, failed, passed, output


def test_right_runner_passes(tmp_path: Path) -> None:
    """The numpy runner of the examples meets every demand."""
    factory = f"{ROOT}/examples/numpy_runner.py:Adapter"
    status, failed, passed, output = run_kit(tmp_path, factory)
    assert (status, failed) == (0, set()), output
    assert len(passed) == 32
    assert "skipped" not in output


def test_ranks_pass(tmp_path: Path) -> None:
    """A runner of two processes, each with its part of each block, meets the demands."""
    only = "10B or rank or damaged or answers_nothing or killed_in"
    status, failed, passed, output = run_kit(tmp_path, f"{BROKEN}:Ranked", only)
    assert (status, failed) == (0, set()), output
    assert len(passed) == 8


@pytest.mark.parametrize(
    ("runner", "only", "expected", "passes"),
    [
        ("swapped_slots", "exact and B", {"exact[9B]", "exact[10B+3]"}, {"exact[B]"}),
        ("never_restores", "exact", {"exact[B+1]", "exact[9B]"}, {"exact[B]"}),
        ("trusts_lookup", "damaged and middle", {"damaged_block[middle]"}, set()),
        ("forgets_salt", "other", {"other_namespace[salt]"}, {"other_namespace[weights_epoch]"}),
        ("LastToken", "exact or next", {"exact[3B-steps]", "next_turn"}, {"exact[10B+3]"}),
        ("raises", "killed[0.0] or restart", {"daemon_killed[0.0]"}, {"restart"}),
        ("Impatient", "answers_nothing", {"daemon_answers_nothing"}, set()),
        ("trusts_first_rank", "damaged and last", {"damaged_block[last]"}, set()),
        ("ranks_apart", "ranks_belong", {"ranks_belong_together"}, set()),
    ],
    ids=[
        "swapped_slots",
        "never_restores",
        "trusts_lookup",
        "forgets_salt",
        "LastToken",
        "raises",
        "Impatient",
        "trusts_first_rank",
        "ranks_apart",
    ],
)
def test_wrong_runner_fails(
    tmp_path: Path, runner: str, only: str, expected: set[str], passes: set[str]
) -> None:
    """Each mistake fails the cases that are about it, by name, and not those that are not."""
    status, failed, passed, output = run_kit(tmp_path, f"{BROKEN}:{runner}", only)
    assert status == 1, output
    assert expected <= failed, output
    assert passes <= passed, output


def test_runner_that_needs_a_daemon(tmp_path: Path) -> None:
    """A runner that does not start without a daemon ends the run, with its own exception."""
    status, _, passed, output = run_kit(tmp_path, f"{BROKEN}:needs_daemon")
    assert (status, passed) == (1, set())
    assert "the runner must start, with and without a daemon: the runner raised:" in output
    assert "errors.Unavailable: " in output


def test_factory_that_is_not_there(tmp_path: Path) -> None:
    """A factory that does not exist is a usage error, said in one sentence."""
    status, failed, passed, output = run_kit(tmp_path, f"{BROKEN}:nothing")
    assert (status, failed, passed) == (4, set(), set())
    assert f"evoke-runner: 'nothing' of {BROKEN} is not callable" in output
