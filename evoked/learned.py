"""What the policy has learned, in a file that outlives the daemon; docs/formats.md has its form.

The loop takes a large memory in pieces, between requests; a thread sorts and writes it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from evoke.core import native
from evoke.policy.ranking import Learned, Ranking
from evoked.counters import Counters
from evoked.timers import Timers

__all__ = ["LearnedFile", "NewerVersionError", "read", "state_dir", "write"]

NAME: Final = "learned"
MAGIC: Final = b"EVKLEARN"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIdQQ16sQ")
SUM: Final = struct.Struct("<Q")
SAVE_S: Final = 60.0
PIECE: Final = 8192  # identities, a millisecond of the loop
STOP_S: Final = 5.0


class NewerVersionError(Exception):
    """A newer evoke wrote the file; it is left as it is."""


class Image(NamedTuple):
    """What a file holds. Records as of Ranker.dump(), least recent first."""

    secret: bytes
    records: bytes
    rows_most: int
    unix_s: float


def state_dir(configured: str, *, embedded: bool) -> str:
    """Where to keep it: as configured, else in systemd's directory, which an embedded daemon does
    not take from the service that it is part of; "": nowhere."""
    if configured or embedded:
        return configured
    return os.environ.get("STATE_DIRECTORY", "").partition(":")[0]


def read(path: Path) -> Image | None:
    """None: there is no file. NewerVersionError; ValueError: damaged, or not ours alone; OSError.

    The file holds the secret that keeps tenants from testing for each other's blocks.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError("others than this user may read or write it")
        content = file.read()
    head = content[: HEADER.size]
    if len(head) < HEADER.size or head[:8] != MAGIC:
        raise ValueError("is damaged: no header")
    _, version, _, unix_s, count, rows_most, secret, header_sum = HEADER.unpack(head)
    if native.xxh3_64(head[: -SUM.size]) != header_sum:
        raise ValueError("is damaged: wrong sum of the header")
    if version > VERSION:
        raise NewerVersionError(f"has version {version}, this evoke knows {VERSION}")
    records = content[HEADER.size : -SUM.size]
    if len(content) < HEADER.size + SUM.size or len(records) != count * Learned.RECORD_BYTES:
        raise ValueError(f"is damaged: {len(content)} bytes for {count} records")
    if SUM.pack(native.xxh3_64(records)) != content[-SUM.size :]:
        raise ValueError("is damaged: wrong sum of the records")
    return Image(secret, records, rows_most, unix_s)


def write(path: Path, image: Image) -> None:
    """Replaces the file at once or not at all, durably. OSError."""
    count = len(image.records) // Learned.RECORD_BYTES
    fields = (MAGIC, VERSION, 0, image.unix_s, count, image.rows_most, image.secret)
    head = HEADER.pack(*fields, 0)[: -SUM.size]
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(head + SUM.pack(native.xxh3_64(head)))
        file.write(image.records)
        file.write(SUM.pack(native.xxh3_64(image.records)))
        file.flush()
        os.fsync(fd)
    os.rename(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class LearnedFile:
    """Loads at its making, saves once a minute and at close(). Owned by the loop."""

    def __init__(
        self,
        directory: str,
        ranking: Ranking,
        counters: Counters,
        timers: Timers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """directory: "" keeps nothing. OSError: it cannot be made or written to, or another daemon
        has it. Before the first namespace is registered."""
        self._ranking, self._counters = ranking, counters
        self._timers, self._clock = timers, clock
        self._log = structlog.get_logger()
        self._path = Path(directory, NAME)
        self._writer: threading.Thread | None = None
        self._saved = -1  # requests that the policy had seen then
        self._on = bool(directory)
        self._lock_fd = -1
        if self._on:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(f"{directory} is not writable")
            self._lock_fd = _lock(directory)
            self._load()
            timers.at(clock() + SAVE_S, self._save)

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._writer is None

    def _load(self) -> None:
        try:
            image = read(self._path)
            if image is not None:
                taken = self._ranking.restore(image.secret, image.records, image.rows_most)
                age_s = round(time.time() - image.unix_s)
                self._log.info("what the policy had learned is back", blocks=taken, age_s=age_s)
        except NewerVersionError as error:
            self._on = False
            self._log.warning("nothing learned is kept", file=str(self._path), why=str(error))
        except (OSError, ValueError) as error:
            self._log.warning("what was learned is lost", file=str(self._path), why=str(error))

    def _save(self) -> None:
        self._timers.at(self._clock() + SAVE_S, self._save)
        if self._on and self._writer is None and self._ranking.requests != self._saved:
            self._take(self._ranking.learned())

    def _take(self, learned: Learned) -> None:
        """One piece now, the others when other requests have had their turn."""
        if not learned.take(PIECE):
            self._timers.at(self._clock(), lambda: self._take(learned))
            return
        self._start(learned)

    def _start(self, learned: Learned) -> None:
        def run() -> None:
            try:
                write(self._path, Image(learned.secret, learned.sorted(), learned.rows_most, now_s))
                self._saved = learned.requests
            except OSError as error:
                self._counters.add("learned_failed")
                self._log.warning("what was learned is not saved", why=str(error))
            self._writer = None

        now_s = time.time()
        # A disk that hangs must not hang the end of the process.
        self._writer = threading.Thread(target=run, name="learned", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Saves once more; gives up after STOP_S."""
        if self._on:
            self._save_last()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def _save_last(self) -> None:
        end_s = time.monotonic() + STOP_S
        if (writer := self._writer) is not None:
            writer.join(STOP_S)
        if self._writer is None and self._ranking.requests != self._saved:
            learned = self._ranking.learned()
            while not learned.take(PIECE):
                pass
            self._start(learned)
        if (writer := self._writer) is not None:
            writer.join(max(0.0, end_s - time.monotonic()))
            if writer.is_alive():
                self._log.warning("what was learned is not saved", why="the disk takes too long")


def _lock(directory: str) -> int:
    """fd of the directory, held for the daemon's life: two would take each other's file away."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise BlockingIOError(f"another daemon keeps its memory in {directory}") from None
    return fd
