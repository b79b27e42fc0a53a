"""Builds the one extension, evoke.core._native; everything else is in pyproject.toml and setup.cfg."""

import os
from glob import glob

from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup

strict = ["-Wall", "-Wextra", "-Werror"] if os.environ.get("EVOKE_STRICT") else []
sanitize = [f"-fsanitize={os.environ['EVOKE_SANITIZE']}"] if os.environ.get("EVOKE_SANITIZE") else []
native = Pybind11Extension("evoke.core._native", sorted(glob("csrc/*.cpp")), depends=glob("csrc/*.hpp"), cxx_std=20)
native.extra_compile_args += ["-O3", "-g1", "-fno-omit-frame-pointer", *strict, *sanitize]
native.extra_link_args += ["-pthread", *sanitize]
setup(ext_modules=[native])
