"""Do predicted requests fall into the buckets that were counted? Means can agree where tails do not.

The level is simulated as in a prediction, its values moved to the predicted mean, and sorted into the buckets
of the measured histogram. Three figures:

    wrong_share   requests that lie in another bucket than predicted: half the sum of |measured - predicted|
    buckets_off   by how many buckets a request lies off on average: the earth mover's distance, in buckets
    expected      the same two for one realisation of the predicted level against the others: chance

A level agrees where `buckets_off` is within `LIMIT_SDS` standard deviations of what chance makes. Where only
percentiles are published, which are edges of buckets, `buckets_off` is their mean distance in buckets and
`wrong_share` is unknown.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S
from replicast.calibration.harness import latencies, run_level
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.sweep import Histogram

Floats = NDArray[np.float64]

EDGES: Mapping[str, tuple[float, ...]] = {
    "ttft": TTFT_EDGES_S,
    "queue": REQUEST_EDGES_S,
    "prefill": REQUEST_EDGES_S,
    "tpot": TPOT_EDGES_S,
}
SEEDS = (21, 22, 23, 24, 25, 26)
LIMIT_SDS = 2.0
LEAST_OFF = 0.1  # buckets; of percentiles one of three in the next bucket
LEAST_OFF_QUANTILES = 1 / 3
LARGEST_MOVE = 2.0


class Agreement(NamedTuple):
    """One histogram of one level; `counts` are the measured ones, `predicted` as many requests."""

    level: int
    load: str
    metric: str
    requests: float | None
    wrong_share: float | None
    expected_wrong_share: float | None
    buckets_off: float
    expected_buckets_off: float
    agrees: bool
    edges_s: tuple[float, ...]
    counts: tuple[float, ...]
    predicted: tuple[float, ...]


class _Distance(NamedTuple):
    wrong_share: float | None
    buckets_off: float


def agreements(
    model: LevelModel, point: Point, load: str, means: Mapping[str, float], seeds: Sequence[int] = SEEDS
) -> list[Agreement]:
    """Each histogram of the level of `model` against the same level simulated at `point`.

    `means` are predicted means by the names of `harness.METRICS`; the simulation's own stand in for others.
    """
    known = {name: histogram for name in EDGES if (histogram := getattr(model.level, name)) is not None}
    usable = {name: h for name, h in known.items() if sum(h.counts) > 0 or h.given_quantiles}
    if not usable:
        return []
    runs = [latencies(run_level(model.load(point), model.server(point), seed).records) for seed in seeds]
    out = []
    for name, histogram in usable.items():
        values = [run[name] for run in runs if len(run[name])]
        if len(values) > 2:
            factor = _move(np.concatenate(values), means.get(f"{name}_mean_s"))
            moved = [factor * run for run in values]
            out.append(_agreement(model.concurrency, load, name, histogram, moved))
    return out


def agreement_lines(found: Sequence[Agreement]) -> list[str]:
    """A table for a terminal; nothing where no histogram is known."""
    if not found:
        return []
    lines = [
        "",
        "Buckets: requests that lie in another bucket than predicted, and by how many buckets; in brackets "
        "what chance makes.",
        f"{'level':>5} {'load':12} {'metric':14} {'requests':>9} {'wrong bucket':>14} {'buckets off':>14}",
    ]
    for row in found:
        requests = "-" if row.requests is None else f"{row.requests:,.0f}"
        wrong = "-"
        if row.wrong_share is not None:
            wrong = f"{row.wrong_share:.0%} ({row.expected_wrong_share or 0.0:.0%})"
        off = f"{row.buckets_off:.1f} ({row.expected_buckets_off:.1f})"
        verdict = "" if row.agrees else "  more than chance"
        lines.append(
            f"{row.level:5d} {row.load:12} {row.metric:14} {requests:>9} {wrong:>14} {off:>14}{verdict}"
        )
    agree = sum(row.agrees for row in found)
    return [*lines, f"{agree} of {len(found)} histograms agree within chance."]


def _agreement(level: int, load: str, name: str, histogram: Histogram, runs: Sequence[Floats]) -> Agreement:
    counted = sum(histogram.counts) > 0
    edges = histogram.edges if counted else EDGES[name]
    binned = [_binned(run, edges) for run in runs]
    total = np.sum(binned, axis=0)
    if counted:
        counts = np.array(histogram.counts)
        here = _distance(counts, total)
        chance = [_distance(one, total - one) for one in binned]
    else:
        at = [q for q, _ in histogram.given_quantiles]
        places = np.array(
            [
                np.searchsorted(edges, np.inf if b.high is None else b.high)
                for _, b in histogram.given_quantiles
            ]
        )
        counts = np.zeros(0)
        here = _quantile_distance(places, np.concatenate(runs), at, edges)
        chance = [
            _quantile_distance(np.searchsorted(edges, _quantiles(run, at)), _others(runs, i), at, edges)
            for i, run in enumerate(runs)
        ]
    offs = [distance.buckets_off for distance in chance]
    limit = statistics.mean(offs) + LIMIT_SDS * statistics.stdev(offs)
    shares = [d.wrong_share for d in chance if d.wrong_share is not None]
    requests = float(counts.sum()) if counted else histogram.count
    scale = (requests or float(total.sum()) / len(runs)) / float(total.sum())
    return Agreement(
        level,
        load,
        name,
        requests,
        here.wrong_share,
        statistics.mean(shares) if shares else None,
        here.buckets_off,
        statistics.mean(offs),
        here.buckets_off <= max(limit, LEAST_OFF if counted else LEAST_OFF_QUANTILES),
        edges,
        tuple(counts.tolist()),
        tuple((scale * total).tolist()),
    )


def _distance(counts: Floats, others: Floats) -> _Distance:
    gap = counts / counts.sum() - others / others.sum()
    return _Distance(float(np.abs(gap).sum() / 2), float(np.abs(np.cumsum(gap)).sum()))


def _quantile_distance(
    places: NDArray[np.int_], values: Floats, at: Sequence[float], edges: Sequence[float]
) -> _Distance:
    predicted = np.searchsorted(edges, _quantiles(values, at))
    return _Distance(None, float(np.abs(places - predicted).mean()))


def _quantiles(values: Floats, at: Sequence[float]) -> Floats:
    return np.asarray(np.quantile(values, at, method="inverted_cdf"))


def _others(runs: Sequence[Floats], index: int) -> Floats:
    return np.concatenate([run for i, run in enumerate(runs) if i != index])


def _binned(values: Floats, edges: Sequence[float]) -> Floats:
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1).astype(float)


def _move(values: Floats, mean: float | None) -> float:
    """Factor that gives the simulated values the predicted mean."""
    simulated = float(values.mean())
    if mean is None or simulated <= 0:
        return 1.0
    return min(max(mean / simulated, 1 / LARGEST_MOVE), LARGEST_MOVE)
