"""evoked: start the daemon, or check its configuration."""

from __future__ import annotations

import argparse
import os
import secrets
import sys

from evoke.config import Config, ConfigError, default_socket_dir, load
from evoked import __version__
from evoked.log import configure

__all__ = ["main"]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="evoked", description="The daemon that manages the memory tiers of LLM KV cache."
    )
    parser.add_argument("--config", metavar="FILE", help="configuration (default: built in)")
    parser.add_argument("--socket", metavar="DIR", help="directory of the sockets")
    parser.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="override a setting"
    )
    parser.add_argument("--check-config", action="store_true", help="check, say so, and end")
    parser.add_argument("--parent-fd", type=int, metavar="N", help="pidfd to live by (embedded)")
    parser.add_argument("--ready-fd", type=int, metavar="N", help="fd to write the ready line to")
    parser.add_argument("--version", action="version", version=f"evoked {__version__}")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 after an ordered stop, 1 when it cannot start, 2 for a bad configuration."""
    options = _parse(arguments)
    try:
        config = load(options.config, options.set)
        directory = str(
            default_socket_dir(options.socket or "", configured=config.daemon.socket, writable=True)
        )
    except ConfigError as error:
        print(f"evoked: {error}", file=sys.stderr)
        return 2
    try:
        from evoked.policy_texts import load_configured  # brings numpy along

        policy = load_configured(config.daemon.policy)
    except ConfigError as error:
        print(f"evoked: {error.brief()}", file=sys.stderr)
        return 2
    for sentence in policy.warnings:
        print(f"evoked: {config.daemon.policy}: {sentence}", file=sys.stderr)
    if options.check_config:
        print(
            f"configuration is good; sockets in {directory}, {_describe(config)}, "
            f"policy {policy.priority.formula}"
        )
        return 0
    return _serve(config, directory, options.parent_fd, options.ready_fd)


def _describe(config: Config) -> str:
    return f"host tier {config.host.capacity_bytes / (1 << 30):.2f} GiB"


def _serve(config: Config, directory: str, parent_fd: int | None, ready_fd: int | None) -> int:
    from evoked.daemon import Daemon, StartError  # after the checks: imports take a while

    for fd in (parent_fd, ready_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    boot = secrets.token_bytes(16)
    log = configure(config.daemon.log, boot=boot.hex()[:12])
    daemon = Daemon(config, directory, parent_fd, boot)
    try:
        daemon.start()
    except StartError as error:
        print(f"evoked: {error}", file=sys.stderr)
        return 1
    log.info("ready", directory=directory, boot_id=boot.hex(), host=_describe(config))
    if ready_fd is not None:
        os.write(ready_fd, f"ready {directory}\n".encode())
        os.close(ready_fd)
    daemon.run()
    daemon.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
