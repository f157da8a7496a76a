"""How prompts grow is learnt from levels that are cut after few and after many turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.growth import (
    FIRST,
    RAMP,
    Endings,
    Growth,
    grown_share,
    learn_growth,
    mean_share,
)

TURNS = st.floats(1.0, 300.0)
TOKENS = st.floats(100.0, 200_000.0)


@given(TURNS, TOKENS, st.floats(0.0, 300_000.0), TOKENS)
def test_a_curve_is_scaled_to_the_mean_of_its_level(
    turns: float, first: float, gained: float, mean: float
) -> None:
    curve = Growth(first, gained).scaled(turns, mean)
    assert curve.mean(turns) == pytest.approx(mean)
    assert curve.first_tokens <= mean * (1 + 1e-9)


@pytest.mark.parametrize("turns", [1, 2, 7.5, 30, 66, 90, 200, 399])
@pytest.mark.parametrize("endings", [Endings(), Endings(66.0, 0.0), Endings(25.0, 0.5)])
def test_the_mean_share_is_that_of_streams(turns: float, endings: Endings) -> None:
    """Sessions as the generator draws them, one after the other."""
    rng = np.random.default_rng(3)
    shares = np.array([grown_share(turn) for turn in range(2000)])
    means = []
    for _ in range(2000):
        left, total = turns, 0.0
        while left > 0:
            drawn = endings.drawn(*rng.standard_normal(2).tolist())
            calls = min(float(max(round(drawn), 1)), left)
            total += float(shares[: int(calls)].sum() + (calls % 1) * shares[int(calls)])
            left -= calls
        means.append(total / turns)
    assert mean_share(turns, endings) == pytest.approx(np.mean(means), rel=0.01)


@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize("truth", [Growth(60_000, 10_000), Growth(25_000, 90_000), Growth(40_000, 60_000)])
def test_a_curve_is_found_again(truth: Growth, scale: float) -> None:
    """Prompts with a tenth of noise, the median of many sweeps; short prompts as well as long ones."""
    rng = np.random.default_rng(5)
    turns = [3.0, 6.0, 12.0, 25.0, 60.0]
    found = [
        learn_growth([(t, scale * truth.mean(t) * (1 + 0.1 * float(rng.standard_normal()))) for t in turns])
        for _ in range(200)
    ]
    first, gained, _ = np.median(found, axis=0) / scale
    assert first == pytest.approx(truth.first_tokens, rel=0.25)
    assert first + gained == pytest.approx(truth.first_tokens + truth.gained_tokens, rel=0.2)


@given(TOKENS, st.floats(0.0, 300_000.0), st.floats(0.1, 0.9), TOKENS)
def test_another_first_prompt_turns_the_curve_about_its_pivot(
    first: float, gained: float, pivot: float, other: float
) -> None:
    curve = Growth(first, gained, pivot)
    turned = curve.starting(other)
    height = first + gained * pivot
    assert turned.first_tokens == other
    assert turned.first_tokens + turned.gained_tokens * pivot == pytest.approx(max(height, other))


def test_one_level_gets_the_usual_curve() -> None:
    found = learn_growth([(RAMP / 2, 40_000.0)])
    assert found.mean(RAMP / 2) == pytest.approx(40_000, rel=0.05)
    assert found.first_tokens == pytest.approx(FIRST * 40_000, rel=0.15)


def test_prompts_that_shrink_with_turns_do_not_grow() -> None:
    assert learn_growth([(3.0, 70_000.0), (50.0, 40_000.0), (60.0, 40_000.0)]).gained_tokens == 0
