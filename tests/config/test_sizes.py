"""Sizes, the machine's memory, and where the sockets are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoke.config import ConfigError, default_socket_dir
from evoke.config.machine import machine_memory_bytes
from evoke.config.sizes import UNITS, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0B", 0),
        ("8GiB", 8 << 30),
        (" 512 MiB ", 512 << 20),
        ("1.5GB", 1_500_000_000),
        ("0.1KiB", 102),
        ("10%", 100),
        ("0.25 %", 2),
        ("100%", 1000),
    ],
)
def test_size_in_bytes(text: str, size_bytes: int) -> None:
    """A size is a number and a unit; a share is of the memory given, and fractions round down."""
    assert parse_size(text, memory_bytes=1000) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "8", "GiB", "8gib", "8 G", "-1GiB", "1e3MiB", "+1B", "1,5GiB", "1.GiB", "٣MiB", "101%"],
)
def test_bad_size_is_refused(text: str) -> None:
    """A size without a number or a known unit, or above 100 %, is a ValueError that quotes it."""
    with pytest.raises(ValueError, match=r"size|unit|memory"):
        parse_size(text)


@given(st.integers(0, 1 << 40), st.sampled_from(sorted(UNITS)))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    """Whole numbers of a unit come out exactly, whatever their size."""
    assert parse_size(f"{number}{unit}") == number * UNITS[unit]


@given(st.integers(0, 1 << 50))
def test_formatted_size_is_just_below(size_bytes: int) -> None:
    """A formatted size reads back as at most the size, by less than a tenth of its unit."""
    text = format_size(size_bytes)
    unit = text.lstrip("0123456789.")
    assert 0 <= size_bytes - parse_size(text) <= UNITS[unit] // 10 + 1


def fake_machine(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemFree: 10 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, limit in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "memory_bytes"),
    [
        ("", {}, 1_024_000),
        ("0::/\n", {}, 1_024_000),
        ("0::/a/b\n", {"a/memory.max": "5000", "a/b/memory.max": "max"}, 5000),
        ("0::/a/b\n", {"a/memory.max": "max", "a/b/memory.max": "700000"}, 700_000),
        ("0::/gone\n", {"memory.max": "6000"}, 6000),
        ("0::/a\n", {"a/memory.max": "99999999999"}, 1_024_000),
        ("4:cpu,memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "7000"}, 7000),
        ("4:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "7000"}, 1_024_000),
    ],
)
def test_memory_is_the_machines_or_the_cgroups(
    tmp_path: Path, cgroup: str, limits: dict[str, str], memory_bytes: int
) -> None:
    """The memory is the least of the machine's and of every limit on the way up the cgroups."""
    assert machine_memory_bytes(fake_machine(tmp_path, cgroup, limits)) == memory_bytes


def test_memory_of_this_machine() -> None:
    """This machine's memory is positive and no more than its physical pages."""
    physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machine_memory_bytes() <= physical_bytes


def test_socket_dir_order(tmp_path: Path) -> None:
    """--socket goes before the file, the environment, the system's, the user's and /tmp."""
    system = tmp_path / "run"
    system.mkdir()
    environ = {"EVOKE_SOCKET": "/env", "XDG_RUNTIME_DIR": "/xdg"}
    sources: list[tuple[str, str]] = [("/flag", "/file"), ("", "/file"), ("", "")]
    found = [
        default_socket_dir(flag, configured=file, environ=environ, system_dir=system)
        for flag, file in sources
    ]
    del environ["EVOKE_SOCKET"]
    found.append(default_socket_dir(environ=environ, system_dir=system))
    system.rmdir()
    found.append(default_socket_dir(environ=environ, system_dir=system))
    found.append(default_socket_dir(environ={}, system_dir=system))
    tail = [system, Path("/xdg/evoked"), Path(f"/tmp/evoked-{os.getuid()}")]
    assert found == [Path("/flag"), Path("/file"), Path("/env"), *tail]


def test_socket_dir_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative directory is taken from where the process stands, once."""
    monkeypatch.chdir(tmp_path)
    assert default_socket_dir("a/../b") == tmp_path / "b"


def test_daemon_needs_a_writable_system_dir() -> None:
    """A daemon passes over a system directory that it cannot write; a client takes it."""
    system, environ = Path("/"), {"XDG_RUNTIME_DIR": "/xdg"}
    user = os.geteuid()
    os.seteuid(user or 65_534)  # root may write everywhere
    try:
        daemon = default_socket_dir(environ=environ, system_dir=system, writable=True)
        client = default_socket_dir(environ=environ, system_dir=system)
    finally:
        os.seteuid(user)
    assert (daemon, client) == (Path("/xdg/evoked"), system)


@pytest.mark.parametrize("character", ["a", "é"])
def test_socket_path_has_107_bytes(character: str) -> None:
    """A directory fits when its sockets' paths have 107 bytes, and one byte more is refused."""
    room_bytes = 107 - len("/x/session.sock")
    name = character * (room_bytes // len(character.encode()))
    name += "x" * (room_bytes - len(name.encode()))
    assert default_socket_dir(f"/x{name}") == Path(f"/x{name}")
    with pytest.raises(ConfigError, match="108 bytes") as caught:
        default_socket_dir("", environ={"EVOKE_SOCKET": f"/xx{name}"})
    assert (caught.value.file, caught.value.allowed) == ("$EVOKE_SOCKET", "107 bytes")
