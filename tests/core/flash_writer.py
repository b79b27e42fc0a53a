"""Writes and erases blocks until it is killed, and says what it was told: for the crash tests.

python -m tests.core.flash_writer DIRECTORY SEED. On standard output: "+ N" when block N's write has
ended well, "- N" before block N is erased, "= S" when everything up to now was made durable.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np

from evoke.core import spill
from tests.core.flash import MIB, Flash, wait

BLOCK = 40_000
CAPACITY = 8 * MIB
DEPTH = 8


def say(sign: str, number: int) -> None:
    print(sign, number, flush=True)


def run(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    flash = Flash(directory)
    flash.open(CAPACITY, segment_bytes=MIB, engine=chance.choice(["auto", "threads"]))
    number = seed * 1_000_000
    here: list[int] = []
    say("=", 0)
    while True:
        tickets: dict[int, int] = {}
        for place in range(chance.randint(1, DEPTH)):
            if ticket := flash.write_at(number, place * 65536, BLOCK):
                tickets[ticket] = number
                number += 1
        if not tickets and not here:
            raise SystemExit("full of what others wrote")
        if not tickets or chance.random() < 0.3:
            for gone in chance.sample(here, len(here) // 4):
                here.remove(gone)
                say("-", gone)
                flash.store.erase(np.array([flash.slot(gone)], np.uint32))
        for done in wait(flash.store, finals=len(tickets)) if tickets else ():
            assert done.outcome == spill.DONE
            here.append(tickets[done.ticket])
            say("+", here[-1])
        if chance.random() < 0.1:
            wait(flash.store, flash.store.sync())


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
