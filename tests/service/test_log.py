"""Log lines: thinned when one event floods, marked with the daemon's start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog

from evoked.log import EVENTS_PER_WINDOW, WINDOW_S, RateLimit


def test_flood_is_thinned_and_counted() -> None:
    """Of one event only so many lines pass in a window; the next says how many did not."""
    now_s = 0.0
    limit = RateLimit(lambda: now_s)
    passed = 0
    for _ in range(EVENTS_PER_WINDOW * 3):
        try:
            limit(None, "info", {"event": "flood"})
            passed += 1
        except structlog.DropEvent:
            continue
    assert passed == EVENTS_PER_WINDOW
    assert limit(None, "info", {"event": "other"}) == {"event": "other"}
    now_s = WINDOW_S
    assert limit(None, "info", {"event": "flood"})["left_out"] == 2 * EVENTS_PER_WINDOW
    assert "left_out" not in limit(None, "info", {"event": "flood"})


@pytest.mark.parametrize("mode", ["json", "console"])
def test_lines_carry_the_boot_id(mode: str) -> None:
    """Each line says which start of the daemon wrote it; JSON lines are JSON."""
    code = (
        "from evoked.log import configure; "
        f"log = configure({mode!r}, boot='abc123'); log.info('ready', session=7)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "abc123" in result.stderr
    if mode == "json":
        line = json.loads(result.stderr)
        assert (line["event"], line["session"], line["boot"]) == ("ready", 7, "abc123")
