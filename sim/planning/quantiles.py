"""Estimates with the interval they deserve.

Quantiles: the interval between two order statistics holds the true quantile whatever the
distribution, because the number of samples below it is binomial (David and Nagaraja, Order
Statistics, 7.1). Too few samples have no such interval: `required_n` derives how many are needed.

Requests of one session resemble each other, so n requests are worth fewer. Given the sessions, the
interval uses the effective number: n over the design effect of the share below the quantile, with
the t correction for few sessions (Korn and Graubard, Survey Methodology 24, 1998). It is used rather
than a bootstrap of sessions because it needs no random numbers, turns into the exact interval
when requests are independent, and says "too few" where a bootstrap would print a narrow interval.
Means and ratios use the same clusters (linearised ratio, t with sessions - 1 degrees of freedom).
Sessions that queue behind one another are not independent either: only replications see that part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from replicast.sim.planning.distributions import beta_quantile, t_quantile

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value from `n` samples and its 95 % interval.

    `value` is None without samples; `low` and `high` are None where the samples are too few for an
    interval. A tail quantile without an interval (p99 of 100 requests) is not worth showing.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def has_interval(self) -> bool:
        """Whether there were enough samples for an interval."""
        return self.low is not None and self.high is not None


NOTHING = Estimate(None, None, None, 0)


def required_n(q: float, confidence: float = CONFIDENCE) -> int:
    """Fewest independent samples whose extremes enclose the `q` quantile in both directions.

    >>> [required_n(q) for q in (0.5, 0.9, 0.95, 0.99)]
    [6, 36, 72, 368]
    """
    tail = math.log((1 - confidence) / 2)
    return math.ceil(tail / math.log(max(q, 1 - q)))


def order_statistics(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (from 1) of the two samples that enclose the `q` quantile; None if n is too small."""
    from scipy.special import bdtr

    if n < required_n(q, confidence):
        return None
    tail = (1 - confidence) / 2
    at_most = bdtr(np.arange(n + 1.0), n, q)  # P(samples below the quantile <= k)
    low = int(np.searchsorted(at_most, tail, side="right"))  # P(below <= low - 1) <= tail
    high = int(np.searchsorted(at_most, 1 - tail, side="left")) + 1  # P(below >= high) <= tail
    return (low, high) if low >= 1 and high <= n else None


def quantile(
    values: ArrayLike,
    q: float,
    sessions: Sequence[object] | NDArray[np.generic] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The `q` quantile with a distribution-free interval; `sessions` names the session of each value.

    Without `sessions` the values count as independent.
    """
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    if n == 0:
        return NOTHING
    assert not np.isnan(x[-1]), "a missing value is dropped and counted before, not here"
    value = _between(x, q)
    if sessions is None:
        ranks = order_statistics(n, q, confidence)
    else:
        ranks = _clustered_ranks(np.asarray(values, dtype=float), q, value, sessions, confidence)
    if ranks is None:
        return Estimate(value, None, None, n)
    return Estimate(value, float(x[ranks[0] - 1]), float(x[ranks[1] - 1]), n)


def ratio(
    numerator: ArrayLike,
    denominator: ArrayLike,
    sessions: Sequence[object] | NDArray[np.generic] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """sum(numerator) / sum(denominator), such as hit tokens over prompt tokens, by session."""
    y, d = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    n, total = len(y), float(d.sum())
    if n == 0 or total == 0:
        return Estimate(None, None, None, n)
    value = float(y.sum()) / total
    sums = _cluster_sums(y - value * d, sessions)
    clusters = len(sums)
    if clusters < 2:
        return Estimate(value, None, None, n)
    spread = math.sqrt(clusters / (clusters - 1) * float(sums @ sums))
    half = t_quantile(clusters - 1, (1 + confidence) / 2) * spread / total
    return Estimate(value, value - half, value + half, n)


def mean(
    values: ArrayLike,
    sessions: Sequence[object] | NDArray[np.generic] | None = None,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """The mean per value, its interval from the spread between sessions (between values without them)."""
    x = np.asarray(values, dtype=float)
    return ratio(x, np.ones(len(x)), sessions, confidence)


def digits(estimate: Estimate) -> int:
    """Decimals that the interval supports: the last digit's unit is at most a quarter of its width.

    Negative decimals round to tens and hundreds. Two significant digits without an interval,
    three where the interval has no width.

    >>> digits(Estimate(5.23, 4.3, 6.3, 100)), digits(Estimate(17.2, 15, 19, 100))
    (1, 0)
    """
    value = abs(estimate.value or 0.0)
    if estimate.low is not None and estimate.high is not None:
        quarter = (estimate.high - estimate.low) / 4
        if 0 < quarter < math.inf:
            return -math.floor(math.log10(quarter) + 1e-9)
    kept = 3 if estimate.has_interval else 2
    return kept - 1 - math.floor(math.log10(value)) if 0 < value < math.inf else 0


def rounded(estimate: Estimate) -> Estimate:
    """The estimate with no more digits than its interval supports."""
    places = digits(estimate)

    def at(x: float | None) -> float | None:
        return None if x is None else round(x, places)

    return Estimate(at(estimate.value), at(estimate.low), at(estimate.high), estimate.n)


def _between(ordered: NDArray[np.float64], q: float) -> float:
    """`np.quantile` of values in order: between the two nearest, by distance."""
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    low, high = float(ordered[below]), float(ordered[math.ceil(place)])
    part = place - below
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def _cluster_sums(
    values: NDArray[np.float64], sessions: Sequence[object] | NDArray[np.generic] | None
) -> NDArray[np.float64]:
    if sessions is None:
        return values
    assert len(sessions) == len(values), "one session name a value"
    codes = np.asarray(sessions)
    if codes.dtype.kind not in "iu" or codes.min(initial=0) < 0:
        codes = np.unique(codes, return_inverse=True)[1]
    n = len(codes)
    first = np.full(int(codes.max(initial=-1)) + 1, n)
    first[codes[::-1]] = np.arange(n - 1, -1, -1)  # the last one written is the first to appear
    sums = np.bincount(codes, weights=values).astype(float)
    return sums[np.argsort(first)[: np.count_nonzero(first < n)]]  # in order of appearance


def _clustered_ranks(
    values: NDArray[np.float64],
    q: float,
    value: float,
    sessions: Sequence[object] | NDArray[np.generic],
    confidence: float,
) -> tuple[int, int] | None:
    """Ranks of the interval with the effective number of samples (Clopper-Pearson on the share below)."""
    n = len(values)
    below = (values <= value).astype(float)
    sums = _cluster_sums(below - below.mean(), sessions)
    clusters = len(sums)
    if clusters < 2:
        return None
    independent = float(below.var()) / n
    variance = clusters / (clusters - 1) * float(sums @ sums) / n**2
    effect = max(variance / independent, 1.0) if independent > 0 else 1.0
    upper = (1 + confidence) / 2
    few = 1.0 if n < 3 else (t_quantile(n - 1, upper) / t_quantile(clusters - 1, upper)) ** 2
    effective = n / effect * min(few, 1.0)
    if effective < required_n(q, confidence):
        return None
    low = beta_quantile(q * effective, (1 - q) * effective + 1, 1 - upper)
    high = beta_quantile(q * effective + 1, (1 - q) * effective, upper)
    return max(math.floor(n * low), 1), min(math.ceil(n * high), n)
