"""Grants: reservations and pins. Made once, ended once, by release, deadline or death."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from evoke.client.wire import Code
from evoked.counters import Counters
from evoked.histograms import Histograms
from evoked.server import Refusal
from evoked.sessions import Grant, Instance, Session, Tenant
from evoked.timers import Timers

__all__ = ["Grants"]


class Grants:
    """All living grants, by number. Numbers are random, so that one cannot be guessed."""

    def __init__(
        self,
        timers: Timers,
        clock: Callable[[], float],
        counters: Counters,
        histograms: Histograms,
        session_max: int,
        *,
        session_bytes_max: int,
        pinned_bytes_max: int,
    ) -> None:
        self._timers, self._clock, self._counters = timers, clock, counters
        self._held = histograms["grant_held_s"]
        self._session_max = session_max
        self._session_bytes_max, self._pinned_bytes_max = session_bytes_max, pinned_bytes_max
        self._pinned_bytes = 0
        self._grants: dict[int, Grant] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def check_room(self, session: Session, tenant: Tenant) -> None:
        """BUSY at the session's or its tenant's limit."""
        if session.grants >= self._session_max:
            limit = self._session_max
            raise Refusal(Code.BUSY, "", f"limits.session_grants = {limit} are held")
        if tenant.grants >= tenant.grants_max:
            self._counters.add("tenant_refusals")
            limit = tenant.grants_max
            raise Refusal(Code.BUSY, "namespace", f"tenants.grants = {limit} are held")

    def room_bytes(self, session: Session) -> int:
        """How much more a session's grants may hold."""
        return max(0, self._session_bytes_max - session.held_bytes)

    def check_pin(self, session: Session, held_bytes: int) -> None:
        """BUSY when a pin of so much would hold more than a session, or all pins, may."""
        room_bytes = self.room_bytes(session)
        if held_bytes > room_bytes:
            sentence = f"{held_bytes} bytes, limits.session_host_percent leaves {room_bytes}"
            raise Refusal(Code.BUSY, "keys", sentence)
        room_bytes = self._pinned_bytes_max - self._pinned_bytes
        if held_bytes > room_bytes:
            sentence = f"{held_bytes} bytes, limits.pins_host_percent leaves {room_bytes}"
            raise Refusal(Code.BUSY, "keys", sentence)

    def make(
        self,
        session: Session,
        tenant: Tenant,
        hold_ms: int,
        end: Callable[[], None],
        details: object,
        *,
        held_bytes: int,
        pins: bool,
    ) -> Grant:
        instance = session.instance
        assert instance is not None
        number = secrets.randbits(63) | 1
        assert number not in self._grants
        grant = Grant(
            number=number,
            instance=instance,
            session=session,
            tenant=tenant,
            end=end,
            details=details,
            made_s=self._clock(),
            held_bytes=held_bytes,
            pins=pins,
        )
        grant.timer = self._timers.at(
            self._clock() + hold_ms / 1000, lambda: self._end(grant, expired=True)
        )
        self._grants[number] = grant
        instance.grants[number] = grant
        session.grants += 1
        session.held_bytes += held_bytes
        tenant.grants += 1
        self._pinned_bytes += held_bytes if pins else 0
        self._counters.add("grants_made")
        return grant

    def get(self, session: Session, number: int) -> Grant | None:
        """The grant, if it lives and belongs to the session's instance."""
        grant = self._grants.get(number)
        return grant if grant is not None and grant.instance is session.instance else None

    def need(self, session: Session, number: int) -> Grant:
        grant = self.get(session, number)
        if grant is None:
            self._counters.add("bad_grants")
            sentence = "released before, expired, or never given to this instance"
            raise Refusal(Code.BAD_GRANT, "grant", sentence)
        return grant

    def lives(self, grant: Grant) -> bool:
        return self._grants.get(grant.number) is grant

    def release(self, grant: Grant) -> None:
        self._end(grant, expired=False)

    def _end(self, grant: Grant, *, expired: bool) -> None:
        del self._grants[grant.number]
        del grant.instance.grants[grant.number]
        grant.session.grants -= 1
        grant.session.held_bytes -= grant.held_bytes
        grant.tenant.grants -= 1
        self._pinned_bytes -= grant.held_bytes if grant.pins else 0
        assert grant.timer is not None
        grant.timer.cancel()
        self._held.add(self._clock() - grant.made_s)
        if expired:
            self._counters.add("grants_expired")
        grant.end()

    def session_ended(self, session: Session) -> None:
        """Ends what the session made; what an ended instance still had is then nothing."""
        if session.instance is not None:
            for grant in list(session.instance.grants.values()):
                if grant.session is session:
                    self._end(grant, expired=False)

    def instance_ended(self, instance: Instance) -> None:
        for grant in list(instance.grants.values()):
            self._end(grant, expired=False)
