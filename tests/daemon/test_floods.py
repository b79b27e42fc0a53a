"""Floods and shortages: the daemon stays serving, its memory falls again, the loop is idle."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest

from evoke.client.wire import Code, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import DaemonProcess, Peer, chain, eventually, make_namespace


def zmtp(path: Path, name: str = "control.sock") -> socket.socket:
    """A connection to a socket that has greeted as an anonymous DEALER (ZMTP 3.0)."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(5)
    connection.connect(str(path / name))
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


def test_replies_outlive_a_rebind(start: Start) -> None:
    """A message of too many frames, sent while another session's blocks are copied, costs that
    session at most the requests that lay in the socket: it lives, and its replies reach it."""
    daemon = start(host__capacity="256MiB")
    namespace = make_namespace(blocks_4k=256)
    with daemon.engine(namespace, 64) as engine, daemon.peer() as other:
        numbers = []
        for round_number in range(40):
            keys = chain(namespace, 64, round_number)
            flood = zmtp(daemon.directory)
            flood.sendall(b"\x01\x01x" * 2000)
            os.kill(daemon.pid, signal.SIGSTOP)  # so that it meets both at once, in this order
            numbers.append(engine.peer.send("store", *engine.store_args(keys)))
            time.sleep(0.02)
            flood.sendall(b"\x00\x01x")
            os.kill(daemon.pid, signal.SIGCONT)
            answered = engine.peer.dealer.poll(1500)
            flood.close()
            if answered:
                assert engine.peer.receive().request in numbers
            assert eventually(lambda: _answers(other))
            if other.counter("replies_held"):
                break
        assert other.counter("replies_held") > 0
        assert other.counter("replies_dropped") == 0
        assert other.counter("sessions_ended") == 0
        assert eventually(lambda: _answers(engine.peer))


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


def test_flood_of_subscriptions(start: Start) -> None:
    """Who floods the events socket without a topic neither stops the loop nor fills its memory."""
    daemon = start()
    before_bytes = daemon.resident_bytes()
    frames = b"".join(b"\0\xf0\1" + bytes([n]) * 239 for n in range(256))
    with daemon.peer() as peer, zmtp(daemon.directory, "events.sock") as connection:
        connection.settimeout(0.2)
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            connection.sendall(frames)
            asked_s = time.monotonic()
            peer.ok("ping")
            assert time.monotonic() - asked_s < 1.0
        assert daemon.resident_bytes() < before_bytes + (32 << 20)
