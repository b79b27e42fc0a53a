"""evokectl simulate X.npz: rows that scripts read, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from evoked.cli.simulate import simulate

DOCQA = Path(__file__).parent.parent / "policy/data/docqa.npz"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments)


def test_rows() -> None:
    """Each policy at each budget is a row with what it keeps and the ranks of the fact."""
    policies = ("--policy", "attention:signal=two", "--policy", "newest")
    found = run(str(DOCQA), *policies, "--capacity", "20%", "--capacity", "10%", "--json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.output)
    assert [(row["policy"], row["capacity"]) for row in rows] == [
        ("attention:signal=two", "20%"),
        ("attention:signal=two", "10%"),
        ("newest", "20%"),
        ("newest", "10%"),
    ]
    assert rows[0]["kept"] > rows[1]["kept"] > rows[2]["kept"] > rows[3]["kept"]
    assert rows[0]["fact_ranks"][1] == [1, 1]
    assert rows[0]["horizon_steps"] == 64


def test_table_for_people() -> None:
    """Without policies the rules that the docs compare are shown at 20 %."""
    found = run(str(DOCQA))
    assert found.exit_code == 0, found.output
    for name in ("attention", "signal=max", "signal=two", "newest", "best"):
        assert name in found.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policy", "lru"), "policy: 'lru' does not rank attention"),
        (("--policy", "attention:alpha=2"), "alpha: 2.0"),
        (("--policy", "attention:beta=2"), "'beta=2' is not key=value"),
        (("--capacity", "4GiB"), "capacity: '4GiB'"),
        (("--capacity", "0%"), "budget: 0.0"),
        (("--horizon-steps", "100000"), "horizon_steps: 100000"),
    ],
)
def test_bad_arguments(arguments: tuple[str, ...], sentence: str) -> None:
    """A bad argument exits 2 and is named with its value."""
    found = run(str(DOCQA), *arguments)
    assert found.exit_code == 2
    assert sentence in found.output


def test_bad_files(tmp_path: Path) -> None:
    """A file that is no archive, lacks its object or holds pickles exits 2 and is named."""
    path = tmp_path / "x.npz"
    path.write_bytes(b"not an archive")
    assert "x.json" in run(str(path)).output
    shutil.copy(DOCQA.with_suffix(".json"), tmp_path / "x.json")
    broken = run(str(path))
    assert (broken.exit_code, "x.npz" in broken.output) == (2, True)
    np.savez(path, mean=np.array([{}], object), max=np.zeros(1), allow_pickle=True)
    pickled = run(str(path))
    assert (pickled.exit_code, "x.npz" in pickled.output) == (2, True)
    (tmp_path / "x.json").write_text("[]")
    assert "holds no object" in run(str(path)).output
