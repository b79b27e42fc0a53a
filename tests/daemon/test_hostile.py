"""Broken and hostile peers: what they send is refused or dropped, and nobody else notices."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from evoke.client import wire
from evoke.client.wire import Code, Stored
from evoke.core import native
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Peer, chain, eventually, in_child, make_namespace

pack = msgspec.msgpack.encode


class _Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def _frames(token: bytes) -> dict[str, tuple[bytes, Code]]:
    """Hostile single frames by name, and the code of the answer."""

    def request(verb: object, args: object, version: object = 1, number: object = 7) -> bytes:
        return pack((version, token, number, verb, args))

    deep = b"\x91" * 10_000 + b"\xc0"
    good = request("lookup", (0, bytes(32), 0))
    return {
        "empty": (b"", Code.BAD_FRAME),
        "truncated": (good[:-5], Code.BAD_FRAME),
        "trailing": (good + b"\x00", Code.BAD_FRAME),
        "never used byte": (b"\xc1" * 100, Code.BAD_FRAME),
        "map of 64 Mi pairs": (b"\xdf\x04\x00\x00\x00" + bytes(100), Code.BAD_FRAME),
        "array of 4 Gi": (b"\xdd\xff\xff\xff\xff", Code.BAD_FRAME),
        "bytes of 4 Gi": (b"\x95\x01\xc6\xff\xff\xff\xff", Code.BAD_FRAME),
        "nested": (deep, Code.BAD_FRAME),
        "nested arguments": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa4ping" + deep,
            Code.BAD_FRAME,
        ),
        "map of a request": (pack({"version": 1}), Code.BAD_FRAME),
        "extension": (request("lookup", msgspec.msgpack.Ext(5, b"x")), Code.BAD_ARGUMENT),
        "extension as id": (
            request("ping", (), number=msgspec.msgpack.Ext(5, b"x")),
            Code.BAD_FRAME,
        ),
        "not a text": (request(5, ()), Code.BAD_FRAME),
        "long verb": (request("x" * 33, ()), Code.BAD_FRAME),
        "unknown verb": (request("evict_all", ()), Code.UNKNOWN_VERB),
        "dunder verb": (request("__class__", ()), Code.UNKNOWN_VERB),
        "version": (request("ping", (), version=2), Code.BAD_VERSION),
        "negative version": (request("ping", (), version=-1), Code.BAD_FRAME),
        "id of 2^63": (request("ping", (), number=1 << 63), Code.BAD_FRAME),
        "negative id": (request("ping", (), number=-1), Code.BAD_FRAME),
        "nan as id": (request("ping", (), number=float("nan")), Code.BAD_FRAME),
        "nan": (request("lookup", (float("nan"), b"", 0)), Code.BAD_ARGUMENT),
        "count of 2^63": (request("lookup", (0, b"", 1 << 63)), Code.BAD_ARGUMENT),
        "negative": (request("lookup", (0, b"", -1)), Code.BAD_ARGUMENT),
        "text for bytes": (request("lookup", (0, "k" * 32, 0)), Code.BAD_ARGUMENT),
        "too few": (request("lookup", (0, b"")), Code.BAD_ARGUMENT),
        "too many": (request("lookup", (0, b"", 0, 0)), Code.BAD_ARGUMENT),
        "too many keys": (request("lookup", (0, bytes(32 * 8193), 0)), Code.BAD_ARGUMENT),
        "no such namespace": (request("lookup", (4711, bytes(32), 0)), Code.NOT_FOUND),
        "short token": (pack((1, token[:15], 7, "ping", ())), Code.BAD_FRAME),
        "bad utf-8": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa4\xff\xfe\xfd\xfc\x90",
            Code.BAD_FRAME,
        ),
        "bad utf-8 argument": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa5hello\x93\xc4\x00\x00\xa2\xff\xfe",
            Code.BAD_ARGUMENT,
        ),
    }


@pytest.mark.parametrize("name", sorted(_frames(bytes(16))))
def test_bad_frame(daemon: DaemonProcess, name: str) -> None:
    """The frame is answered with its error code, and the same session goes on."""
    with daemon.peer() as peer:
        frame, code = _frames(peer.token)[name]
        reply = peer.raw(frame)
        assert reply.code == code, reply.result
        assert len(reply.result) == 2
        assert peer.call("ping")[0] == Code.OK


def test_pickle_is_not_executed(daemon: DaemonProcess) -> None:
    """Pickle bytes are a bad frame, whole or as an argument, and are not loaded."""
    with tempfile.TemporaryDirectory() as directory, daemon.peer() as peer:
        path = os.path.join(directory, "executed")
        data = pickle.dumps(_Touch(path))
        assert peer.raw(data).code == Code.BAD_FRAME
        assert peer.raw(pack((1, peer.token, 7, "lookup", (0, data, 0)))).code != Code.OK
        assert peer.raw(pack((1, peer.token, 7, "register_namespace", (data,)))).code != Code.OK
        assert os.listdir(directory) == []


def test_three_part_message(daemon: DaemonProcess) -> None:
    """A message of several frames, good ones or empty ones, is a bad frame."""
    with daemon.peer() as peer:
        good = wire.encode_request(peer.token, 9, "ping", wire.Empty())
        for frames in ((good, good, good), (b"", good), (good, b"")):
            assert peer.raw(*frames).code == Code.BAD_FRAME
        assert peer.call("ping")[0] == Code.OK


def test_later_verbs(daemon: DaemonProcess) -> None:
    """Each verb of a later version is answered "unsupported"."""
    with daemon.peer() as peer:
        for verb in sorted(wire.LATER_VERBS):
            reply = peer.raw(pack((1, peer.token, 7, verb, ())))
            assert (reply.request, reply.code) == (7, Code.UNSUPPORTED)


def test_verbs_before_hello(daemon: DaemonProcess) -> None:
    """Each verb but hello is refused until hello was said."""
    examples: dict[str, tuple[object, ...]] = {
        "register_namespace": (make_namespace().encoded(),),
        "register_pool": (0, "cpu", 4096, 1, [(0, 4096, [], 4096)], 1),
        "unregister_pool": (1,),
        "prove_pool": (1, 0, 0, 0),
        "store": (0, 1, bytes(32), 0, b"", bytes(4), 1000, 0),
        "reserve": (0, bytes(32), 0, b"", 1000),
        "commit": (1, 1, bytes(4), bytes(4), 1000, 0),
        "abort": (1,),
        "unpin": (1,),
        "fetch": (0, 1, bytes(32), 0, bytes(4), 1000, 0, 0),
        "pin": (0, bytes(32), 0, 1000),
        "touch": (0, bytes(32), 0),
        "lookup": (0, bytes(32), 0),
        "asked": ([],),
        "events": (0,),
        "flush": (b"", ""),
        "inject": (0, bytes(32), 0),
    }
    empty = {verb for verb, kind in wire.VERBS.items() if not kind.__struct_fields__}
    examples.update(dict.fromkeys(empty, ()))
    assert set(examples) == set(wire.VERBS) - {"hello"}
    with daemon.peer(hello=False) as peer:
        for verb, args in examples.items():
            reply = peer.raw(pack((1, peer.token, 7, verb, args)))
            assert (reply.request, reply.code) == (7, Code.BAD_TOKEN), verb
        peer.ok("hello", b"", 0, "late")
        assert peer.call("hello", b"", 0, "again")[0] == Code.BAD_ARGUMENT


def test_forged_and_foreign_token(daemon: DaemonProcess) -> None:
    """A token that is invented, or is another session's, opens nothing."""
    with daemon.peer() as a, daemon.peer() as b:
        assert a.call("status", token=bytes(16))[0] == Code.BAD_TOKEN
        assert a.call("status", token=b.token)[0] == Code.BAD_TOKEN
        assert a.call("status")[0] == Code.OK


def test_stranger_with_a_token(daemon: DaemonProcess) -> None:
    """A connection without a session's routing id is refused even with that session's token."""
    with daemon.peer() as peer:
        stranger = peer.new_dealer(b"\x01" + os.urandom(16))
        stranger.send(wire.encode_request(peer.token, 1, "status", wire.Empty()))
        assert stranger.poll(5000)
        assert wire.decode_reply(stranger.recv()).code == Code.BAD_TOKEN
        stranger.close(0)


def test_squatted_routing_id(daemon: DaemonProcess) -> None:
    """A second connection with a session's routing id gets nothing, and the first goes on."""
    with daemon.peer() as peer:
        peer.ok("ping")
        squatter = peer.new_dealer(peer.route)
        squatter.send(wire.encode_request(peer.token, 1, "status", wire.Empty()))
        assert not squatter.poll(200)
        assert peer.call("ping")[0] == Code.OK
        squatter.close(0)


def test_token_of_another_process(daemon: DaemonProcess) -> None:
    """A process that says hello with the token and routing id of another one is refused."""
    with daemon.peer(hello=False) as peer:
        peer.dealer.close(0)

        def steal() -> str:
            thief = peer.new_dealer(peer.route)
            thief.send(wire.encode_request(peer.token, 1, "hello", wire.Hello(b"", 0, "thief")))
            assert thief.poll(5000)
            return Code(wire.decode_reply(thief.recv()).code).name

        assert in_child(steal) == "BAD_TOKEN"
        peer.dealer = peer.new_dealer(peer.route)
        assert peer.call("hello", b"", 0, "owner")[0] == Code.OK


# ---------------------------------------------------------------------- the liveness socket


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


# ---------------------------------------------------------------------- floods


def zmtp(path: Path) -> socket.socket:
    """A connection to the control socket that has greeted as an anonymous DEALER (ZMTP 3.0)."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(str(path / "control.sock"))
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    connection.sendall(greeting)
    kind, route = b"\x0bSocket-Type\0\0\0\x06DEALER", b"\x08Identity\0\0\0\0"
    ready = b"\x05READY" + kind + route
    connection.sendall(b"\x04" + bytes([len(ready)]) + ready)
    received = b""
    while b"READY" not in received:
        received += connection.recv(4096)
    return connection


def _answers(peer: Peer) -> bool:
    """A request that lies in the socket when it is closed is lost: its caller sees a deadline."""
    number = peer.send("ping")
    while peer.dealer.poll(300):
        if peer.receive().request == number:
            return True
    return False


def test_unfinished_message_of_400_mib(start: Start) -> None:
    """An endless multipart message makes the daemon re-bind: memory falls, sessions go on."""
    limit = 64 << 20
    daemon = start(limits__loop_memory_bytes="64MiB")
    namespace = make_namespace()
    keys = chain(namespace, 4)
    frame = b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)
    with daemon.engine(namespace) as engine:
        pattern = engine.fill(1)
        engine.store(keys)
        engine.peer.ok("ping")
        largest = sent = 0
        connection = zmtp(daemon.directory)
        while sent < 400:
            try:
                connection.sendall(frame)
                sent += 1
            except (BrokenPipeError, ConnectionResetError):
                connection.close()
                connection = zmtp(daemon.directory)
            largest = max(largest, daemon.resident_bytes()) if sent % 20 == 0 else largest
        assert largest > limit  # about 470 MiB, unless the daemon was faster than the flood
        assert eventually(lambda: daemon.resident_bytes() < limit + (32 << 20), 8)
        connection.close()
        assert eventually(lambda: "re-bound" in daemon.log())
        assert eventually(lambda: _answers(engine.peer))
        assert engine.fetch(keys, range(8, 12)) == [1] * 4
        assert (engine.blocks[8:12] == pattern[:4]).all()
        rebinds = engine.peer.counter("socket_rebinds")
        assert 1 <= rebinds <= 20
        time.sleep(1.2)
        assert engine.peer.counter("socket_rebinds") == rebinds
    with daemon.peer() as late:
        assert late.call("ping")[0] == Code.OK


def test_message_of_a_million_frames(start: Start) -> None:
    """A finished message of a million tiny frames is refused without holding up the others."""
    daemon = start()
    with daemon.peer() as peer:
        peer.ok("ping")
        before = daemon.resident_bytes()
        flood = zmtp(daemon.directory)
        many = b"\x01\x01x" * 10_000
        for _ in range(100):
            flood.sendall(many)
        begin_s = time.monotonic()
        flood.sendall(b"\x00\x01x")
        assert eventually(lambda: "re-bound" in daemon.log())
        assert eventually(lambda: _answers(peer))
        for _ in range(20):
            assert peer.call("ping")[0] == Code.OK
        assert time.monotonic() - begin_s < 1
        assert peer.counter("socket_rebinds") == 1
        flood.close()
        assert eventually(lambda: daemon.resident_bytes() - before < 32 << 20)


def test_garbage_connections(daemon: DaemonProcess) -> None:
    """Bytes that are no ZMTP at all on the control socket end only that connection."""
    with daemon.peer() as peer:
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 100_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(daemon.directory / "control.sock"))
                try:
                    connection.sendall(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass
        assert peer.call("ping")[0] == Code.OK


def test_frame_over_the_limit(daemon: DaemonProcess) -> None:
    """A frame over 1 MiB ends the connection that sent it, and no other."""
    with daemon.peer() as peer, daemon.peer() as other:
        peer.dealer.send(bytes((1 << 20) + 1))
        assert other.call("ping")[0] == Code.OK


@pytest.mark.parametrize("nofile", [64, 65, 66])  # a session takes three
def test_descriptors_run_out(start: Start, nofile: int) -> None:
    """With no descriptor left newcomers wait, known sessions are served, and the loop is idle."""
    daemon = start(nofile=nofile)
    namespace = make_namespace()
    key = chain(namespace, 1)
    with daemon.engine(namespace) as engine:
        idle = []
        for _ in range(100):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            try:
                connection.connect(str(daemon.directory / "session.sock"))
            except BlockingIOError:
                connection.close()
                break
            idle.append(connection)
        time.sleep(0.2)
        before_s = daemon.cpu_s()
        assert engine.store(key) == [Stored.STORED]
        time.sleep(1)
        assert daemon.cpu_s() - before_s < 0.3
        assert len(daemon.log()) < 100_000
        for connection in idle:
            connection.close()
        assert engine.peer.call("ping")[0] == Code.OK
        peer = Peer(daemon.directory)
        assert peer.call("ping")[0] == Code.OK
        peer.close()
