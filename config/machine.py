"""How much memory this process may ever use: the machine's or its cgroup's, the less."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

__all__ = ["machine_memory_bytes"]


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """The least of MemTotal and the limits of this process's memory cgroup (v1 or v2) and its
    ancestors, in bytes. `root` is where proc/ and sys/ are found. RuntimeError without MemTotal."""
    total_bytes = _mem_total_bytes(root / "proc/meminfo")
    limits = [total_bytes]
    for mount, file, path in _memory_cgroups(root):
        below = PurePosixPath(path.lstrip("/"))
        for group in (below, *below.parents):
            limit = _limit_bytes(mount / group / file)
            if limit is not None:
                limits.append(limit)
    return min(limits)


def _mem_total_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{meminfo} has no MemTotal")


def _memory_cgroups(root: Path) -> list[tuple[Path, str, str]]:
    """(mount, name of the limit file, path in it) of each hierarchy that may have a limit."""
    found = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a kernel without cgroups
        return []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            found.append((root / "sys/fs/cgroup", "memory.max", path))
        elif "memory" in controllers.split(","):
            found.append((root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
    return found


def _limit_bytes(file: Path) -> int | None:
    """None for "max" and for a group that is not visible from here (another cgroup namespace)."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
