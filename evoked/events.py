"""What happens to blocks, published as it happens; keys are given only to their owners.

A subscriber must name a topic of 16 random bytes, which the verb `events` hands to sessions of a
namespace (its own topic) and to admins (the topic of everything). Other subscriptions, the empty
one among them, are not granted. Each topic counts its own sequence; a gap means a lost event.
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
from evoked.server import SocketAccess
from evoked.sessions import NamespaceEntry

__all__ = ["EVERYTHING", "Announcer", "EventSink", "Events"]

U32 = NDArray[np.uint32]
EVERYTHING: Final = 0xFFFF_FFFF
HIGH_WATER_EVENTS: Final = 4096
SUBSCRIPTIONS_PER_TURN: Final = 64
_encoder = msgspec.msgpack.Encoder()


class EventSink(Protocol):
    """`kind` is stored, evicted, flushed, restored, damaged (of blocks), or policy, pressure."""

    def wanted(self) -> bool:
        """False when nobody listens: then keys need not be collected."""

    def blocks(self, kind: str, namespace: NamespaceEntry, keys: bytes, tier: str) -> None: ...

    def topic(self, namespace: NamespaceEntry | None) -> bytes: ...


class Events:
    """One XPUB over ipc whose subscriptions the daemon grants by hand."""

    def __init__(self, path: str, context: zmq.Context[Any], access: SocketAccess) -> None:
        self._path = path
        self._topics: dict[int, bytes] = {EVERYTHING: secrets.token_bytes(16)}
        self._sequences: dict[bytes, int] = {self._topics[EVERYTHING]: 0}
        self._granted: dict[bytes, int] = {}
        self.socket = context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)
        self.socket.setsockopt(zmq.SNDHWM, HIGH_WATER_EVENTS)
        self.socket.setsockopt(zmq.MAXMSGSIZE, 256)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"ipc://{path}")
        access.apply(path)

    def topic(self, namespace: NamespaceEntry | None) -> bytes:
        number = EVERYTHING if namespace is None else namespace.number
        if number not in self._topics:
            self._topics[number] = secrets.token_bytes(16)
            self._sequences[self._topics[number]] = 0
        return self._topics[number]

    def forget(self, namespace: NamespaceEntry) -> None:
        topic = self._topics.pop(namespace.number, None)
        if topic is not None:
            del self._sequences[topic]
            self._granted.pop(topic, None)

    def handle(self) -> None:
        """Subscriptions lie ready: grant those that name a known topic."""
        for _ in range(SUBSCRIPTIONS_PER_TURN):
            try:
                message = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            topic = message[1:]
            if message[:1] == b"\x01" and topic in self._sequences:
                self.socket.setsockopt(zmq.SUBSCRIBE, topic)
                self._granted[topic] = self._granted.get(topic, 0) + 1
            elif message[:1] == b"\x00" and topic in self._granted:
                self.socket.setsockopt(zmq.UNSUBSCRIBE, topic)
                self._granted[topic] -= 1
                if not self._granted[topic]:
                    del self._granted[topic]

    def wanted(self) -> bool:
        return bool(self._granted)

    def blocks(self, kind: str, namespace: NamespaceEntry, keys: bytes, tier: str) -> None:
        for number in (namespace.number, EVERYTHING):
            topic = self._topics.get(number)
            if topic is None:
                continue
            self._sequences[topic] += 1
            if topic in self._granted:
                unix_ms = time.time_ns() // 1_000_000
                event = (self._sequences[topic], unix_ms, kind, namespace.id, keys, tier)
                self._send(topic, _encoder.encode(event))

    def _send(self, topic: bytes, frame: bytes) -> None:
        try:
            self.socket.send_multipart((topic, frame), zmq.NOBLOCK)
        except zmq.Again:
            return  # its reader sees the gap in the sequence

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
        keys: dict[int, list[bytes]] = {}
        for number in rows.tolist():
            row = self._index.row(number)
            keys.setdefault(row["namespace"], []).append(row["key"])
        for namespace, parts in keys.items():
            self.sink.blocks(kind, self._namespaces[namespace], b"".join(parts), tier)
