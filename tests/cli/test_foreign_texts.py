"""What peers call themselves is shown as text: it paints no terminal and breaks no command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.peer import DaemonProcess, make_namespace

EVOKECTL = "import sys; from evoked.cli import main; sys.exit(main())"


@pytest.mark.parametrize("command", ["status", "sessions"])
def test_names_are_shown_as_text(tmp_path: Path, command: str) -> None:
    """Markup and escape sequences in a session's and a model's name are shown, not obeyed."""
    daemon = DaemonProcess(tmp_path, {"host.capacity": "4MiB"})
    try:
        namespace = make_namespace("\x1b[31m[/nope]")
        with daemon.engine(namespace, name="\x1b]0;x\x07[blink]y[/wrong]"):
            options = [command, "--socket", str(daemon.directory)]
            shown = subprocess.run(
                [sys.executable, "-c", EVOKECTL, *options],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
        assert "[blink]y[/wrong]" in shown
        assert not {"\x1b", "\x07"} & set(shown)
        daemon.stop()
    finally:
        daemon.kill()
