"""One session with the daemon, shared by threads without a thread of its own.

Whoever waits does the receiving: one thread leads, polls DEALER, liveness socket and a wake-up
descriptor, and hands other threads' replies to them; when it leaves, the next one leads.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from pathlib import Path
from typing import Any, Final

import zmq

from evoke.client import wire
from evoke.client.errors import Unavailable
from evoke.client.pending import FenceWords, Pending
from evoke.client.sockets import open_control, open_liveness, read_packet, send_memory
from evoke.core import native

__all__ = ["Connection"]

_READABLE: Final = int(zmq.POLLIN)
_UNANSWERED_MAX: Final = 8  # given-up transfers without a reply that end the session


class Connection:
    """Open until `ended`; then every answer is lost and nothing can be sent."""

    def __init__(
        self, directory: Path, context: zmq.Context[zmq.Socket[bytes]], hello: wire.Hello,
        deadline: float,
    ) -> None:  # fmt: skip
        """Handshake by the deadline (time.monotonic). Unavailable or DaemonError says why not."""
        self._liveness, self._welcome = open_liveness(directory, deadline)
        try:
            self._dealer = open_control(context, directory, self._welcome.route)
        except BaseException:
            self._liveness.close()
            raise
        self.boot = self._welcome.boot
        self.handles: dict[Any, Any] = {}  # what is registered in this session, by its object
        self.ended, self.end_reason = False, ""
        self._table = self._welcome.table
        self._lock = threading.Lock()
        self._leader: Pending | None = None
        self._followers: set[Pending] = set()
        self._outstanding: dict[int, Pending] = {}
        self._last_request = self._memories = 0
        self._words = FenceWords(self._welcome)
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._liveness_fd = self._liveness.fileno()
        self._poller = select.poll()
        for fd in (self._liveness_fd, self._wake, int(self._dealer.getsockopt(zmq.FD))):
            self._poller.register(fd, select.POLLIN)
        try:
            self.join_token = self._hello(hello, deadline)
        except BaseException:
            self.end("no hello")
            raise

    def _hello(self, hello: wire.Hello, deadline: float) -> bytes:
        match self.call("hello", hello, deadline):
            case [bytes(join_token), int()]:
                return join_token
            case other:
                raise Unavailable(f"no answer to hello but {other!r:.80}")

    # ------------------------------------------------------------ requests

    def call(self, verb: str, args: wire.Args, deadline: float) -> Any:
        """Result of one request. DaemonError or Unavailable."""
        pending = self.send(verb, args)
        if not self.wait(pending, deadline):
            with self._lock:
                self._outstanding.pop(pending.request, None)
        error = pending.error()
        if error is not None:
            raise error
        return pending.result

    def send(self, verb: str, args: wire.Args, word: int = -1) -> Pending:
        """Send a request; its answer is there after wait(). `word`: the fence word it names."""
        pending = Pending(word)
        with self._lock:
            self._last_request += 1
            pending.request = self._last_request
            self._outstanding[pending.request] = pending
            frame = wire.encode_request(self._welcome.token, pending.request, verb, args)
            if not self._send_frame(frame) and not pending.done:
                del self._outstanding[pending.request]
                pending.word, pending.lost = -1, True
                self._complete(pending)
                if word >= 0:
                    self._release(word)
        return pending

    def send_unanswered(self, verb: str, args: wire.Args) -> bool:
        """Send with request id 0; False when it was not taken."""
        with self._lock:
            return self._send_frame(wire.encode_request(self._welcome.token, 0, verb, args))

    def send_memory(self, fd: int) -> int:
        """Pass a pool's memfd; the number that names it in register_pool. Unavailable."""
        with self._lock:
            self._memories += 1
            send_memory(self._liveness, self._memories, fd)
            return self._memories

    def wait(self, pending: Pending, deadline: float) -> bool:
        """True when the answer is there (or lost) by the deadline (time.monotonic)."""
        leads = False
        try:
            while not pending.done:
                with self._lock:
                    self._receive(pending)
                    remaining = deadline - time.monotonic()
                    if pending.done or remaining <= 0:
                        break
                    if self._leader is None:
                        self._leader, leads = pending, True
                    elif not leads:
                        self._follow(pending)
                if leads:
                    self._poll(remaining)
                elif pending.event is not None:
                    pending.event.wait(remaining)
        finally:
            if leads or pending.event is not None:
                self._leave(pending, leads)
        return pending.done

    def poll(self) -> None:
        """Take what has arrived, without waiting."""
        with self._lock:
            self._receive(None)
        self.table()

    # ------------------------------------------------------------ fence words

    def take_word(self, deadline: float) -> int:
        """An armed fence word, given back by the answer to its request; -1 when none is free by
        the deadline, or the session ended."""
        waiter = Pending()
        with self._lock:
            if self.ended:
                return -1
            self._words.take(waiter)
        if not self.wait(waiter, deadline):
            with self._lock:
                if not waiter.done:
                    self._words.forget(waiter)
        if not waiter.done or waiter.lost:
            return -1
        word = int(waiter.result)
        try:
            self._welcome.fences.arm(word)
        except ValueError:  # a copy that its answer said was over
            self.end(f"fence word {word} is busy after its answer")
            return -1
        return word

    def give_up(self, pending: Pending) -> bool:
        """Stop the copies of a request that was not answered. True when its slots are safe;
        bounded by about a second. Its word is free again when the answer comes."""
        with self._lock:
            word, pending.word = pending.word, -1  # an answer in between does not free it
        if word < 0 or (pending.done and not pending.lost):
            return True
        stopped = not self.ended and self._words.stop(word)
        with self._lock:
            if pending.done:
                self._release(word)
            else:
                pending.word = word
                if self._words.give_up(word) >= _UNANSWERED_MAX:
                    self._end(f"{_UNANSWERED_MAX} requests without an answer")
        return stopped or (self.table() is None and self._words.stop_after_end(word))

    def stop_all(self) -> bool:
        """give_up() for every request that is not answered."""
        with self._lock:
            pendings = [p for p in self._outstanding.values() if p.word >= 0]
        return all([self.give_up(pending) for pending in pendings])

    # ------------------------------------------------------------ liveness

    def table(self) -> native.TableView | None:
        """The look-up table as of now; None when the session is over. No round trip."""
        if self.ended:
            return None
        poll = select.poll()
        poll.register(self._liveness_fd, select.POLLIN)
        if poll.poll(0):
            with self._lock:
                self._read_liveness()
        return None if self.ended else self._table

    def end(self, reason: str) -> None:
        """End the session: the daemon sees the socket close, waiting threads lose their answers."""
        with self._lock:
            self._end(reason)

    def drop_in_child(self) -> None:
        """Close the copy of the liveness socket that a forked child got. The session goes on."""
        self._liveness.close()

    # ------------------------------------------------------------ with self._lock held

    def _send_frame(self, frame: bytes) -> bool:
        if self.ended:
            return False
        try:
            self._dealer.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if not isinstance(error, zmq.Again):
                self._end(f"control socket: {error}")
            return False
        if self._leader is not None:
            # The send may have swallowed the wake-up that the leader's poll waits for.
            self._receive(None)
        return True

    def _receive(self, wanted: Pending | None) -> None:
        # Everything, so that the descriptor's edge is not lost; less only if nobody polls.
        alone = self._leader is None or self._leader is wanted
        try:
            # EVENTS first: an exception of libzmq's costs more than a whole receive.
            while not self.ended and int(self._dealer.getsockopt(zmq.EVENTS)) & _READABLE:
                self._take_reply(self._dealer.recv(zmq.NOBLOCK), wanted)
                if alone and wanted is not None and wanted.done:
                    return
        except zmq.ZMQError as error:
            if not isinstance(error, zmq.Again):
                self._end(f"control socket: {error}")

    def _take_reply(self, frame: bytes, wanted: Pending | None) -> None:
        try:
            reply = wire.decode_reply(frame)
        except ValueError as error:
            self._end(f"a reply that is none: {error}")
            return
        if reply.boot != self.boot:
            self._end("the daemon restarted")
            return
        if reply.code == wire.Code.BAD_TOKEN:
            self._end("the daemon no longer knows the session")
            return
        pending = self._outstanding.pop(reply.request, None)
        if pending is not None:
            pending.code, pending.result = reply.code, reply.result
            pending.done = True
            if pending is not wanted:  # else its thread is this one
                self._complete(pending)
            if pending.word >= 0:
                self._release(pending.word)

    def _release(self, word: int) -> None:
        waiter = self._words.release(word)
        if waiter is not None:
            self._complete(waiter)

    def _complete(self, pending: Pending) -> None:
        pending.done = True
        if pending.event is not None:
            pending.event.set()
        if pending is self._leader:
            os.eventfd_write(self._wake, 1)

    def _follow(self, pending: Pending) -> None:
        if pending.event is None:
            pending.event = threading.Event()
        pending.event.clear()
        self._followers.add(pending)

    def _read_liveness(self) -> None:
        while not self.ended:
            try:
                packet, fds = read_packet(self._liveness)
            except BlockingIOError:
                return
            except (OSError, Unavailable) as error:
                self._end(str(error))
                return
            try:
                if packet[:1] == ["table"] and len(fds) == 1:
                    self._table = native.TableView(fds[0])
            except ValueError as error:
                self._end(f"a table that is none: {error}")
            finally:
                for fd in fds:
                    os.close(fd)

    def _end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended, self.end_reason = True, reason
        for pending in (*self._outstanding.values(), *self._words.take_waiters()):
            pending.lost = True
            self._complete(pending)
        self._followers.clear()
        if self._leader is not None:
            os.eventfd_write(self._wake, 1)
        self._liveness.close()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.ended and self._leader is None and not self._closed:
            self._closed = True
            self._dealer.close(0)
            os.close(self._wake)

    # ------------------------------------------------------------ without the lock

    def _poll(self, remaining_s: float) -> None:
        for fd, _ in self._poller.poll(math.ceil(remaining_s * 1e3)):
            if fd == self._wake:
                os.eventfd_read(self._wake)
            elif fd == self._liveness_fd:
                with self._lock:
                    self._read_liveness()

    def _leave(self, pending: Pending, leads: bool) -> None:
        with self._lock:
            self._followers.discard(pending)
            if leads:
                self._leader = None
                self._close_if_unused()
            if self._leader is None and self._followers:
                follower = next(iter(self._followers))
                if follower.event is not None:
                    follower.event.set()
