"""The part of evoke that a person reads in an afternoon stays that small."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {".py", ".pyi", ".cpp", ".hpp"}
AFTERNOON_LINES_MAX = 27_000  # ARCHITECTURE.md says why it is not the 8,000 of the design
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


def is_afternoon(file: Path) -> bool:
    folder, *rest = file.relative_to(ROOT).parts
    if folder == "evoked":
        return rest[0] != "cli"
    if folder == "client":
        return rest[0] not in INTEGRATIONS and not rest[0].startswith(("hf_", "conformance_"))
    return folder == "csrc" or rest[0] not in OPTIONAL_POLICIES


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_core_is_read_in_an_afternoon() -> None:
    """evoked/ without cli/, client/ without integrations, csrc/ and the needed part of policy/ have
    no more lines together than the line that is held, comments and blank lines included."""
    afternoon = [f for f in sources("evoked", "client", "csrc", "policy") if is_afternoon(f)]
    assert len(afternoon) > 40, "the folders have moved: this test counts nothing"
    total = sum(map(lines, afternoon))
    assert total <= AFTERNOON_LINES_MAX


@pytest.mark.parametrize("folder", ["evoked", "client", "csrc", "policy", "config"])
def test_files_are_short(folder: str) -> None:
    """No source file has more than 340 lines."""
    long = {str(f.relative_to(ROOT)): lines(f) for f in sources(folder)}
    assert {name: count for name, count in long.items() if count > FILE_LINES_MAX} == {}
