"""evoke.core: the C++ core. It owns bytes; it never decides."""

from evoke.core import _native as native
from evoke.core import _scores as scores
from evoke.core import _signals as signals
from evoke.core import _spill as spill

__all__ = ["native", "scores", "signals", "spill"]
