"""Intervals: they hold what they promise, on independent and on clustered data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.planning.quantiles import (
    Estimate,
    digits,
    mean,
    order_statistics,
    quantile,
    ratio,
    required_n,
    rounded,
)
from scipy.stats import binom

TRIALS = 600


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.1, 36)])
def test_fewest_samples(q: float, n: int) -> None:
    assert required_n(q) == n
    assert order_statistics(n - 1, q) is None
    assert order_statistics(n, q) is not None
    assert not quantile(np.arange(n - 1.0), q).has_interval
    assert quantile(np.arange(float(n)), q).has_interval


@given(st.integers(1, 3000), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_exact_coverage_of_the_ranks(n: int, q: float) -> None:
    ranks = order_statistics(n, q)
    if ranks is None:
        assert n < required_n(q)
        return
    low, high = ranks
    assert 1 <= low < high <= n
    tail = 0.025 + 1e-12
    assert binom.cdf(low - 1, n, q) <= tail < binom.cdf(low, n, q) + 1e-9
    assert binom.sf(high - 1, n, q) <= tail < binom.sf(high - 2, n, q) + 1e-9


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.sampled_from([0.5, 0.9]))
def test_the_interval_encloses_the_value(values: list[float], q: float) -> None:
    got = quantile(values, q)
    assert got.value is not None
    assert got.n == len(values)
    if got.low is not None and got.high is not None:
        assert got.low <= got.value * (1 + 1e-12) + 1e-12
        assert got.value <= got.high * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("q", [0.5, 0.9])
@pytest.mark.parametrize("with_sessions", [False, True])
def test_coverage_on_independent_samples(q: float, with_sessions: bool) -> None:
    rng = np.random.default_rng(11)
    truth = -math.log(1 - q)
    sessions = np.repeat(np.arange(40), 5) if with_sessions else None
    hits = 0
    for _ in range(TRIALS):
        got = quantile(rng.exponential(size=200), q, sessions)
        assert got.low is not None
        assert got.high is not None
        hits += got.low <= truth <= got.high
    assert hits / TRIALS > 0.95 - 3 * math.sqrt(0.05 * 0.95 / TRIALS)


def test_coverage_on_clustered_samples_needs_the_sessions() -> None:
    """30 sessions of 20 requests, four fifths of the variance between sessions."""
    rng = np.random.default_rng(12)
    sessions = np.repeat(np.arange(30), 20)
    aware = naive = means = 0
    for _ in range(TRIALS):
        x = np.sqrt(0.8) * rng.normal(size=30)[sessions] + np.sqrt(0.2) * rng.normal(size=600)
        for got, kind in ((quantile(x, 0.5, sessions), 0), (quantile(x, 0.5), 1), (mean(x, sessions), 2)):
            assert got.low is not None
            assert got.high is not None
            holds = got.low <= 0 <= got.high
            aware += holds and kind == 0
            naive += holds and kind == 1
            means += holds and kind == 2
    assert aware / TRIALS > 0.93
    assert means / TRIALS > 0.92
    assert naive / TRIALS < 0.6


def test_few_sessions_give_no_interval() -> None:
    rng = np.random.default_rng(13)
    x = rng.normal(size=400)
    assert not quantile(x, 0.5, ["one"] * 400).has_interval
    assert not mean(x, ["one"] * 400).has_interval
    whole = np.repeat(np.arange(5.0), 80)
    assert not quantile(whole, 0.5, whole).has_interval, "five distinct sessions are five samples"


def test_order_of_samples_does_not_matter() -> None:
    rng = np.random.default_rng(14)
    x, sessions = rng.normal(size=300), rng.integers(0, 40, size=300)
    order = rng.permutation(300)
    assert quantile(x, 0.5, sessions) == quantile(x[order], 0.5, sessions[order])


def test_ratio_is_weighted_by_its_denominator() -> None:
    got = ratio([90, 0], [100, 900], ["a", "b"])
    assert got.value == pytest.approx(0.09)
    assert ratio([], []) == Estimate(None, None, None, 0)
    assert ratio([0.0], [0.0]).value is None


def test_nothing_measured() -> None:
    assert quantile([], 0.5) == Estimate(None, None, None, 0)
    assert mean([]) == Estimate(None, None, None, 0)


@pytest.mark.parametrize(
    ("estimate", "places"),
    [
        (Estimate(5.23, 4.3, 6.3, 90), 1),
        (Estimate(17.21, 15.0, 19.0, 90), 0),
        (Estimate(2.91, 2.4, 3.5, 90), 1),
        (Estimate(1234.0, 900.0, 1500.0, 90), -2),
        (Estimate(0.01234, 0.0121, 0.0125, 90), 4),
        (Estimate(0.01234, None, None, 3), 3),
        (Estimate(12.34, 12.34, 12.34, 90), 1),
        (Estimate(0.0, 0.0, 0.0, 90), 0),
        (Estimate(None, None, None, 0), 0),
    ],
)
def test_no_more_digits_than_the_interval_supports(estimate: Estimate, places: int) -> None:
    assert digits(estimate) == places


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e5))
def test_rounding_moves_less_than_the_interval(value: float, half: float) -> None:
    e = Estimate(value, value - half, value + half, 50)
    unit = 10.0 ** -digits(e)
    assert half / 20 * (1 - 1e-6) < unit <= half / 2 * (1 + 1e-6)
    got = rounded(e).value
    assert got is not None
    assert abs(got - value) <= half / 4 * (1 + 1e-6) + 1e-12
