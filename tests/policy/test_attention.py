"""Scoring rules on recorded attention: a document, a key fact in its middle, asked for twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.policy.attention import AttentionRule, AttentionTrace, evaluate, resident

DATA = Path(__file__).parent / "data"
QUESTION_2_END = 99  # decode steps
QUESTION_3_END = 179


def files() -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(DATA / "docqa.npz") as arrays:
        return dict(arrays), json.loads((DATA / "docqa.json").read_text())


@pytest.fixture(scope="module")
def docqa() -> AttentionTrace:
    return AttentionTrace.load(*files())


def test_kept_mass(docqa: AttentionTrace) -> None:
    """At a budget of 20 % and 64 steps ahead the mean over heads keeps at least 0.64 of the mass,
    within 3 points of the best possible choice; a sliding window is far below."""
    mean = evaluate(docqa, AttentionRule()).kept
    best = evaluate(docqa, AttentionRule(order="best")).kept
    window = evaluate(docqa, AttentionRule(order="newest")).kept
    assert mean >= 0.64
    assert best - 0.03 <= mean <= best
    assert window < mean - 0.2


def test_reports_every_eighth_step_suffice(docqa: AttentionTrace) -> None:
    """One report in 8 steps costs less than a point of kept mass."""
    every = evaluate(docqa, AttentionRule(every=1)).kept
    eighth = evaluate(docqa, AttentionRule(every=8)).kept
    assert every - 0.01 <= eighth


def test_two_channels_keep_facts_and_mass(docqa: AttentionTrace) -> None:
    """With a second channel of retrieval heads the fact ranks as high as by the maximum over heads
    once it has been asked for, and the kept mass stays within a point of the mean's."""
    mean, highest, two = (
        evaluate(docqa, AttentionRule(signal)) for signal in ("mean", "max", "two")
    )
    assert two.kept >= mean.kept - 0.01
    assert highest.kept < mean.kept - 0.03
    asked = (1, 3)
    for phase in asked:
        for ours, other in zip(two.fact_ranks[phase], highest.fact_ranks[phase], strict=True):
            assert ours <= other
    assert two.fact_ranks[2][1] <= highest.fact_ranks[2][1], "after 80 unrelated steps"
    assert two.fact_ranks[3][1] < mean.fact_ranks[3][1]


def test_placement_of_a_document_question(docqa: AttentionTrace) -> None:
    """While the question about the key fact is answered, the anchor, the key fact and the recent
    blocks are resident, and four fifths of the document are not; a sliding window of the same size
    loses the fact."""
    rule = AttentionRule("two")
    kept = resident(docqa, rule, QUESTION_2_END, 0.2)
    blocks = int(docqa.blocks[QUESTION_2_END])
    assert len(kept) <= np.ceil(0.2 * blocks)
    assert 0 in kept
    assert set(docqa.facts) & kept
    assert set(range(blocks - 4, blocks)) <= kept
    window = resident(docqa, AttentionRule(order="newest"), QUESTION_2_END, 0.2)
    assert not set(docqa.facts) & window


def test_a_tight_budget_needs_the_retrieval_heads(docqa: AttentionTrace) -> None:
    """At 3 % the mean over heads drops the fact while it is answered; two channels hold it."""
    assert set(docqa.facts) & resident(docqa, AttentionRule("two"), QUESTION_2_END, 0.03)
    assert not set(docqa.facts) & resident(docqa, AttentionRule("mean"), QUESTION_2_END, 0.03)


@pytest.mark.parametrize(
    ("option", "number", "sentence"),
    [
        ("signal", "median", "signal: 'median'"),
        ("alpha", 0.0, "alpha: 0.0"),
        ("every", 0, "every: 0"),
        ("prefill_rows", 33, "prefill_rows: 33"),
        ("knee", -1.0, "knee: -1.0"),
    ],
)
def test_bad_options_are_named(option: str, number: Any, sentence: str) -> None:
    """An option out of range is a ValueError that names it and its value."""
    with pytest.raises(ValueError, match=sentence):
        AttentionRule(**{option: number})


def test_bad_files_are_named() -> None:
    """A trace without an array, without a field, or with steps that do not fit is a ValueError."""
    arrays, meta = files()
    with pytest.raises(ValueError, match="max: "):
        AttentionTrace.load({"mean": arrays["mean"]}, meta)
    with pytest.raises(ValueError, match="events: "):
        AttentionTrace.load(arrays, {k: v for k, v in meta.items() if k != "events"})
    with pytest.raises(ValueError, match="decode has 219 steps"):
        AttentionTrace.load(arrays, meta | {"decode": meta["decode"][1:]})
    del arrays["retrieval"]
    with pytest.raises(ValueError, match="needs retrieval"):
        evaluate(AttentionTrace.load(arrays, meta), AttentionRule("two"))
