"""Who a peer is: said by the kernel, over users, groups and pid namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from evoke.client.wire import Code
from evoked import peers
from tests.daemon.conftest import Start

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

PING = """
import sys
from pathlib import Path
from tests.daemon.peer import Peer
try:
    peer = Peer(Path(sys.argv[1]))
    print(peer.call("ping")[0].name)
except OSError as error:
    print(type(error).__name__, error)
"""


def _as(prefix: list[str], directory: Path) -> str:
    """What PING prints when it runs behind the command prefix."""
    command = [*prefix, sys.executable, "-c", PING, str(directory)]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, env=environ, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@needs_root
def test_supplementary_group_opens_the_sockets(start: Start) -> None:
    """A member of the group by supplementary membership is served; another user is not."""
    daemon = start(access__group="nogroup")
    for path in (daemon.directory.parents[1], daemon.directory.parent):
        path.chmod(0o755)
    gid = os.stat(daemon.directory / "session.sock").st_gid
    member = ["setpriv", "--reuid=1234", "--regid=4321", f"--groups={gid}"]
    stranger = ["setpriv", "--reuid=1234", "--regid=4321", "--clear-groups"]
    assert _as(member, daemon.directory) == Code.OK.name
    assert _as(stranger, daemon.directory).startswith("PermissionError")


@needs_root
def test_overflow_uid_is_refused(start: Start) -> None:
    """Whoever the kernel names by the overflow uid is unknown, and not served."""
    daemon = start(access__group="nogroup")
    for path in (daemon.directory.parents[1], daemon.directory.parent):
        path.chmod(0o755)
    uid = peers.overflow_uid()
    unknown = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups"]
    assert "overflow uid" in _as(unknown, daemon.directory)


@needs_root
def test_peer_in_a_child_pid_namespace(start: Start) -> None:
    """A peer in a pid namespace below the daemon's is served as the process that it is here."""
    daemon = start()
    assert _as(["unshare", "--pid", "--fork"], daemon.directory) == Code.OK.name


LISTEN = """
import os, socket, sys
from evoked.peers import identify
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(1)
print("listening", flush=True)
peer = identify(listener.accept()[0])
print(peer.pid, peer.uid == os.geteuid(), peer.pidfd)
"""


@needs_root
def test_peer_of_a_foreign_pid_namespace_lives_by_its_socket(tmp_path: Path) -> None:
    """A daemon inside a pid namespace sees pid 0 of a peer outside: no pidfd, and no refusal."""
    path = str(tmp_path / "s")
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", LISTEN, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(path)
            assert listener.stdout.readline() == "0 True None\n"


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_pid_that_was_reused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SO_PEERPIDFD, a process that started after the connection is not its peer."""
    ours, theirs = _pair()
    with ours, theirs:
        monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
        peer = peers.identify(ours)
        assert peer.pid == os.getpid()
        assert peer.pidfd is not None
        os.close(peer.pidfd)
        monkeypatch.setattr(peers, "_started_s", lambda pid: float("inf"))
        with pytest.raises(peers.PeerRefused, match="not the one that connected"):
            peers.identify(ours)


def test_groups_and_pidfd_of_a_peer() -> None:
    """The kernel's own pidfd and the supplementary groups are taken where it gives them."""
    ours, theirs = _pair()
    with ours, theirs:
        peer = peers.identify(ours)
    assert (peer.uid, peer.gid) == (os.geteuid(), os.getegid())
    assert set(peer.groups) == set(os.getgroups())
    assert peer.pidfd is not None
    assert not os.get_inheritable(peer.pidfd)
    os.close(peer.pidfd)
