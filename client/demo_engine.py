"""The engine processes of `evokectl demo`: `python -m evoke.client.demo_engine ROLE ...`.

Each writes JSON lines to standard output: {"event": "progress", ...} any number of times, then
{"event": "result", ...} or {"event": "error", "sentence": ...}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from evoke.client import wire
from evoke.client.convert import DEMO_INSTALL, converted_model
from evoke.client.errors import EvokeError
from evoke.client.hf_staging import AXES

__all__ = ["main"]

NEW_TOKENS: Final = 32
RESTORES: Final = 3  # the median is reported
BLOCK_TOKENS: Final = 16
SALT: Final = "evokectl demo"
STORM_BLOCK_BYTES: Final = 737_280  # of SmolLM2 in float32
STORM_SLOTS: Final = 128


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


# ---------------------------------------------------------------- the model


class Engine:
    """A model, the demo's prompt, and a count of the tokens that the model was fed."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch
        import transformers as hf_module

        from evoke.client.demo_text import ENDING, TEXT

        transformers: Any = hf_module
        # One thread, here and there: sums are then made in one order, whatever the machine.
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.torch = torch
        dtype = getattr(torch, options.dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
        self.model = model.eval()
        self.decode: Callable[[list[int]], str] = tokenizer.decode
        text, ending = tokenizer(TEXT).input_ids, tokenizer(ENDING).input_ids
        wanted = options.tokens - len(ending)
        ids = (text * (wanted // len(text) + 1))[:wanted] + ending
        self.ids = torch.tensor([ids])
        self.prefix_tokens = (len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self.tokens_forwarded = 0
        self.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        self.tokens_forwarded += ids.numel()

    def forward(self, ids: Any, cache: Any) -> Any:
        """Logits of every token of ids; the cache grows by them."""
        from evoke.client.hf_model import cache_argument

        argument = {cache_argument(self.model): cache}
        return self.model(input_ids=ids, use_cache=True, **argument).logits

    def forward_rest(self, cache: Any) -> Any:
        """Logits of the tokens behind the prefix, which the cache holds."""
        return self.forward(self.ids[:, self.prefix_tokens :], cache)

    def finish(self, cache: Any, held: int) -> tuple[Any, list[int]]:
        """Feed the rest of the prompt and go on greedily: (logits of every step, new tokens)."""
        logits = self.forward(self.ids[:, held:], cache)
        seen, tokens = [logits], []
        for _ in range(NEW_TOKENS):
            tokens.append(int(logits[0, -1].argmax()))
            logits = self.forward(self.torch.tensor([tokens[-1:]]), cache)
            seen.append(logits)
        return self.torch.cat(seen, dim=1), tokens

    def prefix(self, client: Any) -> Any:
        from evoke.client.transformers import PrefixCache

        return PrefixCache(self.model, client, salt=SALT, block_tokens=BLOCK_TOKENS)

    def show_layers(self) -> list[Any]:
        """Progress of one forward: an event for each layer. Returns the hooks."""
        layers = self.model.get_submodule("model.layers")

        def hook(number: int) -> Callable[..., None]:
            return lambda *_: emit("progress", done=number + 1, of=len(layers))

        return [layer.register_forward_hook(hook(n)) for n, layer in enumerate(layers)]


def connected(directory: str) -> Any:
    from evoke.client import connect

    return connect(directory, name="evokectl demo")


def write(options: argparse.Namespace) -> dict[str, Any]:
    """First process: the two-chunk run that everything is compared with; its prefix is stored."""
    from transformers import DynamicCache

    engine = Engine(options)
    engine.forward(engine.ids[:, :64], DynamicCache(config=engine.model.config))  # warm-up
    cache = DynamicCache(config=engine.model.config)
    hooks = engine.show_layers()
    start = time.perf_counter()
    engine.forward(engine.ids[:, : engine.prefix_tokens], cache)
    prefill_s = time.perf_counter() - start
    for hook in hooks:
        hook.remove()
    saved, store_s = None, 0.0
    for directory in options.socket:
        with connected(directory) as client:
            prefix = engine.prefix(client)
            start = time.perf_counter()
            saved = prefix.save(engine.ids, cache)
            store_s = store_s or time.perf_counter() - start
            if saved.stored != saved.blocks:
                raise EvokeError(f"stored {saved.stored} of {saved.blocks} blocks")
            block_bytes = prefix.chain(engine.ids)[0].namespace.parts[0].part_bytes
            prefix.close()
    assert saved is not None
    logits, tokens = engine.finish(cache, engine.prefix_tokens)
    engine.torch.save({"logits": logits, "tokens": tokens}, options.reference)
    return {
        "tokens": engine.ids.numel(),
        "prefill_s": prefill_s,
        "store_s": store_s,
        "blocks": saved.blocks,
        "bytes": saved.blocks * block_bytes,
        "text": engine.decode(tokens),
    }


def read(options: argparse.Namespace) -> dict[str, Any]:
    """Second process: restores the prefix, computes only the rest, compares bit by bit."""
    engine = Engine(options)
    with connected(options.socket[0]) as client:
        prefix = engine.prefix(client)
        times_s = []
        for _ in range(RESTORES):  # the first one finds cold memory, as the prefill did not
            start = time.perf_counter()
            restored = prefix.restore(engine.ids)
            times_s.append(time.perf_counter() - start)
        prefix.close()
    reference = engine.torch.load(options.reference, weights_only=True)
    logits, tokens = engine.finish(restored.cache, restored.tokens)
    return {
        "tokens_restored": restored.tokens,
        "tokens_forwarded": engine.tokens_forwarded - NEW_TOKENS,  # of the prompt
        "restore_s": statistics.median(times_s),
        "restores": RESTORES,
        "continuation_identical": tokens == reference["tokens"],
        "logits_bitwise": bool(engine.torch.equal(logits, reference["logits"])),
        "text": engine.decode(tokens),
    }


def control(options: argparse.Namespace) -> dict[str, Any]:
    """A flipped bit must be refused by the first daemon; the second, unchecked, must show it."""
    from evoke.client.demo_flip import strongest_flip

    engine = Engine(options)
    offset = -1
    outcomes, failures = [], []
    for directory in options.socket:
        with connected(directory) as client:
            prefix = engine.prefix(client)
            clean = prefix.restore(engine.ids)
            if offset < 0:
                offset = strongest_flip(
                    clean.cache, BLOCK_TOKENS, engine.model.dtype.itemsize, engine.forward_rest
                )
            _flip_bit(client, prefix, engine.ids, offset)
            before = client.status()["counters"]["integrity_failures"]
            outcomes.append(prefix.restore(engine.ids))
            failures.append(client.status()["counters"]["integrity_failures"] - before)
            prefix.close()
    checked, unchecked = outcomes
    logits, tokens = engine.finish(unchecked.cache, unchecked.tokens)
    reference = engine.torch.load(options.reference, weights_only=True)
    difference = (logits.float() - reference["logits"].float()).abs().max()
    return {
        # The flipped block is the first, without which the others are of no use.
        "refused": clean.tokens == engine.prefix_tokens and checked.tokens == 0,
        "failures_counted": failures,
        "served_unchecked": unchecked.tokens == engine.prefix_tokens,
        "differs": not engine.torch.equal(logits, reference["logits"]),
        "logits_max_difference": float(difference),
        "text": engine.decode(tokens),
    }


def _flip_bit(client: Any, prefix: Any, ids: Any, offset: int) -> None:
    space, chain = prefix.chain(ids)
    answer = client.ask_space(space, "inject", lambda n: wire.Inject(n, chain[0], offset), None)
    if answer.error is not None:
        raise answer.error


# ---------------------------------------------------------------- the engine that dies


def storm(options: argparse.Namespace) -> dict[str, Any]:
    """Stores new blocks without end, with grants held; somebody has to kill this process."""
    import numpy as np

    from evoke.client.namespace import Group, Namespace, Part

    group = Group(layers=30, kv_heads=3, head_size=64)
    namespace = Namespace(
        model="evokectl demo storm",
        weights_epoch="0",
        position="none",
        dtype="float32",
        block_tokens=BLOCK_TOKENS,
        parts=(Part(groups=(group,)),),
        salt=SALT,
    )
    block_bytes = namespace.parts[0].part_bytes
    with connected(options.socket[0]) as client:
        space = client.namespace(namespace)
        memory = client.pool_memory(STORM_SLOTS * block_bytes)
        shape = (STORM_SLOTS, group.layers, 2, BLOCK_TOKENS, group.kv_heads, group.head_size)
        view = memory.array(shape, np.float32)
        view[:] = np.arange(BLOCK_TOKENS).reshape(BLOCK_TOKENS, 1, 1)
        pool = space.register_pool(memory, view, AXES)
        slots = np.arange(STORM_SLOTS)
        grants = []
        for turn in range(1 << 30):
            chain = space.keys(np.arange(turn, turn + STORM_SLOTS * BLOCK_TOKENS) % 50_000)
            stored = space.store(pool, chain, slots, timeout_s=10).stored
            if turn < 4:
                ahead = space.keys(np.arange(turn, turn + STORM_SLOTS * BLOCK_TOKENS) + 50_000)
                grants.append((space.reserve(ahead, hold_s=600), space.pin(chain, hold_s=600)))
            emit("progress", done=turn, of=0, stored=stored)
    raise AssertionError("unreachable")


ROLES: Final[dict[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "write": write,
    "read": read,
    "control": control,
    "storm": storm,
}


def convert(options: argparse.Namespace) -> dict[str, Any]:
    """Where the model is, unpacked if it was not yet."""
    return {"folder": str(converted_model(options.dtype))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evoke.client.demo_engine")
    parser.add_argument("role", choices=["convert", *ROLES])
    parser.add_argument("--socket", action="append", default=[], metavar="DIR")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--reference", type=Path)
    options = parser.parse_args()
    try:
        role = convert if options.role == "convert" else ROLES[options.role]
        emit("result", **role(options))
    except EvokeError as error:
        emit("error", sentence=str(error))
        return 1
    except ModuleNotFoundError as error:
        emit("error", sentence=f"{error.name} is not installed; run: {DEMO_INSTALL}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
