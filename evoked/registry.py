"""What sessions register: instances, namespaces and pools, and the requests that name them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoke.client import wire
from evoke.client.errors import BadArgument
from evoke.client.namespace import Namespace, NoSalt
from evoke.client.wire import Code
from evoke.core import native
from evoked.server import Refusal
from evoked.sessions import Instance, NamespaceEntry, PoolEntry, Session, Tenant

__all__ = ["Registry", "Request"]

KEY: Final = wire.KEY_BYTES
USER_SALT: Final = "uid:"
SESSION_MAPPED_BYTES_MAX: Final = 1 << 42
MAPPED_BYTES_MAX: Final = 1 << 46  # half of the addresses that a process has


class Request:
    """A checked list of keys of one chain, with the slots that belong to them (may be none)."""

    __slots__ = ("count", "entry", "first", "keys", "parent", "slots")

    def __init__(self, entry: NamespaceEntry, keys: bytes, first: int, parent: bytes) -> None:
        if len(keys) % KEY:
            raise Refusal(Code.BAD_ARGUMENT, "keys", f"{len(keys)} bytes, not a multiple of {KEY}")
        self.entry, self.keys, self.first, self.parent = entry, keys, first, parent
        self.count = len(keys) // KEY
        self.slots: NDArray[np.uint32] = np.empty(0, np.uint32)
        if first + self.count > 0xFFFF_FFFF:
            raise Refusal(Code.BAD_ARGUMENT, "first", f"{first} + {self.count} keys exceeds 2^32")

    def key(self, number: int) -> bytes:
        return self.keys[number * KEY : number * KEY + KEY]

    def parent_of(self, number: int) -> bytes:
        return self.key(number - 1) if number else self.parent

    def check_parent(self) -> None:
        """A block that is written names the block before it, and only block 0 has none."""
        expected = KEY if self.first else 0
        if self.count and len(self.parent) != expected:
            sentence = f"{len(self.parent)} bytes, block {self.first} takes {expected}"
            raise Refusal(Code.BAD_ARGUMENT, "parent", sentence)

    def check_distinct(self) -> None:
        if len({self.key(number) for number in range(self.count)}) != self.count:
            raise Refusal(Code.BAD_ARGUMENT, "keys", "a key is listed twice")

    def take_slots(self, packed: bytes, pool: PoolEntry, count: int) -> None:
        if len(packed) != 4 * count:
            sentence = f"{len(packed)} bytes for {count} blocks, expected {4 * count}"
            raise Refusal(Code.BAD_ARGUMENT, "slots", sentence)
        self.slots = np.frombuffer(packed, dtype="<u4").astype(np.uint32)
        if count and int(self.slots.max()) >= pool.slots:
            sentence = f"slot {int(self.slots.max())}, pool {pool.number} has {pool.slots}"
            raise Refusal(Code.BAD_ARGUMENT, "slots", sentence)


class Registry:
    """Owns instances and namespaces; pools belong to their session."""

    def __init__(self, index: native.Index, *, namespaces_max: int, pools_max: int) -> None:
        self._index = index
        self._namespaces_max, self._pools_max = namespaces_max, pools_max
        self.instances: dict[bytes, Instance] = {}
        self.namespaces: dict[int, NamespaceEntry] = {}
        self._by_id: dict[bytes, NamespaceEntry] = {}
        self._tenants: dict[str | NoSalt, Tenant] = {}
        self.make_tenant: Callable[[str | NoSalt], Tenant]
        self.admit: Callable[[Tenant], None] = lambda tenant: None
        self.founded: Callable[[NamespaceEntry], None] = lambda entry: None
        self.forgotten: Callable[[NamespaceEntry], None] = lambda entry: None
        self._next_pool = 1

    # ------------------------------------------------------------------ verbs
    def hello(self, session: Session, request: int, args: wire.Hello) -> Any:
        if session.instance is not None:
            raise Refusal(Code.BAD_ARGUMENT, "token", "this session has said hello before")
        if args.join and len(args.join) != wire.TOKEN_BYTES:
            sentence = f"{len(args.join)} bytes, expected {wire.TOKEN_BYTES} or none"
            raise Refusal(Code.BAD_ARGUMENT, "join", sentence)
        join = args.join or secrets.token_bytes(wire.TOKEN_BYTES)
        # An unknown token founds its instance: after a restart of the daemon the ranks of an
        # engine find each other again by the token that they have.
        instance = self.instances.get(join) or Instance(join=join)
        if any(member.peer.uid != session.peer.uid for member in instance.sessions.values()):
            raise Refusal(Code.DENIED, "join", "the instance belongs to another user")
        self.instances[join] = instance
        instance.sessions[session.number] = session
        session.instance, session.rank, session.name = instance, args.rank, args.name
        return [instance.join, session.number]

    def register_namespace(
        self, session: Session, request: int, args: wire.RegisterNamespace
    ) -> Any:
        try:
            namespace = Namespace.decode(args.encoded)
        except BadArgument as error:
            raise Refusal(Code.BAD_ARGUMENT, "encoded", str(error)) from None
        if session.rank >= len(namespace.rank_parts):
            sentence = f"{session.rank}, the namespace has {len(namespace.rank_parts)} ranks"
            raise Refusal(Code.BAD_ARGUMENT, "rank", sentence)
        _check_user(session, namespace.salt)
        entry = self._by_id.get(namespace.id) or self._add(namespace)
        entry.sessions.add(session.number)
        session.namespaces[entry.number] = entry
        sizes = [part.part_bytes for part in namespace.parts]
        return [entry.number, entry.id, entry.secret, sizes]

    def _add(self, namespace: Namespace) -> NamespaceEntry:
        if len(self.namespaces) >= self._namespaces_max:
            self._forget_unused()
        if len(self.namespaces) >= self._namespaces_max:
            limit = self._namespaces_max
            raise Refusal(Code.BUSY, "encoded", f"limits.namespaces = {limit} are in use")
        number, secret = self._index.add_namespace(len(namespace.parts))
        tenant = self._tenants.setdefault(namespace.salt, self.make_tenant(namespace.salt))
        entry = NamespaceEntry(
            number=number, id=namespace.id, namespace=namespace, secret=secret, tenant=tenant
        )
        tenant.namespaces.add(entry)
        self.namespaces[number] = entry
        self._by_id[entry.id] = entry
        self.founded(entry)
        return entry

    def _forget_unused(self) -> None:
        """Namespaces without sessions and without blocks need not be remembered."""
        used = {row["namespace"] for row in self._index.usage() if row["blocks"]}
        for entry in list(self.namespaces.values()):
            if not entry.sessions and not entry.flushes and entry.number not in used:
                self.forgotten(entry)
                self._index.drop_namespace(entry.number)
                del self.namespaces[entry.number]
                del self._by_id[entry.id]
                entry.tenant.namespaces.discard(entry)
                if not entry.tenant.namespaces and not entry.tenant.grants:
                    del self._tenants[entry.namespace.salt]

    def register_pool(self, session: Session, request: int, args: wire.RegisterPool) -> Any:
        entry = self.namespace(session, args.namespace)
        fd = session.memories.get(args.memory)
        if fd is None:
            sentence = f"{args.memory} was not sent over the liveness socket"
            raise Refusal(Code.BAD_ARGUMENT, "memory", sentence)
        if args.device != "cpu":
            raise Refusal(Code.UNSUPPORTED, "device", f"{args.device!r}: this version knows cpu")
        if len(session.pools) >= self._pools_max:
            limit = self._pools_max
            raise Refusal(Code.BUSY, "", f"limits.session_pools = {limit} are registered")
        self._check_address_space(session, args.pool_bytes)
        part = entry.part_of(session.rank)
        try:
            native.check_pool_memfd(fd, args.pool_bytes)
        except ValueError as error:
            raise Refusal(Code.BAD_ARGUMENT, "memory", str(error)) from None
        segments = [(s.base, s.slot_stride, s.dims, s.item_bytes) for s in args.segments]
        try:
            layout = native.Layout(segments, args.slots, args.pool_bytes)
        except ValueError as error:
            raise Refusal(Code.BAD_ARGUMENT, "segments", str(error)) from None
        if layout.block_bytes != entry.part_bytes(part):
            sentence = f"{layout.block_bytes} bytes a block, the namespace says "
            raise Refusal(Code.BAD_ARGUMENT, "segments", f"{sentence}{entry.part_bytes(part)}")
        try:
            mapped = native.Pool(fd, args.pool_bytes, layout)
        except (OSError, MemoryError, RuntimeError, ValueError) as error:
            raise Refusal(Code.BAD_ARGUMENT, "memory", f"cannot be mapped: {error}") from None
        del session.memories[args.memory]
        os.close(fd)
        number, self._next_pool = self._next_pool, self._next_pool + 1
        session.pools[number] = PoolEntry(
            number=number, namespace=entry, part=part, native=mapped, slots=args.slots
        )
        return number

    def _check_address_space(self, session: Session, pool_bytes: int) -> None:
        """Sparse memory costs its owner nothing: without a bound it would use up our addresses."""
        sessions = [s for instance in self.instances.values() for s in instance.sessions.values()]
        mapped = {s: sum(pool.native.pool_bytes for pool in s.pools.values()) for s in sessions}
        for whose, others_bytes, limit_bytes in (
            ("this session", mapped[session], SESSION_MAPPED_BYTES_MAX),
            ("all sessions", sum(mapped.values()), MAPPED_BYTES_MAX),
        ):
            if others_bytes + pool_bytes > limit_bytes:
                sentence = f"{pool_bytes}, and {whose} mapped {others_bytes} of {limit_bytes}"
                raise Refusal(Code.BUSY, "pool_bytes", sentence)

    def unregister_pool(self, session: Session, request: int, args: wire.UnregisterPool) -> Any:
        pool = self.pool(session, args.pool, None)
        del session.pools[pool.number]
        pool.native.close()

    # ------------------------------------------------------------------ look-ups by other verbs
    def namespace(self, session: Session, number: int) -> NamespaceEntry:
        """Of a request: it counts for the tenant's rate."""
        entry = session.namespaces.get(number)
        if entry is None:
            sentence = f"{number} was not registered by this session"
            raise Refusal(Code.NOT_FOUND, "namespace", sentence)
        self.admit(entry.tenant)
        return entry

    def pool(self, session: Session, number: int, entry: NamespaceEntry | None) -> PoolEntry:
        pool = session.pools.get(number)
        if pool is None:
            sentence = f"{number} was not registered by this session"
            raise Refusal(Code.NOT_FOUND, "pool", sentence)
        if entry is not None and pool.namespace is not entry:
            sentence = f"{number} belongs to namespace {pool.namespace.number}"
            raise Refusal(Code.BAD_ARGUMENT, "pool", sentence)
        return pool

    def find_id(self, namespace_id: bytes) -> NamespaceEntry | None:
        return self._by_id.get(namespace_id)

    def forget(self, session: Session) -> Instance | None:
        """Takes a session that ended out of the books; its instance when that ended with it."""
        for entry in session.namespaces.values():
            entry.sessions.discard(session.number)
        instance = session.instance
        if instance is None:
            return None
        del instance.sessions[session.number]
        if instance.sessions:
            return None
        del self.instances[instance.join]
        return instance


def _check_user(session: Session, salt: str | NoSalt) -> None:
    """The salt "uid:N" is user N's own: cached() takes it, and anybody could guess it."""
    if not isinstance(salt, str) or not salt.startswith(USER_SALT):
        return
    uid = session.peer.uid
    if salt != f"{USER_SALT}{uid}" and uid not in (0, os.geteuid()):
        raise Refusal(Code.DENIED, "salt", f"{salt[:40]!r} belongs to another user than {uid}")
