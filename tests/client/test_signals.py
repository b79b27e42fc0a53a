"""Reductions of attention weights against numpy; the files of head lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evoke.client import BadArgument
from evoke.client.signals import Channel, Reduction, load_head_map

LAYERS, HEADS, TOKENS, BLOCK = 3, 4, 83, 16
BLOCKS = 6


def softmax(seed: int, rows: int = 1) -> NDArray[np.float32]:
    """layers x heads x rows x tokens."""
    logits = np.random.default_rng(seed).normal(0, 4, (LAYERS, HEADS, rows, TOKENS))
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


def masses(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """layers x heads x blocks, by numpy."""
    padded = np.zeros((*weights.shape[:3], BLOCKS * BLOCK))
    padded[..., :TOKENS] = weights
    shape = (*weights.shape[:3], BLOCKS, BLOCK)
    result: NDArray[np.float64] = padded.reshape(shape).sum(axis=-1).mean(axis=2)
    return result


def reduced(weights: NDArray[np.float32], *channels: Channel) -> NDArray[np.float16]:
    reduction = Reduction(LAYERS, HEADS, BLOCK, channels)
    for layer in range(LAYERS):
        reduction.add(layer, weights[layer])
    return reduction.take()


@pytest.mark.parametrize("rows", [1, 16])
def test_folds_are_those_of_numpy(rows: int) -> None:
    """Mean, maximum, mean of the largest and a list of heads, all in one pass, within half
    precision."""
    weights = softmax(1, rows)
    found = reduced(
        weights,
        Channel.largest(LAYERS, HEADS, 3),
        Channel.mean(LAYERS, HEADS),
        Channel.highest(LAYERS, HEADS),
        Channel.heads(LAYERS, HEADS, [(0, 1), (2, 3)]),
        Channel.heads(LAYERS, HEADS, [(0, 1), (2, 3)], "max"),
    )
    mass = masses(weights)
    flat = mass.reshape(-1, BLOCKS)
    listed = np.stack([mass[0, 1], mass[2, 3]])
    wanted = [
        np.sort(flat, axis=0)[-3:].mean(axis=0),
        flat.mean(axis=0),
        flat.max(axis=0),
        listed.mean(axis=0),
        listed.max(axis=0),
    ]
    assert found.dtype == np.float16
    assert found.astype(np.float64) == pytest.approx(np.array(wanted), rel=1e-3, abs=1e-7)
    assert found[1].astype(np.float64).sum() == pytest.approx(1, abs=2e-3)


def test_strides_and_half_precision() -> None:
    """Transposed, reversed, sliced, unaligned and half-precision weights give the same."""
    weights = softmax(2, 4)
    channel = Channel.mean(LAYERS, HEADS)
    wanted = reduced(weights, channel)
    transposed = np.ascontiguousarray(weights.transpose(0, 3, 2, 1)).transpose(0, 3, 2, 1)
    reversed_twice = np.ascontiguousarray(weights[:, ::-1, :, ::-1])[:, ::-1, :, ::-1]
    sliced = np.repeat(weights, 2, axis=-1)[..., ::2]
    shifted = np.zeros(weights.nbytes + 1, np.uint8)
    shifted[1:] = weights.view(np.uint8).ravel()
    unaligned = shifted[1:].view(np.float32).reshape(weights.shape)
    assert not unaligned.flags.aligned
    assert (reduced(unaligned, channel) == wanted).all()
    for same in (transposed, reversed_twice, sliced):
        assert not same[0].flags.c_contiguous
        assert (reduced(same, channel) == wanted).all()
    halves = reduced(weights.astype(np.float16), channel).astype(np.float64)
    assert halves == pytest.approx(wanted.astype(np.float64), rel=4e-3, abs=1e-6)


def test_layers_without_a_part_may_be_left_out() -> None:
    """Two heads of one layer need that layer only; a needed layer that is missing is named."""
    weights = softmax(3)
    reduction = Reduction(LAYERS, HEADS, BLOCK, [Channel.heads(LAYERS, HEADS, [(1, 0)])])
    with pytest.raises(BadArgument, match="layer: 1 was not added"):
        reduction.take()
    reduction.add(1, weights[1])
    found = reduction.take(5)
    assert found.shape == (1, 5)
    assert found[0].astype(np.float64) == pytest.approx(masses(weights)[1, 0, :5], rel=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 2.0])
def test_bad_weights_are_refused(value: float) -> None:
    """NaN, infinity, negative masses and those above 1 name layer, head and block; the layer can
    be added again."""
    weights = softmax(4)
    bad = weights[2].copy()
    bad[3, 0, 40] = value
    reduction = Reduction(LAYERS, HEADS, BLOCK, [Channel.mean(LAYERS, HEADS)])
    for layer in (0, 1):
        reduction.add(layer, weights[layer])
    with pytest.raises(BadArgument, match="layer 2 head 3 block 2"):
        reduction.add(2, bad)
    reduction.add(2, weights[2])
    assert (reduction.take() == reduced(weights, Channel.mean(LAYERS, HEADS))).all()


def test_shapes_are_checked() -> None:
    """What does not fit the plan is refused with its number."""
    weights = softmax(5)
    reduction = Reduction(LAYERS, HEADS, BLOCK, [Channel.mean(LAYERS, HEADS)])
    with pytest.raises(BadArgument, match="layer: 3 of 3"):
        reduction.add(3, weights[0])
    with pytest.raises(BadArgument, match="3 heads"):
        reduction.add(0, weights[0, :3])
    with pytest.raises(BadArgument, match="neither float16 nor float32"):
        reduction.add(0, weights[0].astype(np.float64))
    reduction.add(0, weights[0])
    with pytest.raises(BadArgument, match="added twice"):
        reduction.add(0, weights[0])
    with pytest.raises(BadArgument, match="82 tokens"):
        reduction.add(1, weights[1, ..., :82])
    with pytest.raises(BadArgument, match="allowed 1 to 8"):
        Reduction(LAYERS, HEADS, BLOCK, [])


HEAD_FILE = """
model = "SmolLM2-135M-Instruct"
layers = 30
heads = 9

[classes]
retrieval = [[21, 8], [18, 7], [7, 7]]
sink = [[18, 8]]
"""


def test_head_file(tmp_path: Path) -> None:
    """A model's head classes come from a small TOML file, and become channels."""
    path = tmp_path / "heads.toml"
    path.write_text(HEAD_FILE)
    found = load_head_map(path)
    assert found.of("retrieval") == [(21, 8), (18, 7), (7, 7)]
    channel = Channel.classes(found, {"retrieval": 0.75, "sink": 0.25})
    assert channel.weights[21, 8] == pytest.approx(0.25)
    assert channel.weights[18, 8] == pytest.approx(0.25)
    with pytest.raises(BadArgument, match="'needle'"):
        found.of("needle")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD_FILE.replace("[18, 8]", "[30, 8]"), r"classes.sink: \[30, 8\]"),
        (HEAD_FILE.replace("heads = 9", "heads = 'nine'"), "heads"),
        ("model = [", "heads.toml"),
    ],
)
def test_bad_head_files_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    """A head that the model does not have, another type or bad TOML is refused by name."""
    path = tmp_path / "heads.toml"
    path.write_text(text)
    with pytest.raises(BadArgument, match=sentence):
        load_head_map(path)
