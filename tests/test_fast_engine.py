"""The engine in jumps equals the engine step by step: in every tick, hit, preemption and counter."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_engines import difference
from replicast.sim.engine.compiled import compiled_class


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["", "plain sync", "plain async", "tight"]))
def test_jumps_equal_steps(seed: int, features: str) -> None:
    found = difference(seed, features, Counter())
    assert found is None, f"seed {seed} {features!r}: {found}"


def test_the_compiled_engine_equals_it_too() -> None:
    engine = compiled_class()
    if engine is None:
        pytest.skip("not built: python -m replicast.sim.engine.compiled")
    for seed in range(150):
        assert difference(seed, "", Counter(), engine) is None, f"seed {seed}"


# Cases that once differed.
@pytest.mark.parametrize(
    "seed",
    [25, 95, 181, 310, 370, 524, 845, 983, 987, 1226, 202375, 303139, 311029, 312543, 313013, 702849, 711125],
)
def test_cases_that_once_differed(seed: int) -> None:
    assert difference(seed, "", Counter()) is None
