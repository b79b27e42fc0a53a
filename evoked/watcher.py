"""File descriptors of which the loop is told, besides those of sessions."""

from __future__ import annotations

import select
from collections.abc import Callable

__all__ = ["Watcher"]


class Watcher:
    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        """Before the fd is closed."""
        del self._callbacks[fd]
        self._epoll.unregister(fd)

    def handle(self, fd: int) -> bool:
        """False when it is not one of these."""
        callback = self._callbacks.get(fd)
        if callback is not None:
            callback()
        return callback is not None
