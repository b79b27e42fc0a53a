"""PrefixCache and cached() on a tiny decoder with random weights, against a real daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from evoke.client import Client, connect
from evoke.client.errors import BadArgument, UnsupportedInput
from evoke.client.hf_model import cache_argument, fingerprint, namespace_of
from evoke.client.namespace import NO_SALT
from evoke.client.transformers import PrefixCache, cached
from evoked.cli.demo_run import Daemon

Model = Any  # transformers is not typed
BLOCK = 16
BLOCK_BYTES = 3 * 2 * 2 * 16 * BLOCK * 4  # layers, k/v, heads, elements, tokens, float32


def evaluated(model: Model) -> Model:
    return model.eval()


def make_model(seed: int = 0, **changes: Any) -> Model:
    torch.manual_seed(seed)
    fields: dict[str, Any] = dict(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        intermediate_size=96,
        vocab_size=199,
        pad_token_id=None,
        eos_token_id=None,
    )
    config = transformers.LlamaConfig(**{**fields, **changes})
    return evaluated(transformers.LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    settings = {"host.capacity": "64MiB"}
    with connect("embedded", config=settings, raise_errors=True, timeout_s=30) as client:
        yield client


@pytest.fixture(autouse=True)
def _one_thread_without_gradients() -> Iterator[None]:
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def make_ids(count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 199, (1, count), generator=generator)


def forward(model: Model, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    logits: torch.Tensor = model(
        input_ids=ids, use_cache=True, **{cache_argument(model): cache}
    ).logits
    return logits


def dynamic(model: Model) -> Any:
    return transformers.DynamicCache(config=model.config)


def static(model: Model, tokens: int = 256) -> Any:
    return transformers.StaticCache(config=model.config, max_cache_len=tokens)


def test_dynamic_cache_continues_bitwise(client: Client) -> None:
    """From a restored DynamicCache the logits are bitwise those of the run that was stored."""
    model, ids = make_model(1), make_ids(100)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids[:, :96], live)
    saved = prefix.save(ids, live)
    assert (saved.blocks, saved.stored) == (6, 6)
    restored = PrefixCache(model, client, salt=NO_SALT).restore(ids)
    assert restored.tokens == 96
    for ours, theirs in zip(restored.cache.layers, live.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
    ours, theirs = (forward(model, ids[:, 96:], c) for c in (restored.cache, live))
    assert torch.equal(ours, theirs)


def test_static_cache_is_written_in_place(client: Client) -> None:
    """A StaticCache keeps its tensors, gets the stored bytes, and continues bitwise."""
    model, ids = make_model(2), make_ids(70)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = static(model)
    forward(model, ids[:, :64], live)
    assert prefix.save(ids, live).stored == 4
    mine = static(model)
    mine.early_initialization(1, 2, 16, torch.float32, torch.device("cpu"))
    addresses = [layer.keys.data_ptr() for layer in mine.layers]
    assert prefix.restore(ids, mine).tokens == 64
    assert [layer.keys.data_ptr() for layer in mine.layers] == addresses
    assert torch.equal(forward(model, ids[:, 64:], mine), forward(model, ids[:, 64:], live))


def test_blocks_of_one_cache_kind_fit_the_other(client: Client) -> None:
    """What a StaticCache stored restores into a DynamicCache, byte for byte."""
    model, ids = make_model(3), make_ids(50)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = static(model)
    forward(model, ids[:, :48], live)
    prefix.save(ids, live)
    restored = prefix.restore(ids)
    assert restored.tokens == 48
    for ours, theirs in zip(restored.cache.layers, live.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys[:, :, :48])
        assert torch.equal(ours.values, theirs.values[:, :, :48])


def test_one_token_is_left_to_compute(client: Client) -> None:
    """Of a prompt of whole blocks that are all stored, the last block is not restored."""
    model, ids = make_model(4), make_ids(64)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids, live)
    assert prefix.save(ids, live).stored == 4
    assert prefix.restore(ids).tokens == 48
    assert prefix.restore(ids[:, :16]).tokens == 0


def test_prompts_longer_than_the_pool(client: Client) -> None:
    """A pool of two blocks moves a prompt of seven in rounds, without a difference."""
    model, ids = make_model(5), make_ids(115)
    prefix = PrefixCache(model, client, salt=NO_SALT, pool_bytes=2 * BLOCK_BYTES + 5)
    live = dynamic(model)
    forward(model, ids[:, :112], live)
    assert prefix.save(ids, live).stored == 7
    restored = prefix.restore(ids)
    assert restored.tokens == 112
    assert torch.equal(restored.cache.layers[2].values, live.layers[2].values)


def test_only_new_blocks_are_stored(client: Client) -> None:
    """Blocks that were there before, or came from restore(), are counted as present."""
    model, ids = make_model(6), make_ids(96)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids[:, :32], live)
    assert prefix.save(ids, live).stored == 2
    forward(model, ids[:, 32:], live)
    again = prefix.save(ids, live)
    assert (again.blocks, again.stored, again.present, again.refused) == (6, 4, 2, 0)
    restored = prefix.restore(ids[:, :90])
    forward(model, torch.cat([ids[:, 80:], make_ids(20)], dim=1), restored.cache)
    longer = torch.cat([ids, make_ids(20)], dim=1)
    more = prefix.save(longer, restored.cache, restored=restored)
    assert (more.blocks, more.stored, more.present, more.refused) == (7, 1, 6, 0)


def test_a_cache_of_two_models_is_not_stored(client: Client) -> None:
    """When a weight changes between restore() and save(), nothing is stored under either."""
    model, ids = make_model(14), make_ids(40)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    restored = prefix.restore(ids)
    forward(model, ids, restored.cache)
    model.model.norm.weight[0] += 1
    with pytest.raises(UnsupportedInput, match="changed"):
        prefix.save(ids, restored.cache, restored=restored)
    assert prefix.restore(ids).tokens == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(client: Client, dtype: torch.dtype) -> None:
    """Two-byte types restore bitwise as well."""
    model, ids = make_model(7).to(dtype), make_ids(40)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids[:, :32], live)
    prefix.save(ids, live)
    restored = prefix.restore(ids)
    assert torch.equal(restored.cache.layers[1].keys, live.layers[1].keys)


def test_changed_weights_are_another_model(client: Client) -> None:
    """After any write to a weight, counted by torch or not, nothing that was stored is served."""
    model, ids = make_model(8), make_ids(40)
    before = fingerprint(model)
    live = dynamic(model)
    forward(model, ids, live)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    prefix.save(ids, live)
    assert prefix.restore(ids).tokens == 32
    model.model.layers[2].mlp.up_proj.weight[3, 5] += 1
    assert fingerprint(model) != before
    assert prefix.restore(ids).tokens == 0
    uncounted = fingerprint(model)
    model.model.norm.weight.data[0] += 1
    assert fingerprint(model) != uncounted
    assert PrefixCache(model, client, salt=NO_SALT).restore(ids).tokens == 0


def test_identity_of_a_model() -> None:
    """Equal weights and configs have one fingerprint; names and counters of no effect do not
    matter; rotary parameters, salt and dtype each make another namespace."""
    model = make_model(9)
    same = make_model(9, use_cache=False)
    same.config._name_or_path = "elsewhere"
    assert fingerprint(model) == fingerprint(same)
    assert fingerprint(model) != fingerprint(make_model(9, rms_norm_eps=1e-5))
    plain = namespace_of(model, salt=NO_SALT)
    stretched = make_model(9, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    others = [
        namespace_of(stretched, salt=NO_SALT),
        namespace_of(model, salt="tenant"),
        namespace_of(make_model(9).to(torch.bfloat16), salt=NO_SALT),
        namespace_of(model, salt=NO_SALT, weights_epoch="1"),
        namespace_of(model, salt=NO_SALT, block_tokens=32),
    ]
    assert stretched.config.rope_parameters["rope_theta"] == 5e5
    assert len({plain.id, *(other.id for other in others)}) == 6


def test_salts_do_not_see_each_other(client: Client) -> None:
    """A prompt that one tenant stored is a miss for another."""
    model, ids = make_model(10), make_ids(40)
    live = dynamic(model)
    forward(model, ids, live)
    PrefixCache(model, client, salt="one").save(ids, live)
    assert PrefixCache(model, client, salt="two").restore(ids).tokens == 0
    assert PrefixCache(model, client, salt="one").restore(ids).tokens == 32


def sliding(layers: int = 2) -> Model:
    config = transformers.MistralConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=layers,
        intermediate_size=96,
        vocab_size=199,
        sliding_window=32,
    )
    return evaluated(transformers.MistralForCausalLM(config))


def stretching(kind: str, **more: Any) -> Model:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **more}
    return make_model(rope_parameters=rope)


def absolute() -> Model:
    config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=2, vocab_size=199)
    return evaluated(transformers.GPT2LMHeadModel(config))


def adapted() -> Model:
    model = make_model()
    model.model.layers[0].self_attn.q_proj.lora_A = torch.nn.Linear(64, 4)
    return model


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (sliding, "SlidingWindow"),
        (lambda: stretching("dynamic"), "dynamic"),
        (
            lambda: stretching(
                "longrope",
                short_factor=[1.0] * 8,
                long_factor=[2.0] * 8,
                original_max_position_embeddings=1024,
            ),
            "longrope",
        ),
        (absolute, "RoPE"),
        (adapted, "adapter"),
        (lambda: make_model().train(), "training"),
        (lambda: make_model().to(torch.float64), "float64"),
        (lambda: make_model().to("meta"), "meta"),
    ],
)
def test_models_that_are_refused(client: Client, make: Any, word: str) -> None:
    """A model whose keys do not follow from tokens and plain positions is refused with a reason."""
    with pytest.raises(UnsupportedInput, match=word):
        PrefixCache(make(), client, salt=NO_SALT)


def test_inputs_that_are_refused(client: Client) -> None:
    """Embeddings, batches, padding, other positions and content without `extra` are refused."""
    model, ids = make_model(11), make_ids(40)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    ones = torch.ones_like(ids)
    padded = ones.clone()
    padded[0, 0] = 0
    for inputs, word in (
        ({"inputs_embeds": torch.zeros(1, 40, 64)}, "inputs_embeds"),
        ({"input_ids": ids.repeat(2, 1)}, "batch of 2"),
        ({"input_ids": ids, "attention_mask": padded}, "attention_mask"),
        ({"input_ids": ids, "attention_mask": ones[:, :20]}, "attention_mask"),
        ({"input_ids": ids, "position_ids": torch.arange(5, 45)[None]}, "position_ids"),
        ({"input_ids": ids, "pixel_values": torch.zeros(1, 3, 8, 8)}, "pixel_values"),
    ):
        with pytest.raises(UnsupportedInput, match=word):
            prefix.restore(inputs)
    plain = {"input_ids": ids, "attention_mask": ones, "position_ids": torch.arange(40)[None]}
    assert prefix.restore(plain).tokens == 0
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsupportedInput, match="auto"):
        prefix.restore(ids)


def test_extra_names_other_content(client: Client) -> None:
    """With `extra`, equal tokens are equal prompts only if the extra bytes are."""
    model, ids = make_model(12), make_ids(40)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids, live)
    inputs = {"input_ids": ids, "pixel_values": torch.zeros(1, 3, 8, 8)}
    assert prefix.save(inputs, live, extra={20: b"image 1"}).stored == 2
    assert prefix.restore(inputs, extra={20: b"image 1"}).tokens == 32
    assert prefix.restore(inputs, extra={20: b"image 2"}).tokens == 16
    assert prefix.restore(ids).tokens == 16  # the first block names no image


def test_caches_that_are_refused(client: Client) -> None:
    """A cache of another layer kind, with tokens already, or with more than named is refused."""
    model, ids = make_model(13), make_ids(40)
    prefix = PrefixCache(model, client, salt=NO_SALT)
    live = dynamic(model)
    forward(model, ids, live)
    with pytest.raises(UnsupportedInput, match="holds tokens"):
        prefix.restore(ids, live)
    with pytest.raises(UnsupportedInput, match="holds 40 tokens"):
        prefix.save(ids[:, :30], live)
    with pytest.raises(UnsupportedInput, match="SlidingWindow"):
        prefix.restore(ids, transformers.DynamicCache(config=sliding(layers=3).config))
    with pytest.raises(UnsupportedInput, match="layers"):
        prefix.save(ids, dynamic(make_model(num_hidden_layers=2)))


def test_both_spellings_of_the_cache_argument() -> None:
    """forward's own name for the cache is used: `cache` now, `past_key_values` before."""

    class Older:
        def forward(self, input_ids: Any, past_key_values: Any = None) -> None: ...

    class Newer:
        def forward(self, input_ids: Any, cache: Any = None) -> None: ...

    class Without:
        def forward(self, input_ids: Any) -> None: ...

    assert cache_argument(Older()) == "past_key_values"
    assert cache_argument(Newer()) == "cache"
    with pytest.raises(UnsupportedInput, match="Without"):
        cache_argument(Without())


# ---------------------------------------------------------------- cached()


class Fed:
    """Counts the tokens that a model's forward is given."""

    def __init__(self, model: Model) -> None:
        self.tokens = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tokens += kwargs["input_ids"].numel()

    def take(self) -> int:
        tokens, self.tokens = self.tokens, 0
        return tokens


def generate(model: Model, ids: torch.Tensor, **settings: Any) -> torch.Tensor:
    out: torch.Tensor = model.generate(ids, max_new_tokens=20, do_sample=False, **settings)
    return out


def test_cached_forwards_less_and_says_the_same(client: Client) -> None:
    """Within cached() a second call feeds only what is not stored, and makes the same tokens."""
    model, ids = make_model(20), make_ids(100)
    fed = Fed(model)
    plain = generate(model, ids)
    assert fed.take() == 100 + 19
    with cached(model, client):
        first = generate(model, ids)
        assert fed.take() == 100 + 19
        second = generate(model, ids)
        assert fed.take() == 4 + 19
        # the answer was stored as well: a longer conversation goes on from there
        generate(model, torch.cat([first, make_ids(3, seed=2)], dim=1))
        assert fed.take() == (123 - 112) + 19
    assert torch.equal(first, plain)
    assert torch.equal(second, plain)
    generate(model, ids)
    assert fed.take() == 100 + 19
    assert "generate" not in model.__dict__


def test_cached_with_outputs_in_a_dictionary(client: Client) -> None:
    """return_dict_in_generate, scores, sampling and a mask of ones are all cached."""
    model, ids = make_model(21), make_ids(64)
    settings = dict(return_dict_in_generate=True, output_scores=True, attention_mask=ids * 0 + 1)
    with cached(model, client):
        first = model.generate(input_ids=ids, max_new_tokens=4, do_sample=True, **settings)
        fed = Fed(model)
        second = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False, **settings)
    assert first.sequences.shape == second.sequences.shape == (1, 68)
    assert len(second.scores) == 4
    assert fed.take() == 16 + 3


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"use_cache": False}, "use_cache"),
        ({"num_return_sequences": 2, "num_beams": 2}, "num_beams"),
        ({"cache_implementation": "static", "disable_compile": True}, "cache_implementation"),
        ({"pad_token_id": 7}, "padding token 7"),
    ],
)
def test_calls_that_run_uncached(client: Client, settings: dict[str, Any], word: str) -> None:
    """A call that can't be cached gives what it gives without evoke, and warns once."""
    model, ids = make_model(22), make_ids(40)
    ids[0, 5] = 7
    plain = generate(model, ids, **settings)
    with cached(model, client):
        with pytest.warns(RuntimeWarning, match=word):
            assert torch.equal(generate(model, ids, **settings), plain)
        assert torch.equal(generate(model, ids, **settings), plain)  # a warning would be an error


def test_a_batch_runs_uncached(client: Client) -> None:
    """Several sequences at once pass through unharmed."""
    model, ids = make_model(23), make_ids(40)
    batch = torch.cat([ids, make_ids(40, seed=9)])
    with cached(model, client), pytest.warns(RuntimeWarning, match="batch of 2"):
        assert generate(model, batch).shape == (2, 60)


def test_cached_is_put_back_after_an_error(client: Client) -> None:
    """An exception of generate reaches the caller, and the model is as it was; so is a wrapper."""
    model, ids = make_model(24), make_ids(40)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("mine")

    model.generate = wrapper
    with pytest.raises(ValueError, match="mine"), cached(model, client):
        model.generate(ids)
    assert model.__dict__["generate"] is wrapper
    del model.generate
    assert generate(model, ids).shape == (1, 60)


def test_cached_twice_is_refused(client: Client) -> None:
    """A model can be within one cached() only, and again after it."""
    model = make_model(25)
    with cached(model, client), pytest.raises(BadArgument, match="cached"), cached(model, client):
        raise AssertionError("not reached")
    with cached(model, client):
        pass


def test_threads_share_a_cached_model(client: Client) -> None:
    """Calls of several threads each get their own cache and the right tokens."""
    model = make_model(26)
    prompts = [torch.cat([make_ids(64), make_ids(20, seed=s)], dim=1) for s in range(4)]
    plain = [generate(model, prompt) for prompt in prompts]
    outputs: list[torch.Tensor | None] = [None] * 4

    def run(number: int) -> None:
        for _ in range(3):
            outputs[number] = generate(model, prompts[number])

    with cached(model, client):
        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for ours, theirs in zip(outputs, plain, strict=True):
        assert ours is not None
        assert torch.equal(ours, theirs)


def test_cached_without_a_daemon(tmp_path: Path) -> None:
    """When the daemon dies, calls go on uncached with the same tokens."""
    model, ids = make_model(27), make_ids(60)
    plain = generate(model, ids)
    daemon = Daemon(tmp_path / "daemon", ["host.capacity=64MiB"])
    with connect(daemon.directory) as client, cached(model, client):
        assert torch.equal(generate(model, ids), plain)
        daemon.kill()
        fed = Fed(model)
        assert torch.equal(generate(model, ids), plain)
        assert fed.take() == 60 + 19
