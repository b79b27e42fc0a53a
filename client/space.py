"""A registered namespace: its keys, look-ups, stores, fetches and pins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.errors import BadArgument, Unavailable
from evoke.client.grants import Granted, Pin, Reservation, Share, cut
from evoke.client.keys import Chain, chain_of_keys, chain_of_tokens
from evoke.client.memory import PoolMemory
from evoke.client.namespace import Namespace
from evoke.client.observe import Observed
from evoke.client.pool import Pool
from evoke.client.reports import ASK_MAX
from evoke.client.results import FetchResult, StoreResult
from evoke.client.transfers import Future, Job, start

if TYPE_CHECKING:
    from evoke.client.client import Client

__all__ = ["Space", "SpaceHandle"]


@dataclass(frozen=True)
class SpaceHandle:
    """A namespace as one session numbers it."""

    number: int
    secret: bytes


class Space:
    """Made by Client.namespace. Thread-safe."""

    def __init__(self, client: Client, namespace: Namespace) -> None:
        self.client, self.namespace, self.id = client, namespace, namespace.id
        self._encoded = namespace.encoded()
        self._sequences = client.sequences

    # ------------------------------------------------------------ keys

    def keys(
        self,
        token_ids: Any,
        extra: Mapping[int, bytes] | None = None,
        parent: Chain | None = None,
    ) -> Chain:
        """Keys of the full blocks of a prompt; a partial block at the end has none.

        token_ids: list, tuple, 1-D numpy array or torch tensor of integers 0 to 2^32 - 1.
        extra: {index into token_ids: bytes} for content that the tokens do not name (an image's
        digest). parent: the chain that these tokens continue.
        """
        if self.namespace.key_kind != "tokens":
            raise BadArgument(f"keys: the keys of this namespace are {self.namespace.key_kind}")
        return chain_of_tokens(self.id, token_ids, self.namespace.block_tokens, extra, parent)

    def engine_keys(
        self, keys: bytes | Sequence[bytes], first: int = 0, parent: bytes = b""
    ) -> Chain:
        """A chain of keys that the engine made, 32 bytes each, each naming its whole prefix.
        first: index of the first of them in the sequence; parent: the key before it."""
        if self.namespace.key_kind == "tokens":
            raise BadArgument("engine_keys: the keys of this namespace are made of tokens")
        return chain_of_keys(self.id, keys, first, parent)

    # ------------------------------------------------------------ pools

    def register_pool(self, memory: PoolMemory, views: Any, axes: str | Sequence[str]) -> Pool:
        """Register the slots of arrays that lie in the memory; evoke.client.views has the rules.

        views: a numpy array or torch tensor, or several; axes: the names of the dimensions, as
        "slot layer kv token head element", for all arrays alike or one text for each. LayoutError
        says what does not fit; the proof writes to the first and the last slot and restores them.
        """
        part = self.namespace.rank_parts[self.client.rank]
        pool = Pool(self, memory, views, axes, part)
        self.client.link.add_pool(pool)
        return pool

    # ------------------------------------------------------------ look-up

    def lookup(self, chain: Chain, *, ask: int | None = None) -> int:
        """How many leading blocks are stored, from the shared table, without a round trip.

        ask: number of the engine's request, below 2^62; look-ups with the same one are reported to
        the daemon once. 0 when there is no daemon.
        """
        self._check_chain(chain)
        if ask is not None and not 0 <= ask < ASK_MAX:
            raise BadArgument(f"ask: {ask}, allowed 0 to 2^62 - 1")
        connection = self.client.link.current()
        table = connection.table() if connection is not None else None
        if connection is None or table is None:
            self.client.link.reports.wake()
            return 0
        handle = connection.handles.get(self)
        if handle is None or not chain.keys:
            return 0
        hits = table.leading(handle.secret, chain.keys)
        self.client.link.reports.add(connection, handle.number, chain, hits, ask)
        return hits

    # ------------------------------------------------------------ store and fetch

    def store(
        self, pool: Pool, chain: Chain, slots: Any, first: int = 0, timeout_s: float | None = None
    ) -> StoreResult:
        """Store chain[first], chain[first + 1] ... from slots[0], slots[1] ..."""
        return self.store_async(pool, chain, slots, first, timeout_s).result()

    def store_async(
        self, pool: Pool, chain: Chain, slots: Any, first: int = 0, timeout_s: float | None = None
    ) -> Future[StoreResult]:
        """store() that does not wait. The slots must not change before result() has returned."""
        packed, seconds = self._prepare(pool, chain, slots, first, timeout_s, distinct=False)
        jobs = []
        for begin, end in cut(0, len(packed) // 4):
            piece = chain.cut(first + begin, first + end)

            def make(
                space: int, pool: int, deadline_ms: int, word: int,
                piece: Chain = piece, slots: bytes = packed[begin * 4 : end * 4],
            ) -> wire.Args:  # fmt: skip
                return wire.Store(
                    space, pool, piece.keys, piece.first, piece.parent, slots, deadline_ms, word
                )

            jobs.append(Job(begin, end, make))
        return start(self.client, pool, StoreResult, "store", jobs, seconds)

    def fetch(
        self,
        pool: Pool,
        chain: Chain,
        slots: Any,
        first: int = 0,
        pin: Pin | None = None,
        timeout_s: float | None = None,
    ) -> FetchResult:
        """Fetch chain[first], chain[first + 1] ... into slots[0], slots[1] ... (all different)."""
        return self.fetch_async(pool, chain, slots, first, pin, timeout_s).result()

    def fetch_async(
        self,
        pool: Pool,
        chain: Chain,
        slots: Any,
        first: int = 0,
        pin: Pin | None = None,
        timeout_s: float | None = None,
    ) -> Future[FetchResult]:
        """fetch() that does not wait. The slots must not be used before result() has returned."""
        packed, seconds = self._prepare(pool, chain, slots, first, timeout_s, distinct=True)
        base = chain.first + first
        edges = [edge - base for s in (pin.shares if pin else ()) for edge in (s.begin, s.end)]
        jobs = []
        for begin, end in cut(0, len(packed) // 4, edges):
            piece = chain.cut(first + begin, first + end)

            def make(
                space: int, pool: int, deadline_ms: int, word: int,
                piece: Chain = piece, slots: bytes = packed[begin * 4 : end * 4],
                grant: int = pin.grant_of(base + begin) if pin else 0,
            ) -> wire.Args:  # fmt: skip
                return wire.Fetch(
                    space, pool, piece.keys, piece.first, slots, deadline_ms, word, grant
                )

            jobs.append(Job(begin, end, make))
        boot = pin.boot if pin is not None and pin.shares else b""
        return start(self.client, pool, FetchResult, "fetch", jobs, seconds, boot)

    # ------------------------------------------------------------ grants

    def pin(self, chain: Chain, hold_s: float, timeout_s: float | None = None) -> Pin:
        """Keep those blocks of the chain that are stored for hold_s seconds, or until release()."""
        hold_ms = _hold_ms(hold_s)

        def make(piece: Chain, space: int) -> wire.Args:
            return wire.Pin(space, piece.keys, piece.first, hold_ms)

        return Pin(self, self._granted("pin", chain, make, wire.Fetched.MISS, timeout_s))

    def shared_pin(self, exported: bytes) -> Pin:
        """A pin of another process of this engine, from its export(); it has no codes."""
        kind = tuple[bytes, list[tuple[int, int, int]]]
        try:
            boot, rows = msgspec.msgpack.decode(exported, type=kind)
        except msgspec.DecodeError as error:
            raise BadArgument(f"exported: {error}") from None
        shares = tuple(Share(*row) for row in rows)
        return Pin(self, Granted(boot, shares, np.empty(0, np.uint8)))

    def reserve(self, chain: Chain, hold_s: float, timeout_s: float | None = None) -> Reservation:
        """Room for the blocks of the chain for hold_s seconds, to be committed piece by piece."""
        hold_ms = _hold_ms(hold_s)

        def make(piece: Chain, space: int) -> wire.Args:
            return wire.Reserve(space, piece.keys, piece.first, piece.parent, hold_ms)

        granted = self._granted("reserve", chain, make, wire.Stored.REFUSED, timeout_s)
        return Reservation(self, chain, granted)

    def touch(self, chain: Chain, timeout_s: float | None = None) -> int:
        """Make the stored blocks of the chain the most recent ones; how many there are."""
        self._check_chain(chain)
        count = 0
        for begin, end in cut(0, len(chain)):
            piece = chain.cut(begin, end)

            def make(space: int, piece: Chain = piece) -> wire.Args:
                return wire.KeyList(space, piece.keys, piece.first)

            answer = self.client.ask_space(self, "touch", make, timeout_s)
            count += answer.result if isinstance(answer.result, int) else 0
        return count

    def _granted(
        self,
        verb: str,
        chain: Chain,
        make: Callable[[Chain, int], wire.Args],
        nothing: int,
        timeout_s: float | None,
    ) -> Granted:
        self._check_chain(chain)
        codes = np.full(len(chain), nothing, np.uint8)
        shares: list[Share] = []
        boot = b""
        for begin, end in cut(0, len(chain)):
            piece = chain.cut(begin, end)
            answer = self.client.ask_space(self, verb, partial(make, piece), timeout_s, boot)
            match answer.result:
                case [int(grant), bytes(packed)] if len(packed) == end - begin:
                    boot = answer.boot
                    codes[begin:end] = np.frombuffer(packed, np.uint8)
                    shares.append(Share(chain.first + begin, chain.first + end, grant))
                case _:
                    return Granted(boot, tuple(shares), codes, answer.error)
        return Granted(boot, tuple(shares), codes)

    def observed(self) -> Observed:
        """For reports of the attention that one running sequence pays to its blocks."""
        return Observed(self, next(self._sequences))

    # ------------------------------------------------------------ checks

    def _prepare(
        self,
        pool: Pool,
        chain: Chain,
        slots: Any,
        first: int,
        timeout_s: float | None,
        *,
        distinct: bool,
    ) -> tuple[bytes, float]:
        self._check_chain(chain)
        self._check_pool(pool)
        packed = pool.pack_slots(slots, distinct=distinct)
        if not 0 <= first <= len(chain) - len(packed) // 4:
            raise BadArgument(
                f"first: {first} with {len(packed) // 4} slots, the chain has {len(chain)} blocks"
            )
        return packed, self.client.seconds(timeout_s)

    def _check_chain(self, chain: Chain) -> None:
        if chain.namespace_id != self.id:
            raise BadArgument("chain: of another namespace")

    def _check_pool(self, pool: Pool) -> None:
        if pool.space is not self:
            raise BadArgument("pool: of another namespace")

    # ------------------------------------------------------------ registration

    def register(self, connection: Connection, deadline: float) -> SpaceHandle:
        """Make the namespace known in a session. DaemonError or Unavailable."""
        args = wire.RegisterNamespace(self._encoded)
        match connection.call("register_namespace", args, deadline):
            case [int(number), bytes(namespace_id), bytes(secret), list()]:
                if namespace_id != self.id:
                    raise Unavailable("the daemon makes another id of this namespace")
                return SpaceHandle(number, secret)
            case other:
                raise Unavailable(f"no namespace number but {other!r:.80}")


def _hold_ms(hold_s: float) -> int:
    hold_ms = round(hold_s * 1e3)
    if not 1 <= hold_ms <= wire.HOLD_MS_MAX:
        raise BadArgument(f"hold_s: {hold_s}, allowed 0.001 to {wire.HOLD_MS_MAX / 1e3}")
    return hold_ms
