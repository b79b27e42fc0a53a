"""What the running daemon has open, and what of it could outlive it."""

from __future__ import annotations

import os
from pathlib import Path

from evoke.client.wire import Stored
from tests.daemon.conftest import Start, start
from tests.daemon.peer import chain, eventually, make_namespace

__all__ = ["start"]

CLOEXEC = 0o2000000
STANDARD = {"0", "1", "2"}


def inherited(pid: int) -> dict[str, str]:
    """Descriptors besides the standard ones that a program started by the process would get."""
    found = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        text = entry.read_text()
        flags = int(text.partition("flags:\t")[2].split()[0], 8)
        if entry.name not in STANDARD and not flags & CLOEXEC:
            found[entry.name] = os.readlink(f"/proc/{pid}/fd/{entry.name}")
    return found


def test_every_descriptor_is_close_on_exec(start: Start) -> None:
    """With sessions, pools, a table that grew, events and a re-bound control socket there is no
    descriptor that a child of the daemon would inherit."""
    daemon = start(host__capacity="48MiB", limits__loop_memory_bytes="300MiB")
    with (
        daemon.engine(make_namespace(), 32) as engine,
        daemon.engine(make_namespace(), 4096) as large,
    ):
        assert engine.store(chain(engine.namespace, 8)) == [Stored.STORED] * 8
        for seed in range(2):  # beyond the first table
            large.store(chain(large.namespace, 4096, seed))
        engine.peer.ok("events", engine.handle)
        large.peer.dealer.send_multipart([b"x"] * 2000)
        assert eventually(lambda: "re-bound" in daemon.log())
        links = {os.readlink(entry) for entry in Path(f"/proc/{daemon.pid}/fd").iterdir()}
        for part in ("socket:", "pidfd", "eventfd", "eventpoll", "memfd:"):
            assert any(part in link for link in links), (part, links)
        assert inherited(daemon.pid) == {}


def test_kill_leaves_nothing(start: Start) -> None:
    """SIGKILL of a daemon with blocks, sessions and pools leaves nothing in /dev/shm, and in its
    directory only the sockets that the next one takes over."""
    before = set(os.listdir("/dev/shm"))
    daemon = start()
    with daemon.engine(make_namespace()) as engine:
        assert engine.store(chain(engine.namespace, 8)) == [Stored.STORED] * 8
        daemon.kill()
        assert engine.peer.ended()
    assert set(os.listdir("/dev/shm")) <= before
    left = set(os.listdir(daemon.directory))
    assert left <= {"control.lock", "control.sock", "session.sock", "events.sock"}, left
