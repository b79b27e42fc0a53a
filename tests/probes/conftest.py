"""The daemon of these tests: that of tests/daemon."""

from tests.daemon.conftest import start

__all__ = ["start"]
