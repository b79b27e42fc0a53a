"""The fuzz target of the decoders in its short form. EVOKE_FUZZ_S=60 is longer."""

from __future__ import annotations

import os

import pytest

from tests.hostile.fuzz_wire import corpus, run, target

SECONDS = float(os.environ.get("EVOKE_FUZZ_S", "10"))


def test_kept_corpus() -> None:
    """Each kept input is accepted or refused as the protocol says."""
    inputs = corpus()
    assert len(inputs) >= 25
    for data in inputs:
        target(data)


@pytest.mark.timeout(SECONDS + 60)
def test_mutations() -> None:
    """Mutations of the kept inputs are accepted or refused as the protocol says."""
    assert run(SECONDS, seed=1) > 1000
