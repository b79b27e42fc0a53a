"""What a person reads in an afternoon stays that small, and the rest does not grow unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {".py", ".pyi", ".cpp", ".hpp"}
AFTERNOON_LINES_MAX = 8_000
CORE_LINES_MAX = 29_000  # ARCHITECTURE.md says why it is not the 8,000 of the design
FILE_LINES_MAX = 340
INTEGRATIONS = {
    "conformance.py",
    "convert.py",
    "demo_engine.py",
    "demo_flip.py",
    "demo_text.py",
    "llama_cpp.py",
    "sglang.py",
    "transformers.py",
    "vllm.py",
}
# What the default pipeline does not need.
OPTIONAL_POLICIES: set[str] = {
    "attention.py",
    "focus.py",
    "relevance.py",
    "residency.py",
    "sessions.py",
    # of the simulator only
    "clairvoyant.py",
    "simulate.py",
    "thresholds.py",
    "trace_format.py",
    "trace_reader.py",
    "traces.py",
}


def sources(*folders: str) -> list[Path]:
    return [file for f in folders for file in (ROOT / f).rglob("*") if file.suffix in SOURCES]


def is_core(file: Path) -> bool:
    folder, *rest = file.relative_to(ROOT).parts
    if folder == "evoked":
        return rest[0] != "cli"
    if folder == "client":
        return rest[0] not in INTEGRATIONS and not rest[0].startswith(("hf_", "conformance_"))
    return folder == "csrc" or rest[0] not in OPTIONAL_POLICIES


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_afternoon_is_short() -> None:
    """The files that ARCHITECTURE.md lists for an afternoon's reading have at most 8,000 lines."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("\n## An afternoon\n")[1]
    listed = re.findall(r"`((?:evoked|client|csrc|policy)/[^`]+)`", section.partition("\n## ")[0])
    assert len(listed) > 30, "the section has moved: this test counts nothing"
    assert sum(lines(ROOT / name) for name in listed) <= AFTERNOON_LINES_MAX


def test_core_is_small() -> None:
    """evoked/ without cli/, client/ without integrations, csrc/ and the needed part of policy/ have
    no more lines together than the line that is held, comments and blank lines included."""
    core = [f for f in sources("evoked", "client", "csrc", "policy") if is_core(f)]
    assert len(core) > 40, "the folders have moved: this test counts nothing"
    assert sum(map(lines, core)) <= CORE_LINES_MAX


@pytest.mark.parametrize("folder", ["evoked", "client", "csrc", "policy", "config"])
def test_files_are_short(folder: str) -> None:
    """No source file has more than 340 lines."""
    long = {str(f.relative_to(ROOT)): lines(f) for f in sources(folder)}
    assert {name: count for name, count in long.items() if count > FILE_LINES_MAX} == {}
