"""The spill store: what its operations promise while one process has the directory."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from evoke.core import native, spill
from tests.core.flash import ID, MEMORY, MIB, Flash, bytes_of, key, wait

SIZES = [1, 511, 513, 4095, 4096, 4097, MIB + 3]


@pytest.fixture
def flash(tmp_path: Path) -> Iterator[Flash]:
    flash = Flash(tmp_path)
    yield flash
    flash.close()


def slots(*numbers: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    return np.array(numbers, np.uint32)


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("direct", [True, False])
def test_blocks_of_any_size_and_place_come_back(flash: Flash, engine: str, direct: bool) -> None:
    """A block of any size, at an odd place or a whole page, is read as it was written, and what
    lies beside its places stays as it was."""
    flash.open(engine=engine, direct=direct)
    for number, size in enumerate(SIZES):
        offset = number % 2 * 13 + 4096
        assert wait(flash.store, flash.write_at(number, offset, size))[-1].outcome == spill.DONE
    for number, size in enumerate(SIZES):
        for offset in (8192, 12289):
            flash.memory[:] = 7
            ticket = flash.read_at(flash.slot(number), offset, size)
            assert wait(flash.store, ticket)[-1].outcome == spill.DONE
            assert np.array_equal(flash.memory[offset : offset + size], bytes_of(number, size))
            end = offset + size if offset % 4096 else -(-(offset + size) // 4096) * 4096
            assert (flash.memory[:offset] == 7).all()
            assert (flash.memory[end:] == 7).all()
    flash.store.check()


def test_both_engines_are_tried(flash: Flash) -> None:
    """Here the kernel offers io_uring, or the reason why not is told; threads always work."""
    stats = flash.open().stats()
    assert stats["engine"] == "io_uring" or stats["engine_refused"]
    assert stats["engine"] == "io_uring" or stats["engine"] == "threads"
    flash.close()
    assert flash.open(engine="threads").stats()["engine"] == "threads"


def test_parts_of_a_block_are_kept_together(flash: Flash) -> None:
    """A block of several parts is one entry, and each part comes back to its own place."""
    store = flash.open()
    lengths = [100, 5000, 4096]
    refs = np.array([MEMORY << 56 | offset for offset in (0, 8192, 20001)], np.uint64)
    contents = [bytes_of(i, length) for i, length in enumerate(lengths)]
    for ref, content in zip(refs.tolist(), contents, strict=True):
        flash.memory[ref & 0xFFFFFF : (ref & 0xFFFFFF) + len(content)] = content
    sums = np.array([native.xxh3_64(content) for content in contents], np.uint64)
    sizes = np.array(lengths, np.uint32)
    wait(store, store.write(flash.space, key(1), b"", 0, refs, sizes, sums))
    for _ in range(2):  # as its writer, and as another process
        flash.memory[:] = 0
        done = wait(store, store.read(flash.slot(1), refs, sizes))[-1]
        assert (done.outcome, done.sums.tolist()) == (spill.DONE, sums.tolist())
        for ref, content in zip(refs.tolist(), contents, strict=True):
            at = ref & 0xFFFFFF
            assert np.array_equal(flash.memory[at : at + len(content)], content)
        flash.close()
        store = flash.open()


def test_a_key_is_written_once(flash: Flash) -> None:
    """A key that is here, or being written, is not written again."""
    flash.open()
    ticket = flash.write_at(1, 0, 65536)
    assert flash.write_at(1, 65536, 65536) == 0
    wait(flash.store, ticket)
    assert flash.write_at(1, 0, 65536) == 0
    assert flash.store.stats()["blocks"] == 1


def test_a_block_is_found_only_after_its_write_and_in_its_namespace(flash: Flash) -> None:
    """Nobody finds a block while it is written; afterwards only its own namespace does."""
    flash.open()
    flash.store.inject("write", 0, 50, 1)
    ticket = flash.write_at(1, 0, 65536)
    assert flash.slot(1) == spill.NO_SLOT
    wait(flash.store, ticket)
    assert flash.slot(1) != spill.NO_SLOT
    other = flash.store.add_namespace(bytes(32))
    assert flash.store.find(other, key(1)).tolist() == [spill.NO_SLOT]
    assert flash.store.add_namespace(ID) == flash.space


def test_room_is_what_the_files_have(flash: Flash) -> None:
    """Writes end with no room when all slots are taken; an erased block's slot is used again, and
    the files have the size of the capacity throughout."""
    flash.open(4 * MIB)
    number = 0
    while flash.write_at(number, 0, 65536):
        wait(flash.store)
        number += 1
    assert number == 2 * (2 * MIB // (65536 + 4096))
    flash.store.erase(slots(flash.slot(5)))
    assert flash.slot(5) == spill.NO_SLOT
    assert wait(flash.store, flash.write_at(number, 0, 65536))[-1].outcome == spill.DONE
    sizes = [file.stat().st_size for file in flash.directory.glob("segment-*")]
    assert sizes == [2 * MIB, 2 * MIB]


def test_an_empty_segment_takes_another_block_size(flash: Flash) -> None:
    """A segment whose blocks were erased is carved anew for blocks of another size."""
    flash.open(2 * MIB)
    flash.write(0)
    assert flash.write_at(1, 0, MIB) == 0
    flash.store.erase(flash.store.slots_in(0))
    flash.write(1, MIB)
    assert flash.holds(1, MIB)
    flash.close()
    flash.open(2 * MIB)
    assert flash.holds(1, MIB)
    assert not flash.holds(0)


def test_a_chain_leaves_from_its_tail(flash: Flash) -> None:
    """Whatever the order of writing and touching, a block is named a victim only after its
    children; blocks that are read are not named."""
    flash.open()
    for number in (2, 0, 1, 3):
        flash.write(number)
    flash.store.link(flash.space, b"".join(key(number) for number in range(4)))
    chain = [flash.slot(number) for number in range(4)]
    assert flash.store.victims(9).tolist() == chain[::-1]
    flash.store.touch(slots(chain[3]))
    assert flash.store.victims(2).tolist() == [chain[3], chain[2]]
    flash.store.inject("read", 0, 50, 1)
    ticket = flash.read_at(chain[3], 0, 65536)
    assert flash.store.victims(9).tolist() == []
    wait(flash.store, ticket)
    flash.store.check()


def test_an_erased_block_that_is_read_keeps_its_slot(flash: Flash) -> None:
    """A read that was under way when its block was erased still gets that block's bytes, even
    when the directory was full and others want the slot."""
    flash.open(2 * MIB, segment_bytes=256 << 10)
    flash.write(0, 200 << 10)
    for number in range(1, 8):
        flash.write(number, 200 << 10)
    flash.store.inject("read", 0, 50, 1)
    ticket = flash.read_at(flash.slot(0), MIB, 200 << 10)
    flash.store.erase(slots(flash.slot(0)))
    assert flash.write_at(8, 0, 200 << 10) == 0
    assert wait(flash.store, ticket)[-1].outcome == spill.DONE
    assert np.array_equal(flash.memory[MIB : MIB + (200 << 10)], bytes_of(0, 200 << 10))
    flash.write(8, 200 << 10)


@pytest.mark.parametrize("engine", ["auto", "threads"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_errors_of_the_device_are_results(flash: Flash, engine: str, error: int) -> None:
    """A failed write leaves nothing behind, a failed read leaves the block; both say the errno,
    and the next ones work."""
    flash.open(engine=engine)
    flash.store.inject("write", error, 0, 1)
    done = flash.write(0)
    assert (done.outcome, done.error) == (spill.FAILED, error)
    assert flash.store.stats()["slots_used"] == 0
    flash.write(0)
    flash.store.inject("read", error, 0, 1)
    done = wait(flash.store, flash.read_at(flash.slot(0), 0, 65536))[-1]
    assert (done.outcome, done.error) == (spill.FAILED, error)
    assert flash.holds(0)


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_stalled_device_is_a_miss_by_the_deadline(flash: Flash, engine: str) -> None:
    """At the deadline what has started is late, and ends later; what has not is cancelled."""
    flash.open(engine=engine, depth=1)
    flash.write(0)
    flash.store.inject("read", 0, 400, 1)
    started = flash.read_at(flash.slot(0), 0, 65536, deadline_ms=50)
    queued = flash.read_at(flash.slot(0), 65536, 65536, deadline_ms=50)
    results = wait(flash.store, started)
    said = {(d.ticket, d.outcome, d.is_final) for d in results}
    assert said >= {(started, spill.LATE, False), (started, spill.DONE, True)}
    assert (queued, spill.CANCELLED, True) in said
    assert flash.store.entry(flash.slot(0))["reads"] == 0


def test_the_index_waits_for_a_full_device(flash: Flash) -> None:
    """Blocks are served while their records cannot be written; the records follow when they can."""
    flash.open()
    flash.store.inject("journal", errno.ENOSPC, 0, -1)
    flash.write(0)
    assert flash.holds(0)
    stats = flash.store.stats()
    assert (stats["index_records_waiting"] > 0, stats["index_error"]) == (True, errno.ENOSPC)
    done = wait(flash.store, flash.store.probe(1000))[-1]
    assert (done.outcome, done.error) == (spill.FAILED, errno.ENOSPC)
    flash.store.inject("journal", 0, 0, 0)
    assert wait(flash.store, flash.store.probe(1000))[-1].outcome == spill.DONE
    assert flash.store.stats()["index_records_waiting"] == 0
    flash.close()
    flash.open()
    assert flash.holds(0)


def test_a_probe_tells_a_lost_directory(flash: Flash, tmp_path: Path) -> None:
    """When the path no longer names the directory, the probe says so; blocks are still read."""
    flash.open()
    flash.write(0)
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    assert wait(flash.store, flash.store.probe(1000))[-1].error == errno.ENOENT
    tmp_path.mkdir()
    assert wait(flash.store, flash.store.probe(1000))[-1].error == errno.ESTALE
    assert flash.holds(0)
    tmp_path.rmdir()
    moved.rename(tmp_path)
    assert wait(flash.store, flash.store.probe(1000))[-1].outcome == spill.DONE


def test_bad_arguments_change_nothing(flash: Flash, tmp_path: Path) -> None:
    """Each wrong argument is a ValueError that names it."""
    store = flash.open()
    one, size, sums = np.array([MEMORY << 56], np.uint64), slots(4096), np.zeros(1, np.uint64)
    far = np.array([MEMORY << 56 | 16 * MIB], np.uint64)
    other = np.array([9 << 56], np.uint64)
    calls: dict[str, Callable[[], object]] = {
        "namespace": lambda: store.write(77, key(0), b"", 0, one, size, sums),
        "key": lambda: store.write(flash.space, b"short", b"", 0, one, size, sums),
        "refs": lambda: store.write(flash.space, key(0), b"", 0, far, size, sums),
        "refs: ": lambda: store.write(flash.space, key(0), b"", 0, other, size, sums),
        "sums": lambda: store.write(flash.space, key(0), b"", 0, one, size, sums[:0]),
        "state": lambda: store.write(flash.space, key(0), b"", 0, one, size, sums, b"x"),
        "slots": lambda: store.read(12345, one, size),
        "keys": lambda: store.find(flash.space, b"short"),
        "depth": lambda: spill.Store(str(tmp_path), MIB, [], depth=0),
        "segment_bytes": lambda: spill.Store(str(tmp_path), MIB, [], segment_bytes=4097),
        "engine": lambda: spill.Store(str(tmp_path), MIB, [], engine="fast"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=name):
            call()
    flash.write(0)
    with pytest.raises(ValueError, match="lengths: 1 parts, 4096 bytes; the block has 1, 65536"):
        store.read(flash.slot(0), one, size)
    store.check()
    assert store.stats()["blocks"] == 1
    assert os.listdir(tmp_path)
