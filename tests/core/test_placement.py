"""Where memory lies: what the kernel's files say of nodes, and arenas bound to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoke.core import native

MIB = 1 << 20
ZONEINFO = """Node 0, zone   Normal
  pages free     900
        present  1000
Node 1, zone  Movable
  pages free     500
        present  512
        managed  510
Node 1, zone   Normal
        present  0
"""


@pytest.fixture
def machine(tmp_path: Path) -> tuple[str, str]:
    """Roots of /sys and /proc of a machine whose node 1 is memory only and movable."""
    nodes = tmp_path / "sys/devices/system/node"
    for number, huge in ((0, "0"), (1, "3")):
        folder = nodes / f"node{number}"
        pages = folder / "hugepages/hugepages-2048kB"
        pages.mkdir(parents=True)
        (pages / "free_hugepages").write_text(huge + "\n")
        total, free = 4096 * (number + 1), 1024 * (number + 1)
        text = f"Node {number} MemTotal: {total} kB\nNode {number} MemFree: {free} kB\n"
        (folder / "meminfo").write_text(text)
    (nodes / "has_cpu").write_text("0\n")
    (nodes / "has_memory").write_text("0-1\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/zoneinfo").write_text(ZONEINFO)
    return str(tmp_path / "sys"), str(tmp_path / "proc")


def test_nodes_are_read_from_the_kernel(machine: tuple[str, str]) -> None:
    """A node without CPUs, its sizes, its movable memory and its huge pages are found."""
    first, second = native.numa_nodes(*machine)
    assert [node["has_cpu"] for node in (first, second)] == [True, False]
    assert (second["memory_bytes"], second["free_bytes"]) == (8 * MIB, 2 * MIB)
    assert (first["movable_bytes"], second["movable_bytes"]) == (0, 512 * 4096)
    assert (first["free_huge_bytes"], second["free_huge_bytes"]) == (0, 6 * MIB)


def test_a_machine_without_numa_has_no_nodes(tmp_path: Path) -> None:
    """A kernel that has no folder of nodes gives none, and no error."""
    assert native.numa_nodes(str(tmp_path), str(tmp_path)) == []


@pytest.mark.parametrize("backing", ["4k", "thp"])
def test_bound_arena_lies_on_its_node(backing: str) -> None:
    """All of an arena that is bound to a node of this machine is there once it was touched."""
    node = native.numa_nodes()[0]["number"]
    arena = native.Arena(4 * MIB, backing, False, node)
    arena.prefault(1)
    found = arena.placement(node)
    assert found == {"on_node_bytes": 4 * MIB, "elsewhere_bytes": 0, "unknown_bytes": 0}
    assert arena.node == node
    arena.close()


def test_placement_counts_what_lies_elsewhere() -> None:
    """Asked about a node that has none of it, all is elsewhere."""
    arena = native.Arena(4 * MIB, "4k")
    arena.prefault(1)
    absent = max(node["number"] for node in native.numa_nodes()) + 1
    assert arena.placement(absent)["elsewhere_bytes"] == 4 * MIB
    arena.close()


def test_untouched_memory_is_unknown_until_asked() -> None:
    """A page that was never touched is touched by the question, and then has a place."""
    node = native.numa_nodes()[0]["number"]
    arena = native.Arena(2 * MIB, "4k", False, node)
    assert arena.placement(node)["unknown_bytes"] == 0
    arena.close()


def test_absent_node_is_refused() -> None:
    """An arena on a node that the machine lacks is refused, with the node's number."""
    absent = max(node["number"] for node in native.numa_nodes()) + 1
    with pytest.raises(MemoryError, match=f"node {absent}"):
        native.Arena(2 * MIB, "4k", False, absent)
    with pytest.raises(ValueError, match=r"node: 1024 is not in 0\.\.1023"):
        native.Arena(2 * MIB, "4k", False, 1024)


def test_node_that_is_too_small_is_refused() -> None:
    """More than a node has free is refused before a page is touched: the kernel would kill."""
    node = native.numa_nodes()[0]
    with pytest.raises(MemoryError, match="bytes free, wanted"):
        native.Arena(2 * node["memory_bytes"], "4k", False, node["number"])


@pytest.mark.parametrize("path", ["/dev/null", "/etc/passwd", "/dev/absent"])
def test_only_a_devdax_device_is_taken(path: str) -> None:
    """A path that is no devdax character device, or is not there, is refused and named."""
    with pytest.raises((ValueError, MemoryError), match=path):
        native.Arena.on_device(path, 2 * MIB)
