"""Pool memfds, and how much memory is left."""

import fcntl
import os
import pathlib

import pytest

from evoke.core import native

MIB = 1 << 20
F_GET_SEALS = 1034
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW = 1, 2, 4


def test_pool_memfd_is_sealed() -> None:
    """A pool's memfd has its size, can be written, and can't shrink, grow or lose its seals."""
    fd = native.make_pool_memfd(3 * MIB, "pool")
    try:
        assert os.fstat(fd).st_size == 3 * MIB
        assert not os.get_inheritable(fd)
        assert fcntl.fcntl(fd, F_GET_SEALS) == SEAL_SHRINK | SEAL_GROW | SEAL_SEAL
        assert os.pwrite(fd, b"kv", MIB) == 2
        for size in (MIB, 4 * MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        native.check_pool_memfd(fd, 3 * MIB)
        with pytest.raises(ValueError, match=f"pool_bytes: {3 * MIB + 1}"):
            native.check_pool_memfd(fd, 3 * MIB + 1)
    finally:
        os.close(fd)


def test_other_files_are_no_pools(tmp_path: pathlib.Path) -> None:
    """A plain file, a pipe, a closed descriptor and a memfd that can shrink are ValueErrors."""
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, MIB)
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MIB)
    read_end, write_end = os.pipe()
    try:
        for fd in (plain, unsealed, read_end, 1_000_000):
            with pytest.raises(ValueError, match=f"fd: {fd} is not"):
                native.check_pool_memfd(fd, MIB)
    finally:
        for fd in (plain, unsealed, read_end, write_end):
            os.close(fd)
    with pytest.raises(ValueError, match="pool_bytes: 0"):
        native.make_pool_memfd(0, "pool")


def make_proc(root: pathlib.Path, available_kib: int, cgroup: str, mounts: str) -> str:
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available_kib} kB\n")
    (root / "self" / "cgroup").write_text(cgroup)
    (root / "self" / "mountinfo").write_text(mounts)
    return str(root)


def make_group(path: pathlib.Path, files: dict[str, object]) -> None:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(f"{text}\n")


def test_available_memory_of_this_machine() -> None:
    """What is available here is positive and not above MemAvailable (give or take a moment)."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    (available,) = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    assert 0 < native.memory_available_bytes() < available * 1024 + 512 * MIB


def test_available_memory_under_cgroup_v2(tmp_path: pathlib.Path) -> None:
    """The tightest group on the way up counts, inactive page cache as free, "max" as no limit."""
    group = tmp_path / "fs"
    make_group(group / "a", {"memory.max": 1000, "memory.current": 900})
    (group / "a" / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    make_group(group / "a" / "b", {"memory.max": "max", "memory.current": 10})
    mounts = f"30 25 0:26 / {group} rw,nosuid - cgroup2 cgroup2 rw\n"
    proc = make_proc(tmp_path / "proc", 64, "0::/a/b\n", mounts)
    assert native.memory_available_bytes(proc) == 400


def test_available_memory_under_cgroup_v1(tmp_path: pathlib.Path) -> None:
    """The memory controller's own hierarchy is read, in a container by what is mounted of it."""
    group = tmp_path / "memory"
    make_group(group, {"memory.limit_in_bytes": 5000, "memory.usage_in_bytes": 1000})
    make_group(group / "in", {"memory.limit_in_bytes": 800, "memory.usage_in_bytes": 900})
    mounts = (
        f"31 25 0:27 /docker/x {tmp_path}/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
        f"32 25 0:28 /docker/x {group} rw shared:2 - cgroup cgroup rw,memory\n"
    )
    outside = "5:memory:/elsewhere\n4:cpu,cpuacct:/docker/x\n0::/\n"
    proc = make_proc(tmp_path / "proc", 64, outside, mounts)
    assert native.memory_available_bytes(proc) == 4000
    (tmp_path / "proc" / "self" / "cgroup").write_text("5:memory:/docker/x/in\n")
    assert native.memory_available_bytes(proc) == 0


def test_available_memory_without_limits(tmp_path: pathlib.Path) -> None:
    """Without any cgroup MemAvailable is the answer, and without that there is an error."""
    proc = make_proc(tmp_path / "proc", 64, "0::/\n", "")
    assert native.memory_available_bytes(proc) == 64 * 1024
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 99 kB\n")
    with pytest.raises(RuntimeError, match="MemAvailable"):
        native.memory_available_bytes(proc)
