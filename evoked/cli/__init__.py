"""evokectl: ask and steer the daemon. Exit 0 ok, 1 failed, 2 usage, 3 daemon unreachable."""

from __future__ import annotations

import importlib

import click

from evoked import __version__

__all__ = ["main"]

# command -> module; loaded when used, so that `status` does not wait for what `bench` needs
_COMMANDS = {
    "bench": "evoked.cli.bench",
    "demo": "evoked.cli.demo",
    "doctor": "evoked.cli.doctor",
    "events": "evoked.cli.events",
    "flush": "evoked.cli.flush",
    "metrics": "evoked.cli.status",
    "policy": "evoked.cli.policy",
    "sessions": "evoked.cli.status",
    "simulate": "evoked.cli.simulate",
    "status": "evoked.cli.status",
    "sweep": "evoked.cli.sweep",
    "trace": "evoked.cli.trace",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="evokectl")
def main() -> None:
    """Ask and steer the evoke daemon of this host."""
