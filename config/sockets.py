"""Where the sockets are: one directory, found in the same way by the daemon and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evoke.config.errors import ConfigError

__all__ = ["SOCKET_NAMES", "SOCKET_PATH_BYTES_MAX", "default_socket_dir"]

SOCKET_PATH_BYTES_MAX: Final = 107  # sockaddr_un.sun_path less its final zero: unix(7)
SOCKET_NAMES: Final = ("session.sock", "control.sock")
SYSTEM_DIR: Final = Path("/run/evoked")


def default_socket_dir(
    explicit: str = "",
    *,
    configured: str = "",
    writable: bool = False,
    environ: Mapping[str, str] = os.environ,
    system_dir: Path = SYSTEM_DIR,
) -> Path:
    """The absolute directory of session.sock and control.sock; it need not exist.

    The first of: `explicit` (--socket), `configured` (daemon.socket), $EVOKE_SOCKET, `system_dir`
    if it exists (and, for a daemon, which passes writable=True, can be written),
    $XDG_RUNTIME_DIR/evoked, /tmp/evoked-UID. ConfigError when a socket's path would not fit in
    SOCKET_PATH_BYTES_MAX bytes.
    """
    named = {
        "--socket": explicit,
        "daemon.socket": configured,
        "$EVOKE_SOCKET": environ.get("EVOKE_SOCKET", ""),
    }
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    for source, text in named.items():
        if text:
            return _fitting(Path(text), source)
    right = os.W_OK if writable else os.X_OK
    if system_dir.is_dir() and os.access(system_dir, right, effective_ids=True):
        return _fitting(system_dir, str(system_dir))
    if runtime:
        return _fitting(Path(runtime, "evoked"), "$XDG_RUNTIME_DIR")
    return Path(f"/tmp/evoked-{os.getuid()}")


def _fitting(directory: Path, source: str) -> Path:
    absolute = Path(os.path.abspath(directory))
    longest = max(len(os.fsencode(absolute / name)) for name in SOCKET_NAMES)
    if longest > SOCKET_PATH_BYTES_MAX or "\0" in str(absolute):
        reason = f"a socket in {str(absolute)!r} would have a path of {longest} bytes"
        allowed = f"{SOCKET_PATH_BYTES_MAX} bytes"
        raise ConfigError(reason, file=source, allowed=allowed)
    return absolute
