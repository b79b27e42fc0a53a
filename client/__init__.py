"""evoke.client: what a model runner imports."""

from evoke.client.client import Client, connect
from evoke.client.errors import (
    BadArgument,
    DaemonError,
    EvokeError,
    Forked,
    LayoutError,
    SlotsInDoubt,
    Unavailable,
    UnsupportedInput,
)
from evoke.client.grants import Pin, Reservation
from evoke.client.keys import Chain
from evoke.client.memory import PoolMemory
from evoke.client.namespace import NO_SALT, Group, Namespace, NoSalt, Part
from evoke.client.pool import Pool
from evoke.client.results import FetchResult, StoreResult
from evoke.client.space import Space
from evoke.client.transfers import Future
from evoke.client.wire import Fetched, Stored

__all__ = [
    "NO_SALT",
    "BadArgument",
    "Chain",
    "Client",
    "DaemonError",
    "EvokeError",
    "FetchResult",
    "Fetched",
    "Forked",
    "Future",
    "Group",
    "LayoutError",
    "Namespace",
    "NoSalt",
    "Part",
    "Pin",
    "Pool",
    "PoolMemory",
    "Reservation",
    "SlotsInDoubt",
    "Space",
    "StoreResult",
    "Stored",
    "Unavailable",
    "UnsupportedInput",
    "connect",
]
