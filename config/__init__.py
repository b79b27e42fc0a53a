"""evoke.config: the daemon's configuration; reads files, never the network, and decides nothing."""

from evoke.config.errors import ConfigError
from evoke.config.loader import load
from evoke.config.quotas import Quota
from evoke.config.schema import Access, Config, Daemon, Debug, Host, Limits, Tenants
from evoke.config.sockets import default_socket_dir

__all__ = [
    "Access",
    "Config",
    "ConfigError",
    "Daemon",
    "Debug",
    "Host",
    "Limits",
    "Quota",
    "Tenants",
    "default_socket_dir",
    "load",
]
