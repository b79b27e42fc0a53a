"""The published table: its documented bytes, its seals, and what readers make of them."""

import ctypes
import fcntl
import mmap
import os
import pathlib
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from evoke.core import native

MASK = (1 << 64) - 1
HEADER_BYTES = 4096
BUCKET_BYTES = 64
HOST, CXL, FLASH = 1, 2, 3
ADD_SEALS, SEALS = 1033, 1 | 2 | 4 | 16  # SEAL, SHRINK, GROW, FUTURE_WRITE


def rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & MASK


def siphash_2_4_128(secret: bytes, message: bytes) -> bytes:
    """SipHash as its paper defines it, with the 128-bit output of the reference version."""
    k0, k1 = struct.unpack("<QQ", secret)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


def tier_by_document(table: bytes, secret: bytes, key: bytes) -> int:
    """Look one key up as docs/protocol.md tells a client in another language to."""
    tag = siphash_2_4_128(secret, key)
    (buckets,) = struct.unpack_from("<Q", table, 16)
    for half in struct.unpack("<QQ", tag):
        at = HEADER_BYTES + BUCKET_BYTES * (half % buckets)
        version, *refs = struct.unpack_from("<4I", table, at)
        assert version % 2 == 0
        for slot, ref in enumerate(refs):
            if ref and table[at + 16 + 16 * slot : at + 32 + 16 * slot] == tag:
                return int(ref) >> 30
    return 0


def random_keys(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(32 * count)


def insert(index: native.Index, namespace: int, keys: bytes, tier: int = HOST) -> None:
    count = len(keys) // 32
    rows = index.insert_many(
        namespace,
        keys,
        0,
        b"",
        np.arange(count, dtype=np.uint64),
        np.full(count, 100, np.uint32),
        np.zeros(count, np.uint64),
        tier,
    )
    assert (rows != native.NO_ROW).all()


@pytest.fixture
def index() -> Iterator[native.Index]:
    index = native.Index(buckets=1)
    yield index
    index.close()


def test_siphash_of_this_test_is_siphash() -> None:
    """The hash written down here gives the published vector of the empty message."""
    tag = siphash_2_4_128(bytes(range(16)), b"")
    assert tag.hex() == "a3817f04ba25a8e66df67214c7550293"


def test_bytes_are_as_documented(index: native.Index) -> None:
    """A reader made from the documented layout alone finds every key and its tier, no other."""
    namespace, secret = index.add_namespace(1)
    keys = [random_keys(40, seed) for seed in range(4)]
    for tier in (HOST, CXL, FLASH):
        insert(index, namespace, keys[tier], tier)
    with mmap.mmap(index.table_fd(), 0, prot=mmap.PROT_READ) as mapping:
        table = bytes(mapping)
    magic, version, header_bytes, buckets, epoch, superseded = struct.unpack_from("<8sIIQQI", table)
    assert (magic, version, header_bytes, superseded) == (b"EVKTABLE", 1, HEADER_BYTES, 0)
    assert epoch == index.table_epoch
    assert len(table) == HEADER_BYTES + BUCKET_BYTES * buckets
    for tier in range(4):
        for at in range(0, len(keys[tier]), 32):
            assert tier_by_document(table, secret, keys[tier][at : at + 32]) == tier


def test_view_agrees(index: native.Index) -> None:
    """TableView gives the tier of each key, 0 for others, and the length of the leading run."""
    namespace, secret = index.add_namespace(1)
    present, absent = random_keys(1000, 1), random_keys(1000, 2)
    insert(index, namespace, present, FLASH)
    view = native.TableView(index.table_fd())
    assert view.epoch == index.table_epoch
    assert (view.lookup(secret, present) == FLASH).all()
    assert not view.lookup(secret, absent).any()
    assert view.lookup(secret, b"").size == 0
    for lead in (0, 1, 63, 64, 65, 500, 1000):
        assert view.leading(secret, present[: 32 * lead] + absent[:32] + present[:320]) == lead
    assert view.leading(secret, present) == 1000
    for at in range(0, 32 * 20, 32):  # one key is hashed by other code than many
        assert view.lookup(secret, present[at : at + 32]).tolist() == [FLASH]
        assert view.lookup(secret, absent[at : at + 32]).tolist() == [0]


def test_another_secret_finds_nothing(index: native.Index) -> None:
    """A tenant that knows a key but not the namespace's secret sees a miss, as for any key."""
    mine, my_secret = index.add_namespace(1)
    _, other_secret = index.add_namespace(1)
    keys = random_keys(300)
    insert(index, mine, keys)
    view = native.TableView(index.table_fd())
    assert my_secret != other_secret
    assert not view.lookup(other_secret, keys).any()
    with mmap.mmap(index.table_fd(), 0, prot=mmap.PROT_READ) as mapping:
        table = bytes(mapping)
    assert not any(keys[at : at + 8] in table for at in range(0, len(keys), 32))


def test_growth_publishes_a_new_table(index: native.Index) -> None:
    """A resize raises the epoch, marks the old table superseded and loses no key."""
    namespace, secret = index.add_namespace(1)
    old = native.TableView(index.table_fd())
    assert not old.superseded()
    keys = random_keys(5000)
    insert(index, namespace, keys)
    assert old.superseded()
    assert index.table_epoch > old.epoch
    new = native.TableView(index.table_fd())
    assert not new.superseded()
    assert (new.lookup(secret, keys) == HOST).all()
    assert index.unpublished == 0
    index.check()


def test_full_table_counts_what_it_can_not_show() -> None:
    """At its limit the table shows what fits; the rest is counted and shown later."""
    index = native.Index(buckets=4, max_buckets=4)
    namespace, secret = index.add_namespace(1)
    keys = random_keys(40)
    insert(index, namespace, keys)
    view = native.TableView(index.table_fd())
    shown = np.count_nonzero(view.lookup(secret, keys))
    assert shown <= 12
    assert index.unpublished == 40 - shown
    index.check()
    rows = index.find(namespace, keys)
    assert (rows != native.NO_ROW).all()
    index.erase(rows[:35])
    index.check()
    assert index.unpublished == 0
    assert (view.lookup(secret, keys[35 * 32 :]) == HOST).all()


def test_chosen_tags_do_not_grow_the_table() -> None:
    """A client that knows its secret and picks keys of one bucket can't force resizes."""
    index = native.Index(buckets=16)
    namespace, secret = index.add_namespace(1)
    chosen = b""
    number = 0
    while len(chosen) < 32 * 10:
        key = struct.pack("<4Q", number, 0, 0, 0)
        first, second = struct.unpack("<QQ", siphash_2_4_128(secret, key))
        if first % 16 == second % 16 == 5:
            chosen += key
        number += 1
    insert(index, namespace, chosen)
    assert index.table_epoch == 1
    assert index.unpublished == 7
    index.check()


def test_no_one_can_write_it(index: native.Index) -> None:
    """Whoever gets the descriptor can't write, map writable, reopen, punch, resize or unseal it."""
    namespace, secret = index.add_namespace(1)
    keys = random_keys(20)
    insert(index, namespace, keys)
    fd = index.table_fd()
    size = os.fstat(fd).st_size
    reopened = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for target in (fd, reopened):
            with pytest.raises(PermissionError):
                os.pwrite(target, b"x", 0)
            with pytest.raises(PermissionError):
                mmap.mmap(target, size)
            for length in (0, size // 2, size + 4096):
                with pytest.raises(PermissionError):
                    os.ftruncate(target, length)
            punch_hole_keep_size = 3
            for mode in (punch_hole_keep_size, 0x10):  # FALLOC_FL_ZERO_RANGE
                arguments = (ctypes.c_long(0), ctypes.c_long(size))
                assert libc.fallocate(target, mode, *arguments) == -1
            with mmap.mmap(target, size, prot=mmap.PROT_READ) as mapping:
                address = libc.mmap
                address.restype = ctypes.c_void_p
                raw = address(None, ctypes.c_long(size), 1, mmap.MAP_SHARED, target, 0)
                assert libc.mprotect(ctypes.c_void_p(raw), ctypes.c_long(size), 3) == -1
                assert libc.madvise(ctypes.c_void_p(raw), ctypes.c_long(size), 9) == -1  # REMOVE
                assert libc.munmap(ctypes.c_void_p(raw), ctypes.c_long(size)) == 0
                assert mapping[:8] == b"EVKTABLE"
        with pytest.raises(PermissionError):
            os.pwrite(reopened, b"x", 4096)
    finally:
        os.close(reopened)
    assert (native.TableView(fd).lookup(secret, keys) == HOST).all()
    index.check()


def test_what_is_no_table_is_refused(tmp_path: pathlib.Path) -> None:
    """A plain file, a pool's memfd, and a sealed memfd with other contents are ValueErrors."""
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    pool = native.make_pool_memfd(1 << 20, "pool")
    try:
        for fd in (plain, pool, 1_000_000):
            with pytest.raises(ValueError, match=f"fd: {fd} is not a memfd sealed as a table is"):
                native.TableView(fd)
    finally:
        os.close(plain)
        os.close(pool)


def seal(fd: int) -> None:
    fcntl.fcntl(fd, ADD_SEALS, SEALS)


@pytest.mark.parametrize(
    ("magic", "version", "header_bytes", "buckets", "length"),
    [
        (b"EVKTABLE", 1, 4096, 4, 100),
        (b"EVKTABLF", 1, 4096, 4, 4096 + 256),
        (b"EVKTABLE", 2, 4096, 4, 4096 + 256),
        (b"EVKTABLE", 1, 8192, 4, 4096 + 256),
        (b"EVKTABLE", 1, 4096, 3, 4096 + 256),
        (b"EVKTABLE", 1, 4096, 8, 4096 + 256),
        (b"EVKTABLE", 1, 4096, 0, 4096 + 256),
    ],
)
def test_bad_header_is_refused(
    magic: bytes, version: int, header_bytes: int, buckets: int, length: int
) -> None:
    """A header that does not fit the file or this version is a ValueError."""
    header = struct.pack("<8sIIQQ", magic, version, header_bytes, buckets, 1)
    fd = os.memfd_create("almost", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, header.ljust(length, b"\0")[:length])
        seal(fd)
        with pytest.raises(ValueError, match=f"fd: {fd} has"):
            native.TableView(fd)
    finally:
        os.close(fd)


def test_bad_lookup_arguments(index: native.Index) -> None:
    """A short secret, a cut key and a closed view are ValueErrors that say so."""
    _, secret = index.add_namespace(1)
    view = native.TableView(index.table_fd())
    for look_up in (view.lookup, view.leading):
        with pytest.raises(ValueError, match="secret: 15 bytes"):
            look_up(secret[:15], b"")
        with pytest.raises(ValueError, match="keys: 33 bytes"):
            look_up(secret, bytes(33))
    view.close()
    view.close()
    with pytest.raises(ValueError, match="closed"):
        view.lookup(secret, b"")
