"""Uncertainty: chance and discrepancy told apart, intervals by covariance and by profile."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from replicast.calibration.fit import Fitted, robust
from replicast.calibration.likelihood import profile_interval, reason_to_profile
from replicast.calibration.model import Parameter
from replicast.calibration.noise import (
    FLOOR,
    LENGTHS,
    METRICS,
    OF_SHAPE,
    SIZES,
    Noise,
    discrepancy_size,
    residual_covariance,
    residual_sds,
)
from replicast.calibration.uncertainty import WEAKLY, covariance_of, uncertainty

LEVELS = 12
NAMES = tuple((level, name) for level in range(LEVELS) for name in METRICS)
SDS = np.full((LEVELS, len(METRICS)), 0.02)
NOISE = Noise(
    SDS,
    SDS,
    np.eye(len(METRICS)),
    np.zeros((LEVELS, LENGTHS, len(METRICS))),
    1000,
)


def straight(
    low: float = -9.0, correlation: float = 0.0, curvature: float = 0.0, noise: float = 0.0
) -> Fitted:
    """Two parameters with residuals that are straight lines, at an exact optimum."""
    rng = np.random.default_rng(1)
    slopes = rng.standard_normal((len(NAMES), 2))
    slopes[:, 1] = correlation * slopes[:, 0] + math.sqrt(1 - correlation**2) * slopes[:, 1]
    slopes *= 0.3
    data = rng.standard_normal(len(NAMES)) * 0.01
    params = (Parameter("memory_fixed_s", 0, 0, 9, low, 9), Parameter("memory_per_seq_s", 0, 0, 9, -9, 9))
    full = np.concatenate([slopes, np.diag([1 / 9, 1 / 9])])

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.concatenate([data, np.zeros(2)]) + full @ x)

    problem = SimpleNamespace(
        residuals=residuals, low=np.array([low, -9.0]), high=np.array([9.0, 9.0]), names=NAMES,
        seeds=(1, 2), sds=residual_sds(NOISE, NAMES, 1.0, 2), evaluations=0,
    )  # fmt: skip
    at = residuals(np.zeros(2))
    return Fitted(
        params, np.zeros(2), full * robust(at)[:, None], at, np.full(2, curvature), np.full(2, noise), NOISE,
        1.0, cast(Any, problem), (),
    )  # fmt: skip


def test_discrepancy_is_as_large_as_the_residuals_ask_for() -> None:
    rng = np.random.default_rng(2)
    for size in (0.5, 1.0, 2.0):
        raw = rng.standard_normal(len(NAMES)) * residual_sds(NOISE, NAMES, size, 2)
        assert discrepancy_size(raw, NOISE, NAMES, 0, 2) == pytest.approx(size, rel=0.35)
    assert discrepancy_size(np.zeros(len(NAMES)), NOISE, NAMES, 2, 2) == SIZES[0]


def test_chance_counts_for_both_sides() -> None:
    alone = residual_sds(NOISE, NAMES, 0.0, 1)
    chance = 0.02 * math.sqrt(2)
    assert alone[: len(FLOOR)] == pytest.approx(np.full(len(FLOOR), chance))
    both = residual_sds(NOISE, NAMES, 1.0, 1)
    assert both[0] == pytest.approx(math.hypot(chance, FLOOR["tpot_mean_s"]))


def test_shapes_are_as_far_off_whatever_the_means() -> None:
    """A sweep whose means are explained to the noise does not for that have log-normal requests."""
    of_shape = [at for at, (_, name) in enumerate(NAMES) if name in OF_SHAPE]
    small, large = (residual_sds(NOISE, NAMES, size, 1)[of_shape] for size in (0.2, 2.0))
    assert np.array_equal(small, large)
    assert small[:1] == pytest.approx(math.hypot(0.02 * math.sqrt(2), OF_SHAPE[NAMES[of_shape[0]][1]]))
    raw = np.where(np.isin(np.arange(len(NAMES)), of_shape), 9.0, 0.0)
    assert discrepancy_size(raw, NOISE, NAMES, 2, 2) == SIZES[0]


def test_independent_residuals_have_covariance_one() -> None:
    sds = residual_sds(NOISE, NAMES, 1.0, 2)
    assert residual_covariance(NOISE, NAMES, 1.0, 2, sds) == pytest.approx(np.eye(len(NAMES)))
    alike = Noise(SDS, SDS, np.ones((len(METRICS), len(METRICS))), NOISE.by_length, 1000)
    shared = residual_covariance(alike, NAMES, 0.0, 2, residual_sds(alike, NAMES, 0.0, 2))
    assert shared[0, 1] == pytest.approx(1.0)
    assert shared[0, len(METRICS)] == 0  # another level


def test_a_profile_of_straight_residuals_is_the_covariance_interval() -> None:
    fitted = straight(correlation=0.5)
    covariance = covariance_of(fitted)
    inverse = np.linalg.inv(fitted.jacobian.T @ fitted.jacobian)
    low, high = profile_interval(fitted, covariance, inverse, 0)
    assert high == pytest.approx(1.96 * math.sqrt(covariance[0, 0]), rel=0.05)
    assert low == pytest.approx(-high, rel=0.05)


def test_the_method_is_chosen_by_rule() -> None:
    def reason(fitted: Fitted) -> str | None:
        return reason_to_profile(fitted, covariance_of(fitted), 0)

    assert reason(straight()) is None
    assert reason(straight(low=-0.1)) == "a bound"
    assert reason(straight(correlation=0.99)) == "a correlation"
    assert reason(straight(curvature=1.2)) == "curved"


def test_an_interval_ends_at_its_bound() -> None:
    known = uncertainty(straight(low=-0.1))
    interval = known.intervals[0]
    assert interval.method == "profile likelihood"
    assert interval.low == pytest.approx(math.exp(-0.1))
    assert interval.low < interval.value < interval.high
    assert known.intervals[1].method == "covariance"


def test_noise_of_slopes_is_no_information() -> None:
    clear, noisy = straight(correlation=0.97), straight(correlation=0.97, noise=0.2)
    assert covariance_of(noisy)[0, 0] > 1.2 * covariance_of(clear)[0, 0]
    # Slopes that are nothing but noise leave the prior.
    nothing = covariance_of(straight(noise=1e6))
    assert nothing == pytest.approx(81 * np.eye(2), rel=0.05)


def test_what_the_data_hardly_tell_is_doubted_by_as_far_as_it_moved() -> None:
    """Chance moves it as far as the little that the data say."""
    told = straight()
    hardly = replace(told, params=(Parameter("memory_fixed_s", 0, 0.5, 1e-3, -9, 9), told.params[1]))
    near, far = (uncertainty(fitted).intervals[0] for fitted in (told, hardly))
    assert (near.status, far.status) == ("fitted", WEAKLY)
    assert math.log(far.high / far.low) == pytest.approx(2 * 1.96 * math.hypot(0.5, 1e-3), rel=0.01)
    assert near.high / near.low < far.high / far.low
