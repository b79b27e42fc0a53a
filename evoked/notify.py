"""Tells the service manager how the daemon is: readiness, status, watchdog, stop (sd_notify(3))."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["Notifier"]

EXTEND_EVERY_S: Final = 2.0
EXTEND_BY_S: Final = 10.0


class Notifier:
    """Silent when no manager asked ($NOTIFY_SOCKET is not set)."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        usec = environ.get("WATCHDOG_USEC", "0")
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half of the allowed time between two signs of life; 0: no watchdog.
        self.watchdog_s = int(usec) / 2e6 if meant and usec.isdigit() else 0.0
        self._socket = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, *lines: str) -> None:
        """Best effort: a manager that is gone must not disturb the daemon."""
        if self._socket is None:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        try:
            self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address)
        except OSError:
            return

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        usec = int(EXTEND_BY_S * 1e6)
        self.send("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={usec}")

    def alive(self) -> None:
        self.send("WATCHDOG=1")

    def during(self, work: Callable[[], None], status: Callable[[], str]) -> None:
        """Runs work in a thread; reports and asks for more time while it goes on."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # handed to the caller below
                failures.append(error)

        worker = threading.Thread(target=run, name="start", daemon=True)
        worker.start()
        told_s = float("-inf")
        while worker.is_alive():
            worker.join(0.05 if self._socket is not None else None)
            if time.monotonic() - told_s >= EXTEND_EVERY_S:
                told_s = time.monotonic()
                usec = int(EXTEND_BY_S * 1e6)
                self.send(f"STATUS={status()}", f"EXTEND_TIMEOUT_USEC={usec}")
        if failures:
            raise failures[0]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
