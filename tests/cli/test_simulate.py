"""evokectl simulate, sweep and trace info, as scripts use them."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from evoke.policy.trace_format import TraceEncoder
from evoked.cli import main

DATA = Path(__file__).resolve().parent.parent / "data" / "traces"
CONVERSATION = str(DATA / "mooncake_conversation.jsonl.xz")
REQUESTS = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [1, 2, 4]]


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Five requests of 13 accesses of 5 blocks."""
    path = tmp_path / "small.jsonl"
    lines = [json.dumps({"timestamp": 1000 * i, "hash_ids": r}) for i, r in enumerate(REQUESTS)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def run(*arguments: str, status: int = 0) -> str:
    """What the command printed; its errors where it is to fail."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == status, result.output
    return result.stderr if status else result.stdout


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    rows = json.loads(run(*arguments, "--json"))
    assert isinstance(rows, list)
    return rows


def test_rows_have_their_fields() -> None:
    """A row echoes what was asked and has the counts; a share is of the file's distinct blocks,
    rounded down."""
    spec = "lrfu:alpha=0.05,clock=request,state=keep"
    command = [sys.executable, "-c", "import sys; from evoked.cli import main; sys.exit(main())"]
    command += ["simulate", CONVERSATION, "--policy", spec, "--policy", "lru", "--capacity", "1%"]
    command += ["--capacity", "20000", "--touch", "list", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    fields = "trace policy touch capacity_blocks accesses hits prefix_hits evictions seconds"
    assert [set(row) for row in rows] == [set(fields.split())] * 4
    assert [row["policy"] for row in rows] == [spec, spec, "lru", "lru"]
    assert [row["capacity_blocks"] for row in rows] == [1827, 20000, 1827, 20000]
    assert {(row["trace"], row["touch"], row["accesses"]) for row in rows} == {
        (CONVERSATION, "list", 288500)
    }
    lru = rows[2]
    assert (lru["hits"], lru["prefix_hits"], lru["evictions"]) == (15080, 15080, 271593)
    assert all(row["seconds"] > 0 for row in rows)


def test_capacities(small: str) -> None:
    """Blocks, a share of the file's blocks, and bytes of blocks of a known size."""
    sizes = ["--capacity", "2", "--capacity", "50%", "--capacity", "3MiB"]
    rows = rows_of("simulate", small, "--policy", "lru", *sizes, "--block-bytes", "1MiB")
    assert [row["capacity_blocks"] for row in rows] == [2, 2, 3]


def test_the_default_policy_keeps_prefixes(small: str) -> None:
    """Without --policy it is the default one, with its own name in the row; the bound is above."""
    (row,) = rows_of("simulate", small, "--capacity", "4")
    (bound,) = rows_of("simulate", small, "--capacity", "4", "--policy", "clairvoyant")
    assert row["policy"] == "default"
    assert row["hits"] == row["prefix_hits"] <= bound["prefix_hits"]


def test_thresholds_have_no_capacity(small: str) -> None:
    """Their row has the occupancy of the tiers in place of a capacity."""
    (row,) = rows_of("simulate", small, "--policy", "thresholds:alpha=0.2,keep=0.15,evict=0.1")
    assert row["capacity_blocks"] is None
    assert row["hits"] == row["hot"] + row["cold"]
    assert row["resident_max"] <= 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "lrux", "--capacity", "1"], "policy: 'lrux' is none of"),
        (["--policy", "lrfu:alpha=2", "--capacity", "1"], "policy lrfu: alpha: 2.0 is not between"),
        (["--policy", "lrfu:alfa=2", "--capacity", "1"], "policy lrfu: unknown key 'alfa'"),
        (["--policy", "lru"], "capacity: none is given"),
        (["--policy", "lru", "--capacity", "0"], "capacity: '0' is 0 of 5 blocks"),
        (["--policy", "lru", "--capacity", "1%"], "capacity: '1%' is 0 of 5 blocks"),
        (["--policy", "lru", "--capacity", "-1"], "capacity: '-1' is not a size"),
        (["--policy", "lru", "--capacity", "1GiB"], "capacity: '1GiB' needs --block-bytes"),
        (["--policy", "lru", "--capacity", "1", "--touch", "x"], "--touch"),
    ],
)
def test_bad_arguments_are_usage_errors(small: str, arguments: list[str], sentence: str) -> None:
    """Exit status 2, and a sentence that names the field."""
    assert sentence in run("simulate", small, *arguments, status=2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file"),
        (b"", "no request"),
        (b"\xfd7zXZ\x00rubbish", "trace "),
        (b"\x1f\x8brubbish", "trace "),
        (b'{"timestamp": 0, "hash_ids": ["a"]}', "line 1: hash_ids"),
        (b"evoke-trace 1\nrubbish rubbish", "trace "),
        (b'{"type": "block", "session": "x"}', "record 1"),
    ],
)
def test_bad_traces_are_usage_errors(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    """Exit status 2, and a sentence that names the file and what is wrong with it."""
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)
    for command in (["simulate", "--policy", "lru", "--capacity", "1"], ["trace", "info"]):
        error = run(*command, str(path), status=2)
        assert sentence in error
        assert str(path) in error


def test_a_trace_whose_ids_are_no_prefixes(tmp_path: Path) -> None:
    """Policies that evict tails only refuse it and say where; the others run."""
    path = tmp_path / "trace"
    path.write_text('{"timestamp": 0, "hash_ids": [1, 2]}\n{"timestamp": 1, "hash_ids": [2, 1]}')
    assert "request 2, block 1" in run("simulate", str(path), "--capacity", "1", status=2)
    (row,) = rows_of("simulate", str(path), "--capacity", "2", "--policy", "lru")
    assert row["hits"] == 2


def test_recordings_and_packed_files_are_told_by_their_content(tmp_path: Path, small: str) -> None:
    """Our own recordings, xz and plain lines with the same requests give the same counts."""
    encoder = TraceEncoder()
    encoder.namespace(b"n", 16, 4096)
    file = encoder.begin()
    for number, blocks in enumerate(REQUESTS):
        keys = b"".join(block.to_bytes(32, "big") for block in blocks)
        file += encoder.request(b"n", keys, 0, 0, float(number))
    recorded, packed = tmp_path / "recorded", tmp_path / "packed"
    recorded.write_bytes(file + encoder.end())
    packed.write_bytes(lzma.compress(Path(small).read_bytes()))
    found = []
    for path in (small, str(recorded), str(packed)):
        (row,) = rows_of("simulate", path, "--policy", "default", "--capacity", "3")
        found.append({key: row[key] for key in ("accesses", "hits", "prefix_hits", "evictions")})
    assert found[0] == found[1] == found[2]
    facts = json.loads(run("trace", "info", str(recorded), "--json"))
    assert (facts["format"], facts["whole"], facts["block_bytes"]) == ("evoke-trace", True, [4096])


def test_agent_sessions_replay_turn_by_turn() -> None:
    """A file of agent sessions gives one row a turn; the 105 published ones come out equal."""
    path = Path(__file__).resolve().parent.parent / "policy" / "data" / "agent_session.jsonl.xz"
    rows = rows_of("simulate", str(path))
    assert sum(row["published_equal"] is True for row in rows) == 105
    assert not [row for row in rows if row["published_equal"] is False]


def test_trace_info(small: str) -> None:
    """What a file holds, for programs and for people."""
    facts = json.loads(run("trace", "info", small, "--json"))
    assert (facts["requests"], facts["accesses"], facts["distinct_blocks"]) == (5, 13, 5)
    assert (facts["span_s"], facts["hit_percent_max"]) == (4.0, 61.54)
    assert "distinct blocks" in run("trace", "info", small)


def test_a_sweep_is_a_grid(small: str) -> None:
    """Keys with several values and several capacities give every combination, each as simulate
    would; thresholds once."""
    specs = ["--policy", "product:alpha=0.1/0.01,beta=1/0.1", "--policy", "thresholds:keep=0.2/0.1"]
    rows = rows_of("sweep", small, *specs, "--capacity", "1/2", "--capacity", "80%")
    products = [row for row in rows if row["policy"].startswith("product")]
    assert [row["policy"] for row in products[::3]] == [
        f"product:alpha={alpha},beta={beta}" for alpha in ("0.1", "0.01") for beta in ("1", "0.1")
    ]
    assert [row["capacity_blocks"] for row in products] == [1, 2, 4] * 4
    assert len(rows) == 12 + 2
    one = products[5]
    (same,) = rows_of("simulate", small, "--policy", one["policy"], "--capacity", "4")
    assert {**same, "seconds": 0} == {**one, "seconds": 0}


@pytest.mark.parametrize(
    "specs",
    [
        ["lrfu:alpha=0.1/0.01,state=keep/reset"],
        ["lrfu:alpha=0.1/0.01"],
        ["lrfu:clock=request/second"],
        ["lru", "default", "thresholds"],
    ],
)
@pytest.mark.parametrize("capacities", ["2", "2/3/4"])
def test_plots_are_pictures(small: str, tmp_path: Path, specs: list[str], capacities: str) -> None:
    """Heat maps, curves and bars are written as PNG."""
    path = tmp_path / "plot.png"
    policies = [part for spec in specs for part in ("--policy", spec)]
    run("sweep", small, *policies, "--capacity", capacities, "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--policy", "lrfu:alpha=0.1/2", "--capacity", "1"], "alpha: 2.0"),
        (["--policy", "lru", "--capacity", "1/x"], "capacity: 'x'"),
        (["--policy", "lru", "--capacity", "1", "--plot", "x.jpg"], "plot: 'x.jpg'"),
        (["--policy", f"lrfu:alpha={'/'.join(['0.1'] * 10001)}"], "10001 combinations"),
    ],
)
def test_bad_sweeps_are_usage_errors(small: str, arguments: list[str], sentence: str) -> None:
    """Exit status 2, and a sentence that names the field, before anything is written."""
    assert sentence in run("sweep", small, *arguments, status=2)
