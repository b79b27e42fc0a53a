"""The acceptance cases of data/evoke-cases.json: scores, floors, eviction, splices."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoke.policy.focus import Focus
from evoke.policy.relevance import Relevance, coherence, recency, windowed
from evoke.policy.residency import (
    Block,
    Counts,
    Residency,
    TurnRules,
    choose,
    may_leave_early,
    walk,
)

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parent / "data/evoke-cases.json").read_text())["cases"]
}
BLOCK = 4


def given(case: str) -> tuple[Any, Any]:
    return CASES[case]["given"], CASES[case]["expect"]


def test_recency() -> None:
    """Recency halves every 69.3 tokens and does not depend on the length of the context."""
    case, expect = given("recency")
    assert recency(case["distances"], case["decay"]) == pytest.approx(expect["recency"], abs=1e-6)
    assert math.log(2) / case["decay"] == pytest.approx(expect["half_life_tokens"])


def test_focus() -> None:
    """The first message sets the focus, near ones blend in, far ones and new tasks replace it."""
    case, expect = given("coherence_focus")
    focus = Focus(case["alpha"], case["boundary_threshold"])
    actions, vectors, first = [], [], []
    for message, forced in zip(case["messages"], case["force_boundary"], strict=True):
        actions.append(focus.observe(message, forced))
        assert focus.vector is not None
        vectors.append(focus.vector.tolist())
        first.append(float(coherence(case["blocks_after_last"], focus.vector)[0]))
    assert actions == expect["actions"]
    assert np.allclose(vectors, expect["focus_after"], atol=1e-6)
    assert first[1] == pytest.approx(expect["coherence_block0_before_snap"], abs=1e-6)
    assert first[2] == pytest.approx(expect["coherence_block0_after_snap"], abs=1e-6)
    blocks = coherence(case["blocks_after_last"], focus.vector)
    assert blocks == pytest.approx(expect["coherence_of_blocks"], abs=1e-6)
    assert coherence(case["blocks_after_last"], None).tolist() == [expect["coherence_no_focus"]] * 4
    no_embedding = Residency(TurnRules(1000)).values([Block(0, 0, 1, "")], 1)
    assert no_embedding[0] == pytest.approx(0.6 * expect["coherence_no_embedding"] + 0.4)


def test_composite() -> None:
    """A matching block 1,000 tokens back outlives a neutral one 128 tokens back."""
    case, expect = given("composite_headline")
    formula = Relevance()
    near = [row["coherence"] for row in case]
    far = recency([row["distance"] for row in case], formula.decay)
    raw = formula.blend({"coherence": near, "recency": far})
    assert raw == pytest.approx(expect, abs=1e-6)
    assert raw[3] > raw[2]


def test_attention_variant() -> None:
    """Attention is a decayed mean of the window; a block without it leaves the denominator."""
    case, expect = given("attention_signal")
    attention = windowed(case["window_oldest_first"], case["decay"])
    assert attention == pytest.approx(expect["windowed"], abs=1e-6)
    weights = case["weights"]
    formula = Relevance(weights["coherence"], weights["recency"], weights["attention"])
    far = recency(case["distance"], formula.decay)
    raw = formula.blend(
        {
            "coherence": np.full(2, case["coherence"]),
            "recency": np.full(2, far),
            "attention": [attention, math.nan],
        }
    )
    assert raw[0] == pytest.approx(expect["composite_with"], abs=1e-6)
    assert raw[1] == pytest.approx(expect["composite_without_signal"], abs=1e-6)
    same = windowed(np.full(100, 0.2))
    assert same == pytest.approx(expect["window_of_100_equal_values_0_2"])
    early = windowed([9.0] + [0.0] * expect["window_cap_steps"])
    assert early == 0.0


def test_floors_and_priority() -> None:
    """Floors rescale, priority and boost multiply, the score is capped at 1, the value is not."""
    case, expect = given("floors_priority")
    formula = Relevance()
    values = formula.value(
        [row["raw"] for row in case],
        [formula.floor(row["role"]) for row in case],
        [row["priority"] * row["keep_boost"] for row in case],
    )
    scores = np.where([row["sink"] for row in case], 1.0, np.minimum(values, 1.0))
    assert scores == pytest.approx(expect, abs=1e-6)
    assert values[7] == pytest.approx(1.76)


def test_watermark_victims() -> None:
    """Nothing leaves up to the trigger; above it the lowest scores leave, down to the target."""
    case, expect = given("watermark_victims")
    for budget, limits in expect["limits"].items():
        rules = TurnRules(int(budget))
        assert [rules.trigger_tokens, rules.target_tokens] == limits
    head = next(row["id"] for row in case["blocks"] if row.get("decode_head"))
    blocks = [
        (row["score"], row["id"], row["tokens"])
        for row in case["blocks"]
        if may_leave_early(
            Block(
                row["id"],
                row["id"],
                row["tokens"],
                "",
                pinned=row.get("pinned", False),
                sink=row.get("sink", False),
                reply=row.get("current_turn_reply", False),
            ),
            row["score"],
            head,
            0.0,
        )
    ]
    blocks.sort()
    for budget in case["budgets"]:
        rules = TurnRules(budget)
        sizes = [tokens for _, _, tokens in blocks]
        count = choose(sizes, case["resident"], rules.trigger_tokens, rules.target_tokens)
        assert [number for _, number, _ in blocks[:count]] == expect["victims"][str(budget)]


def ids_of(text: str) -> list[int]:
    """Token ids of a case's words: '0..7, 88,89, 12..19 then 30..33'."""
    ids: list[int] = []
    for word in text.replace("(moved up)", "").replace("then", ",").replace(" ", "").split(","):
        first, _, last = word.partition("..")
        ids += range(int(first), int(last or first) + 1)
    return ids


def test_identity_splice() -> None:
    """What has the same bytes at its position is reused; the first difference ends the walk."""
    case, expect = given("identity_splice")
    first_prompt = list(range(20))
    for number, one in enumerate(case["cases"]):
        prompt = ids_of(one["resend"]) + one.get("echo", [])
        prompt += ids_of(one["then"]) if "then" in one else []
        cached = first_prompt + one.get("reply_cached", [])
        blocks = {
            s: Block(s, s, BLOCK, cached[s : s + BLOCK]) for s in range(0, len(cached), BLOCK)
        }
        saved = {start: blocks.pop(start) for start in one["evicted_starts"]}
        walked = walk(blocks, saved, lambda b, p=prompt: p[b.start : b.end] == b.content)  # type: ignore[misc]
        assert len(walked.holes) == expect["spliced"][number]
        assert len(prompt) - walked.cursor == expect["decoded_tokens"][number]
        assert walked.cursor == expect["reused_tokens"][number]


def test_budget_aware_splice() -> None:
    """Only what fits comes back, nearest to the tail first; what ends at the cursor and pins do
    always."""
    case, expect = given("budget_aware_splice")
    for number, one in enumerate(case["cases"]):
        rules = TurnRules(
            one["budget"], 1.0, 1.0, gap_fill="budget_aware", reserve_tokens=one["reserve"]
        )
        residency = Residency(rules)
        low, high = one.get("pin", (0, 0))
        for start in range(0, 20, BLOCK):
            pinned = low <= start < high
            residency.add(Block(0, start, BLOCK, start, pinned=pinned))
        for start in one["evicted"]:
            residency.saved[start] = residency.resident.pop(start)
        walked = residency.begin(lambda b: True, 20 + one["tail"])
        spliced = [start for start in one["evicted"] if start in residency.resident]
        assert spliced == expect["spliced_starts"][number]
        assert 20 + one["tail"] - walked.cursor == expect["decoded"][number]
        assert set(residency.saved) == set(one["evicted"]) - set(spliced)


def opencode(protection: str, threshold: float) -> tuple[Residency, list[Counts]]:
    """The two turns of the published session."""
    case, _ = given("just_spliced_vs_budget")
    rules = TurnRules(
        case["budget"],
        case["high"],
        case["low"],
        splice_protection=protection,
        protect_above=threshold,
        recovery_decay=case["decay"],
    )
    residency = Residency(rules)
    counts = []
    for first, prompt, reply in ((0, 7678, 1500), (7678, 9719, 250)):
        residency.begin(lambda b, known=first: b.end <= known, prompt)  # type: ignore[misc]
        for start in range(first, prompt, case["block"]):
            tokens = min(case["block"], prompt - start)
            residency.add(Block(0, start, tokens, "", sink=start < case["sinks"]))
        if protection == "exempt":
            residency.relieve(prompt)
        residency.add(Block(0, prompt, reply, "", role="assistant", reply=True))
        counts.append(residency.end(prompt + reply))
    return residency, counts


def test_published_counters_need_protection_off() -> None:
    """Without protection the session evicts 124 blocks and holds its budget."""
    _, expect = given("just_spliced_vs_budget")
    wanted = expect["no_protection"]
    _, (one, two) = opencode("exempt", 0.0)
    assert (one.blocks_evicted, one.resident_end) == (
        wanted["turn1_evicted"],
        wanted["turn1_resident_end"],
    )
    assert (two.blocks_recovered, two.blocks_evicted) == (
        wanted["turn2_spliced"],
        wanted["turn2_evicted"],
    )
    assert (two.peak_resident, two.resident_end) == (
        wanted["turn2_peak"],
        wanted["turn2_resident_end"],
    )
    assert one.blocks_evicted + two.blocks_evicted == wanted["total_evicted"]


def test_hard_protection_breaks_the_budget_and_says_so() -> None:
    """With splices exempt the session ends at 3.87 times its budget, and the excess is counted."""
    case, expect = given("just_spliced_vs_budget")
    wanted = expect["hard_protection"]
    _, (_, two) = opencode("exempt", case["threshold"])
    assert (two.blocks_evicted, two.resident_end) == (
        wanted["turn2_evicted"],
        wanted["turn2_resident_end"],
    )
    assert two.resident_end / case["budget"] == wanted["over_budget_factor"]
    assert two.over_budget_tokens == two.resident_end - case["budget"]


def test_splices_leave_last_within_the_budget() -> None:
    """In our own order the budget holds, and a splice leaves only after all that was computed."""
    case, _ = given("just_spliced_vs_budget")
    _, (_, two) = opencode("last", case["threshold"])
    assert two.resident_end <= case["budget"]
    assert two.over_budget_tokens == 0

    residency = Residency(TurnRules(100, 0.5, 0.3))
    for start in (0, 16):
        residency.saved[start] = Block(0, start, 16, "")
    residency.begin(lambda b: True, 96)
    for start in (32, 48, 64, 80):
        residency.add(Block(0, start, 16, "", role="assistant"))
    assert [block.start for block in residency.relieve(96)] == [32, 48, 64, 80, 0]
    assert residency.counts.recovered_then_evicted == 1


def test_ties_of_the_sum_fall_to_the_distance() -> None:
    """Where recency has vanished beside coherence, the most distant block goes first, whatever its
    number."""
    residency = Residency(TurnRules(64, 0.5, 0.25))
    for start in (16, 0, 32, 48):  # numbers rise in this order
        residency.add(Block(0, start, 16, ""))
    residency.add(Block(0, 64, 9000, ""))
    order = residency.relieve(9064)
    assert len(set(residency.values(order[:4], 9064).tolist())) == 1
    assert [block.start for block in order[:4]] == [0, 16, 32, 48]


def test_strength_decays_by_turns() -> None:
    """A splice has strength 1, then 0.7 of it each turn, and is safe in two turns."""
    case, expect = given("just_spliced_vs_budget")
    residency = Residency(TurnRules(100_000, recovery_decay=case["decay"]))
    block = Block(0, 0, 16, "")
    residency.saved[0] = block
    strengths = []
    for _ in expect["strength_by_turn"]:
        residency.begin(lambda b: True, 16)
        strengths.append(block.strength)
    assert strengths == pytest.approx(expect["strength_by_turn"])
    safe = [t for t, s in enumerate(strengths) if not may_leave_early_with(s, case["threshold"])]
    assert safe == expect["protected_turns_after_splice"]


def may_leave_early_with(strength: float, threshold: float) -> bool:
    return may_leave_early(Block(0, 0, 1, "", strength=strength), 0.3, 99, threshold)
