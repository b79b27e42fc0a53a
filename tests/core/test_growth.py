"""Work that grows with the number of rows is done in pieces, and what is held is not looked at."""

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.core import native

ABOVE_AT_ONCE = 1 << 15  # buckets: the next table has 4 MiB


def keys_of(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(32 * count)


def insert(index: native.Index, namespace: int, keys: bytes, tier: int = 1) -> NDArray[np.uint32]:
    count = len(keys) // 32
    values = np.arange(count, dtype=np.uint64)
    lengths = np.full(count, 10, np.uint32)
    return index.insert_many(namespace, keys, 0, b"", values, lengths, values, tier)


def test_a_large_table_grows_in_pieces() -> None:
    """Between the insert that begins the growth and the one that ends it the old table serves, and
    inserts, erasures and moves between tiers reach both tables."""
    index = native.Index(buckets=ABOVE_AT_ONCE)
    namespace, secret = index.add_namespace(1)
    kept = keys_of(0, 68_000)
    rows = insert(index, namespace, kept)
    assert not index.is_growing()
    old = native.TableView(index.table_fd())
    steps, seed, gone = 0, 1, b""
    while index.table_epoch == 1:
        new = keys_of(seed, 64)
        insert(index, namespace, new)
        index.erase(index.find(namespace, new[:512]))
        gone += new[:512]
        kept += new[512:]
        moved = rows[seed * 40 : seed * 40 + 5]
        index.relocate(moved, np.arange(5, dtype=np.uint64), 2)
        if index.is_growing():
            steps += 1
            assert not old.superseded()
            if steps % 40 == 1:
                index.check()
                assert (old.lookup(secret, kept) > 0).all()
        seed += 1
    assert steps > 20
    assert old.superseded()
    table = native.TableView(index.table_fd())
    tiers = table.lookup(secret, kept)
    found = index.find(namespace, kept)
    assert tiers.tolist() == [index.row(int(row))["tier"] for row in found]
    assert np.count_nonzero(tiers == 2) == 5 * (seed - 1)
    assert not table.lookup(secret, gone).any()
    assert index.unpublished == 0
    index.check()


@pytest.mark.parametrize("namespace", [-1, 0])
def test_victims_do_not_look_at_what_is_held(namespace: int) -> None:
    """However many of the oldest rows are held, victims come from the rest, the oldest first; what
    is let go is the most recent."""
    index = native.Index()
    number, _ = index.add_namespace(1)
    held = insert(index, number, keys_of(1, 5000))
    free = insert(index, number, keys_of(2, 10))
    index.hold(held[4999:])  # the tail: it keeps all its ancestors
    assert index.victims(10_000, 0, namespace).tolist() == free[::-1].tolist()
    assert index.rows_of(number).tolist()[:10] == free[::-1].tolist()
    index.unhold(held[4999:])
    order = index.victims(10_000, 0, namespace).tolist()
    assert order == [*free[::-1].tolist(), *held[::-1].tolist()]
    index.check()
