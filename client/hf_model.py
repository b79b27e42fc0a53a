"""What a transformers model's KV cache depends on: its identity, and what we refuse to store.

Everything here is strict: a layer kind, a position scheme or an input that this module does not
know raises UnsupportedInput, because a block served for other conditions would be a wrong answer.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import transformers

from evoke.client.errors import UnsupportedInput
from evoke.client.namespace import DTYPE_BYTES, Group, Namespace, NoSalt, Part
from evoke.core import native

__all__ = [
    "Geometry",
    "cache_argument",
    "check_inputs",
    "check_model",
    "fingerprint",
    "geometry_of",
    "namespace_of",
    "weights_mark",
]

# RoPE variants whose cos and sin depend on the position only. "dynamic" and "longrope" recompute
# the frequencies from the length of the sequence, so that equal tokens get unequal keys.
STATIC_ROPE: Final = ("default", "linear", "llama3", "yarn")

# Fields of a config that change neither weights nor keys and values.
VOLATILE_FIELDS: Final = frozenset(
    "transformers_version _name_or_path architectures dtype torch_dtype use_cache return_dict "
    "output_hidden_states output_attentions id2label label2id problem_type pad_token_id "
    "bos_token_id eos_token_id chunk_size_feed_forward initializer_range _attn_implementation "
    "_commit_hash".split()
)

# Inputs of forward that change neither keys nor values, whatever they hold.
NEUTRAL_INPUTS: Final = frozenset(
    "use_cache return_dict labels logits_to_keep output_attentions output_hidden_states".split()
)
KNOWN_INPUTS: Final = frozenset(("input_ids", "attention_mask", "position_ids", "inputs_embeds"))


@dataclass(frozen=True)
class Geometry:
    """Shape of one token's keys and values."""

    layers: int
    kv_heads: int
    head_size: int
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def cache_argument(model: Any) -> str:
    """Spelling of forward's cache argument: "cache" or, before transformers 5.2x, the older one."""
    parameters = inspect.signature(type(model).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise UnsupportedInput(f"model: {type(model).__name__}.forward takes no cache")


def geometry_of(model: Any) -> Geometry:
    """UnsupportedInput unless every layer keeps plain keys and values for each position."""
    config = model.config.get_text_config(decoder=True)
    layers = config.num_hidden_layers
    for index, layer in enumerate(transformers.DynamicCache(config=config).layers):
        if type(layer).__name__ != "DynamicLayer":
            raise UnsupportedInput(f"model: layer {index} caches as {type(layer).__name__}")
    for field in ("sliding_window", "attention_chunk_size"):
        if (
            getattr(config, field, None) is not None
            and getattr(config, "layer_types", None) is None
        ):
            raise UnsupportedInput(f"model: {field} is {getattr(config, field)}")
    if getattr(config, "num_kv_shared_layers", 0):
        raise UnsupportedInput(f"model: {config.num_kv_shared_layers} layers share keys and values")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Geometry(layers=layers, kv_heads=heads, head_size=size, dtype=model.dtype)


def check_model(model: Any) -> None:
    """UnsupportedInput unless model is a plain-RoPE decoder in evaluation mode on one device."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedInput("model: an encoder-decoder")
    if model.training:
        raise UnsupportedInput("model: in training mode, call model.eval()")
    devices = {str(tensor.device) for _, tensor in _tensors(model)}
    if len(devices) != 1 or "meta" in devices:
        raise UnsupportedInput(f"model: on {sorted(devices)}, one device is supported")
    if str(model.dtype).removeprefix("torch.") not in DTYPE_BYTES:
        raise UnsupportedInput(f"model: dtype {model.dtype}")
    for name, module in model.named_modules():
        if type(module).__module__.partition(".")[0] == "peft" or "lora_" in name:
            raise UnsupportedInput(f"model: adapter {name!r} is active, merge it first")
    _position_scheme(model)
    geometry_of(model)


def check_inputs(
    model: Any, inputs: Mapping[str, Any], extra: Mapping[int, bytes] | None
) -> torch.Tensor:
    """The token ids (1-D, on the CPU) of the inputs of a forward or generate call.

    UnsupportedInput when keys and values would depend on more than these tokens, at positions
    from 0, and `extra`: {token index: bytes} that name any other content, such as image digests.
    """
    if inputs.get("inputs_embeds") is not None:
        raise UnsupportedInput("inputs_embeds: embeddings have no token ids")
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() not in (1, 2):
        raise UnsupportedInput("input_ids: a tensor of token ids is needed")
    if ids.dim() == 2 and ids.shape[0] != 1:
        raise UnsupportedInput(f"input_ids: a batch of {ids.shape[0]}, one sequence is supported")
    ids = ids.detach().reshape(-1).cpu()
    mask = inputs.get("attention_mask")
    if mask is not None and (mask.numel() != ids.numel() or not bool((mask == 1).all())):
        raise UnsupportedInput("attention_mask: masks tokens (padding), all ones is supported")
    positions = inputs.get("position_ids")
    if positions is not None and not torch.equal(
        positions.reshape(-1).cpu(), torch.arange(ids.numel())
    ):
        raise UnsupportedInput("position_ids: not 0, 1, 2, ...")
    for name, value in inputs.items():
        if value is None or name in KNOWN_INPUTS or name in NEUTRAL_INPUTS:
            continue
        if not extra:
            raise UnsupportedInput(f"{name}: content that token ids do not name needs `extra`")
    if torch.is_autocast_enabled(model.device.type):
        raise UnsupportedInput("autocast: is on, the dtype of keys and values would be its own")
    return ids


def namespace_of(
    model: Any, *, salt: str | NoSalt, block_tokens: int = 16, weights_epoch: str = "0"
) -> Namespace:
    """The namespace of this model's KV; reads all weights on first use (see fingerprint)."""
    check_model(model)
    geometry = geometry_of(model)
    group = Group(layers=geometry.layers, kv_heads=geometry.kv_heads, head_size=geometry.head_size)
    return Namespace(
        model=fingerprint(model),
        weights_epoch=weights_epoch,
        position=_position_scheme(model),
        dtype=geometry.dtype_name,
        block_tokens=block_tokens,
        parts=(Part(groups=(group,)),),
        salt=salt,
    )


def _position_scheme(model: Any) -> str:
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    theta = rope.get("rope_theta", getattr(config, "rope_theta", None))
    if theta is None or not any(name.endswith("rotary_emb") for name, _ in model.named_modules()):
        raise UnsupportedInput("model: its positions are not rotary (RoPE)")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in STATIC_ROPE:
        raise UnsupportedInput(f"model: rope_type {kind!r}, known: {', '.join(STATIC_ROPE)}")
    if "mrope_section" in rope:
        raise UnsupportedInput("model: mrope_section, its positions have several axes")
    words = {key: value for key, value in rope.items() if key not in ("rope_type", "type")}
    words["rope_theta"] = theta
    text = json.dumps(words, sort_keys=True, separators=(",", ":"))
    return f"rope:{kind}:{text}"


# ---------------------------------------------------------------- fingerprint


@dataclass
class _Known:
    mark: tuple[object, ...]
    sums: int
    digest: str


_known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def fingerprint(model: Any) -> str:
    """ "sha256:HEX" over the config and over name, dtype, shape and bytes of every tensor.

    Kept per model object and reused while the tensors are the same objects, unwritten as far as
    torch knows, and (on the CPU, where reading them is cheap) have the same XXH3 sum: about a
    tenth of a second per GB; SHA-256 takes about half a second per GB. On an accelerator a write
    that torch does not count (through .data) is not noticed: set `weights_epoch` after such one.
    """
    mark, sums = weights_mark(model), _sums(model)
    with _known_lock:
        known = _known.get(model)
        if known is None or known.mark != mark or known.sums != sums:
            known = _Known(mark, sums, f"sha256:{_digest(model)}")
            _known[model] = known
        return known.digest


def weights_mark(model: Any) -> tuple[object, ...]:
    """Changes when torch knows that a tensor was replaced or written, and with the mode and the
    attention kernel. Takes about two ms for a thousand tensors."""
    kernel = getattr(model.config, "_attn_implementation", None)
    tensors = (
        (name, tensor.data_ptr(), tuple(tensor.shape), tensor.dtype, _version(tensor))
        for name, tensor in _tensors(model)
    )
    return model.training, kernel, *tensors


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers too: RoPE frequencies are one that no state dict lists. Each once.

    named_parameters() would do, but takes ten times as long, and this runs for every prompt.
    """
    seen = set()
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{path}.{name}", tensor


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return np.zeros(0, np.uint8)
    array: np.ndarray[Any, np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return array


def _sums(model: Any) -> int:
    """One number over all bytes of the tensors that lie on the CPU."""
    parts = [native.xxh3_64(_bytes_of(t)) for _, t in _tensors(model) if t.device.type == "cpu"]
    return native.xxh3_64(np.array(parts, np.uint64)) if parts else 0


def _digest(model: Any) -> str:
    config = {k: v for k, v in model.config.to_dict().items() if k not in VOLATILE_FIELDS}
    # Attention kernels differ in rounding, and restored blocks promise bitwise equal results.
    config["attention"] = getattr(model.config, "_attn_implementation", None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in _tensors(model):
        head = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        digest.update(len(head).to_bytes(4, "little") + head)
        digest.update(_bytes_of(tensor).data)
    return digest.hexdigest()
