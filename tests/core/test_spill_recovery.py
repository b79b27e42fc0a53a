"""The spill store across restarts: what is found again, and what damage to its files can do."""

import errno
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evoke.core import native, spill
from tests.core.flash import MIB, Flash, key, wait

BLOCK = 8192
SLOT = BLOCK + 4096
BLOCKS = 40
RECORD = 128


@pytest.fixture
def flash(tmp_path: Path) -> Iterator[Flash]:
    flash = Flash(tmp_path)
    yield flash
    flash.close()


@pytest.fixture
def filled(flash: Flash) -> Flash:
    """A closed directory with BLOCKS blocks."""
    flash.open(4 * MIB)
    for number in range(BLOCKS):
        assert flash.write(number, BLOCK).outcome == spill.DONE
    flash.close()
    return flash


def held(flash: Flash) -> set[int]:
    return {number for number in range(BLOCKS + 5) if flash.holds(number, BLOCK)}


def place(flash: Flash, number: int) -> tuple[Path, int]:
    entry = flash.store.entry(flash.slot(number))
    return flash.directory / f"segment-{entry['segment']:05d}", entry["offset"]


def overwrite(file: Path, offset: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        stream.write(content)


def test_everything_is_found_again(filled: Flash) -> None:
    """After a stop all blocks are there with their bytes, links, order and policy state; nothing
    that was erased is, and generations go on rising."""
    flash = filled
    flash.open(4 * MIB)
    assert flash.store.recovered["blocks"] == BLOCKS
    assert held(flash) == set(range(BLOCKS))
    slot = flash.slot(7)
    assert flash.store.entry(slot)["parent"] == flash.slot(6)
    assert flash.store.entry(slot)["children"] == 1
    flash.store.erase(np.array([flash.slot(BLOCKS - 1)], np.uint32))
    ticket = flash.write_at(BLOCKS, 0, BLOCK, state=b"s" * spill.STATE_BYTES)
    wait(flash.store, ticket)
    newest = flash.store.entry(flash.slot(BLOCKS))["generation"]
    assert newest > max(flash.store.entry(flash.slot(n))["generation"] for n in range(BLOCKS - 1))
    flash.close()
    flash.open(4 * MIB)
    assert held(flash) == set(range(BLOCKS - 1)) | {BLOCKS}
    assert flash.store.take_states() == [(flash.slot(BLOCKS), b"s" * spill.STATE_BYTES)]
    flash.store.check()


def test_blocks_come_back_in_their_order(filled: Flash) -> None:
    """The order in which blocks would leave is again from the tail of the chain."""
    filled.open(4 * MIB)
    order = filled.store.victims(BLOCKS).tolist()
    assert order == [filled.slot(number) for number in reversed(range(BLOCKS))]


def test_rot_and_wrong_blocks_are_misses(filled: Flash) -> None:
    """A flipped bit, another block's slot copied over, a zeroed slot: misses, counted, removed; a
    second read is a plain miss and the other blocks are right."""
    flash = filled
    flash.open(4 * MIB)
    file, at = place(flash, 7)
    flipped = file.read_bytes()[at + 4096 + 99] ^ 4
    other, source = place(flash, 8)
    copy = other.read_bytes()[source : source + SLOT]
    target, zeroed = place(flash, 9)[1], place(flash, 10)[1]
    flash.close()
    overwrite(file, at + 4096 + 99, bytes([flipped]))
    overwrite(file, target, copy)
    overwrite(file, zeroed, bytes(SLOT))
    flash.open(4 * MIB)
    assert held(flash) == set(range(BLOCKS)) - {7, 9, 10}
    assert flash.store.stats()["integrity_failures"] == 3
    assert flash.slot(7) == spill.NO_SLOT
    assert held(flash) == set(range(BLOCKS)) - {7, 9, 10}
    assert flash.store.stats()["integrity_failures"] == 3


def test_rot_after_the_first_read_is_a_miss_too(filled: Flash) -> None:
    """A block that was verified once is verified again at each read."""
    filled.open(4 * MIB)
    assert filled.holds(3, BLOCK)
    file, at = place(filled, 3)
    overwrite(file, at + 4096, b"rotten bytes")
    assert not filled.holds(3, BLOCK)


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flip_in_the_index_costs_one_block_at_most(filled: Flash, bit: int) -> None:
    """With one bit of a record of the index flipped, at most that block is missed; with one in
    its header all may be. Nothing wrong is served, and the store works on."""
    flash = filled
    index = flash.directory / "index"
    whole = index.read_bytes()
    records = range(4096, len(whole), 7 * RECORD + 11)
    for at in [0, 9, 20, 60, 100, *records]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        flash.directory.joinpath("index").write_bytes(damaged)
        copy = Flash(flash.directory)
        copy.open(4 * MIB)
        blocks = copy.store.recovered["blocks"]
        if at >= 4096:
            kinds = whole[at - at % RECORD]
            lost = BLOCKS if kinds in (1, 2) else 1  # a namespace or segment: all of its blocks
            assert BLOCKS - lost <= blocks <= BLOCKS
        for number in range(0, BLOCKS, 13):
            copy.holds(number, BLOCK)
        copy.close()
        if blocks < BLOCKS:
            break  # the segments may have been made anew
    else:
        pytest.fail("no flip had an effect")


def test_a_truncated_index_keeps_what_is_before(filled: Flash, tmp_path: Path) -> None:
    """Cut at any multiple of 512 bytes, the index gives the blocks before the cut, right, and no
    others; a segment that was cut gives misses behind the cut."""
    whole = (filled.directory / "index").read_bytes()
    segments = [file.read_bytes() for file in sorted(filled.directory.glob("segment-*"))]
    for cut in range(0, len(whole), 512):
        target = tmp_path / f"cut{cut}"
        target.mkdir()
        (target / "index").write_bytes(whole[:cut])
        for number, content in enumerate(segments):
            (target / f"segment-{number:05d}").write_bytes(content)
        flash = Flash(target)
        flash.open(4 * MIB)
        records = max(0, cut - 4096) // RECORD
        assert flash.store.recovered["blocks"] == max(0, records - 2)  # namespace, segment
        assert len(held(flash)) == max(0, records - 2)
        flash.write(BLOCKS + 1, BLOCK)
        flash.store.check()
        flash.close()
        shutil.rmtree(target)


def test_a_truncated_segment_is_misses_behind_the_cut(filled: Flash) -> None:
    """Blocks of a file that was cut are misses from the cut on; its size is restored."""
    size = (filled.directory / "segment-00000").stat().st_size
    with (filled.directory / "segment-00000").open("r+b") as stream:
        stream.truncate(10 * SLOT + 512)
    filled.open(4 * MIB)
    assert held(filled) == set(range(10))
    assert (filled.directory / "segment-00000").stat().st_size == size


@pytest.mark.parametrize("fate", ["swapped", "emptied", "deleted", "no index", "empty index"])
def test_files_that_are_not_what_they_were(flash: Flash, fate: str) -> None:
    """Swapped, emptied or deleted files are misses, never other bytes; the store works on."""
    flash.open(4 * MIB, segment_bytes=MIB)
    last = 2 * (MIB // SLOT)
    for number in range(last):
        flash.write(number, BLOCK)
    flash.close()
    a, b, index = (flash.directory / name for name in ("segment-00000", "segment-00001", "index"))
    if fate == "swapped":
        a.rename(flash.directory / "x")
        b.rename(a)
        (flash.directory / "x").rename(b)
    elif fate == "emptied":
        a.write_bytes(b"")
    elif fate == "deleted":
        a.unlink()
    elif fate == "no index":
        index.unlink()
    else:
        index.write_bytes(b"")
    flash.open(4 * MIB, segment_bytes=MIB)
    right = [number for number in range(last) if flash.holds(number, BLOCK)]
    assert right == (list(range(last // 2, last)) if fate in ("emptied", "deleted") else [])
    flash.write(last, BLOCK)
    assert flash.holds(last, BLOCK)
    flash.store.check()


def test_a_newer_format_is_left_alone(filled: Flash) -> None:
    """A directory of a newer version is refused with a sentence, and not one byte changes."""
    index = filled.directory / "index"
    header = bytearray(index.read_bytes()[:56])
    header[8:12] = struct.pack("<I", 2)
    overwrite(index, 0, bytes(header) + struct.pack("<Q", native.xxh3_64(bytes(header))))
    before = {file.name: file.read_bytes() for file in filled.directory.iterdir()}
    with pytest.raises(ValueError, match="has format 2, this version reads up to 1"):
        filled.open(4 * MIB)
    after = {file.name: file.read_bytes() for file in filled.directory.iterdir()}
    del before["lock"], after["lock"]
    assert before == after


def test_a_smaller_capacity_holds_at_once(flash: Flash) -> None:
    """With a smaller capacity the files beyond are gone and their blocks are misses; a capacity
    below one segment begins anew."""
    flash.open(4 * MIB, segment_bytes=MIB)
    per_segment = MIB // SLOT
    for number in range(3 * per_segment):
        flash.write(number, BLOCK)
    flash.close()
    flash.open(2 * MIB, segment_bytes=MIB)
    assert sum(file.stat().st_size for file in flash.directory.glob("segment-*")) == 2 * MIB
    assert flash.store.recovered["blocks"] == 2 * per_segment
    assert flash.holds(0, BLOCK)
    assert not flash.holds(3 * per_segment - 1, BLOCK)
    flash.close()
    flash.open(MIB // 2, segment_bytes=MIB // 2)
    assert flash.store.recovered["blocks"] == 0
    assert sum(file.stat().st_size for file in flash.directory.glob("segment-*")) == MIB // 2


def test_one_process_has_the_directory(filled: Flash) -> None:
    """A second store on the directory is refused, and told who has it."""
    filled.open(4 * MIB)
    with pytest.raises(OSError, match="is in use by process") as refused:
        Flash(filled.directory).open(4 * MIB)
    assert refused.value.errno == errno.EWOULDBLOCK
    assert held(filled) == set(range(BLOCKS))


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    """A directory that is not there is not made."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Flash(tmp_path / "nowhere").open()


def test_the_index_stays_small(flash: Flash) -> None:
    """Blocks that come and go: the index is compacted, all it ever wrote is below 1 % of what the
    blocks did, and it says the same afterwards."""
    size, batch, last = 61440, 8, 2400
    flash.open(MIB, segment_bytes=MIB)
    for first in range(0, last, batch):
        if first:
            gone = [flash.slot(number) for number in range(first - batch, first)]
            flash.store.erase(np.array(gone, np.uint32))
        for number in range(first, first + batch):
            assert flash.write_at(number, number % batch * 65536, size)
        wait(flash.store, finals=batch)
    stats = flash.store.stats()
    assert stats["index_compactions"] >= 1
    assert stats["index_bytes_written"] < stats["bytes_written"] / 100
    flash.close()
    flash.open(MIB, segment_bytes=MIB)
    assert flash.store.recovered["blocks"] == batch
    assert all(flash.holds(number, size) for number in range(last - batch, last))


def test_a_directory_that_was_empty_at_the_start_is_remembered(filled: Flash) -> None:
    """Blocks that are written where others had been before the last start are found again."""
    filled.open(4 * MIB)
    filled.store.erase(filled.store.slots_in(0))
    filled.close()
    filled.open(4 * MIB)
    filled.write(3, BLOCK)
    filled.close()
    filled.open(4 * MIB)
    assert held(filled) == {3}


MANY = """
import json, resource, sys, time
from evoke.core import spill
began = resource.getrusage(resource.RUSAGE_SELF)
store = spill.Store(sys.argv[1], int(sys.argv[2]), [])
ended = resource.getrusage(resource.RUSAGE_SELF)
stats = store.stats()
print(json.dumps({
    "cpu_s": ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime,
    "blocks": stats["blocks"], "memory_bytes": stats["memory_bytes"],
}))
"""


def test_a_hundred_thousand_blocks_are_back_in_seconds(flash: Flash) -> None:
    """100,000 blocks are found within 2 seconds of CPU time, and each takes less than 96 bytes of
    memory (with its 32 of the published table at most 128)."""
    blocks, slot = 100_000, 8192
    capacity = (blocks * slot // MIB + 64) * MIB
    flash.open(64 * MIB, segment_bytes=64 * MIB)
    flash.write(0, 4096)
    flash.close()
    index = flash.directory / "index"
    template = index.read_bytes()
    header, namespace = template[:4096], template[4096 : 4096 + RECORD]
    segments = range(blocks // 8192 + 1)
    made = [segment_record(number, slot) for number in segments]
    made += [place_record(i, 8192, 4096) for i in range(blocks)]
    index.write_bytes(header + namespace + b"".join(made))
    for number in segments:  # holes: nothing is read here
        with (flash.directory / f"segment-{number:05d}").open("ab") as stream:
            stream.truncate(64 * MIB)
    code = [sys.executable, "-c", MANY, str(flash.directory), str(capacity)]
    said = json.loads(subprocess.run(code, check=True, capture_output=True, text=True).stdout)
    assert said["blocks"] == blocks
    assert said["cpu_s"] < 2
    assert said["memory_bytes"] / blocks < 96


def summed(record: bytes) -> bytes:
    return record + struct.pack("<Q", native.xxh3_64(record))


def segment_record(number: int, slot_bytes: int) -> bytes:
    return summed(struct.pack("<BxHIIIQQ88x", 2, 0, 0, number, 0, 0, slot_bytes))


def place_record(number: int, per_segment: int, length_bytes: int) -> bytes:
    """As docs/formats.md says; chains of 100 blocks."""
    parent = key(number - 1)[:16] if number % 100 else bytes(16)
    fields = (3, 1, 1, number // per_segment, number % per_segment, 2 << 40 | number + 1, 7)
    head = struct.pack("<BxHIIIQQII", *fields, length_bytes, number % 100)
    return summed(head + key(number) + parent + bytes(32))


def test_sync_is_durable_before_it_says_so(flash: Flash) -> None:
    """What was written before a sync that ended is in the files at that moment."""
    flash.open(4 * MIB)
    flash.write(0, BLOCK)
    done = wait(flash.store, flash.store.sync())[-1]
    assert (done.kind, done.outcome) == (spill.SYNC, spill.DONE)
    copied = flash.directory.parent / "copied"
    shutil.copytree(flash.directory, copied)
    other = Flash(copied)
    other.open(4 * MIB)
    assert other.holds(0, BLOCK)
    other.close()
    shutil.rmtree(copied)
