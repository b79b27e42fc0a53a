"""evoke.config: the daemon's configuration; reads files, never the network, and decides nothing."""

from evoke.config.errors import ConfigError
from evoke.config.loader import load
from evoke.config.policy_loader import PRESETS, load_policy
from evoke.config.policy_schema import PolicyConfig
from evoke.config.quotas import Quota
from evoke.config.schema import Access, Config, Daemon, Debug, Host, Limits, Tenants
from evoke.config.sockets import default_socket_dir

__all__ = [
    "PRESETS",
    "Access",
    "Config",
    "ConfigError",
    "Daemon",
    "Debug",
    "Host",
    "Limits",
    "PolicyConfig",
    "Quota",
    "Tenants",
    "default_socket_dir",
    "load",
    "load_policy",
]
