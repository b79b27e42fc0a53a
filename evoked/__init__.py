"""evoked: the daemon that owns every byte of KV cache outside the engines of a host."""

__version__ = "0.1.0"
