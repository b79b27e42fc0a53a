"""What happens to blocks, published as it happens; keys are given only to their owners.

A reader's routing id must contain a topic of 16 random bytes, which the verb `events` hands to
sessions of a namespace (its own topic) and to admins (the topic of everything). Each topic counts
its own sequence; a gap means a lost event.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from evoke.core import native
from evoked.server import SocketAccess, bind_renamed
from evoked.sessions import NamespaceEntry

__all__ = ["EVERYTHING", "Announcer", "EventSink", "Events"]

U32 = NDArray[np.uint32]
EVERYTHING: Final = 0xFFFF_FFFF
HIGH_WATER_EVENTS: Final = 4096
REQUESTS_PER_TURN: Final = 64
REQUEST_BYTES_MAX: Final = 256
FRAMES_MAX: Final = 8  # of a request, which needs one
TOPIC_BYTES: Final = 16
READERS_MAX: Final = 64  # of one topic: beyond it the first has to ask again
_encoder = msgspec.msgpack.Encoder()


class EventSink(Protocol):
    """`kind` is stored, evicted, flushed, restored, damaged (of blocks), or policy, pressure."""

    def wanted(self) -> bool:
        """False when nobody listens: then keys need not be collected."""

    def blocks(self, kind: str, namespace: NamespaceEntry, keys: bytes, tier: str) -> None: ...

    def policy(self, what: str) -> None:
        """A policy came into force: version and formula."""

    def topic(self, namespace: NamespaceEntry | None) -> bytes: ...

    def forget(self, namespace: NamespaceEntry) -> None: ...


class Events:
    """One ROUTER over ipc; `_readers` are the routing ids of those who asked for a topic.

    Not an XPUB: libzmq takes all subscriptions that come at once, refused ones too, and remembers
    them, so that any peer could fill the memory and hold the loop up without end.
    """

    def __init__(self, path: str, context: zmq.Context[Any], access: SocketAccess) -> None:
        self._path = path
        self._topics: dict[int, bytes] = {EVERYTHING: secrets.token_bytes(TOPIC_BYTES)}
        self._sequences: dict[bytes, int] = {self._topics[EVERYTHING]: 0}
        self._readers: dict[bytes, dict[bytes, None]] = {}
        self._context, self._access = context, access
        self._binds = 0
        self.socket = self._bind()

    def _bind(self) -> zmq.Socket[bytes]:
        router: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, HIGH_WATER_EVENTS)
        router.setsockopt(zmq.RCVHWM, REQUESTS_PER_TURN)
        router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        router.setsockopt(zmq.LINGER, 0)
        bind_renamed(router, self._path, self._binds, self._access)
        self._binds += 1
        return router

    def rebind(self) -> None:
        """Give back what libzmq holds for unfinished messages. Readers connect again by themselves,
        and ask again when they hear nothing."""
        self.socket.close(0)
        self._readers.clear()
        self.socket = self._bind()

    def topic(self, namespace: NamespaceEntry | None) -> bytes:
        number = EVERYTHING if namespace is None else namespace.number
        if number not in self._topics:
            self._topics[number] = secrets.token_bytes(TOPIC_BYTES)
            self._sequences[self._topics[number]] = 0
        return self._topics[number]

    def forget(self, namespace: NamespaceEntry) -> None:
        topic = self._topics.pop(namespace.number, None)
        if topic is not None:
            del self._sequences[topic]
            self._readers.pop(topic, None)

    def handle(self) -> None:
        """Requests lie ready: note those whose routing id names a known topic. Because the topic is
        in it, nobody else can take the routing id of a reader that left."""
        for _ in range(REQUESTS_PER_TURN):
            try:
                route = self.socket.recv(zmq.NOBLOCK)
                more = self.socket.getsockopt(zmq.RCVMORE)
                for _ in range(FRAMES_MAX):
                    if not more:
                        break
                    self.socket.recv(zmq.NOBLOCK)
                    more = self.socket.getsockopt(zmq.RCVMORE)
            except zmq.Again:
                return
            if more:
                self.rebind()
                return
            topic = route[1 : 1 + TOPIC_BYTES]
            if topic in self._sequences:
                readers = self._readers.setdefault(topic, {})
                readers[route] = None
                if len(readers) > READERS_MAX:
                    del readers[next(iter(readers))]

    def wanted(self) -> bool:
        return bool(self._readers)

    def blocks(self, kind: str, namespace: NamespaceEntry, keys: bytes, tier: str) -> None:
        for number in (namespace.number, EVERYTHING):
            topic = self._topics.get(number)
            if topic is not None:
                self._publish(topic, kind, namespace.id, keys, tier)

    def policy(self, what: str) -> None:
        self._publish(self._topics[EVERYTHING], "policy", b"", b"", what)

    def _publish(self, topic: bytes, kind: str, namespace: bytes, keys: bytes, what: str) -> None:
        self._sequences[topic] += 1
        if topic in self._readers:
            unix_ms = time.time_ns() // 1_000_000
            event = (self._sequences[topic], unix_ms, kind, namespace, keys, what)
            self._send(topic, _encoder.encode(event))

    def _send(self, topic: bytes, frame: bytes) -> None:
        readers = self._readers[topic]
        for route in list(readers):
            try:
                self.socket.send_multipart((route, topic, frame), zmq.NOBLOCK)
            except zmq.Again:
                continue  # a slow reader sees the gap in the sequence
            except zmq.ZMQError:
                del readers[route]  # it has gone
        if not readers:
            del self._readers[topic]

    def close(self) -> None:
        self.socket.close(0)
        if os.path.exists(self._path):
            os.unlink(self._path)


class Announcer:
    """Turns what the verbs do into events; costs one look when nobody listens."""

    def __init__(self, index: native.Index, namespaces: Mapping[int, NamespaceEntry]) -> None:
        self._index, self._namespaces = index, namespaces
        self.sink: EventSink | None = None

    def keys(self, kind: str, namespace: NamespaceEntry, keys: Iterable[bytes], tier: str) -> None:
        if self.sink is not None and self.sink.wanted():
            packed = b"".join(keys)
            if packed:
                self.sink.blocks(kind, namespace, packed, tier)

    def rows(self, kind: str, rows: U32, tier: str) -> None:
        """Before the rows are erased: their keys, grouped by namespace."""
        if self.sink is None or not self.sink.wanted():
            return
        namespaces, _, _ = self._index.facts(rows)
        for number in np.unique(namespaces).tolist():
            keys = self._index.keys(rows[namespaces == number])
            self.sink.blocks(kind, self._namespaces[number], keys, tier)
