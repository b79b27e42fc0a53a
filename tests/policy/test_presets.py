"""Policy files with the real formulas: the preset, and what a trace cannot have."""

from __future__ import annotations

import numpy as np
import pytest

from evoke.config import PolicyConfig, load_policy
from evoke.policy.lrfu import Lrfu
from evoke.policy.place import Bands
from evoke.policy.product import Product
from evoke.policy.simulate import simulate
from evoke.policy.spec import FORMULAS, parse_spec
from evoke.policy.traces import Trace


def policy(text: str) -> PolicyConfig:
    return load_policy(text, formulas=FORMULAS, check_spec=parse_spec)


def test_source_preset_is_the_product_of_the_source() -> None:
    """preset = "source": alpha 0.05 and beta 0.001 per decode step, and bands that Bands takes."""
    source = policy('preset = "source"')
    wanted = Product(alpha=0.05, beta=0.001, clock="step", state="keep", chains=True)
    assert source.priority.built == wanted
    assert Bands(source.place.units, source.place.keep, source.place.evict).keep == 0.1
    (warning,) = source.warnings
    assert "place.keep: 0.1 is above alpha (0.05)" in warning


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_every_formula_can_be_named(name: str) -> None:
    """Each registered formula is made by its name, with [score] where it has a score, and its own
    options are plain values."""
    found = policy(f'[priority]\nformula = "{name}"').priority
    assert isinstance(found.built, FORMULAS[name])
    assert all(isinstance(value, str | int | float | bool) for value in found.options.values())
    assert not {"alpha", "half_life", "clock", "chains"} & set(found.options)


def test_formulas_name_the_key_that_is_wrong() -> None:
    """What a formula refuses stands under its key of [priority]."""
    with pytest.raises(ValueError, match=r"priority\.beta: -1\.0 is not") as caught:
        policy('[priority]\nformula = "product"\nbeta = -1')
    assert getattr(caught.value, "line", None) == 3


@pytest.mark.parametrize("clock", ["turn", "step"])
def test_traces_have_no_turns_or_steps(clock: str) -> None:
    """A formula that ages by turns or decode steps is refused by the simulator, which has none."""
    one = np.zeros(1, np.uint32)
    trace = Trace(one, np.array([0, 1], np.uint64), np.zeros(1), one, 1)
    with pytest.raises(ValueError, match=f"clock: '{clock}' is not in a trace"):
        simulate(trace, Lrfu(clock=clock), 10, "list")
