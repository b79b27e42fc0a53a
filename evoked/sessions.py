"""Sessions (connected processes), instances (the sessions of one engine) and what they own.

A grant is a reservation or a pin; it belongs to an instance, and ends with the session that made
it, with the instance, with its one release, or at its deadline, whichever comes first.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from evoke.client.namespace import Namespace
from evoke.core import native
from evoked.peers import Peer
from evoked.timers import Timer

__all__ = ["Grant", "Instance", "NamespaceEntry", "PoolEntry", "Session", "Tenant"]

ASKS_REMEMBERED = 4096


class Bucket:
    """Token bucket of one second's depth."""

    __slots__ = ("_at_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = self._at_s = 0.0

    def take(self, now_s: float, per_s: int) -> bool:
        self._tokens = min(float(per_s), self._tokens + (now_s - self._at_s) * per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


@dataclass(kw_only=True, eq=False)
class Tenant:
    """All namespaces of one salt (or of no salt), and what they use of its quotas."""

    share_bytes: int  # of the host tier
    grants_max: int
    requests_per_s: int
    namespaces: set[NamespaceEntry] = field(default_factory=set)
    bucket: Bucket = field(default_factory=Bucket)
    grants: int = 0
    pending_bytes: int = 0  # reserved, or being copied in by stores of one rank


@dataclass(kw_only=True, eq=False)
class NamespaceEntry:
    """A namespace that somebody registered. `generation` rises with each flush, and again when it
    ends: what was begun before that is not committed."""

    number: int
    id: bytes
    namespace: Namespace
    secret: bytes
    tenant: Tenant
    generation: int = 0
    flushes: int = 0  # under way
    sessions: set[int] = field(default_factory=set)

    @property
    def block_bytes(self) -> int:
        """Of all parts of a block."""
        return sum(part.part_bytes for part in self.namespace.parts)

    def accepts(self, generation: int) -> bool:
        """Whether a block that was begun in that generation may be committed."""
        return generation == self.generation and not self.flushes

    def part_of(self, rank: int) -> int:
        return self.namespace.rank_parts[rank]

    def part_bytes(self, part: int) -> int:
        return self.namespace.parts[part].part_bytes


@dataclass(kw_only=True, eq=False)
class PoolEntry:
    """A registered pool of one session."""

    number: int
    namespace: NamespaceEntry
    part: int
    native: native.Pool
    slots: int


@dataclass(kw_only=True, eq=False)
class Grant:
    """`end` gives back what the grant holds; it is called exactly once."""

    number: int
    instance: Instance
    session: Session
    tenant: Tenant
    end: Callable[[], None]
    made_s: float
    held_bytes: int
    pins: bool  # or reserves
    timer: Timer | None = None
    details: object = None


@dataclass(kw_only=True, eq=False)
class Instance:
    join: bytes
    sessions: dict[int, Session] = field(default_factory=dict)
    grants: dict[int, Grant] = field(default_factory=dict)


class Session:
    """One connected process: identity, resources, limits in use."""

    def __init__(self, number: int, connection: socket.socket, peer: Peer) -> None:
        self.number = number
        self.connection = connection
        self.peer = peer
        self.token = secrets.token_bytes(16)
        # The routing id is as secret as the token: nobody can take it before its owner does.
        self.route = b"\x01" + secrets.token_bytes(16)
        self.instance: Instance | None = None
        self.rank = 0
        self.name = ""
        self.ended = False
        self.namespaces: dict[int, NamespaceEntry] = {}
        self.pools: dict[int, PoolEntry] = {}
        self.memories: OrderedDict[int, int] = OrderedDict()  # number -> fd, not yet registered
        self.fence_fd = native.FencePage.make()
        self.fence = native.FencePage(self.fence_fd)
        self.inflight_bytes = 0
        self.transfers = 0  # copies under way; each names a fence word of its own
        self.grants = 0
        self.held_bytes = 0  # by its grants
        self._bucket = Bucket()
        self._asks: OrderedDict[int, None] = OrderedDict()

    @property
    def reports(self) -> bool:
        """Whether it reports what it was asked for, so that its transfers are no accesses."""
        return bool(self._asks)

    def first_ask(self, ask: int) -> bool:
        """False when a report of this request was taken before (within the last few thousand)."""
        if ask in self._asks:
            return False
        self._asks[ask] = None
        if len(self._asks) > ASKS_REMEMBERED:
            self._asks.popitem(last=False)
        return True

    def allow(self, now_s: float, per_s: int) -> bool:
        """False when the session asks more often than per_s."""
        return self._bucket.take(now_s, per_s)

    def close(self) -> None:
        """Gives back fds and mappings. Running copies keep their pool mapped until they end."""
        assert not self.ended
        self.ended = True
        for pool in self.pools.values():
            pool.native.close()
        self.pools.clear()
        for fd in self.memories.values():
            os.close(fd)
        self.memories.clear()
        self.connection.close()
        if self.peer.pidfd is not None:
            os.close(self.peer.pidfd)
        self.fence.close()
        os.close(self.fence_fd)
