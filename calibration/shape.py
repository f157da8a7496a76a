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

# Shares at or below which a quantile is taken for the median, or for nine in ten: least, wanted, most. Nearer
# to 1 a share is that of a few requests.
WANTED = {"middle": (0.3, 0.5, 0.7), "tail": (0.75, 0.9, 0.97)}
# Seconds below which a latency says nothing: of edges, and of what clients resolve.
RESOLVED_S = {"ttft": 0.02, "queue": 0.3, "prefill": 0.1, "tpot": 1e-4}


class Quantile(NamedTuple):
    """The quantile at the share `at` lies between these seconds, which are equal where it is known.

    `counted`: at share k/n lies what is between the values of rank k and k + 1; else the value of that rank.
    """

    at: float
    low_s: float
    high_s: float
    counted: bool = True


def quantiles_of(level: SweepLevel) -> dict[str, tuple[Quantile, float]]:
    """What a level tells, by the names of `noise.OF_SHAPE`: a quantile, and its histogram's mean in s."""
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


def shape(name: str, values: Floats, quantile: Quantile) -> float:
    """The same of values known one by one; NaN of none."""
    if not len(values):
        return math.nan
    resolved = RESOLVED_S[name.split("_")[0]]
    if quantile.counted:
        found = float(np.quantile(values, quantile.at, method="hazen"))
    else:  # a hair is taken off so that 0.9 x 10 stays 9
        found = float(np.quantile(values, quantile.at - 1e-9, method="inverted_cdf"))
    return (found + resolved) / (float(values.mean()) + resolved)


def _counted(histogram: Histogram) -> Mapping[str, Quantile]:
    counts = histogram.counts
    total = sum(counts)
    if total < LEAST_COUNTED or len(counts) != len(histogram.edges) + 1:
        return {}
    shares = (np.cumsum(counts)[:-1] / total).tolist()
    ends: dict[float, list[float]] = {}  # of the edges that have one share: nothing lies between them
    for share, edge in zip(shares, histogram.edges, strict=True):
        ends.setdefault(share, []).append(edge)
    found: dict[str, Quantile] = {}
    for part, (low, wanted, high) in WANTED.items():
        near = [share for share in ends if low <= share <= high]
        if near:
            share = min(near, key=lambda share: abs(share - wanted))
            found[part] = Quantile(share, min(ends[share]), max(ends[share]))
    return found


def _given(histogram: Histogram) -> Mapping[str, Quantile]:
    if histogram.count is not None and histogram.count < LEAST_COUNTED:
        return {}
    found = {}
    for part, (_, wanted, _) in WANTED.items():
        bounds = histogram.quantile(wanted)
        if bounds is not None and bounds.high != 0.0:
            high = math.inf if bounds.high is None else bounds.high
            found[part] = Quantile(wanted, bounds.low, high, counted=False)
    return found
