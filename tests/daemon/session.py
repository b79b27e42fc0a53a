"""A raw client of a daemon: liveness socket and DEALER, without evoke.client."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec
import zmq

from evoke.client import wire
from evoke.client.wire import Code
from evoke.core import native

__all__ = ["Peer"]

REPLY_MS = 10_000


class Peer:
    """One session."""

    def __init__(
        self,
        directory: Path,
        *,
        join: bytes = b"",
        rank: int = 0,
        name: str = "peer",
        hello: bool = True,
        queue: int = 1000,
    ) -> None:
        self.directory = directory
        self.liveness = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.liveness.settimeout(10)
        self.liveness.connect(str(directory / "session.sock"))
        data, fds, _, _ = socket.recv_fds(self.liveness, 4096, 4)
        self.welcome = msgspec.msgpack.decode(data)
        if self.welcome[0] != "welcome":
            self.liveness.close()
            raise ConnectionRefusedError(self.welcome[1])
        self.boot, self.token, self.route = self.welcome[2:5]
        self.table, self.fence = native.TableView(fds[0]), native.FencePage(fds[1])
        for fd in fds:
            os.close(fd)
        self.dealer: zmq.Socket[bytes] = self.new_dealer(self.route, queue)
        self._number = 0
        self._memories = 0
        self.join = b""
        self.number = 0
        if hello:
            self.join, self.number = self.ok("hello", join, rank, name)

    def new_dealer(self, route: bytes, queue: int = 1000) -> zmq.Socket[bytes]:
        """A further connection; `queue` replies wait for it at most."""
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVHWM, queue)
        dealer.setsockopt(zmq.ROUTING_ID, route)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"ipc://{self.directory}/control.sock")
        return dealer

    # ------------------------------------------------------------------ requests
    def send(self, verb: str, *args: Any, token: bytes | None = None) -> int:
        """Request id of a request under way."""
        self._number += 1
        token = self.token if token is None else token
        values = wire.VERBS[verb](*args)
        self.dealer.send(wire.encode_request(token, self._number, verb, values))
        return self._number

    def receive(self, timeout_ms: int = REPLY_MS) -> wire.Reply:
        assert self.dealer.poll(timeout_ms), "no reply"
        return wire.decode_reply(self.dealer.recv())

    def call(self, verb: str, *args: Any, token: bytes | None = None) -> tuple[Code, Any]:
        number = self.send(verb, *args, token=token)
        reply = self.receive()
        assert (reply.request, reply.boot) == (number, self.boot)
        return Code(reply.code), reply.result

    def ok(self, verb: str, *args: Any) -> Any:
        code, result = self.call(verb, *args)
        assert code == Code.OK, result
        return result

    def raw(self, *frames: bytes) -> wire.Reply:
        """The reply to whatever frames."""
        self.dealer.send_multipart(frames)
        return self.receive()

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ok("status")
        return status

    def counter(self, name: str) -> int:
        return int(self.status()["counters"][name])

    # ------------------------------------------------------------------ liveness
    def send_memory(self, fd: int, number: int = -1) -> int:
        """The number under which the daemon knows the memory."""
        if number < 0:
            self._memories += 1
            number = self._memories
        packet = msgspec.msgpack.encode(("memory", number))
        socket.send_fds(self.liveness, [packet], [fd])
        return number

    def ended(self, seconds: float = 5.0) -> bool:
        """Whether the daemon ended this session in time."""
        self.liveness.settimeout(seconds)
        try:
            while data := self.liveness.recv(4096):
                assert msgspec.msgpack.decode(data)[0] == "table"
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.liveness.close()
        self.dealer.close(0)
        self.table.close()
        self.fence.close()
