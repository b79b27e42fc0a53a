"""What docs/faults.md says about tests is true of their names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_named_tests_exist() -> None:
    """Every test in the table of faults is one of the file that is named with it."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text())
    assert len(named) > 40, "the table has another form: this test checks nothing"
    assert [n for n in named if f"def {n[1]}(" not in (ROOT / n[0]).read_text()] == []
