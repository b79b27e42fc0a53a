"""The daemon's own objects in worlds made of a seed. EVOKE_SIM_SEED=n replays one of them."""

from __future__ import annotations

import gc
import os

import pytest

from tests.sim.world import World, open_fds

SEEDS = int(os.environ.get("EVOKE_SIM_SEEDS", "2000"))
GROUPS = 20
STEPS = 150


def run(seed: int, steps: int = STEPS) -> World:
    world = World(seed)
    try:
        for _ in range(steps):
            world.step()
        world.end()
    except BaseException as error:
        error.args = (f"EVOKE_SIM_SEED={seed}", *error.args)
        print(f"EVOKE_SIM_SEED={seed}")
        raise
    finally:
        world.close()
    return world


def seeds(group: int) -> list[int]:
    if "EVOKE_SIM_SEED" in os.environ:
        return [int(os.environ["EVOKE_SIM_SEED"])] if group == 0 else []
    return list(range(group, SEEDS, GROUPS))


@pytest.mark.parametrize("group", range(GROUPS))
def test_worlds(group: int) -> None:
    """Whatever peers and copies do, each step leaves every invariant true, and the end nothing."""
    for seed in seeds(group):
        run(seed)


def history(seed: int) -> list[tuple[int, int, float]]:
    world = World(seed)
    try:
        seen = []
        for _ in range(STEPS):
            world.step()
            places = world.arena.stats()["blocks"]
            seen.append((len(world.works.index), places, world.rng.random()))
        return seen
    finally:
        world.close()


def test_a_seed_is_a_world() -> None:
    """The same seed makes the same world, step by step: a failure can be replayed."""
    for seed in range(10):
        assert history(seed) == history(seed)


def test_worlds_leave_no_descriptor() -> None:
    """Worlds that ended have closed all that they opened."""
    run(1)
    gc.collect()
    before = open_fds()
    for seed in range(2, 6):
        run(seed)
    gc.collect()
    assert open_fds() == before
