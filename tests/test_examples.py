"""The examples run, and the documentation quotes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNER = ROOT / "examples" / "numpy_runner.py"


def test_numpy_runner_restores_its_prompt() -> None:
    """The second runner computes only what was not stored, and says the same."""
    result = subprocess.run(
        [sys.executable, str(RUNNER)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    first, second = map(int, re.findall(r"computed (\d+) tokens", result.stdout))
    assert (first, second) == (223, 223 - 192)
    tokens = re.findall(r"\[(.*)\]", result.stdout)
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0].split(", "))) > 2, "an answer that never varies proves nothing"


def quoted(part: str) -> str:
    """What stands between the two marks in the example, which the documentation must hold."""
    text = RUNNER.read_text()
    found = text.partition(f"# --- {part} begins\n")[2].partition(f"# --- {part} ends")[0].strip()
    assert found in (ROOT / "docs" / "integrate.md").read_text()
    return found


def test_documentation_quotes_the_example() -> None:
    """docs/integrate.md holds the example's evoke part word for word; it is at most 60 lines."""
    assert 30 < len(quoted("evoke").splitlines()) <= 60


def test_documentation_quotes_the_adapter() -> None:
    """docs/integrate.md holds what the conformance kit needs word for word."""
    assert 10 < len(quoted("conformance").splitlines()) <= 40
