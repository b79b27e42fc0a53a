"""Who is at the other end of a liveness connection, said by the kernel and not by the peer."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from dataclasses import dataclass

__all__ = ["Peer", "PeerRefused", "identify", "overflow_uid"]

SO_PEERPIDFD = 77
SO_PEERGROUPS = 59


class PeerRefused(Exception):
    """The peer may not connect; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """pid 0 and no pidfd: a peer of a foreign pid namespace, which lives by its socket alone."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    pidfd: int | None


def overflow_uid() -> int:
    """The uid that stands for "unknown here" in this user namespace."""
    with open("/proc/sys/kernel/overflowuid") as file:
        return int(file.read())


def identify(connection: socket.socket) -> Peer:
    """Credentials of connect() time. PeerRefused when the process is gone or cannot be named."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    if uid == overflow_uid():
        raise PeerRefused(f"uid {uid} is the overflow uid: the peer's user is unknown here")
    pidfd = _pidfd(connection, pid) if pid > 0 else None
    return Peer(pid=pid, uid=uid, gid=gid, groups=_groups(connection), pidfd=pidfd)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
    except OSError:  # older kernels, or more groups than fit: then only the gid counts
        return ()
    return struct.unpack(f"{len(raw) // 4}i", raw)


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        fd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        os.set_inheritable(fd, False)
        return fd
    except OSError:
        pass  # before Linux 6.5: open by number, then make sure that the number was not reused
    connected_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        raise PeerRefused(f"process {pid} is gone ({error.strerror})") from None
    poller = select.poll()
    poller.register(connection, select.POLLIN | select.POLLHUP)
    closed = any(events & select.POLLHUP for _, events in poller.poll(0))
    if closed or _started_s(pid) > connected_s:
        os.close(fd)
        raise PeerRefused(f"process {pid} is not the one that connected")
    return fd


def _started_s(pid: int) -> float:
    """Start of a process in CLOCK_BOOTTIME seconds; infinite when it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return float("inf")
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
