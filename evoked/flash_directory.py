"""One flash directory: its store, its transfers, and whether it is well.

A directory is ok, or degraded with a reason. Degraded by an error or a stall it takes no blocks
(and after an error of reading, or a stall, gives none: they are misses); a probe each PROBE_S tells
when it is well again. When its path names another directory it is opened anew, in a thread.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from evoke.core import spill
from evoked.counters import Counters

__all__ = ["FlashDirectory", "Read", "Write"]

PROBE_S: Final = 1.0  # while degraded
WATCH_S: Final = 10.0  # while ok: a directory that was removed is noticed
PROBE_DEADLINE_MS: Final = 2000
Open = Callable[[], spill.Store]


class Write(NamedTuple):
    """done(written) when the write has ended: the block's places are free to be used again."""

    length_bytes: int
    done: Callable[[bool], None]


class Read(NamedTuple):
    """done(outcome, sums) once, by the deadline; ended() once, when the places are free again."""

    length_bytes: int
    done: Callable[[int, Any], None]
    ended: Callable[[], None]


class FlashDirectory:
    """Owned by the loop. `fd` is readable when complete() has something to do."""

    def __init__(self, path: str, open_store: Open, counters: Counters) -> None:
        """ValueError when a newer version wrote it, BlockingIOError when another process has it;
        any other error degrades it."""
        self.path, self._open, self._counters = path, open_store, counters
        self._log = structlog.get_logger()
        self._pending: dict[int, Write | Read] = {}
        self._epoll = select.epoll()
        self._opened = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._opened, select.EPOLLIN)
        self._opener: threading.Thread | None = None
        self._new: spill.Store | OSError | ValueError | None = None
        self._old: spill.Store | None = None  # to be closed before the next is opened
        self._probe = 0
        self._next_probe_s = 0.0
        self._ever_ok = False
        self.store: spill.Store | None = None
        self.reason: str | None = None
        self.readable = False
        self.on_open: Callable[[], None] = lambda: None
        self.on_miss: Callable[[int], None] = lambda slot: None
        try:
            self._take_over(open_store())
        except BlockingIOError:
            raise
        except OSError as error:
            self._degrade(str(error), readable=False)

    @property
    def fd(self) -> int:
        return self._epoll.fileno()

    @property
    def ok(self) -> bool:
        return self.store is not None and self.reason is None

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, ticket: int, transfer: Write | Read) -> None:
        self._pending[ticket] = transfer

    # ------------------------------------------------------------------ what ended
    def complete(self) -> None:
        if self._new is not None and self._opener is not None:
            self._finish_opening()
        if self.store is None:
            return
        for ticket, kind, outcome, error, final, _slot, sums in self.store.take():
            if kind == spill.PROBE:
                self._probed(ticket, outcome, error)
            elif kind in (spill.READ, spill.WRITE):
                self._ended(ticket, outcome, error, final, sums)
            elif outcome == spill.FAILED:
                self._degrade(f"sync: {os.strerror(error)}", readable=self.readable)

    def _ended(self, ticket: int, outcome: int, error: int, final: bool, sums: Any) -> None:
        transfer = self._pending[ticket]
        if outcome == spill.FAILED:
            verb = "read" if isinstance(transfer, Read) else "write"
            self._counters.add("flash_errors")
            self._degrade(f"{verb}: {os.strerror(error)}", readable=verb == "write")
        elif outcome in (spill.LATE, spill.CANCELLED):
            self._counters.add("flash_late")
            self._degrade("stalled", readable=False)
        if isinstance(transfer, Read):
            if outcome == spill.CORRUPT:
                self._counters.add("integrity_failures")
            if not final:  # its places are kept until it ends
                self._pending[ticket] = transfer._replace(done=lambda outcome, sums: None)
            transfer.done(outcome, sums)
            if outcome == spill.DONE:
                self._counters.add("flash_blocks_read")
                self._counters.add("flash_bytes_read", transfer.length_bytes)
        if not final:
            return
        del self._pending[ticket]
        if isinstance(transfer, Read):
            transfer.ended()
            return
        if outcome == spill.DONE:
            self._counters.add("flash_blocks_written")
            self._counters.add("flash_bytes_written", transfer.length_bytes)
        transfer.done(outcome == spill.DONE)

    # ------------------------------------------------------------------ health
    def _degrade(self, reason: str, *, readable: bool) -> None:
        if self.reason != reason:
            self._log.warning("flash directory is degraded", path=self.path, reason=reason)
            self._counters.add("flash_degraded")
        self.reason, self.readable = reason, readable and self.store is not None

    def tick(self, now_s: float) -> None:
        """Probes when it is time to."""
        if now_s < self._next_probe_s:
            return
        self._next_probe_s = now_s + (WATCH_S if self.ok else PROBE_S)
        if self.store is None:
            self._open_again()
        elif not self._probe:
            self._probe = self.store.probe(PROBE_DEADLINE_MS)

    def _probed(self, ticket: int, outcome: int, error: int) -> None:
        if outcome == spill.LATE:
            self._degrade("stalled", readable=False)
            return  # it has not ended: no other is started meanwhile
        self._probe = 0
        if outcome == spill.FAILED:
            self._degrade(os.strerror(error), readable=self.readable)
            if error in (errno.ESTALE, errno.ENOENT) and not self._pending:
                self._close_store()
            return
        assert self.store is not None
        stats = self.store.stats()
        if stats["prepare_error"]:
            self._degrade(os.strerror(stats["prepare_error"]), readable=True)
            self.store.prepare()
        elif self.reason is not None:
            self._log.info("flash directory is well again", path=self.path, was=self.reason)
            self.reason, self.readable = None, True

    def _close_store(self) -> None:
        assert self.store is not None
        self._epoll.unregister(self.store.fd)
        self._old, self.store, self.readable = self.store, None, False

    # ------------------------------------------------------------------ opening
    def _open_again(self) -> None:
        """Off the loop: it may wait for a device."""
        if self._opener is not None:
            return

        def run() -> None:
            try:
                if self._old is not None:
                    self._old.close()
                    self._old = None
                self._new = self._open()
            except (OSError, ValueError) as error:
                self._new = error
            os.eventfd_write(self._opened, 1)

        self._opener = threading.Thread(target=run, name="flash-open", daemon=True)
        self._opener.start()

    def _finish_opening(self) -> None:
        assert self._opener is not None
        self._opener.join()
        os.eventfd_read(self._opened)
        new, self._new, self._opener = self._new, None, None
        if isinstance(new, spill.Store):
            self._take_over(new)
            self.on_open()
        else:
            self._degrade(str(new), readable=False)

    def _take_over(self, store: spill.Store) -> None:
        self.store, self.reason, self.readable = store, None, True
        self._epoll.register(store.fd, select.EPOLLIN)
        self._log.info("flash directory is open", path=self.path, **store.recovered)

    def describe(self) -> dict[str, Any]:
        stats = self.store.stats() if self.store is not None else {}
        state = "ok" if self.ok else f"degraded ({self.reason})"
        return {"path": self.path, "state": state, "transfers": len(self), **stats}

    def close(self, wait_ms: int) -> bool:
        """Makes the index durable. False when the device did not answer in time: the tier memories
        must then stay mapped until the process ends."""
        if self._opener is not None:
            self._opener.join(wait_ms / 1000)
        ended = self.store is None or self.store.close(wait_ms)
        self._epoll.close()
        os.close(self._opened)
        return ended
