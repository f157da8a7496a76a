"""Quantiles of beta and Student's t: SciPy's, and the cumulative shares they invert."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.planning.distributions import beta_cdf, beta_quantile, t_quantile
from scipy.special import betainc, betaincinv, stdtrit

shapes = st.floats(0.5, 50_000)
shares = st.floats(1e-4, 1 - 1e-4)


@given(shapes, shapes, st.floats(0, 1))
def test_beta_share(a: float, b: float, x: float) -> None:
    assert beta_cdf(a, b, x) == pytest.approx(float(betainc(a, b, x)), rel=1e-8, abs=1e-10)


@given(shapes, shapes, shares)
def test_beta_quantile(a: float, b: float, p: float) -> None:
    assert beta_quantile(a, b, p) == pytest.approx(float(betaincinv(a, b, p)), rel=1e-8)


@given(st.floats(1, 100_000), st.floats(0.51, 0.9999))
def test_t_quantile(degrees: float, p: float) -> None:
    assert t_quantile(degrees, p) == pytest.approx(float(stdtrit(degrees, p)), rel=1e-8)


def test_ends() -> None:
    assert beta_quantile(2.0, 3.0, 0.0) == 0.0
    assert beta_quantile(2.0, 3.0, 1.0) == 1.0
    assert t_quantile(7, 0.5) == 0.0
