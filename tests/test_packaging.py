"""What is published is what the checkout holds: source archive, wheel, editable install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # each install compiles the core

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "evoked": "evoked",
    "client": "evoke/client",
    "policy": "evoke/policy",
    "config": "evoke/config",
    "csrc": "evoke/core",
}
NOT_COPIED = (".*", "build", "dist", "*.egg-info", "*.so", "__pycache__")
# Where this session's dependencies are; new environments see them without downloading anything.
DEPENDENCIES = Path(np.__file__).parents[1]


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    """Its standard output; fails with all that it printed unless the command succeeds."""
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "EVOKE_SANITIZE"}}
    result = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, "PYTHONDONTWRITEBYTECODE": "1", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{command} in {cwd}:\n{result.stdout}{result.stderr}"
    return result.stdout


def new_environment(directory: Path) -> Path:
    """An interpreter whose environment holds the dependencies and nothing of evoke."""
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
    python = directory / "bin" / "python"
    report = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", report, cwd=directory).strip())
    # Links in a path file are not followed, so this session's own evoke stays out.
    (packages / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    absent = (
        "import importlib.util as u; assert not u.find_spec('evoked') and not u.find_spec('evoke')"
    )
    run(python, "-Ic", absent, cwd=Path("/"))
    return python


def install(python: Path, *what: str | Path, cwd: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps")
    run(*pip, "--no-index", "--no-build-isolation", "--ignore-installed", *what, cwd=cwd)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked kind of files at a path with a space."""
    copy = tmp_path_factory.mktemp("pack") / "a checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return copy


@pytest.fixture(scope="module")
def archives(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(source archive, wheel built from it)."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=checkout)
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return source, wheel


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel."""
    python = new_environment(tmp_path_factory.mktemp("wheel") / "venv")
    install(python, archives[1], cwd=Path("/"))
    return python


def test_wheel_holds_the_packages_and_nothing_else(archives: tuple[Path, Path]) -> None:
    """The wheel has two top-level names and, in them, each module, type file and default settings
    of the checkout and one compiled module; no C++ source."""
    with zipfile.ZipFile(archives[1]) as wheel:
        names = wheel.namelist()
    own = [n for n in names if not n.startswith(("evoked-0.1.0.dist-info/", "evoked-0.1.0.data/"))]
    assert {name.partition("/")[0] for name in own} == {"evoke", "evoked"}
    kinds = (".py", ".pyi", ".toml", "py.typed")
    expected = {
        f"{package}/{file.relative_to(ROOT / folder)}"
        for folder, package in FOLDERS.items()
        for file in (ROOT / folder).rglob("*")
        if file.name.endswith(kinds)
    }
    assert {f"{package}/py.typed" for package in FOLDERS.values()} <= expected
    compiled = [name for name in own if name.endswith(".so")]
    folders = {f"_{header.parent.name}" for header in (ROOT / "csrc").glob("*/*.hpp")}
    assert {Path(name).name.partition(".")[0] for name in compiled} == {"_native", *folders}
    assert set(own) == expected | set(compiled)


def test_wheel_holds_the_units(archives: tuple[Path, Path]) -> None:
    """The wheel's data are the service manager's files, as they are in the checkout."""
    root = "evoked-0.1.0.data/data/"
    with zipfile.ZipFile(archives[1]) as wheel:
        data = {n.removeprefix(root): wheel.read(n) for n in wheel.namelist() if n.startswith(root)}
    places = {"evoked.service": "lib/systemd/system", "sysusers.conf": "share/evoked"}
    places["tmpfiles.conf"] = "share/evoked"
    assert data == {
        f"{places[file.name]}/{file.name}": file.read_bytes()
        for file in (ROOT / "systemd").iterdir()
    }


def test_source_archive_builds(archives: tuple[Path, Path]) -> None:
    """The source archive has every file that the compiler and the installer read."""
    with tarfile.open(archives[0]) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {str(f.relative_to(ROOT)) for f in (ROOT / "csrc").rglob("*.?pp")}
    assert wanted | {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py"} <= members


def test_wheel_runs_from_anywhere(installed: Path) -> None:
    """With the wheel, packages import and both programs start, far from any checkout."""
    script = "import evoke.core, evoke.client, evoked; print(evoke.core.native.kernel_name())"
    assert run(installed, "-Ic", script, cwd=Path("/")).strip()
    programs = installed.parent
    assert run(programs / "evoked", "--version", cwd=Path("/")) == "evoked 0.1.0\n"
    assert "0.1.0" in run(programs / "evokectl", "--version", cwd=Path("/"))


def test_wheel_runs_beside_a_checkout(installed: Path, checkout: Path) -> None:
    """A checkout without the compiled core, as working directory, does not hide the wheel's."""
    assert not list(checkout.glob("csrc/*.so"))
    assert "good" in run(installed, "-m", "evoked", "--check-config", cwd=checkout)


def test_wheel_serves(installed: Path, tmp_path: Path) -> None:
    """The wheel's daemon starts for a client of the wheel and answers it."""
    script = (
        "import json, evoke.client as c\n"
        "settings = {'host.capacity': '8MiB', 'host.backing': '4k'}\n"
        "with c.connect('embedded', config=settings) as client:\n"
        "    print(json.dumps(client.status()['tiers'][0]))\n"
    )
    tier = json.loads(run(installed, "-Ic", script, cwd=Path("/"), TMPDIR=str(tmp_path)))
    assert (tier["name"], tier["capacity_bytes"]) == ("host", 8 << 20)
    assert list(tmp_path.iterdir()) == []


def test_editable_install_follows_the_checkout(
    checkout: Path, installed: Path, tmp_path: Path
) -> None:
    """An editable install from a path with a space runs from anywhere, shows an edit at once, and
    makes no folder of the checkout importable under its own name."""
    python = new_environment(tmp_path / "an environment")
    install(python, "-e", checkout, cwd=Path("/"))
    assert run(python.parent / "evoked", "--version", cwd=Path("/")) == "evoked 0.1.0\n"
    with (checkout / "evoked" / "__init__.py").open("a") as file:
        file.write('edited = "at once"\n')
    script = (
        "import evoke.core, evoke.client, evoked, importlib.util as u\n"
        "print(evoked.edited, evoke.core.native.kernel_name())\n"
        "print(*(n for n in ('client', 'config', 'csrc', 'policy', 'tests') if u.find_spec(n)))\n"
    )
    first, leaked = run(python, "-Ic", script, cwd=Path("/")).splitlines()
    assert first.startswith("at once ")
    assert leaked == ""
