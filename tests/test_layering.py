"""Who may import whom: the rules of ARCHITECTURE.md, read from the source of every module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "config": "evoke.config",
    "policy": "evoke.policy",
    "csrc": "evoke.core",
    "client": "evoke.client",
    "evoked": "evoked",
}
ALLOWED = {
    "config": {"msgspec", "tomli", "tomllib"},  # tomllib: of the standard library since 3.11
    "policy": {"numpy", "evoke.core"},
    "csrc": {"numpy"},
    "client": {"zmq", "msgpack", "msgspec", "numpy", "evoke.core", "evoke.config"},
    "evoked": {"zmq", "msgpack", "msgspec", "numpy", "structlog", "click", "rich", "pynvml"}
    | {"prometheus_client", "evoke.core", "evoke.client", "evoke.policy", "evoke.config"},
}
FRAMEWORKS = {"torch", "transformers", "gguf"}
# Modules of the client that touch a framework's objects; the rest runs without one.
INTEGRATIONS = {
    "convert.py",
    "demo_engine.py",
    "demo_flip.py",
    "hf_model.py",
    "hf_prefix.py",
    "hf_staging.py",
    "hf_tensors.py",
    "transformers.py",
}
# Modules of the client that are a pytest plug-in and its cases; nothing else imports them.
PLUGIN = {"conformance.py", "conformance_cases.py"}
# Draws plots with matplotlib, an extra; imported when one is asked for.
PLOTS = "evoked/cli/plots.py"
# Modules that may use torch once a caller hands them a tensor, never when they are imported.
LAZY = {"client/memory.py"}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    name: str
    inside_function: bool


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def absolute(node: ast.ImportFrom, file: Path, folder: str) -> str:
    """The absolute name of what a `from` names."""
    if not node.level:
        return node.module or ""
    package = [NAMES[folder], *file.relative_to(ROOT / folder).parent.parts]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def imports(file: Path, folder: str) -> Iterator[Import]:
    tree = ast.parse(file.read_text(), str(file))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {child for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, file, folder)
            bare = module == "evoke"  # `from evoke import client` names evoke.client
            names = [f"evoke.{a.name}" for a in node.names] if bare else [module]
        for name in names:
            where = str(file.relative_to(ROOT))
            line = getattr(node, "lineno", 0)
            yield Import(where, line, name, node in inside)


def package(name: str) -> str:
    """The part of an imported name that the rules speak of."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "evoke" else parts[0]


def is_allowed(found: Import, folder: str) -> bool:
    name = package(found.name)
    if name in sys.stdlib_module_names or name == NAMES[folder] or name in ALLOWED[folder]:
        return True
    file = Path(found.file)
    if name == "matplotlib":
        return found.file == PLOTS
    if name == "pytest":
        return folder == "client" and file.name in PLUGIN
    if name not in FRAMEWORKS or folder != "client":
        return False
    return file.name in INTEGRATIONS or (found.file in LAZY and found.inside_function)


@pytest.mark.parametrize("folder", sorted(NAMES))
def test_imports_follow_the_layers(folder: str) -> None:
    """Each package imports only what its layer allows, also inside functions."""
    found = [item for file in modules(folder) for item in imports(file, folder)]
    assert found, f"{folder} imports nothing at all: is it still there?"
    broken = [item for item in found if not is_allowed(item, folder)]
    assert not broken, "\n".join(f"{i.file}:{i.line} imports {i.name}" for i in broken)


@pytest.mark.parametrize(
    ("folder", "line", "allowed"),
    [
        ("config", "import numpy", False),
        ("config", "from evoke import client", False),
        ("policy", "from evoke.core import native", True),
        ("policy", "import evoke.config.loader", False),
        ("client", "from evoked.daemon import Daemon", False),
        ("client", "def f():\n    import torch", False),
        ("client", "import pytest", False),
        ("client", "from . import wire", True),
        ("client", "from .. import evoked", False),
        ("evoked", "import torch", False),
        ("evoked", "import os.path, rich.table", True),
    ],
)
def test_rules_bite(
    folder: str, line: str, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import against the rules is found in every spelling, and one that follows them is not."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "module.py").write_text(line)
    found = [item for file in modules(folder) for item in imports(file, folder)]
    assert found
    assert all(is_allowed(item, folder) for item in found) is allowed


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("evoke.config", {"numpy", "zmq", "evoke.core", "evoke.client", "torch"}),
        ("evoke.client", {"torch", "transformers", "evoked", "structlog", "click"}),
        ("evoke.client.conformance_runner", {"pytest", "torch", "evoked"}),
        ("evoke.policy", {"zmq", "evoke.client", "torch"}),
        ("evoked.__main__", {"torch", "transformers", "evoked.cli"}),
    ],
)
def test_import_brings_nothing_else(imported: str, absent: set[str]) -> None:
    """Importing a package loads none of what its users can do without."""
    script = f"import sys, {imported}\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert not absent & set(result.stdout.split())
