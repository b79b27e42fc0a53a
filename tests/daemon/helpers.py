"""Small things that all tests of the daemon use."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from evoke.client.namespace import NO_SALT, Group, Namespace, Part
from evoke.core import native

__all__ = ["BLOCK", "chain", "eventually", "in_child", "make_namespace"]

BLOCK = 4096  # bytes of the smallest block of make_namespace
_numbers = iter(range(1, 1 << 30))


def eventually(check: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether check became true in time."""
    end_s = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def make_namespace(model: str = "", *, blocks_4k: int = 1, **fields: Any) -> Namespace:
    """A namespace of blocks of blocks_4k x 4 KiB for each part; the model is new by default."""
    group = Group(layers=blocks_4k, kv_heads=1, head_size=32)
    values: dict[str, Any] = {
        "model": model or f"model-{next(_numbers)}",
        "weights_epoch": "epoch-1",
        "position": "rope:theta=10000",
        "dtype": "float32",
        "block_tokens": 16,
        "parts": (Part(groups=(group,)),),
        "salt": NO_SALT,
    }
    return Namespace(**{**values, **fields})


def chain(namespace: Namespace, count: int, seed: int = 0) -> bytes:
    """Keys of the first `count` blocks of a random prompt."""
    tokens = np.random.default_rng(seed).integers(0, 1 << 20, count * namespace.block_tokens)
    zeros = bytes(32)
    return native.chain_keys(
        namespace.id, tokens.astype(np.uint32), namespace.block_tokens, zeros, []
    )


def in_child(task: Callable[[], str], *, uid: int = -1, gid: int = -1) -> str:
    """What task returns, or the text of its exception, in a forked process of that user."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if child == 0:
        text = "ended"
        try:
            if uid >= 0:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            text = task()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode()[:4000])
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as file:
        return file.read().decode()
