"""The text of a policy becomes a PolicyConfig, or an error that names line and key."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import evoke.config
from evoke.config import PRESETS, ConfigError, PolicyConfig, load_policy
from evoke.config.policy_schema import policy_rules

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ANNOTATED = Path(evoke.config.__file__).with_name("policy.toml")


@dataclass(frozen=True)
class Plain:
    name: ClassVar[str] = "lru"


@dataclass(frozen=True)
class Lrfu:
    name: ClassVar[str] = "lrfu"
    alpha: float | None = None
    half_life: float | None = None
    clock: Literal["request", "turn", "second", "step"] = "request"
    state: Literal["keep", "reset"] = "keep"
    chains: bool = False


@dataclass(frozen=True)
class Product:
    name: ClassVar[str] = "product"
    alpha: float = 0.05
    beta: float = 0.001
    rescaled: bool = False
    depth: int = 1

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta: {self.beta} is not above 0")


FORMULAS: dict[str, type[Any]] = {"lru": Plain, "lrfu": Lrfu, "product": Product}


def check_spec(text: str) -> object:
    if text.partition(":")[0] not in FORMULAS:
        raise ValueError("is not known")
    return text


def policy(text: str) -> PolicyConfig:
    return load_policy(text, "policy.toml", formulas=FORMULAS, check_spec=check_spec)


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        policy(text)
    return caught.value


def test_annotated_file_is_the_defaults() -> None:
    """policy.toml names every setting but alpha, in the schema's order, with its default."""
    tables = tomllib.loads(ANNOTATED.read_text())
    assert tables.pop("preset") == ""
    in_file = {section: list(table) for section, table in tables.items()}
    in_schema = {
        section: [key for key in keys if key != "alpha"]
        for section, (_, keys) in policy_rules().items()
    }
    assert in_file == in_schema
    assert policy(ANNOTATED.read_text()) == policy("")


def test_annotated_file_explains_every_setting() -> None:
    """Each setting of policy.toml stands below a comment, or in a group below one."""
    lines = ANNOTATED.read_text().splitlines()
    bare = [
        line.partition(" =")[0]
        for above, line in pairwise(lines)
        if "=" in line and not line.startswith("#") and not above.startswith("#")
    ]
    assert bare == ["keep", "evict", "host", "cxl", "flash"]


@pytest.mark.parametrize(
    ("text", "key", "line", "reason"),
    [
        ("\n[scor]\n", "scor", 2, "did you mean 'score'"),
        ("score = 3", "score", 1, "a number, not a section"),
        ("preset = 'sauce'", "preset", 1, "'sauce' is not known"),
        ("[score]\n\nhalflife = 3", "score.halflife", 3, "'half_life'?"),
        ("[score]\nhalf_life = 3\nalpha = 0.1", "score.alpha", 3, "give one of them"),
        ("[score]\nalpha = 1", "score.alpha", 2, "1 is out of range"),
        ("[score]\nalpha = nan", "score.alpha", 2, "not finite"),
        ("[score]\nalpha = true", "score.alpha", 2, "a switch, not a number"),
        ("[score]\nhalf_life = 0", "score.half_life", 2, "0 is out of range"),
        ("[score]\nclock = 'access'", "score.clock", 2, "'access' is not known"),
        ("[priority]\nformula = 'produkt'", "priority.formula", 2, "did you mean 'product'"),
        ("[priority]\nformula = 'lru'\nbeta = 1", "priority.beta", 3, "is not a setting"),
        ("[priority]\nformula = 'lrfu'\nchains = true", "priority.chains", 3, "not a setting"),
        ("[priority]\nformula = 'product'\nbeta = -1", "priority.beta", 3, "-1.0 is not above 0"),
        ("[priority]\nformula='product'\nbeta='1'", "priority.beta", 3, "not a number"),
        ("[priority]\nformula='product'\nalpha=0.1", "priority.alpha", 3, "is set in [score]"),
        ("[priority]\nformula='product'\ndepth=1.5", "priority.depth", 3, "not a whole number"),
        ("[priority]\nformula='product'\nrescaled=1", "priority.rescaled", 3, "1 is a number"),
        ("[priority]\nformula = 'file:x.py'\nlist = [1]", "priority.list", 3, "a list"),
        ("[protect]\nsinks = -1", "protect.sinks", 2, "-1 is out of range"),
        ("[place]\nkeep = 0.1\nevict = 0.2", "place.evict", 3, "0.2 is above keep"),
        ("[place]\nkeep = 2", "place.keep", 2, "2 is not a quantile"),
        ("[place]\nhost = [95, 90]", "place.host", 2, "falls"),
        ("[place]\nhost = [95]", "place.host", 2, "two numbers"),
        (
            "[place]\nunits = 'absolute'\nkeep = 0.1\nevict = 0.06\n[score]\nalpha = 0.05",
            "place.evict",
            4,
            "nothing could ever be kept",
        ),
        ("[shadow]\ncandidates = ['lru', 'x']", "shadow.candidates", 2, "'x': is not known"),
        ("[shadow]\ncandidates = ['lru', 'lru']", "shadow.candidates", 2, "twice"),
        ("[score\n", "", 1, "not TOML"),
    ],
)
def test_bad_setting_is_named(text: str, key: str, line: int, reason: str) -> None:
    """A wrong setting is refused as `file:line key: reason`."""
    error = refusal(text)
    assert (error.key, error.line) == (key, line)
    assert reason in error.reason
    place = f"policy.toml:{line} {key}".rstrip()
    assert error.brief() == f"{place}: {error.reason}"


def test_half_life_and_alpha_are_one_setting() -> None:
    """alpha 0.05 is a half-life of 13.5134 units, and either is derived from the other."""
    by_alpha = policy("[score]\nalpha = 0.05").score
    assert by_alpha.half_life_units == pytest.approx(13.5134, abs=5e-5)
    by_half_life = policy("[score]\nhalf_life = 1").score
    assert by_half_life.weight == pytest.approx(0.5, rel=1e-15)
    longest = policy("[score]\nhalf_life = 1e12").score
    assert 0 < longest.weight < 1e-11
    shortest = policy("[score]\nhalf_life = 0.02").score
    assert 0.999 < shortest.weight < 1


def test_score_reaches_the_formula() -> None:
    """What [score] says is passed to formulas that have it, and the rest comes from [priority]."""
    text = "[score]\nalpha = 0.2\nclock = 'turn'\nstate = 'reset'\n[priority]\nformula = "
    assert policy(text + "'lrfu'").priority.built == Lrfu(0.2, None, "turn", "reset", True)
    assert policy(text + "'product'\nbeta = 1").priority.built == Product(0.2, 1.0)
    assert policy(text + "'lru'").priority.built == Plain()
    halved = "[score]\nhalf_life = 2\n[priority]\nformula = "
    assert policy(halved + "'lrfu'").priority.built == Lrfu(half_life=2.0, chains=True)
    assert policy(halved + "'product'").priority.built.alpha == pytest.approx(1 - math.sqrt(0.5))


def test_keep_above_alpha_warns() -> None:
    """Absolute bands that one access cannot reach are legal, and said."""
    text = "[place]\nunits = 'absolute'\nkeep = 0.1\nevict = 0.02\n[score]\nalpha = "
    (warning,) = policy(text + "0.05").warnings
    assert "place.keep: 0.1 is above alpha (0.05)" in warning
    assert policy(text + "0.2").warnings == ()


def test_source_preset_holds_the_sources_constants() -> None:
    """preset = "source" is the documents' policy; what the file says goes over it."""
    assert PRESETS == ("source",)
    source = policy("preset = 'source'")
    assert source.score.weight == 0.05
    assert source.priority.built == Product(alpha=0.05, beta=0.001)
    assert (source.place.keep, source.place.evict, source.place.units) == (0.1, 0.02, "absolute")
    changed = policy("preset = 'source'\n[priority]\nbeta = 0.1\n[score]\nhalf_life = 1")
    assert changed.priority.built == Product(alpha=0.5, beta=0.1)
    assert changed.score.clock == "step"
    other = policy("preset = 'source'\n[priority]\nformula = 'lru'\n[score]\nalpha = 0.2")
    assert (other.priority.built, other.warnings) == (Plain(), ())


def test_formula_of_the_preset_is_meant_where_none_is_named() -> None:
    """Options in the file belong to the preset's formula unless the file names another."""
    error = refusal("preset = 'source'\n[priority]\ngamma = 0.1")
    assert error.key == "priority.gamma"
    assert "beta" in error.allowed


def test_users_policies_take_any_plain_options() -> None:
    """What [priority] says beside file: or entry: goes to the author's class as it is."""
    found = policy("[priority]\nformula = 'file:mine.py'\nweight = 3\nmode = 'x'").priority
    assert (found.formula, found.options) == ("file:mine.py", {"weight": 3, "mode": "x"})
    assert found.built is None


def test_effective_values_are_plain() -> None:
    """Every key has a value that JSON can hold, alpha and half-life both."""
    effective = policy("[priority]\nformula = 'product'").effective()
    assert list(effective) == ["signal", "score", "priority", "protect", "place", "shadow"]
    assert effective["priority"] == {
        "formula": "product", "beta": 0.001, "rescaled": False, "depth": 1,
    }  # fmt: skip
    assert effective["score"]["half_life"] == 13.5
    assert effective["place"]["host"] == [90.0, 95.0]
