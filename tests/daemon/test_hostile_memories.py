"""Nonsense on the liveness socket, and memories that are none: refused, and nothing leaks."""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from evoke.client import wire
from evoke.client.wire import Code, Stored
from evoke.core import native
from tests.daemon.peer import DaemonProcess, chain, eventually, make_namespace

pack = msgspec.msgpack.encode


@pytest.mark.parametrize(
    "packet",
    [b"\xc1", pack(("memory",)), pack(("memory", -1)), pack(("memory", 1 << 40)), pack(("x", 1)),
     pack({"memory": 1}), b"\x91" * 4000, b"x" * 8000],
)  # fmt: skip
def test_bad_liveness_packet(daemon: DaemonProcess, packet: bytes) -> None:
    """Nonsense on the liveness socket ends that session, and leaks no descriptor."""
    with daemon.peer() as other:
        before = daemon.fds()
        with daemon.peer() as peer:
            fd = native.make_pool_memfd(4096, "pool")
            socket.send_fds(peer.liveness, [packet], [fd])
            os.close(fd)
            assert peer.ended()
        assert eventually(lambda: daemon.fds() == before)
        assert other.call("ping")[0] == Code.OK


def test_liveness_packet_without_descriptor(daemon: DaemonProcess) -> None:
    """A memory without its descriptor, or with two, ends the session."""
    for fds in ([], [0, 0], [0, 0, 0]):
        with daemon.peer() as peer:
            socket.send_fds(peer.liveness, [pack(("memory", 1))], fds)
            assert peer.ended()


def test_memory_number_twice(daemon: DaemonProcess) -> None:
    """A memory under a number that is in use ends the session."""
    with daemon.peer() as peer:
        for _ in range(2):
            peer.send_memory(0, 5)
        assert peer.ended()


def test_too_many_memories(daemon: DaemonProcess) -> None:
    """A session that sends memories and registers none is ended, and all are given back."""
    with daemon.peer() as other:
        other.ok("ping")
        before = daemon.fds()
        with daemon.peer() as peer:
            for number in range(20):
                try:
                    peer.send_memory(0, number)
                except BrokenPipeError:
                    break
            assert peer.ended()
        assert eventually(lambda: daemon.fds() == before)
        assert other.call("ping")[0] == Code.OK


def test_hello_behind_nonsense(daemon: DaemonProcess) -> None:
    """A session that ends while its first requests lie ready leaves no instance behind."""
    for _ in range(50):
        with daemon.peer(hello=False) as peer:
            peer.send("hello", b"", 0, "brief")
            peer.liveness.send(b"\xc1")
            assert peer.ended()


# ---------------------------------------------------------------------- memories


@contextmanager
def _refused_memory(daemon: DaemonProcess, fd: int, pool_bytes: int) -> Iterator[str]:
    namespace = make_namespace()
    with daemon.peer() as peer:
        handle = peer.ok("register_namespace", namespace.encoded())[0]
        memory = peer.send_memory(fd)
        segments = [wire.SegmentArgs(0, 4096, [], 4096)]
        slots = max(1, pool_bytes // 4096)
        code, result = peer.call(
            "register_pool", handle, "cpu", pool_bytes, slots, segments, memory
        )
        assert (code, result[0]) == (Code.BAD_ARGUMENT, "memory")
        yield result[1]
        assert peer.call("ping")[0] == Code.OK


def test_unsealed_memory(daemon: DaemonProcess) -> None:
    """A memfd that its owner could truncate is refused."""
    fd = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    with _refused_memory(daemon, fd, 8192) as sentence:
        assert "SHRINK" in sentence
    os.close(fd)


@pytest.mark.parametrize("directory", ["/dev/shm", "/tmp"])
def test_file_as_memory(daemon: DaemonProcess, directory: str) -> None:
    """A file, on tmpfs or elsewhere, is refused."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.truncate(8192)
        with _refused_memory(daemon, file.fileno(), 8192) as sentence:
            assert "sealed" in sentence or "memfd" in sentence


def test_pipe_as_memory(daemon: DaemonProcess) -> None:
    """What is no memory at all is refused."""
    reader, writer = os.pipe()
    with _refused_memory(daemon, reader, 8192) as sentence:
        assert "memfd" in sentence
    os.close(reader)
    os.close(writer)


def test_memory_too_small(daemon: DaemonProcess) -> None:
    """A pool larger than its memory is refused."""
    fd = native.make_pool_memfd(8192, "pool")
    with _refused_memory(daemon, fd, 8192 * 4) as sentence:
        assert "8192" in sentence
    os.close(fd)


def test_read_only_memory(daemon: DaemonProcess) -> None:
    """A pool that the daemon may not write is refused."""
    fd = native.make_pool_memfd(8192, "pool")
    closed = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    with _refused_memory(daemon, closed, 8192) as sentence:
        assert "mapped" in sentence
    os.close(closed)
    os.close(fd)


def test_sparse_pools(daemon: DaemonProcess) -> None:
    """Pools of terabytes that cost their owner nothing are refused before addresses run out."""
    namespace = make_namespace()
    with daemon.peer() as peer, daemon.engine(namespace) as other:
        handle = peer.ok("register_namespace", namespace.encoded())[0]
        codes = []
        for pool_bytes in (1 << 50, 1 << 41, 1 << 41, 1 << 41):
            fd = native.make_pool_memfd(pool_bytes, "pool")
            memory = peer.send_memory(fd)
            os.close(fd)
            segments = [wire.SegmentArgs(0, pool_bytes // 2, [], 4096)]
            args = (handle, "cpu", pool_bytes, 2, segments, memory)
            codes.append(peer.call("register_pool", *args)[0])
        assert codes == [Code.BUSY, Code.OK, Code.OK, Code.BUSY]
        assert other.store(chain(namespace, 2)) == [Stored.STORED] * 2


def test_pages_taken_away_end_the_session(daemon: DaemonProcess) -> None:
    """A store from pages that a peer punched out says fault for those blocks, brings none of them
    in, and ends that session; another's goes on."""
    namespace = make_namespace(blocks_4k=4)
    keys = chain(namespace, 4)
    punch_hole_and_keep_size = 3
    libc = ctypes.CDLL(None, use_errno=True)
    with daemon.engine(namespace, 4) as other, daemon.peer() as peer:
        handle = peer.ok("register_namespace", namespace.encoded())[0]
        pool_bytes = 4 * 16384
        fd = native.make_pool_memfd(pool_bytes, "pool")
        os.pwrite(fd, bytes(pool_bytes), 0)
        memory = peer.send_memory(fd)
        segments = [wire.SegmentArgs(0, 16384, [], 16384)]
        pool = peer.ok("register_pool", handle, "cpu", pool_bytes, 4, segments, memory)
        offsets = (ctypes.c_long(2 * 16384), ctypes.c_long(16384))
        assert libc.fallocate(fd, punch_hole_and_keep_size, *offsets) == 0
        slots = np.arange(4, dtype="<u4").tobytes()
        results = list(peer.ok("store", handle, pool, keys, 0, b"", slots, 5000, 0))
        assert results == [Stored.STORED, Stored.STORED, Stored.FAULT, Stored.STORED]
        assert os.fstat(fd).st_blocks * 512 == pool_bytes - 16384
        os.close(fd)
        assert peer.ended()
        assert other.lookup(keys) == [1, 1, 0, 1]
        assert other.peer.counter("peer_faults") == 1


def test_hostile_layouts_are_quick(daemon: DaemonProcess) -> None:
    """Descriptors made to be expensive to check are answered within half a second."""
    namespace = make_namespace()
    tangled = [wire.SegmentArgs(0, 3, [(64, 64 * 7), (64, 13)], 1)]
    fine = [wire.SegmentArgs(4 * n, 4096, [], 4) for n in range(1024)]
    wide = [wire.SegmentArgs(0, 1, [(1 << 19, 3), (1 << 19, 5), (1 << 19, 7)], 1)]
    many = [wire.SegmentArgs(n, 4096, [(2, 1024), (2, 2048)], 1) for n in range(1024)]
    with daemon.peer() as peer:
        handle = peer.ok("register_namespace", namespace.encoded())[0]
        fd = native.make_pool_memfd(1 << 24, "pool")
        for segments, slots in ((tangled, 1), (tangled, 4000), (fine, 4000), (wide, 1), (many, 99)):
            memory = peer.send_memory(fd)
            begin_s = time.monotonic()
            peer.call("register_pool", handle, "cpu", 1 << 24, slots, segments, memory)
            assert time.monotonic() - begin_s < 0.5
        os.close(fd)


def test_own_connection_as_memory(daemon: DaemonProcess) -> None:
    """A session cannot give the daemon its own connection to keep: it is ended."""
    with daemon.peer() as peer:
        peer.send_memory(peer.liveness.fileno())
        assert peer.ended()
