"""Builds the one extension, evoke.core._native; pyproject.toml and setup.cfg hold the rest."""

import os
import shlex
from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup


def is_stale(made: str, source: str) -> bool:
    """Whether a file that the compiler read (-MMD lists them) is newer than the object file."""
    listed = Path(made[:-1] + "d")
    if not os.path.exists(made) or not listed.exists():
        return True
    read = shlex.split(listed.read_text().replace("\\\n", "").partition(":")[2])
    return any(not os.path.exists(f) or os.stat(made).st_mtime < os.stat(f).st_mtime for f in read)


strict = ["-Wall", "-Wextra", "-Werror"] if os.environ.get("EVOKE_STRICT") else []
sanitize = [f"-fsanitize={kinds}"] if (kinds := os.environ.get("EVOKE_SANITIZE")) else []
native = Pybind11Extension("evoke.core._native", sorted(glob("csrc/*.cpp")), cxx_std=20)
native.depends = glob("csrc/*.hpp")
native.extra_compile_args += [
    "-O3",
    "-g1",
    "-MMD",
    "-UNDEBUG",
    "-fno-omit-frame-pointer",
    *strict,
    *sanitize,
]
native.extra_link_args += ["-pthread", *sanitize]
ParallelCompile("EVOKE_JOBS", needs_recompile=is_stale).install()
setup(ext_modules=[native])
