"""Logging: console lines for people, JSON lines for a journal; a flood of one event is thinned."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

__all__ = ["RateLimit", "configure"]

EVENTS_PER_WINDOW: Final = 50
WINDOW_S: Final = 10.0


class RateLimit:
    """Lets through so many lines of one event in a window; the next window's first line says how
    many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # event -> (start, lines seen)

    def __call__(
        self, logger: Any, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = str(line.get("event"))
        now_s = self._clock()
        start_s, seen = self._windows.get(event, (now_s, 0))
        if now_s - start_s >= WINDOW_S:
            if seen > EVENTS_PER_WINDOW:
                line["left_out"] = seen - EVENTS_PER_WINDOW
            start_s, seen = now_s, 0
        self._windows[event] = (start_s, seen + 1)
        if seen >= EVENTS_PER_WINDOW:
            raise structlog.DropEvent
        return line


def configure(mode: str, **bound: object) -> structlog.stdlib.BoundLogger:
    """mode: "console", "json" or "auto" (console when stderr is a terminal). Writes to stderr;
    every line carries `bound`."""
    console = mode == "console" or (mode == "auto" and os.isatty(2))
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=os.isatty(2))
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**bound)
    structlog.configure(
        processors=[
            RateLimit(),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger
