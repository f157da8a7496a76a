"""Quantiles of the beta and of Student's t distribution.

SciPy has them too, but to import `scipy.special` takes longer than all the statistics of a replay. Both
follow from one function, the regularised incomplete beta function by its continued fraction (Press et al.,
Numerical Recipes, 6.4, evaluated by the modified Lentz method), and Newton's method on it.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_EPSILON = 2.0**-52


def beta_cdf(a: float, b: float, x: float) -> float:
    """I_x(a, b), the share of a beta distribution below `x`.

    >>> round(beta_cdf(2, 3, 0.5), 12)  # at least 2 heads in 4 throws
    0.6875
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side of the mean
        return 1.0 - beta_cdf(b, a, 1.0 - x)
    return x * (1.0 - x) * _density(a, b, x) / a / _fraction(a, b, x)


def beta_quantile(a: float, b: float, p: float) -> float:
    """Below which `x` the share `p` of a beta distribution lies."""
    if not 0 < p < 1:
        return float(p >= 1)
    low, high = 0.0, 1.0
    x = a / (a + b)
    while True:
        above = beta_cdf(a, b, x) - p
        low, high = (low, x) if above > 0 else (x, high)
        before, x = x, x - above / max(_density(a, b, x), _TINY)
        if not low < x < high:
            x = (low + high) / 2
        if abs(x - before) <= 2 * _EPSILON * x:
            return x


@lru_cache
def t_quantile(degrees: float, p: float) -> float:
    """Below which value the share `p`, a half at least, of Student's t with these degrees of freedom lies.

    >>> [round(t_quantile(degrees, 0.975), 3) for degrees in (1, 10, 1000)]
    [12.706, 2.228, 1.962]
    """
    share = beta_quantile(0.5, degrees / 2, 2 * p - 1)  # of t^2 / (degrees + t^2)
    return math.sqrt(degrees * share / (1 - share))


def _density(a: float, b: float, x: float) -> float:
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp((a - 1) * math.log(x) + (b - 1) * math.log1p(-x) - log_beta)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), by the ratios of successive numerators and denominators."""
    value = above = 1.0
    below = 0.0
    m = 0
    while True:
        for d in (
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
            (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2)),
        ):
            below = 1.0 / (1.0 + d * below or _TINY)
            above = 1.0 + d / above or _TINY
            value *= above * below
        m += 1
        if abs(above * below - 1.0) <= _EPSILON:
            return value
