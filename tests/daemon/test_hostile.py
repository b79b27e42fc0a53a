"""Broken and hostile peers: what they send is refused or dropped, and nobody else notices."""

from __future__ import annotations

import os
import pickle
import tempfile

import msgspec
import pytest

from evoke.client import wire
from evoke.client.wire import Code
from tests.daemon.peer import DaemonProcess, eventually, in_child, make_namespace

pack = msgspec.msgpack.encode


def open_sockets() -> int:
    """Of this process."""
    with os.scandir("/proc/self/fd") as entries:
        names = [entry.path for entry in entries]
    return sum(os.path.lexists(name) and os.readlink(name).startswith("socket:") for name in names)


class _Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def _frames(token: bytes) -> dict[str, tuple[bytes, Code]]:
    """Hostile single frames by name, and the code of the answer."""

    def request(verb: object, args: object, version: object = 1, number: object = 7) -> bytes:
        return pack((version, token, number, verb, args))

    deep = b"\x91" * 10_000 + b"\xc0"
    good = request("lookup", (0, bytes(32), 0))
    return {
        "empty": (b"", Code.BAD_FRAME),
        "truncated": (good[:-5], Code.BAD_FRAME),
        "trailing": (good + b"\x00", Code.BAD_FRAME),
        "never used byte": (b"\xc1" * 100, Code.BAD_FRAME),
        "map of 64 Mi pairs": (b"\xdf\x04\x00\x00\x00" + bytes(100), Code.BAD_FRAME),
        "array of 4 Gi": (b"\xdd\xff\xff\xff\xff", Code.BAD_FRAME),
        "bytes of 4 Gi": (b"\x95\x01\xc6\xff\xff\xff\xff", Code.BAD_FRAME),
        "nested": (deep, Code.BAD_FRAME),
        "nested arguments": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa4ping" + deep,
            Code.BAD_FRAME,
        ),
        "map of a request": (pack({"version": 1}), Code.BAD_FRAME),
        "extension": (request("lookup", msgspec.msgpack.Ext(5, b"x")), Code.BAD_ARGUMENT),
        "extension as id": (
            request("ping", (), number=msgspec.msgpack.Ext(5, b"x")),
            Code.BAD_FRAME,
        ),
        "not a text": (request(5, ()), Code.BAD_FRAME),
        "long verb": (request("x" * 33, ()), Code.BAD_FRAME),
        "unknown verb": (request("evict_all", ()), Code.UNKNOWN_VERB),
        "dunder verb": (request("__class__", ()), Code.UNKNOWN_VERB),
        "version": (request("ping", (), version=2), Code.BAD_VERSION),
        "negative version": (request("ping", (), version=-1), Code.BAD_FRAME),
        "id of 2^63": (request("ping", (), number=1 << 63), Code.BAD_FRAME),
        "negative id": (request("ping", (), number=-1), Code.BAD_FRAME),
        "nan as id": (request("ping", (), number=float("nan")), Code.BAD_FRAME),
        "nan": (request("lookup", (float("nan"), b"", 0)), Code.BAD_ARGUMENT),
        "count of 2^63": (request("lookup", (0, b"", 1 << 63)), Code.BAD_ARGUMENT),
        "negative": (request("lookup", (0, b"", -1)), Code.BAD_ARGUMENT),
        "text for bytes": (request("lookup", (0, "k" * 32, 0)), Code.BAD_ARGUMENT),
        "too few": (request("lookup", (0, b"")), Code.BAD_ARGUMENT),
        "too many": (request("lookup", (0, b"", 0, 0)), Code.BAD_ARGUMENT),
        "too many keys": (request("lookup", (0, bytes(32 * 8193), 0)), Code.BAD_ARGUMENT),
        "no such namespace": (request("lookup", (4711, bytes(32), 0)), Code.NOT_FOUND),
        "short token": (pack((1, token[:15], 7, "ping", ())), Code.BAD_FRAME),
        "bad utf-8": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa4\xff\xfe\xfd\xfc\x90",
            Code.BAD_FRAME,
        ),
        "bad utf-8 argument": (
            b"\x95\x01\xc4\x10" + token + b"\x07\xa5hello\x93\xc4\x00\x00\xa2\xff\xfe",
            Code.BAD_ARGUMENT,
        ),
    }


@pytest.mark.parametrize("name", sorted(_frames(bytes(16))))
def test_bad_frame(daemon: DaemonProcess, name: str) -> None:
    """The frame is answered with its error code, and the same session goes on."""
    with daemon.peer() as peer:
        frame, code = _frames(peer.token)[name]
        reply = peer.raw(frame)
        assert reply.code == code, reply.result
        assert len(reply.result) == 2
        assert peer.call("ping")[0] == Code.OK


def test_pickle_is_not_executed(daemon: DaemonProcess) -> None:
    """Pickle bytes are a bad frame, whole or as an argument, and are not loaded."""
    with tempfile.TemporaryDirectory() as directory, daemon.peer() as peer:
        path = os.path.join(directory, "executed")
        data = pickle.dumps(_Touch(path))
        assert peer.raw(data).code == Code.BAD_FRAME
        assert peer.raw(pack((1, peer.token, 7, "lookup", (0, data, 0)))).code != Code.OK
        assert peer.raw(pack((1, peer.token, 7, "register_namespace", (data,)))).code != Code.OK
        assert os.listdir(directory) == []


def test_three_part_message(daemon: DaemonProcess) -> None:
    """A message of several frames, good ones or empty ones, is a bad frame."""
    with daemon.peer() as peer:
        good = wire.encode_request(peer.token, 9, "ping", wire.Empty())
        for frames in ((good, good, good), (b"", good), (good, b"")):
            assert peer.raw(*frames).code == Code.BAD_FRAME
        assert peer.call("ping")[0] == Code.OK


def test_later_verbs(daemon: DaemonProcess) -> None:
    """Each verb of a later version is answered "unsupported"."""
    with daemon.peer() as peer:
        for verb in sorted(wire.LATER_VERBS):
            reply = peer.raw(pack((1, peer.token, 7, verb, ())))
            assert (reply.request, reply.code) == (7, Code.UNSUPPORTED)


def test_verbs_before_hello(daemon: DaemonProcess) -> None:
    """Each verb but hello is refused until hello was said."""
    examples: dict[str, tuple[object, ...]] = {
        "register_namespace": (make_namespace().encoded(),),
        "register_pool": (0, "cpu", 4096, 1, [(0, 4096, [], 4096)], 1),
        "unregister_pool": (1,),
        "prove_pool": (1, 0, 0, 0),
        "store": (0, 1, bytes(32), 0, b"", bytes(4), 1000, 0),
        "reserve": (0, bytes(32), 0, b"", 1000),
        "commit": (1, 1, bytes(4), bytes(4), 1000, 0),
        "abort": (1,),
        "unpin": (1,),
        "fetch": (0, 1, bytes(32), 0, bytes(4), 1000, 0, 0),
        "pin": (0, bytes(32), 0, 1000),
        "touch": (0, bytes(32), 0),
        "lookup": (0, bytes(32), 0),
        "asked": ([],),
        "observe": (0, 0, 0, b"", 1, b"", 1, False, b""),
        "events": (0,),
        "flush": (b"", ""),
        "inject": (0, bytes(32), 0),
        "policy_check": ("", ""),
        "policy_reload": (None, ""),
    }
    empty = {verb for verb, kind in wire.VERBS.items() if not kind.__struct_fields__}
    examples.update(dict.fromkeys(empty, ()))
    assert set(examples) == set(wire.VERBS) - {"hello"}
    with daemon.peer(hello=False) as peer:
        for verb, args in examples.items():
            reply = peer.raw(pack((1, peer.token, 7, verb, args)))
            assert (reply.request, reply.code) == (7, Code.BAD_TOKEN), verb
        peer.ok("hello", b"", 0, "late")
        assert peer.call("hello", b"", 0, "again")[0] == Code.BAD_ARGUMENT


def test_forged_and_foreign_token(daemon: DaemonProcess) -> None:
    """A token that is invented, or is another session's, opens nothing."""
    with daemon.peer() as a, daemon.peer() as b:
        assert a.call("status", token=bytes(16))[0] == Code.BAD_TOKEN
        assert a.call("status", token=b.token)[0] == Code.BAD_TOKEN
        assert a.call("status")[0] == Code.OK


def test_stranger_with_a_token(daemon: DaemonProcess) -> None:
    """A connection without a session's routing id is refused even with that session's token."""
    with daemon.peer() as peer:
        stranger = peer.new_dealer(b"\x01" + os.urandom(16))
        stranger.send(wire.encode_request(peer.token, 1, "status", wire.Empty()))
        assert stranger.poll(5000)
        assert wire.decode_reply(stranger.recv()).code == Code.BAD_TOKEN
        stranger.close(0)


def test_squatted_routing_id(daemon: DaemonProcess) -> None:
    """A second connection with a session's routing id gets nothing, and the first goes on."""
    with daemon.peer() as peer:
        peer.ok("ping")
        squatter = peer.new_dealer(peer.route)
        squatter.send(wire.encode_request(peer.token, 1, "status", wire.Empty()))
        assert not squatter.poll(200)
        assert peer.call("ping")[0] == Code.OK
        squatter.close(0)


def test_token_of_another_process(daemon: DaemonProcess) -> None:
    """A process that says hello with the token and routing id of another one is refused."""
    with daemon.peer(hello=False) as peer:
        connections = open_sockets()
        peer.dealer.close(0)  # by a thread of libzmq: a child forked before would hold it open
        assert eventually(lambda: open_sockets() < connections)

        def steal() -> str:
            for _ in range(20):  # the daemon's ROUTER may not have seen yet that the id is free
                thief = peer.new_dealer(peer.route)
                hello = wire.Hello(b"", 0, "thief")
                thief.send(wire.encode_request(peer.token, 1, "hello", hello))
                if thief.poll(500):
                    return Code(wire.decode_reply(thief.recv()).code).name
                thief.close(0)
            return "no reply"

        assert in_child(steal) == "BAD_TOKEN"
        peer.dealer = peer.new_dealer(peer.route)
        assert peer.call("hello", b"", 0, "owner")[0] == Code.OK
