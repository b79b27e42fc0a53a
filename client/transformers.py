"""Save and restore the KV cache of a transformers decoder, block by block.

    with cached(model, client):
        model.generate(input_ids, max_new_tokens=64)

restores the longest stored prefix of the prompt before the call and stores what is new after it.
PrefixCache is the same in two verbs for callers with their own forward loop. Supported: one
sequence at a time of a plain-RoPE decoder, DynamicCache and StaticCache, on any one device (what
is not on the CPU is copied through CPU memory). Everything else is refused: PrefixCache raises
UnsupportedInput, a model within cached() runs uncached and warns once.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
import transformers

from evoke.client.errors import BadArgument, EvokeError, UnsupportedInput
from evoke.client.hf_model import cache_argument, namespace_of
from evoke.client.hf_prefix import POOL_BYTES, PrefixCache, Restored, Saved
from evoke.client.namespace import NoSalt

__all__ = ["PrefixCache", "Restored", "Saved", "cached", "namespace_of"]

# Settings of generate under which its cache is not one growing sequence of ours, with the values
# that are harmless.
SETTINGS: Final[dict[str, tuple[Any, ...]]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1),
    "use_cache": (None, True),
    "cache_implementation": (None,),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "is_assistant": (None, False),
    "use_mtp": (None, False),
    "prefill_chunk_size": (None,),
    "token_healing": (None, False),
    "guidance_scale": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
}
PASSED_ON: Final = frozenset(
    "input_ids attention_mask position_ids logits_processor stopping_criteria streamer tokenizer "
    "prefix_allowed_tokens_fn".split()
)

_patched: set[int] = set()
_patched_lock = threading.Lock()


@contextmanager
def cached(
    model: Any,
    client: Any,
    *,
    salt: str | NoSalt | None = None,
    block_tokens: int = 16,
    pool_bytes: int = POOL_BYTES,
) -> Iterator[PrefixCache]:
    """Within it, model.generate restores stored prefixes and stores new blocks.

    salt: the tenant; without one it is this user's ("uid:N"), so that nothing is shared between
    users unless NO_SALT or a common salt is said. Any thread may call generate; a second cached()
    on the same model is refused (BadArgument). Calls that can't be cached run as they would
    without, and the first of each reason warns; so do failures of the daemon. UnsupportedInput for
    a model of which no call could be cached.
    """
    with _patched_lock:
        if id(model) in _patched:
            raise BadArgument("model: is within another cached() already")
        _patched.add(id(model))
    try:
        prefix = PrefixCache(
            model,
            client,
            salt=f"uid:{os.getuid()}" if salt is None else salt,
            block_tokens=block_tokens,
            pool_bytes=pool_bytes,
        )
        own = model.__dict__.get("generate")  # somebody else's wrapper, put back at the end
        wrapper = _Generate(model.generate, prefix)
        model.generate = wrapper
        try:
            yield prefix
        finally:
            wrapper.active = False
            if own is None:
                del model.generate
            else:
                model.generate = own
            prefix.close()
    finally:
        with _patched_lock:
            _patched.discard(id(model))


class _Generate:
    """Stands for model.generate."""

    def __init__(self, original: Any, prefix: PrefixCache) -> None:
        self.active = True
        self._original = original
        self._prefix = prefix
        self._argument = cache_argument(prefix.model)
        self._warned: set[str] = set()
        self.__doc__ = original.__doc__

    def __call__(
        self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        restored = None
        if self.active:
            try:
                named = _prompt(self._prefix.model, inputs, generation_config, args, kwargs)
                restored = self._prefix.restore(named)
            except EvokeError as error:
                self._warn(f"generate runs uncached: {error}")
        if restored is None:
            return self._original(inputs, generation_config, *args, **kwargs)
        kwargs[self._argument] = restored.cache
        result = self._original(inputs, generation_config, **kwargs)
        sequences = result if isinstance(result, torch.Tensor) else result.sequences
        try:
            if self.active:  # else another thread has left cached() meanwhile
                self._prefix.save(sequences, restored.cache, restored=restored)
        except EvokeError as error:
            self._warn(f"generated blocks were not stored: {error}")
        return result

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            warnings.warn(sentence, RuntimeWarning, stacklevel=3)


def _prompt(
    model: Any, inputs: Any, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs that make the prompt; UnsupportedInput when this call can't be cached."""
    if args:
        raise UnsupportedInput("generate: positional arguments behind generation_config")
    sources = [source for source in (config, model.generation_config) if source is not None]
    for name, allowed in SETTINGS.items():
        values = [kwargs[name]] if name in kwargs else [getattr(s, name, None) for s in sources]
        for value in values:
            if value not in allowed:
                raise UnsupportedInput(f"generate: {name} is {value!r}")
    hf: Any = transformers
    settings = hf.GenerationConfig().to_dict()
    for name, value in kwargs.items():
        if value is not None and name not in PASSED_ON and name not in settings:
            if not (name == "synced_gpus" and not value):
                raise UnsupportedInput(f"generate: {name} is not understood")
    named = {n: kwargs.get(n) for n in ("input_ids", "attention_mask", "position_ids")}
    if inputs is not None:
        named["input_ids"] = inputs
    ids = named["input_ids"]
    if named["attention_mask"] is None and isinstance(ids, torch.Tensor):
        pad = _setting("pad_token_id", kwargs, sources)
        eos = _setting("eos_token_id", kwargs, sources)
        # generate guesses a mask from padding tokens, unless these also end sequences
        if pad is not None and pad not in (eos if isinstance(eos, list) else [eos]):
            if bool((ids == pad).any()):
                raise UnsupportedInput(f"input_ids: has the padding token {pad} and no mask")
    return named


def _setting(name: str, kwargs: Mapping[str, Any], sources: list[Any]) -> Any:
    values = [kwargs.get(name)] + [getattr(source, name, None) for source in sources]
    return next((value for value in values if value is not None), None)
