"""Client processes that come and go: forks them, kills some, and reports what they saw as JSON.

    python -m tests.load.nursery SOCKET_DIR PROCESSES SECONDS

One half stays from beginning to end, so that their progress can be compared; the others leave after
a while and are replaced. Every second of these is killed in the middle of whatever it does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from evoke.client import Fetched, Stored, connect
from tests.daemon.peer import make_namespace

__all__: list[str] = []

BLOCKS = 12
PROMPTS = 200  # together more than the daemon has room for
LAYERS = 4
SHAPE = (BLOCKS, LAYERS, 2, 16, 1, 32)
AXES = "slot layer kv token head element"
WARM_UP_S = 1.5  # everybody has connected


@dataclass
class Child:
    pid: int
    reader: int
    leaves_s: float
    killed: bool


def client(directory: str, seed: int, counts_s: float, until_s: float) -> dict[str, Any]:
    """Look up, fetch and check, compute the rest, store it; again and again."""
    rng = random.Random(seed)
    seen: dict[str, Any] = {"rounds": 0, "fetched": 0, "wrong": 0, "refused": 0, "errors": []}
    with connect(directory, name="load", timeout_s=20, raise_errors=True) as peer:
        space = peer.namespace(make_namespace("load", blocks_4k=LAYERS))
        memory = peer.pool_memory(BLOCKS * space.namespace.parts[0].part_bytes)
        array = memory.array(SHAPE, np.float32)
        pool = space.register_pool(memory, array, AXES)
        while time.monotonic() < until_s:
            prompt = min(rng.randrange(PROMPTS), rng.randrange(PROMPTS))
            chain = space.keys(np.arange(BLOCKS * 16) + prompt * 100_000)
            # What belongs to a block follows from its key, whoever computes it.
            content = [int.from_bytes(chain[i][:3], "big") for i in range(BLOCKS)]
            hits = space.lookup(chain)
            array[:] = -1
            got = space.fetch(pool, chain[:hits], range(hits))
            for i in range(got.leading):
                seen["wrong"] += not (array[i] == content[i]).all()
            for i in range(got.leading, BLOCKS):
                array[i] = content[i]
            rest = range(got.leading, BLOCKS)
            put = space.store(pool, chain[got.leading :], rest)
            seen["refused"] += int((put.codes == Stored.REFUSED).sum())
            if not set(got.codes.tolist()) <= {Fetched.MISS, Fetched.HOST}:
                seen["errors"].append(f"fetch {got.codes.tolist()} {got.error}")
            if not set(put.codes.tolist()) <= {Stored.STORED, Stored.PRESENT, Stored.REFUSED}:
                seen["errors"].append(f"store {put.codes.tolist()} {put.error}")
            seen["fetched"] += got.leading
            seen["rounds"] += time.monotonic() > counts_s
    return seen


class Nursery:
    def __init__(self, directory: str, processes: int, seconds: float) -> None:
        self._directory = directory
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + seconds
        self._rng = random.Random(1)
        self._born = 0
        self._killed = 0
        self._guests_seen: list[dict[str, Any]] = []
        self._residents = [self._bear(resident=True) for _ in range(processes // 2)]
        self._guests = [self._bear(resident=False) for _ in range(processes - processes // 2)]

    def _bear(self, *, resident: bool) -> Child:
        self._born += 1
        stay_s = self._rng.uniform(0.5, 2.5)
        leaves_s = self._end_s if resident else min(self._end_s, time.monotonic() + stay_s)
        killed = not resident and self._born % 2 == 0
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            # Who is to be killed would stay.
            until_s = leaves_s + 60 if killed else leaves_s
            try:
                seen = client(self._directory, self._born, self._begin_s + WARM_UP_S, until_s)
            except BaseException as error:
                seen = {"errors": [f"{type(error).__name__}: {error}"]}
            os.write(writer, json.dumps(seen).encode()[:60_000])
            os._exit(0)
        os.close(writer)
        return Child(pid, reader, leaves_s, killed)

    def run(self) -> dict[str, Any]:
        while time.monotonic() < self._end_s:
            time.sleep(0.02)
            for number, guest in enumerate(self._guests):
                if time.monotonic() < guest.leaves_s:
                    continue
                if self._bury(guest, wait=False):
                    self._guests[number] = self._bear(resident=False)
        for guest in self._guests:
            self._bury(guest, wait=True)
        residents = [self._seen(child) for child in self._residents]
        return {
            "residents": residents,
            "guests": self._guests_seen,
            "born": self._born,
            "killed": self._killed,
        }

    def _bury(self, guest: Child, *, wait: bool) -> bool:
        """False when it is still at its last round."""
        if guest.killed:
            os.kill(guest.pid, signal.SIGKILL)
            os.waitpid(guest.pid, 0)
            os.close(guest.reader)
            self._killed += 1
            return True
        if (
            not wait
            and os.waitid(os.P_PID, guest.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            return False
        self._guests_seen.append(self._seen(guest))
        return True

    @staticmethod
    def _seen(child: Child) -> dict[str, Any]:
        with open(child.reader, "rb") as file:
            text = file.read()
        os.waitpid(child.pid, 0)
        seen: dict[str, Any] = json.loads(text or b'{"errors": ["died"]}')
        return seen


if __name__ == "__main__":
    print(json.dumps(Nursery(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])).run()))
