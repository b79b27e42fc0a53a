"""What `evokectl doctor` asks of the host; each check says what to do about what it found."""

from __future__ import annotations

import ctypes
import grp
import os
import resource
import socket
from pathlib import Path
from typing import Final, NamedTuple

from evoke.config import Config
from evoke.core import native
from evoked.cli.control import size_text

__all__ = ["BAD", "GOOD", "NOTE", "Finding", "host_findings", "is_served"]

GOOD, NOTE, BAD = "good", "note", "bad"
HUGE_BYTES: Final = 2 << 20
NVIDIA: Final = "0x10de"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# The same on all architectures but Alpha: unistd.h.
_IO_URING_SETUP: Final = 425


class Finding(NamedTuple):
    """state: good, note (works, could be better) or bad (does not work)."""

    check: str
    state: str
    found: str
    advice: str


def host_findings(config: Config, *, is_up: bool) -> list[Finding]:
    """is_up: a daemon has its memory already."""
    return [
        _memory(config, is_up=is_up),
        _memlock(config),
        _huge_pages(config, is_up=is_up),
        _pool_pages(),
        _numa(),
        _io_uring(),
        _userfaultfd(),
        _gpu(),
        _kernel(),
        _group(config.access.group),
    ]


def is_served(path: Path) -> bool:
    """Whether a daemon listens at this session socket; OSError when it may not be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(2)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _memory(config: Config, *, is_up: bool) -> Finding:
    available_bytes = native.memory_available_bytes()
    wanted_bytes = config.host.capacity_bytes
    found = f"{size_text(available_bytes)} available, {size_text(wanted_bytes)} wanted"
    if is_up:
        return Finding("memory", GOOD, f"{size_text(available_bytes)} left by the daemon", "")
    if available_bytes < wanted_bytes:
        return Finding("memory", BAD, found, "lower host.capacity, or free memory")
    return Finding("memory", GOOD, found, "")


def _memlock(config: Config) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    enough = limit == resource.RLIM_INFINITY or limit >= config.host.capacity_bytes
    if enough or os.geteuid() == 0:
        return Finding("memlock", GOOD, "the arena can be locked", "")
    found = f"this user may lock {size_text(limit)}"
    if not config.host.lock:
        return Finding("memlock", GOOD, f"{found}; host.lock is off", "")
    advice = "LimitMEMLOCK=infinity in the unit, or `ulimit -l`; host.lock stays without effect"
    return Finding("memlock", NOTE, found, advice)


def _huge_pages(config: Config, *, is_up: bool) -> Finding:
    total = _number("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    free = _number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    wanted = -(-config.host.capacity_bytes // HUGE_BYTES)
    mode = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    reserve = f"sysctl vm.nr_hugepages={wanted}, before memory is fragmented"
    if config.host.backing == "hugetlb" and (total if is_up else free) < wanted:
        return Finding("huge pages", BAD, f"{free} of 2 MiB are free, {wanted} wanted", reserve)
    if total:
        return Finding("huge pages", GOOD, f"{total} of 2 MiB are reserved, {free} free", "")
    if "[never]" in mode or not mode:
        advice = f"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; or {reserve}"
        return Finding("huge pages", NOTE, "none reserved, THP off", advice)
    return Finding("huge pages", GOOD, "none reserved; THP serves", "")


def _pool_pages() -> Finding:
    """Of engines' pools, which are shared memory."""
    path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    if any(f"[{mode}]" in _text(path) for mode in ("always", "advise", "force", "within_size")):
        return Finding("huge pages of pools", GOOD, "allowed", "")
    advice = f"echo advise > {path}: copies cost about a tenth less CPU"
    return Finding("huge pages of pools", NOTE, "off: pools have 4 KiB pages", advice)


def _numa() -> Finding:
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    memory_only = [node for node in nodes if not _text(f"{node}/cpulist")]
    found = "one node" if len(nodes) < 2 else f"{len(nodes)} nodes"
    if memory_only:
        found += f", memory only (CXL): {', '.join(node.name for node in memory_only)}"
    movable = [node.name for node in memory_only if _is_movable(node)]
    if movable:
        advice = "online that memory as online_kernel: a pin moves movable pages to another node"
        return Finding("NUMA", NOTE, f"{found}, movable: {', '.join(movable)}", advice)
    return Finding("NUMA", GOOD, found, "")


def _is_movable(node: Path) -> bool:
    """Whether any of its memory is in ZONE_MOVABLE (memory-hotplug.rst: the first of valid_zones
    is the zone of memory that is online)."""
    zones = (_text(str(path)) for path in node.glob("memory[0-9]*/valid_zones"))
    return any(text.split()[:1] == ["Movable"] for text in zones)


def _io_uring() -> Finding:
    """Asked of the kernel: sysctl, seccomp or a container may refuse it."""
    parameters = ctypes.create_string_buffer(120)  # struct io_uring_params, zeros
    fd = _LIBC.syscall(_IO_URING_SETUP, 1, parameters)
    if fd >= 0:
        os.close(fd)
        return Finding("io_uring", GOOD, "allowed to this user", "")
    reason = os.strerror(ctypes.get_errno())
    if _number("/proc/sys/kernel/io_uring_disabled"):
        advice = "sysctl kernel.io_uring_disabled=0; threads do the same at more CPU"
    else:
        advice = "a seccomp filter or an old kernel refuses it; threads do the same at more CPU"
    return Finding("io_uring", NOTE, f"refused: {reason}", advice)


def _userfaultfd() -> Finding:
    """Asked by registering a small pool, as the daemon does."""
    fd = native.make_pool_memfd(4096, "pool")
    try:
        pool = native.Pool(fd, 4096, native.Layout([(0, 4096, [], 4096)], 1, 4096))
        guards_holes = pool.guards_holes
        pool.close()
    finally:
        os.close(fd)
    if guards_holes:
        return Finding("userfaultfd", GOOD, "pages that engines never touched stay away", "")
    advice = "sysctl vm.unprivileged_userfaultfd=1; else a peer's pool may be charged to evoked"
    return Finding("userfaultfd", NOTE, "refused to this user", advice)


def _gpu() -> Finding:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:  # the driver's library raises types of its own
        vendors = [_text(str(p)) for p in Path("/sys/bus/pci/devices").glob("*/vendor")]
        if NVIDIA in vendors:
            advice = "install its driver (libnvidia-ml.so.1, libcuda.so.1), or load its module"
            found = f"a device without a driver ({type(error).__name__})"
            return Finding("GPU", NOTE, found, advice)
        return Finding("GPU", GOOD, "none; engines on CPUs are served", "")
    return Finding("GPU", GOOD, f"{count} devices", "")


def _kernel() -> Finding:
    speeds = native.self_test()
    name = native.kernel_name()
    return Finding("copy kernel", GOOD, f"{name}, {speeds[name] / 1e9:.1f} GB/s", "")


def _group(name: str) -> Finding:
    """Whether access.group exists and this user is in it."""
    try:
        gid = grp.getgrnam(name).gr_gid
    except KeyError:
        advice = "systemd-sysusers with systemd/sysusers.conf, or set access.group"
        found = f"there is no group {name}: only the daemon's own user can connect"
        return Finding("permissions", NOTE, found, advice)
    if os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()):
        return Finding("permissions", GOOD, f"this user may use the group {name}", "")
    advice = f"usermod -aG {name} USER, then log in again"
    return Finding("permissions", NOTE, f"this user is not in the group {name}", advice)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _number(path: str) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
