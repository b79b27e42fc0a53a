"""evokectl events: what happens to blocks, line by line."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import click
import msgspec
import zmq

from evoke.client import wire
from evoke.config import default_socket_dir
from evoked.cli.control import connected, fail, json_option, socket_option

__all__ = ["events"]

EVERYTHING: Final = 0xFFFF_FFFF


@click.command()
@socket_option
@json_option
@click.option("--count", default=0, help="End after so many events (0: never).")
def events(directory: str, as_json: bool, count: int) -> None:
    """Follow all events (for the daemon's user and root). A gap in `sequence` is a lost event."""
    with connected(directory) as ask:
        topic: bytes = ask("events", wire.Events(EVERYTHING))
    path = os.path.join(default_socket_dir(directory), "events.sock")
    context: zmq.Context[Any] = zmq.Context()
    subscriber = context.socket(zmq.DEALER)
    subscriber.setsockopt(zmq.ROUTING_ID, b"\x01" + topic + os.urandom(8))
    subscriber.connect(f"ipc://{path}")
    subscriber.send(b"")
    seen = 0
    try:
        while count == 0 or seen < count:
            if not subscriber.poll(1000):
                if not os.path.exists(path):
                    fail("the daemon has ended", 3)
                subscriber.send(b"", zmq.NOBLOCK)  # the daemon may have bound its socket afresh
                continue
            _, frame = subscriber.recv_multipart()
            click.echo(_line(msgspec.msgpack.decode(frame), as_json))
            seen += 1
    finally:
        context.destroy(linger=0)


def _line(event: list[Any], as_json: bool) -> str:
    sequence, unix_ms, kind, namespace, keys, tier = event
    blocks = [keys[at : at + 32].hex() for at in range(0, len(keys), 32)]
    if as_json:
        row = {"sequence": sequence, "unix_ms": unix_ms, "kind": kind, "tier": tier}
        return json.dumps({**row, "namespace": namespace.hex(), "keys": blocks})
    if kind == "policy":
        return f"{sequence} policy {tier}"
    first = f" {blocks[0][:16]}" if blocks else ""
    return (
        f"{sequence} {kind} {len(blocks)} blocks, {tier}, namespace {namespace.hex()[:12]}{first}"
    )
