"""The cases of the conformance kit. evoke.client.conformance runs them; each states one demand."""

from __future__ import annotations

import os
import signal
import time

import pytest

from evoke.client.conformance import Bench, Kit
from evoke.client.conformance_host import Answer, Failed, RunnerProcess, eventually

STEPS = 4
LONG_BLOCKS = 10
SLACK_S = 1.0  # of a busy machine, on top of what the runner says of its patience


def same(given: Answer, expected: Answer) -> None:
    """The answer is the one without a daemon."""
    assert given.token_ids == expected.token_ids, "other tokens than without a daemon"
    assert given.evidence == expected.evidence, "other evidence than without a daemon"


def saved(given: Answer, expected: Answer) -> int:
    """Tokens that need not be computed."""
    return expected.forwarded - given.forwarded


def whole_prefix(kit: Kit, prompt: list[int]) -> range:
    """Tokens that may be saved when all blocks of the prompt are stored."""
    blocks = (len(prompt) - 1) // kit.block_tokens
    return range(blocks * kit.block_tokens, len(prompt))


def bound_s(runner: RunnerProcess, expected: Answer) -> float:
    return 2 * expected.took_s + runner.patience_s + SLACK_S


def comes_back(kit: Kit, runner: RunnerProcess, prompt: list[int]) -> None:
    """The runner finds its daemon again, without being told to, and answers right all the while."""
    expected = kit.expected(prompt, STEPS)

    def hits() -> bool:
        given = runner.generate(prompt, STEPS)
        same(given, expected)
        return saved(given, expected) in whole_prefix(kit, prompt)

    assert eventually(hits), "the runner did not use the daemon that is there again"


# ---------------------------------------------------------------- exactness


def test_told_apart(kit: Kit) -> None:
    """The runner's answers depend on the first block, or the other cases would prove nothing."""
    tail = kit.prompt(3 * kit.block_tokens)
    answers = [kit.expected(kit.prompt(kit.block_tokens) + tail, 8) for _ in range(4)]
    assert len({(tuple(a.token_ids), a.evidence) for a in answers}) > 1


@pytest.mark.parametrize(
    ("blocks", "extra"),
    [
        (0, 1),
        (1, -1),
        (1, 0),
        (1, 1),
        (2, -1),
        (2, 0),
        (2, 1),
        (3, -STEPS),
        (9, 0),
        (LONG_BLOCKS, 3),
    ],
    ids=["1", "B-1", "B", "B+1", "2B-1", "2B", "2B+1", "3B-steps", "9B", "10B+3"],
)
def test_exact(kit: Kit, blocks: int, extra: int) -> None:
    """A prompt of any length is answered alike whether its full blocks are computed or fetched; the
    second runner computes no block again, and always the last token; nothing that was not computed
    is stored."""
    prompt = kit.prompt(max(1, blocks * kit.block_tokens + extra))
    expected, before = kit.expected(prompt, STEPS), kit.daemon.blocks()
    first = kit.writer.generate(prompt, STEPS)
    same(first, expected)
    assert saved(first, expected) == 0, "tokens of a new prompt were not computed"
    computed = (len(prompt) + STEPS - 1) // kit.block_tokens
    assert kit.daemon.blocks() - before <= computed, "a block was stored with a token not computed"
    second = kit.reader.generate(prompt, STEPS)
    same(second, expected)
    assert saved(second, expected) in whole_prefix(kit, prompt)


def test_next_turn(kit: Kit) -> None:
    """An answer that ends with a block is continued right: its last token's KV was not computed."""
    prompt = kit.prompt(2 * kit.block_tokens + 1)
    answer = kit.writer.generate(prompt, 2 * kit.block_tokens - 1)
    turn = prompt + answer.token_ids + kit.prompt(kit.block_tokens + 1)
    for runner in (kit.reader, kit.writer):
        same(runner.generate(turn, STEPS), kit.expected(turn, STEPS))


def test_slots_are_reused(kit: Kit) -> None:
    """Prompts that follow each other in one runner's memory do not see each other's blocks."""
    prompts = [kit.prompt(count * kit.block_tokens + 2) for count in (5, 3, 8)]
    for turn in (0, 1, 0, 2, 1, 0, 2):
        same(kit.writer.generate(prompts[turn], STEPS), kit.expected(prompts[turn], STEPS))


def test_shared_prefix(kit: Kit) -> None:
    """Two prompts that part inside a block share the full blocks before it and no more."""
    base = kit.prompt(2 * kit.block_tokens + kit.block_tokens // 2)
    tail = kit.prompt(2 * kit.block_tokens)
    other = [(token + 1) % kit.plain.vocabulary for token in tail]
    kit.writer.generate(base + tail, STEPS)
    expected, given = kit.expected(base + other, STEPS), kit.reader.generate(base + other, STEPS)
    same(given, expected)
    assert 2 * kit.block_tokens <= saved(given, expected) <= len(base)


def test_swapped_blocks(kit: Kit) -> None:
    """The same tokens behind others are not the same block."""
    first, second = kit.prompt(kit.block_tokens), kit.prompt(kit.block_tokens)
    tail = kit.prompt(3)
    kit.writer.generate(first + second + tail, STEPS)
    swapped = second + first + tail
    given, expected = kit.reader.generate(swapped, STEPS), kit.expected(swapped, STEPS)
    same(given, expected)
    assert saved(given, expected) == 0


@pytest.mark.parametrize("field", ["salt", "weights_epoch"])
def test_other_namespace(kit: Kit, bench: Bench, field: str) -> None:
    """Blocks of another salt or another weights epoch are not used."""
    bench.daemon.start()
    prompt = kit.prompt(3 * kit.block_tokens + 1)
    bench.runner().generate(prompt, STEPS)
    other = bench.runner(**{field: "another"})
    epoch = "another" if field == "weights_epoch" else "1"
    expected, given = kit.expected(prompt, STEPS, epoch), other.generate(prompt, STEPS)
    same(given, expected)
    assert saved(given, expected) == 0, f"blocks of another {field} were used"
    again = bench.runner().generate(prompt, STEPS)
    assert saved(again, kit.expected(prompt, STEPS)) in whole_prefix(kit, prompt)


@pytest.mark.parametrize("which", [0, 2, -1], ids=["first", "middle", "last"])
def test_damaged_block(kit: Kit, bench: Bench, which: int) -> None:
    """A stored block with a flipped bit, in any rank's part, is computed again, never used."""
    bench.daemon.start()
    prompt = kit.prompt(5 * kit.block_tokens + 1)
    expected, keys = kit.expected(prompt, STEPS), list[bytes]()
    with bench.daemon.stored_keys(keys, 5):
        runner = bench.runner()
        runner.generate(prompt, STEPS)
    assert len(keys) >= 5, "the blocks of the prompt were not stored"
    rank = 0 if which == 0 else runner.ranks - 1
    bench.daemon.flip(runner.encoding, keys[:5][which], rank)
    reader = bench.runner()
    same(reader.generate(prompt, STEPS), expected)
    assert bench.daemon.status()["counters"]["integrity_failures"] > 0, "the block was not fetched"
    comes_back(kit, reader, prompt)


def test_full_tier(kit: Kit, bench: Bench) -> None:
    """With a tier that is much too small, answers stay right and the daemon stays sound."""
    bench.resize(12 * kit.plain.block_bytes)
    bench.daemon.start()
    runner = bench.runner()
    tier_bytes = bench.daemon.status()["tiers"][0]["capacity_bytes"]
    rounds = tier_bytes // (kit.plain.block_bytes * LONG_BLOCKS) + 3
    prompts = [kit.prompt(LONG_BLOCKS * kit.block_tokens + 3) for _ in range(rounds)]
    for prompt in [*prompts, prompts[0], prompts[-1]]:
        same(runner.generate(prompt, STEPS), kit.expected(prompt, STEPS))
    counters = bench.daemon.status()["counters"]
    assert counters["blocks_evicted"] + counters["blocks_refused"] > 0, "the tier was never full"
    assert bench.daemon.audit()["good"]


# ---------------------------------------------------------------- the daemon is absent, late, dead


def test_daemon_comes_later(kit: Kit, bench: Bench) -> None:
    """A runner that starts before the daemon answers right, and uses it once it is there."""
    runner, prompt = bench.runner(), kit.prompt(4 * kit.block_tokens + 1)
    same(runner.generate(prompt, STEPS), kit.expected(prompt, STEPS))
    bench.daemon.start()
    comes_back(kit, runner, prompt)


def test_daemon_answers_nothing(kit: Kit, bench: Bench) -> None:
    """While the daemon is stopped, known and new prompts are answered right within the runner's
    patience; when it goes on, so does the runner."""
    bench.daemon.start()
    runner = bench.runner()
    known, new = (kit.prompt(LONG_BLOCKS * kit.block_tokens + 3) for _ in range(2))
    runner.generate(known, STEPS)
    with bench.daemon.stopped():
        for prompt in (known, new):
            expected = kit.expected(prompt, STEPS)
            most_s = bound_s(runner, expected)
            given = runner.generate(prompt, STEPS, wait_s=5 + 4 * most_s)
            same(given, expected)
            assert given.took_s <= most_s, f"{given.took_s:.2f} s, patience {runner.patience_s} s"
    for prompt in (known, new):
        comes_back(kit, runner, prompt)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_daemon_killed(kit: Kit, bench: Bench, share: float) -> None:
    """When the daemon dies at that share of an answer, the answer is right and in time; the next
    daemon in its place is used."""
    bench.daemon.start()
    runner = bench.runner()
    known = kit.prompt(LONG_BLOCKS // 2 * kit.block_tokens)
    runner.generate(known, STEPS)
    prompt = known + kit.prompt(LONG_BLOCKS // 2 * kit.block_tokens + 3)
    expected = kit.expected(prompt, STEPS)
    runner.begin(prompt, STEPS)
    time.sleep(share * expected.took_s / 2)
    bench.daemon.kill()
    given = runner.finish(wait_s=5 + 4 * bound_s(runner, expected))
    same(given, expected)
    assert given.took_s <= bound_s(runner, expected)
    same(runner.generate(known, STEPS), kit.expected(known, STEPS))
    bench.daemon.start()
    comes_back(kit, runner, prompt)


# ---------------------------------------------------------------- the runner dies


def left_sound(kit: Kit, bench: Bench, prompt: list[int]) -> None:
    """What a dead runner left: nothing that is held, and blocks that are right or absent."""
    assert eventually(bench.daemon.nothing_is_held), bench.daemon.status()["sessions"]
    assert bench.daemon.audit()["good"]
    heir = bench.runner()
    for _ in range(2):
        same(heir.generate(prompt, STEPS), kit.expected(prompt, STEPS))
    heir.close()
    assert eventually(bench.daemon.nothing_is_held), "close() left something behind"


def test_restart(kit: Kit, bench: Bench) -> None:
    """A runner that ends in order leaves no session or grant; the next one uses its blocks."""
    bench.daemon.start()
    prompt = kit.prompt(LONG_BLOCKS * kit.block_tokens + 3)
    first = bench.runner()
    first.generate(prompt, STEPS)
    first.close()
    assert eventually(bench.daemon.nothing_is_held), "close() left something behind"
    expected, given = kit.expected(prompt, STEPS), bench.runner().generate(prompt, STEPS)
    same(given, expected)
    assert saved(given, expected) in whole_prefix(kit, prompt)


def test_runner_killed(kit: Kit, bench: Bench) -> None:
    """When the runner is killed at any share of an answer, the daemon takes back what it held, and
    another runner answers right."""
    bench.daemon.start()
    for share in (0.3, 0.8, 1.0, 1.1):
        prompt = kit.prompt(LONG_BLOCKS * kit.block_tokens + 3)
        runner = bench.runner()
        runner.begin(prompt, STEPS)
        time.sleep(share * kit.expected(prompt, STEPS).took_s)
        runner.kill()
        left_sound(kit, bench, prompt)


def test_runner_killed_in_a_request(kit: Kit, bench: Bench) -> None:
    """A request whose runner was killed before the daemon came to it changes nothing."""
    bench.daemon.start()
    prompt, runner = kit.prompt(LONG_BLOCKS * kit.block_tokens + 3), bench.runner()
    expected = kit.expected(prompt, STEPS)
    with bench.daemon.stopped():
        runner.begin(prompt, STEPS)
        time.sleep(1.2 * expected.took_s + 0.05)
        runner.kill()
    left_sound(kit, bench, prompt)


# ---------------------------------------------------------------- ranks


def test_ranks_belong_together(kit: Kit, bench: Bench) -> None:
    """Each rank of the namespace has one session with a pool, and all are of one instance."""
    bench.daemon.start()
    runner = bench.runner()
    runner.generate(kit.prompt(kit.block_tokens + 1), STEPS)
    sessions = bench.daemon.runner_sessions()
    assert sorted(session["rank"] for session in sessions) == list(range(runner.ranks))
    assert all(session["pools"] for session in sessions)
    assert len({session["instance"] for session in sessions}) == 1


def test_last_rank_killed(kit: Kit, bench: Bench) -> None:
    """When the process of the last rank is killed in the middle of an answer, blocks of which it
    owed a part are not served: another runner answers right."""
    bench.daemon.start()
    prompt, runner = kit.prompt(LONG_BLOCKS * kit.block_tokens + 3), bench.runner()
    runner.generate(kit.prompt(kit.block_tokens + 1), STEPS)
    last = max(bench.daemon.runner_sessions(), key=lambda session: int(session["rank"]))
    runner.begin(prompt, STEPS)
    time.sleep(0.9 * kit.expected(prompt, STEPS).took_s)
    os.kill(last["pid"], signal.SIGKILL)
    try:
        runner.finish(wait_s=bound_s(runner, kit.expected(prompt, STEPS)))
    except Failed:
        pass  # an engine may end with its rank; what is left behind counts
    runner.kill()
    left_sound(kit, bench, prompt)
