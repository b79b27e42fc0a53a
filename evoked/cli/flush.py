"""evokectl flush: remove blocks from every tier."""

from __future__ import annotations

import json

import click

from evoke.client import wire
from evoked.cli.control import connected, fail, json_option, size_text, socket_option

__all__ = ["flush"]


@click.command()
@socket_option
@json_option
@click.option("--namespace", metavar="ID", default="", help="Only this namespace (64 hex digits).")
@click.option("--epoch", metavar="NAME", default="", help="Only this weights epoch.")
@click.option("--all", "everything", is_flag=True, help="All namespaces.")
def flush(directory: str, as_json: bool, namespace: str, epoch: str, everything: bool) -> None:
    """Remove blocks; those being read at this moment go when the read ends."""
    if everything == bool(namespace or epoch):
        fail("say --namespace ID, --epoch NAME, or --all", 2)
    try:
        namespace_id = bytes.fromhex(namespace)
    except ValueError:
        namespace_id = b"?"
    if len(namespace_id) not in (0, 32):
        fail(f"--namespace: {namespace!r} is not 64 hex digits", 2)
    with connected(directory) as ask:
        blocks, flushed_bytes = ask("flush", wire.Flush(namespace_id, epoch))
    if as_json:
        click.echo(json.dumps({"blocks": blocks, "bytes": flushed_bytes}))
    else:
        click.echo(f"removed {blocks} blocks, {size_text(flushed_bytes)}")
