"""evoke.core: the C++ core. It owns bytes; it never decides."""

from evoke.core import _native as native

__all__ = ["native"]
