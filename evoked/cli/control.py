"""One command's connection to a running daemon: bounded; exit status 3 when there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

import click
import zmq

from evoke.client import wire
from evoke.client.connection import Connection
from evoke.client.errors import DaemonError, EvokeError
from evoke.config import ConfigError, default_socket_dir

__all__ = ["Ask", "connected", "fail", "json_option", "size_text", "socket_option"]

UNREACHABLE: Final = 3
TIMEOUT_S: Final = 5.0
Command = TypeVar("Command", bound=Callable[..., Any])
Ask = Callable[[str, wire.Args], Any]


def socket_option(command: Command) -> Command:
    """--socket DIR, else $EVOKE_SOCKET, else the default."""
    text = "Directory of the daemon's sockets."
    return click.option("--socket", "directory", metavar="DIR", default="", help=text)(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def fail(sentence: str, status: int = 1) -> NoReturn:
    click.echo(f"evokectl: {sentence}", err=True)
    sys.exit(status)


@contextmanager
def connected(directory: str, timeout_s: float | None = None) -> Iterator[Ask]:
    """A function that sends one request and returns its result, after timeout_s (None: TIMEOUT_S)
    at most. Refusals and a daemon that is absent or late end the command with a sentence."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = None
    try:
        place = default_socket_dir(directory)
        deadline = time.monotonic() + TIMEOUT_S
        hello = wire.Hello(b"", 0, "evokectl")
        connection = Connection(place, context, hello, deadline)
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        yield lambda verb, args: connection.call(verb, args, time.monotonic() + limit_s)
    except ConfigError as error:
        fail(str(error), 2)
    except DaemonError as error:
        fail(str(error))
    except EvokeError as error:
        fail(f"daemon unreachable: {error}", UNREACHABLE)
    finally:
        if connection is not None:
            connection.end("done")
        context.destroy(linger=0)


def size_text(size_bytes: float) -> str:
    """For people: 3.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.1f} {unit}" if unit != "B" else f"{int(size_bytes)} B"
        size_bytes /= 1024
    raise AssertionError("unreachable")
