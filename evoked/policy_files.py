"""Where a user's policy comes from: a file that only root or this user could have written, or an
entry point of an installed package."""

from __future__ import annotations

import os
import re
import stat
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from evoke.policy.users import UserFormula, UserPolicy, make_policy

__all__ = [
    "ENTRY_POINTS",
    "SOURCE_BYTES_MAX",
    "compile_policy",
    "entry_point",
    "read_source",
    "user_formula",
]

ENTRY_POINTS: Final = "evoke.policies"
SOURCE_BYTES_MAX: Final = 64 << 10
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.py")


def read_source(directory: str, name: str) -> str:
    """The text of the file `name` of the directory. ValueError: the name is none of a file there,
    or directory or file is not safe (see _check_safe); OSError: it cannot be read."""
    if not directory:
        raise ValueError("daemon.policy_dir is not set")
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a .py file in daemon.policy_dir")
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    folder = os.open(directory, flags | os.O_DIRECTORY)
    try:
        _check_safe(folder, directory)
        file = os.open(name, flags | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError(f"{name}: is no regular file")
        _check_safe(file, name)
        data = opened.read(SOURCE_BYTES_MAX + 1)
    if len(data) > SOURCE_BYTES_MAX:
        raise ValueError(f"{name}: is longer than {SOURCE_BYTES_MAX} bytes")
    return data.decode()  # UnicodeDecodeError is a ValueError


def _check_safe(fd: int, name: str) -> None:
    """Owned by root or this process's user, and nobody else may write to it."""
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(f"{name}: belongs to user {status.st_uid}, not to root or the daemon's")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise ValueError(f"{name}: others may write to it (mode {mode:04o})")


def compile_policy(name: str, source: str, options: dict[str, Any]) -> UserPolicy:
    """Runs the author's code in this process. ValueError: it raises, or has no class Policy."""
    space: dict[str, Any] = {"__name__": f"evoke_policy_{name.removesuffix('.py')}"}
    try:
        exec(compile(source, name, "exec"), space)
    except Exception as error:
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error
    if "Policy" not in space:
        raise ValueError(f"{name}: has no class Policy")
    return make_policy(space["Policy"], options)


def entry_point(name: str, options: dict[str, Any]) -> UserPolicy:
    """Imports the author's package. ValueError: there is no such entry point, or it raises."""
    found = [point for point in metadata.entry_points(group=ENTRY_POINTS) if point.name == name]
    if not found:
        raise ValueError(f"entry point {name!r} of the group {ENTRY_POINTS} is not installed")
    try:
        kind = found[0].load()
    except Exception as error:
        raise ValueError(f"entry:{name}: {type(error).__name__}: {error}") from error
    return make_policy(kind, options)


def user_formula(spec: str) -> UserFormula:
    """For the simulator: `file:PATH.py[:key=value,...]`, run in this process. The keys alpha,
    clock, state and every are those of UserFormula, others the author's. ValueError: it cannot be
    used."""
    path, py, rest = spec.removeprefix("file:").partition(".py")
    if not py or rest[:1] not in ("", ":"):
        raise ValueError(f"policy: {spec!r} is not file:PATH.py[:key=value,...]")
    options: dict[str, Any] = {}
    for pair in filter(None, rest[1:].split(",")):
        key, equals, value = pair.partition("=")
        if not equals or key in options:
            raise ValueError(f"policy {path}.py: {pair!r} is not key=value, or comes twice")
        options[key] = _plain(value)
    try:
        source = Path(f"{path}.py").read_text()
    except OSError as error:
        raise ValueError(f"policy {path}.py: cannot be read: {error.strerror}") from error
    own = {key: options.pop(key) for key in ("alpha", "clock", "state", "every") if key in options}
    make = partial(compile_policy, f"{path}.py", source, options)
    make()
    return UserFormula(make, **own)


def _plain(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
