"""The process in which a user's policy runs: `python -I -m evoked.policy_helper FD`.

It speaks with the daemon over FD (SOCK_SEQPACKET, msgpack) and shared columns; a hang or a crash
here costs the daemon nothing. Requests: load, trial, rank, each answered; and memory, with a memfd,
before a rank that needs more.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from evoke.core import native, scores
from evoke.policy.users import Blocks, UserFormula, UserPolicy, checked_ranks
from evoked.policy_files import compile_policy, entry_point
from evoked.shared_columns import SharedColumns

__all__ = ["main"]

PACKET_BYTES_MAX: Final = 128 << 10
MEMORY_BYTES_MAX: Final = 16 << 30
PR_SET_PDEATHSIG: Final = 1


class Helper:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._policy: UserPolicy | None = None
        self._columns: SharedColumns | None = None

    def serve(self) -> None:
        """Until the daemon closes the connection."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._connection, PACKET_BYTES_MAX, 1)
            if not data:
                return
            verb, *args = msgspec.msgpack.decode(data)
            if verb == "memory":
                self._memory(*args, *fds)
                continue
            work: dict[str, Callable[..., None]]
            work = {"load": self._load, "rank": self._rank, "trial": self._trial}
            try:
                work[verb](*args)
                answer = ("ok", "")
            except Exception as error:  # the author's code may raise anything
                answer = ("error", f"{type(error).__name__}: {error}"[:1000])
            self._connection.send(msgspec.msgpack.encode(answer))

    def _load(self, kind: str, name: str, source: str, options: dict[str, Any]) -> None:
        self._made_of = (kind, name, source, options)
        self._policy = self._make()

    def _make(self) -> UserPolicy:
        kind, name, source, options = self._made_of
        if kind == "file":
            return compile_policy(name, source, options)
        return entry_point(name, options)

    def _memory(self, capacity: int, fd: int) -> None:
        if self._columns is not None:
            self._columns.close()
        self._columns = SharedColumns(fd, capacity)
        os.close(fd)

    def _rank(self, count: int, clock: float, now_s: float) -> None:
        assert self._policy is not None
        assert self._columns is not None
        views = self._columns.views(count)
        for values in views.values():
            values.flags.writeable = False
        ranks = self._policy.rank(Blocks(**views, clock=clock, now_s=now_s))
        self._columns.ranks(count)[:] = checked_ranks(ranks, count)

    def _trial(
        self, ids: bytes, starts: bytes, now_s: bytes, capacity_blocks: int, alpha: float
    ) -> None:
        """A run over recorded requests with the policy asked before each of them."""
        known = scores.Identities()
        formula = UserFormula(self._make, alpha=alpha)
        requests = np.frombuffer(ids, np.uint32)
        scores.simulate(
            requests,
            np.frombuffer(starts, np.uint64),
            np.frombuffer(now_s, np.float64),
            int(requests.max(initial=0)) + 1,
            capacity_blocks,
            True,
            "request",
            True,
            False,
            True,
            known,
            formula.scores(known),
            formula.order(known, capacity_blocks),
        )


def main(arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the daemon ends this process
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    assert native.NO_ROW  # loaded before the first request is timed
    with socket.socket(fileno=int(arguments[0])) as connection:
        Helper(connection).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
