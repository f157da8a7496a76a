"""How the latencies of a level's requests are spread, apart from their mean: quantiles that counts tell.

Of a cumulative bucket count one thing is exact: which share of requests took at most the bucket's edge. Read
the other way round, that edge is the quantile at that share. Two such quantiles of each histogram, near the
median and near nine in ten, over its mean, are residuals of a fit beside the mean: they tell how many
requests begin cold, and how unequal the others are. A published percentile is the edge of a bucket, so that
it bounds a quantile from both sides and says nothing within.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.spread import LEAST_COUNTED
from replicast.calibration.sweep import Histogram, SweepLevel

Floats = NDArray[np.float64]

WANTED = {"middle": 0.5, "tail": 0.9}
# Seconds below which a latency says nothing: of edges, and of what clients resolve.
RESOLVED_S = {"ttft": 0.02, "queue": 0.3, "prefill": 0.1, "tpot": 1e-4}
SHAPES = tuple(f"{name}_{part}" for name in RESOLVED_S for part in WANTED)
SHARES = (0.1, 0.97)  # nearer to 0 or 1 a share is that of a few requests


class Quantile(NamedTuple):
    """The quantile at the share `at` lies between these seconds, which are equal where it is known."""

    at: float
    low_s: float
    high_s: float


def quantiles_of(level: SweepLevel) -> dict[str, tuple[Quantile, float]]:
    """What a level tells, by the names of `SHAPES`: a quantile, and the mean of its histogram in s."""
    found: dict[str, tuple[Quantile, float]] = {}
    for name in RESOLVED_S:
        histogram: Histogram | None = getattr(level, name)
        if histogram is None or not histogram.mean:
            continue
        known = _counted(histogram) if sum(histogram.counts) > 0 else _given(histogram)
        found |= {f"{name}_{part}": (quantile, histogram.mean) for part, quantile in known.items()}
    return found


def bounds_of(name: str, quantile: Quantile, mean_s: float) -> tuple[float, float]:
    """The quantile over the mean."""
    resolved = RESOLVED_S[name.split("_")[0]]
    low, high = ((end + resolved) / (mean_s + resolved) for end in (quantile.low_s, quantile.high_s))
    return low, high


def shape(name: str, values: Floats, at: float) -> float:
    """The same of values known one by one; NaN of none."""
    if not len(values):
        return math.nan
    resolved = RESOLVED_S[name.split("_")[0]]
    # A share of whole requests: a hair is taken off so that 0.9 x 10 stays 9.
    found = float(np.quantile(values, at - 1e-9, method="inverted_cdf"))
    return (found + resolved) / (float(values.mean()) + resolved)


def _counted(histogram: Histogram) -> Mapping[str, Quantile]:
    total = sum(histogram.counts)
    if total < LEAST_COUNTED:
        return {}
    shares = np.cumsum(histogram.counts)[:-1] / total
    usable = {
        edge: share
        for edge, share in zip(histogram.edges, shares.tolist(), strict=True)
        if SHARES[0] <= share <= SHARES[1]
    }
    found: dict[str, Quantile] = {}
    for part, wanted in WANTED.items():
        if usable:
            edge = min(usable, key=lambda edge: abs(usable[edge] - wanted))
            found[part] = Quantile(usable.pop(edge), edge, edge)
    return found


def _given(histogram: Histogram) -> Mapping[str, Quantile]:
    found = {}
    for part, wanted in WANTED.items():
        bounds = histogram.quantile(wanted)
        if bounds is not None:
            found[part] = Quantile(wanted, bounds.low, math.inf if bounds.high is None else bounds.high)
    return found
