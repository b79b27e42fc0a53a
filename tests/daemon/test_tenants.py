"""Quotas: what one salt does is paid by that salt."""

from __future__ import annotations

from evoke.client.namespace import NO_SALT
from evoke.client.wire import Code, Fetched, Stored
from tests.daemon.conftest import Start
from tests.daemon.peer import chain, make_namespace

TIER_BLOCKS = 1024  # 4 MiB of 4 KiB blocks


def test_share_is_made_from_own_blocks(start: Start) -> None:
    """A tenant at its share replaces its own oldest blocks, and another's stay."""
    daemon = start(host__capacity="4MiB", tenants__host_percent=25)
    quiet, loud = make_namespace(salt="quiet"), make_namespace(salt="loud")
    with daemon.engine(quiet, 64) as one, daemon.engine(loud, 64) as two:
        keys = chain(quiet, 64)
        assert list(one.store(keys, range(64))) == [Stored.STORED] * 64
        for seed in range(TIER_BLOCKS // 32):  # 1024 blocks, a share holds 256
            assert list(two.store(chain(loud, 32, seed=seed), range(32))) == [Stored.STORED] * 32
        rows = {row["model"]: row["blocks"] for row in one.peer.status()["namespaces"]}
        assert rows == {quiet.model: 64, loud.model: TIER_BLOCKS // 4}
        assert list(one.fetch(keys, range(64))) == [Fetched.HOST] * 64


def test_share_counts_all_namespaces_of_a_salt(start: Start) -> None:
    """Another model of the same salt shares the tenant's bytes; its old blocks give way."""
    daemon = start(host__capacity="4MiB", tenants__host_percent=25)
    first, second = make_namespace(salt="t"), make_namespace(salt="t")
    with daemon.engine(first, 64) as one, daemon.engine(second, 64) as two:
        for seed in range(8):
            one.store(chain(first, 32, seed=seed), range(32))
        assert list(two.store(chain(second, 64), range(64))) == [Stored.STORED] * 64
        assert one.peer.status()["tiers"][0]["blocks"] == TIER_BLOCKS // 4


def test_exception_of_one_salt(start: Start) -> None:
    """A salt that the configuration names has its own quotas, and the others keep theirs."""
    exceptions = '[{salt = "batch", host_percent = 25, grants = 1}]'
    daemon = start(host__capacity="4MiB", tenants__exceptions=exceptions)
    batch, other = make_namespace(salt="batch"), make_namespace(salt="other")
    with daemon.engine(batch, 512) as one, daemon.engine(other, 512) as two:
        for engine, stays in ((one, TIER_BLOCKS // 4), (two, 512)):
            keys = chain(engine.namespace, 512)
            engine.store(keys, range(512))
            assert sum(engine.lookup(keys)) == stays
        for engine, code in ((one, Code.BUSY), (two, Code.OK)):
            keys = chain(engine.namespace, 1)
            assert engine.peer.call("pin", engine.handle, keys, 0, 60_000)[0] == Code.OK
            assert engine.peer.call("pin", engine.handle, keys, 0, 60_000)[0] == code


def test_erased_blocks_that_are_held_count(start: Start) -> None:
    """A tenant cannot exceed its share by flushing what it has pinned."""
    daemon = start(host__capacity="4MiB", tenants__host_percent=25)
    namespace = make_namespace(salt="t")
    with daemon.engine(namespace, 256) as engine:
        keys = chain(namespace, 200)
        engine.store(keys, range(200))
        pin, _ = engine.pin(keys)
        engine.peer.ok("flush", namespace.id, "")
        results = engine.store(chain(namespace, 100, seed=2), range(100))
        assert results == [Stored.STORED] * 56 + [Stored.REFUSED] * 44
        engine.peer.ok("unpin", pin)
        assert engine.store(chain(namespace, 100, seed=2), range(100))[56:] == [Stored.STORED] * 44


def test_held_share_is_refused(start: Start) -> None:
    """A share full of pinned blocks refuses the tenant's next, and nobody else's."""
    daemon = start(host__capacity="4MiB", tenants__host_percent=25)
    greedy, other = make_namespace(salt="greedy"), make_namespace(salt=NO_SALT)
    with daemon.engine(greedy, 256) as one, daemon.engine(other, 8) as two:
        keys = chain(greedy, 256)
        assert list(one.store(keys, range(256))) == [Stored.STORED] * 256
        grant, _ = one.peer.ok("pin", one.handle, keys, 0, 60_000)
        assert list(one.store(chain(greedy, 4, seed=9), range(4))) == [Stored.REFUSED] * 4
        assert list(two.store(chain(other, 8), range(8))) == [Stored.STORED] * 8
        one.peer.ok("unpin", grant)
        assert list(one.store(chain(greedy, 4, seed=9), range(4))) == [Stored.STORED] * 4


def test_grants_of_a_tenant_are_bounded(start: Start) -> None:
    """Sessions of one salt share its grants; another salt has its own."""
    daemon = start(tenants__grants=2)
    a, b = make_namespace(salt="a"), make_namespace(salt="b")
    with daemon.engine(a) as one, daemon.engine(a) as two, daemon.engine(b) as three:
        for engine in (one, two, three):
            engine.store(chain(engine.namespace, 1), [0])
        grants = [e.peer.ok("pin", e.handle, chain(a, 1), 0, 60_000)[0] for e in (one, two)]
        code, result = one.peer.call("pin", one.handle, chain(a, 1), 0, 60_000)
        assert (code, result[0]) == (Code.BUSY, "namespace")
        other = three.peer.ok("pin", three.handle, chain(b, 1), 0, 60_000)[0]
        one.peer.ok("unpin", grants[0])
        again = two.peer.ok("pin", two.handle, chain(a, 1), 0, 60_000)[0]
        two.peer.ok("unpin", again)
        two.peer.ok("unpin", grants[1])
        three.peer.ok("unpin", other)


def test_rate_of_a_tenant_is_bounded(start: Start) -> None:
    """Above its rate a tenant is told busy, over all of its sessions; another is served."""
    daemon = start(tenants__requests_per_s=50)
    a, b = make_namespace(salt="a"), make_namespace(salt="b")
    with daemon.engine(a) as one, daemon.engine(a) as two, daemon.engine(b) as three:
        codes = []
        for _ in range(60):
            for engine in (one, two):
                codes.append(engine.peer.call("lookup", engine.handle, chain(a, 1), 0)[0])
        assert Code.BUSY in codes
        assert three.peer.call("lookup", three.handle, chain(b, 1), 0)[0] == Code.OK
        assert one.peer.counter("tenant_refusals") > 0


def test_reservations_count_for_the_share(start: Start) -> None:
    """A tenant cannot push another out by reserving room again and again."""
    daemon = start(host__capacity="4MiB", tenants__host_percent=25)
    quiet, loud = make_namespace(salt="quiet"), make_namespace(salt="loud")
    with daemon.engine(quiet, 64) as one, daemon.engine(loud, 64) as two:
        keys = chain(quiet, 64)
        assert one.store(keys) == [Stored.STORED] * 64
        granted = []
        for seed in range(TIER_BLOCKS // 32):
            grant, results = two.reserve(chain(loud, 32, seed=seed))
            granted += [grant] * (Stored.STORED in results)
        assert len(granted) == TIER_BLOCKS // 4 // 32
        assert one.fetch(keys) == [Fetched.HOST] * 64
        assert two.store(chain(loud, 1, seed=99)) == [Stored.REFUSED]
        for grant in granted:
            two.peer.ok("abort", grant)
        assert two.store(chain(loud, 1, seed=99)) == [Stored.STORED]
