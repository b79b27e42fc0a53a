"""Logging: console lines for people, JSON lines for a journal."""

from __future__ import annotations

import os
import sys

import structlog

__all__ = ["configure"]


def configure(mode: str, **bound: object) -> structlog.stdlib.BoundLogger:
    """mode: "console", "json" or "auto" (console when stderr is a terminal). Writes to stderr."""
    console = mode == "console" or (mode == "auto" and os.isatty(2))
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=os.isatty(2))
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: structlog.stdlib.BoundLogger = structlog.get_logger().bind(**bound)
    return logger
