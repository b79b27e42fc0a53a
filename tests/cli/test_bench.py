"""evokectl bench, with small batches."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evoked.cli import bench_memory, bench_run
from evoked.cli.bench import bench

BATCH_BYTES = 8 << 20
FIXED = {
    "copy_vs_limit", "store_cpu_vs_memcpy", "fetch_cpu_vs_memcpy", "hf_fetch_cpu_vs_memcpy",
    "store_gbps", "fetch_gbps", "memcpy_gbps", "lookup_512_us_p50", "roundtrip_vs_echo",
    "block_bytes",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_memory, "BATCH_BYTES", BATCH_BYTES)
    monkeypatch.setattr(bench_run, "LOOKUPS", 50)
    monkeypatch.setattr("evoked.cli.bench.BATCH_BYTES", BATCH_BYTES)
    monkeypatch.setattr("evoked.cli.bench.ROUND_TRIPS_QUICK", 20)


def run(*words: str) -> Result:
    return CliRunner().invoke(bench, ["--quick", *words])


def test_fixed_outputs() -> None:
    """The JSON has every fixed figure, as a positive number, and the seconds of each round."""
    result = run("--json", "--layout", "smollm2")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["layout"] == "smollm2"
    assert figures["block_bytes"] == 737_280
    assert all(figures[name] > 0 for name in FIXED if figures[name] is not None)
    assert {len(figures["raw_s"][f"cpu/{verb}"]) for verb in ("store", "fetch")} == {7}


def test_all_layouts() -> None:
    """--layout all measures the three layouts in one run."""
    result = run("--json", "--layout", "all")
    assert result.exit_code == 0, result.output
    layouts = json.loads(result.stdout)["layouts"]
    assert [row["block_bytes"] for row in layouts] == [2 << 20, 5 << 20, 737_280]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler there is no limit to compare with, and everything else is measured."""
    monkeypatch.setattr("shutil.which", lambda _: None)
    result = run("--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["copy_vs_limit"] is None
    assert figures["store_cpu_vs_memcpy"] > 0


@pytest.mark.parametrize("what", ["_fetch", "_store"])
def test_bytes_that_do_not_move(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Figures of transfers that move nothing are refused with status 1."""

    def nothing(*_: Any) -> None:
        return None

    original = getattr(bench_run.Bench, what)
    if what == "_store":  # the blocks of another chain, so that each fetch finds something

        def store(self: Any, pool: Any, chain: Any, slots: Any) -> None:
            original(self, pool, chain, slots[::-1])

        monkeypatch.setattr(bench_run.Bench, what, store)
    else:
        monkeypatch.setattr(bench_run.Bench, what, nothing)
    result = run()
    assert result.exit_code == 1
    assert "arrived changed" in result.stderr


def test_no_daemon(tmp_path: Any) -> None:
    """--socket of a daemon that is not there ends with status 3."""
    assert run("--socket", str(tmp_path)).exit_code == 3
