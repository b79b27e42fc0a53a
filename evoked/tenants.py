"""Tenants (salts) and their quotas: bytes of the host tier, grants, requests per second.

A tenant at its share of the tier makes room from its own blocks, never from another's; so nobody
can be pushed out by a tenant that is over its share. What is reserved, being copied in, waiting for
other ranks, or erased while somebody holds it counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evoke.client.namespace import NoSalt
from evoke.client.wire import Code
from evoke.config import Quota
from evoke.config import Tenants as Quotas
from evoke.core import native
from evoked.counters import Counters
from evoked.server import Refusal
from evoked.sessions import NamespaceEntry, Tenant
from evoked.tiers import U64, Balance

__all__ = ["Tenants"]


class Tenants:
    """Applies the quotas of the configuration."""

    def __init__(
        self,
        index: native.Index,
        balance: Balance,
        counters: Counters,
        clock: Callable[[], float],
        quotas: Quotas,
    ) -> None:
        self._index, self._balance, self._counters = index, balance, counters
        self._clock = clock
        self._quotas = quotas

    def make(self, salt: str | NoSalt) -> Tenant:
        """A tenant with its quotas. In the configuration "" is no salt, and the empty one."""
        name = salt if isinstance(salt, str) else ""
        quotas = self._quotas
        one = next((quota for quota in quotas.exceptions if quota.salt == name), Quota(salt=name))
        percent = one.host_percent or quotas.host_percent
        return Tenant(
            share_bytes=self._balance.capacity_bytes * percent // 100,
            grants_max=one.grants or quotas.grants,
            requests_per_s=one.requests_per_s or quotas.requests_per_s,
        )

    def admit(self, tenant: Tenant) -> None:
        """One request; BUSY above the tenant's rate."""
        if not tenant.bucket.take(self._clock(), tenant.requests_per_s):
            self._counters.add("tenant_refusals")
            limit = tenant.requests_per_s
            raise Refusal(Code.BUSY, "namespace", f"over tenants.requests_per_s = {limit}")

    def place(self, entry: NamespaceEntry, part_bytes: int, count: int) -> U64:
        """Places for up to count parts within the tenant's share."""
        if entry.tenant.share_bytes < self._balance.capacity_bytes:
            count = self._within_share(entry, part_bytes, count)
        if count <= 0:
            return np.empty(0, np.uint64)
        return self._balance.place(part_bytes, count)

    def used_bytes(self, tenant: Tenant) -> int:
        numbers = {entry.number for entry in tenant.namespaces}
        usage = [row for row in self._index.usage() if row["namespace"] in numbers]
        return sum(row["bytes"] + row["leaving_bytes"] for row in usage) + tenant.pending_bytes

    def _within_share(self, entry: NamespaceEntry, part_bytes: int, count: int) -> int:
        """How many of count parts fit in the share, after its own oldest blocks made room."""
        share_bytes = entry.tenant.share_bytes
        room_bytes = share_bytes - self.used_bytes(entry.tenant)
        # The namespace that asks gives first; its siblings follow.
        siblings = entry.tenant.namespaces
        for sibling in sorted(siblings, key=lambda other: (other is not entry, other.number)):
            missing_bytes = count * part_bytes - room_bytes
            if missing_bytes <= 0:
                return count
            rows = self._balance.policy.victims(1, missing_bytes, sibling.number)
            self._balance.evict(rows)
            room_bytes = share_bytes - self.used_bytes(entry.tenant)
        return min(count, max(0, room_bytes // part_bytes))
