"""A daemon of one thread for tests of the client: real table, fences and copies, and a script.

`python peer.py DIRECTORY` serves in a process of its own, whose fetches die in mid-copy.
"""

from __future__ import annotations

import mmap
import os
import queue
import secrets
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from evoke.client import wire
from evoke.client.namespace import Group, Namespace, Part
from evoke.core import native

__all__ = ["HELD", "Refusal", "ScriptedDaemon", "Session", "make_namespace"]

HELD = object()  # what a scripted verb returns to answer later, or never
KEY = wire.KEY_BYTES


class Refusal(Exception):
    def __init__(self, code: wire.Code, field: str = "", sentence: str = "no") -> None:
        super().__init__(sentence)
        self.code, self.field, self.sentence = code, field, sentence


def make_namespace(**fields: Any) -> Namespace:
    """Blocks of 4 tokens and 2 layers of 2 heads of 8 numbers: 1 KiB in float32."""
    values: dict[str, Any] = {
        "model": "tiny",
        "weights_epoch": "0",
        "position": "rope:theta=10000",
        "dtype": "float32",
        "block_tokens": 4,
        "parts": (Part(groups=(Group(layers=2, kv_heads=2, head_size=8),)),),
        "salt": "tests",
    }
    return Namespace(**{**values, **fields})


class Session:
    """What the peer knows of one client."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.token, self.route = secrets.token_bytes(16), b"\x01" + secrets.token_bytes(16)
        self.fence_fd = native.FencePage.make()
        self.fence_page = mmap.mmap(self.fence_fd, mmap.PAGESIZE)
        self.memories: dict[int, int] = {}
        self.pools: dict[int, tuple[mmap.mmap, native.Layout]] = {}
        self.rank = 0

    def copying(self, word: int, blocks: int) -> None:
        """Set how many blocks are being copied under a fence word, as workers count them."""
        (value,) = struct.unpack_from("<I", self.fence_page, 4 * word)
        struct.pack_into("<I", self.fence_page, 4 * word, (value & 1) | blocks << 1)

    def cancelled(self, word: int) -> bool:
        return bool(self.fence_page[4 * word] & 1)

    def close(self) -> None:
        self.connection.close()
        for fd in (self.fence_fd, *self.memories.values()):
            os.close(fd)


class ScriptedDaemon:
    """`on[verb] = function(session, args)` replaces the answer to a verb: a result, HELD, or a
    raised Refusal. `requests` lists (verb, args) in order of arrival."""

    def __init__(self, directory: Path) -> None:
        self.boot = secrets.token_bytes(16)
        self.on: dict[str, Callable[[Session, Any], Any]] = {}
        self.requests: list[tuple[str, Any]] = []
        self.held: list[tuple[Session, int]] = []
        self.sessions: dict[bytes, Session] = {}
        self.blocks: dict[bytes, bytes] = {}
        self.welcome = True
        self._index = native.Index(64)
        self._namespaces: dict[bytes, list[Any]] = {}
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]]
        self._jobs = queue.SimpleQueue()
        self._wake = os.eventfd(0)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(directory / "session.sock"))
        self._listener.listen()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(f"ipc://{directory / 'control.sock'}")
        self._directory = directory
        self._running = True
        self._thread = threading.Thread(target=self._run, name="scripted-daemon")
        self._thread.start()

    # ------------------------------------------------------------ for the test's thread

    def do(self, job: Callable[[], Any]) -> Any:
        """Have the daemon's thread run something; its result."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._jobs.put((job, done))
        os.eventfd_write(self._wake, 1)
        return done.get(timeout=10)

    def answer_held(self, result: Any) -> None:
        """Answer the oldest request that was held."""
        session, request = self.held.pop(0)
        self.do(lambda: self._reply(session, request, wire.Code.OK, result))

    def count(self, verb: str) -> int:
        return sum(1 for name, _ in self.requests if name == verb)

    def drop_sessions(self) -> None:
        """Close every liveness socket, as a daemon does that dies or throws sessions out."""
        self.do(self._drop_sessions)

    def close(self) -> None:
        if self._running:
            self.do(self._stop)
            self._thread.join(10)

    # ------------------------------------------------------------ in the daemon's thread

    def _stop(self) -> None:
        self._running = False

    def _drop_sessions(self) -> None:
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._router, self._listener.fileno(), self._wake):
            poller.register(source, zmq.POLLIN)
        while self._running:
            ready = dict(poller.poll(50))
            if self._wake in ready:
                os.eventfd_read(self._wake)
                while not self._jobs.empty():
                    job, done = self._jobs.get()
                    done.put(job())
            if self._listener.fileno() in ready:
                self._accept()
            self._read_memories()
            if self._router in ready:
                self._serve(*self._router.recv_multipart())
        self._drop_sessions()
        self._router.close(0)
        self._context.term()
        self._listener.close()
        os.close(self._wake)
        self._index.close()
        for name in ("session.sock", "control.sock"):
            (self._directory / name).unlink(missing_ok=True)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        if not self.welcome:
            connection.send(msgspec.msgpack.encode(["refused", "not today"]))
            connection.close()
            return
        session = Session(connection)
        self.sessions[session.route] = session
        packet = ["welcome", 1, self.boot, session.token, session.route]
        fds = [self._index.table_fd(), session.fence_fd]
        socket.send_fds(connection, [msgspec.msgpack.encode(packet)], fds)
        connection.setblocking(False)

    def _read_memories(self) -> None:
        for session in list(self.sessions.values()):
            while True:
                try:
                    data, fds, _, _ = socket.recv_fds(session.connection, 4096, 4)
                except (BlockingIOError, ConnectionResetError):
                    break
                if not data:
                    break
                session.memories[msgspec.msgpack.decode(data)[1]] = fds[0]

    def _serve(self, route: bytes, frame: bytes) -> None:
        request, args = wire.decode_request(frame)
        session = self.sessions.get(route)
        self.requests.append((request.verb, args))
        if session is None or session.token != request.token:
            return
        self._read_memories()
        try:
            script = self.on.get(request.verb) or getattr(self, f"_{request.verb}")
            result, code = script(session, args), wire.Code.OK
        except Refusal as refusal:
            result, code = [refusal.field, refusal.sentence], refusal.code
        if result is HELD:
            self.held.append((session, request.request))
        elif request.request:
            self._reply(session, request.request, code, result)

    def _reply(self, session: Session, request: int, code: int, result: Any) -> None:
        frame = wire.encode_reply(request, self.boot, code, result)
        self._router.send_multipart((session.route, frame))

    # ------------------------------------------------------------ verbs

    def _hello(self, session: Session, args: wire.Hello) -> Any:
        session.rank = args.rank
        return [args.join or secrets.token_bytes(16), len(self.sessions)]

    def _ping(self, session: Session, args: wire.Empty) -> Any:
        return 1

    def _asked(self, session: Session, args: wire.Asked) -> Any:
        return None

    def _register_namespace(self, session: Session, args: wire.RegisterNamespace) -> Any:
        namespace = Namespace.decode(args.encoded)
        if namespace.id not in self._namespaces:
            number, secret = self._index.add_namespace(len(namespace.parts))
            sizes = [part.part_bytes for part in namespace.parts]
            self._namespaces[namespace.id] = [number, namespace.id, secret, sizes]
        return self._namespaces[namespace.id]

    def _register_pool(self, session: Session, args: wire.RegisterPool) -> Any:
        fd = session.memories.pop(args.memory)
        parts = [(s.base, s.slot_stride, s.dims, s.item_bytes) for s in args.segments]
        layout = native.Layout(parts, args.slots, args.pool_bytes)
        session.pools[len(session.pools) + 1] = (mmap.mmap(fd, args.pool_bytes), layout)
        os.close(fd)
        return len(session.pools)

    def _unregister_pool(self, session: Session, args: wire.UnregisterPool) -> Any:
        del session.pools[args.pool]

    def _prove_pool(self, session: Session, args: wire.ProvePool) -> Any:
        content = self._gather(session, args.pool, args.from_slot)
        self._scatter(session, args.pool, args.to_slot, content)
        return native.xxh3_64(content)

    def _store(self, session: Session, args: wire.Store) -> Any:
        codes = bytearray()
        for i, slot in enumerate(np.frombuffer(args.slots, "<u4").tolist()):
            key = args.keys[i * KEY : (i + 1) * KEY]
            codes.append(wire.Stored.PRESENT if key in self.blocks else wire.Stored.STORED)
            self.put(args.namespace, key, self._gather(session, args.pool, slot))
        return bytes(codes)

    def _fetch(self, session: Session, args: wire.Fetch) -> Any:
        codes = bytearray()
        for i, slot in enumerate(np.frombuffer(args.slots, "<u4").tolist()):
            content = self.blocks.get(args.keys[i * KEY : (i + 1) * KEY])
            codes.append(wire.Fetched.MISS if content is None else wire.Fetched.HOST)
            if content is not None:
                self._scatter(session, args.pool, slot, content)
        return bytes(codes)

    def put(self, namespace: int, key: bytes, content: bytes) -> None:
        self.blocks[key] = content
        one, length = np.ones(1, np.uint64), np.full(1, len(content), np.uint32)
        epoch = self._index.table_epoch
        self._index.insert(namespace, key, 0, b"", one, length, one, 1)
        if self._index.table_epoch != epoch:
            packet = msgspec.msgpack.encode(["table", self._index.table_epoch])
            for session in self.sessions.values():
                socket.send_fds(session.connection, [packet], [self._index.table_fd()])

    def _gather(self, session: Session, pool: int, slot: int) -> bytes:
        memory, layout = session.pools[pool]
        out = np.empty(layout.block_bytes, np.uint8)
        address = int(np.frombuffer(memory, np.uint8).ctypes.data)
        layout.gather(address, np.array([slot], np.uint32), out)
        return out.tobytes()

    def _scatter(self, session: Session, pool: int, slot: int, content: bytes) -> None:
        memory, layout = session.pools[pool]
        address = int(np.frombuffer(memory, np.uint8).ctypes.data)
        layout.scatter(address, np.array([slot], np.uint32), np.frombuffer(content, np.uint8))


def _die_while_copying(session: Session, args: wire.Fetch) -> Any:
    session.copying(args.fence, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ScriptedDaemon(Path(sys.argv[1])).on["fetch"] = _die_while_copying
    print("ready", flush=True)
    select.select([], [], [])
