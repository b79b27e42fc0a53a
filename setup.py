"""Builds evoke.core._native of csrc/ and evoke.core._X of each csrc/X/; setup.cfg has the rest."""

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
compile_args = ["-O3", "-g1", "-MMD", "-UNDEBUG", "-fno-omit-frame-pointer", *strict, *sanitize]


# What a folder's module has of csrc/ in itself, compiled once.
shared = {
    "csrc/scores": ["csrc/siphash.cpp"],
    "csrc/spill": ["csrc/kernels.cpp", "csrc/memory.cpp", "csrc/xxh3.cpp"],
}


def extension(name: str, folder: str) -> Pybind11Extension:
    sources = sorted(glob(f"{folder}/*.cpp")) + shared.get(folder, [])
    made = Pybind11Extension(f"evoke.core.{name}", sources, cxx_std=20)
    made.depends = glob(f"{folder}/*.hpp")
    made.extra_compile_args += compile_args
    made.extra_link_args += ["-pthread", *sanitize]
    return made


ParallelCompile("EVOKE_JOBS", needs_recompile=is_stale).install()
folders = sorted(glob("csrc/*/"))
setup(
    ext_modules=[extension("_native", "csrc")]
    + [extension(f"_{Path(folder).name}", Path(folder).as_posix()) for folder in folders]
)
