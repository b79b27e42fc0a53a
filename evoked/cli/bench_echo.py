"""A bare echo over ZeroMQ: what a round trip of two Python processes costs without the product.

`python -m evoked.cli.bench_echo PATH PARENT` is its far side; it ends with the process PARENT.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from types import TracebackType
from typing import Final

import msgpack
import zmq

__all__ = ["Echo"]

REQUEST: Final = [1, bytes(16), 7, "ping", []]  # the size of a ping of the product
TIMEOUT_MS: Final = 20_000


class Echo:
    """Its near side: one DEALER. A context manager."""

    def __init__(self, path: str) -> None:
        """path: of a socket that does not exist yet. TimeoutError when the far side is not up."""
        command = [sys.executable, "-m", "evoked.cli.bench_echo", path, str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        self._dealer.connect(f"ipc://{path}")
        self._dealer.send(msgpack.packb(REQUEST))
        if not self._dealer.poll(TIMEOUT_MS):
            self.close()
            raise TimeoutError("the echo process did not answer")
        self._dealer.recv()

    def round_trip(self) -> None:
        self._dealer.send(msgpack.packb(REQUEST))
        msgpack.unpackb(self._dealer.recv())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._context.destroy(linger=0)

    def __enter__(self) -> Echo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _serve(path: str, parent: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(f"ipc://{path}")
    _end_with(parent)
    while True:
        route, frame = router.recv_multipart()
        router.send_multipart((route, msgpack.packb(msgpack.unpackb(frame))))


def _end_with(parent: int) -> None:
    """Without a poller in the loop: a second thread that sleeps until the parent is gone."""
    import threading

    pidfd = os.pidfd_open(parent)

    def wait() -> None:
        select.select([pidfd], [], [])
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
