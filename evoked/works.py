"""What works behind the sockets: index, tier, policy, grants and the verbs, built in order.

Everything here runs on the loop and takes its clock and copy engine from outside, so that a
simulation can drive the very same objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evoke.config import Config
from evoke.core import native
from evoke.policy.classics import Lru
from evoke.policy.ranking import Ranking
from evoked.admin import Admin
from evoked.counters import Counters
from evoked.events import Announcer, EventSink
from evoked.flushes import Flushes
from evoked.grants import Grants
from evoked.histograms import Histograms
from evoked.observe import Observe, ScoreTable
from evoked.parts import Parts
from evoked.policies import Policies
from evoked.reads import Reads
from evoked.registry import Registry
from evoked.reservations import Reservations
from evoked.server import Handler, Replier
from evoked.sessions import Session
from evoked.tenants import Tenants
from evoked.tiers import Balance, HostTier
from evoked.timers import Timers
from evoked.transfers import Transfers
from evoked.user_policies import UserPolicies
from evoked.watcher import Watcher
from evoked.writes import Writes

__all__ = ["Works"]


class Works:
    """`handlers` are the verbs by name; session_ended gives back what a session owned."""

    def __init__(
        self,
        config: Config,
        replier: Replier,
        engine: native.CopyEngine,
        arena: native.Arena,
        counters: Counters,
        *,
        clock: Callable[[], float],
        boot: bytes,
        sessions: Callable[[], list[Session]],
        copy: dict[str, Any],
        watcher: Watcher | None = None,
    ) -> None:
        limits = config.limits
        self.counters = counters
        self.histograms = Histograms()
        self.timers = Timers()
        self.index = native.Index()
        self.tier = HostTier(arena, engine.add_memory(arena.address, arena.capacity_bytes))
        self.registry = Registry(
            self.index, namespaces_max=limits.namespaces, pools_max=limits.session_pools
        )
        self.announcer = Announcer(self.index, self.registry.namespaces)
        policy = Ranking(self.index, Lru(chains=True), self.tier.capacity_bytes)
        self.registry.founded = lambda entry: policy.add_namespace(
            entry.number, entry.id, entry.block_bytes
        )
        self.balance = Balance(self.tier, self.index, policy, counters, self.announcer)
        daemon = config.daemon

        def make_users(on_failed: Callable[[str], None]) -> UserPolicies:
            assert watcher is not None
            deadline_s = daemon.policy_deadline_ms / 1000
            directory = daemon.policy_dir
            return UserPolicies(directory, deadline_s, watcher, self.timers, clock, on_failed)

        self.policies = Policies(
            daemon.policy, self.balance, counters, replier, make_users if watcher else None
        )
        self.transfers = Transfers(
            engine,
            replier,
            counters,
            self.histograms,
            limits.session_inflight_bytes,
            config.daemon.verify_fetch,
        )
        self.grants = Grants(
            self.timers,
            clock,
            counters,
            self.histograms,
            limits.session_grants,
            session_bytes_max=self.tier.capacity_bytes * limits.session_host_percent // 100,
            pinned_bytes_max=self.tier.capacity_bytes * limits.pins_host_percent // 100,
        )
        self.tenants = Tenants(self.index, self.balance, counters, clock, config.tenants)
        self.registry.make_tenant, self.registry.admit = self.tenants.make, self.tenants.admit
        self.parts = Parts(
            self.index,
            self.tier,
            self.balance,
            counters,
            self.timers,
            clock,
            limits.incomplete_ms,
            self.announcer,
        )
        shared = (replier, self.registry, self.index)
        moves = (self.balance, self.transfers, self.grants)
        self.admin = Admin(
            *shared,
            arena,
            self.tier,
            self.balance,
            engine,
            self.transfers,
            self.grants,
            counters,
            self.histograms,
            self.parts,
            self.policies,
            boot=boot,
            inject=config.debug.inject,
            lock=config.host.lock,
            sessions=sessions,
            copy=copy,
        )
        writes = Writes(
            *shared,
            self.tier,
            self.balance,
            self.tenants,
            self.transfers,
            self.grants,
            self.parts,
            counters,
            self.announcer,
        )
        self.reservations = Reservations(
            writes,
            self.registry,
            self.index,
            self.balance,
            self.tenants,
            self.transfers,
            self.grants,
            self.parts,
            counters,
        )
        flushes = Flushes(
            replier, self.registry, self.index, self.balance, counters, self.timers, clock
        )
        reads = Reads(*shared, *moves, counters, self.announcer, clock)
        self.observe = Observe(self.registry, counters, self.timers, clock, ScoreTable())
        self.handlers: dict[str, Handler] = {}
        for owner, verbs in (
            (self.registry, "hello register_namespace register_pool unregister_pool"),
            (writes, "store"),
            (self.reservations, "reserve commit abort"),
            (reads, "fetch pin unpin touch lookup asked"),
            (self.observe, "observe"),
            (self.admin, "ping status metrics audit events inject prove_pool"),
            (flushes, "flush"),
            (self.policies, "policy_show policy_check policy_reload policy_history"),
        ):
            for verb in verbs.split():
                self.handlers[verb] = getattr(owner, verb)

    def publish_to(self, sink: EventSink) -> None:
        """From now on events go there."""
        self.announcer.sink = self.admin.sink = self.policies.sink = sink
        self.registry.forgotten = sink.forget

    def session_ended(self, session: Session) -> None:
        """Everything that it owned is given back, or, where a copy is using it, when that ends."""
        instance = session.instance
        self.grants.session_ended(session)
        self.observe.session_ended(session)
        if instance is not None:
            self.parts.session_ended(session, instance)
            for grant in list(instance.grants.values()):
                self.reservations.end_complete(grant)
        session.close()
        ended = self.registry.forget(session)
        if ended is not None:
            self.grants.instance_ended(ended)
