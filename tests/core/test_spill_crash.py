"""A writer that is killed at any moment: what it was told is true afterwards."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np

from evoke.core import spill
from tests.core.flash import MIB, Flash, bytes_of
from tests.core.flash_writer import BLOCK, CAPACITY

ROOT = Path(__file__).resolve().parents[2]
LOOPS = 12


def killed(directory: Path, seed: int) -> list[tuple[str, int]]:
    """What the writer said before it was killed, a random time after it had begun."""
    command = [sys.executable, "-m", "tests.core.flash_writer", str(directory), str(seed)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert writer.stdout is not None
    with writer:
        said = [writer.stdout.readline()]
        for _ in range(random.Random(seed).randint(1, 150)):
            said.append(writer.stdout.readline())
        writer.kill()
        said += writer.stdout.readlines()
    assert writer.returncode == -9, said
    whole = [line.split() for line in said if line.endswith("\n")]
    return [(sign, int(number)) for sign, number in whole]


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """After each kill all acknowledged blocks that were not erased are there with their bytes; an
    erased one is right or a miss; nothing else appears but whole blocks that were being written;
    the files keep to the capacity."""
    stored: set[int] = set()
    erased: set[int] = set()
    for seed in range(1, LOOPS + 1):
        for sign, number in killed(tmp_path, seed):
            if sign == "+":
                stored.add(number)
            elif sign == "-":
                stored.discard(number)
                erased.add(number)
        flash = Flash(tmp_path)
        store = flash.open(CAPACITY, segment_bytes=MIB)
        assert {number for number in stored if not flash.holds(number, BLOCK)} == set()
        slots, keys = store.blocks_of(flash.space)
        found = {int.from_bytes(keys[at : at + 8], "little") - 1 for at in range(0, len(keys), 32)}
        for number in found - stored:
            content = flash.read(number)
            assert content is None or np.array_equal(content, bytes_of(number, BLOCK))
            assert number in erased or number // 1_000_000 == seed
        assert sum(file.stat().st_size for file in tmp_path.glob("segment-*")) == CAPACITY
        store.check()
        # Some room for the next writer; what was never acknowledged is not expected then.
        gone = [flash.slot(number) for number in found - stored]
        gone += [flash.slot(number) for number in sorted(stored)[: len(stored) // 2]]
        stored -= set(sorted(stored)[: len(stored) // 2])
        store.erase(np.array([slot for slot in gone if slot != spill.NO_SLOT], np.uint32))
        flash.close()
        assert len(slots)
