"""What a residual of a fit is made of: chance, which is simulated, and discrepancy, which is estimated.

*Chance.* A residual is the mean of S simulated realisations less one measured: (1 + 1/S) times the
variance of one. The lengths of a level are known, so what counts is how realisations differ whose lengths
are the same: what a regression on their lengths leaves (control variates). The same regression takes off
what matching leaves between simulated and measured lengths. Metrics of a level share one realisation, so
their residuals hang together.

*Discrepancy.* What the model cannot say has the proportions of `FLOOR`; its size is that at which the
residuals' squares come out as expected (Mandel and Paule, Analytical Chemistry 42, 1970). A sweep that the
model explains to the noise is believed to the noise, one that it does not is not. Only of shapes
(`OF_SHAPE`) it is always the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import Observed
from replicast.calibration.model import LevelModel, Point, transformed

Floats = NDArray[np.float64]

FLOOR = {
    "tpot_mean_s": 0.10,
    "ttft_mean_s": 0.20,
    "queue_mean_s": 0.40,
    "prefill_mean_s": 0.15,
    "prompt_tokens_per_s": 0.15,
    "output_tokens_per_s": 0.15,
    "running_mean": 0.05,
    "kv_usage_mean": 0.07,
    "output_log_sd": 0.05,
}
# How requests of a level differ is said by log-normal laws, whatever its means: they are always so far off.
OF_SHAPE = {
    "computed_log_sd": 0.10,
    "ttft_middle": 0.4,
    "ttft_tail": 0.3,
    "queue_middle": 0.6,
    "queue_tail": 0.5,
    "prefill_middle": 0.4,
    "prefill_tail": 0.3,
    "tpot_middle": 0.2,
    "tpot_tail": 0.15,
}
METRICS = (*FLOOR, *OF_SHAPE)
LENGTHS = 3  # of `surplus`
SD_SEEDS = (1, 2, 3, 4, 5)
LARGEST_SD = 1.5
UNSEEN_SD = 0.5  # of a metric that not every realisation shows
SIZES = (0.2, 3.0)  # of the discrepancy: gauges are read at instants, lengths matched to a per cent or two
SOFT_L1_MEAN = 0.709  # of 2 (sqrt(1 + z^2) - 1), z standard normal


@dataclass(frozen=True, slots=True)
class Noise:
    """Sd of one realisation by level and metric (in the order of `METRICS`), and how metrics correlate.

    `by_length` is how much a metric moves with each of the lengths, all in logarithms; `freedom` is how many
    degrees of freedom all this rests on.
    """

    sds: Floats
    correlation: Floats
    by_length: Floats
    freedom: int

    @classmethod
    def unknown(cls, levels: int) -> Noise:
        """Before anything was simulated."""
        count = len(METRICS)
        return cls(np.full((levels, count), LARGEST_SD), np.eye(count), np.zeros((LENGTHS, count)), 1)


def realisation_noise(models: Sequence[LevelModel], point: Point, seeds: Sequence[int] = SD_SEEDS) -> Noise:
    """How metrics vary from one realisation of a level to the next, lengths being equal.

    Few seeds tell little of a level, so half is what all levels say together: sd x sqrt(requests) is alike.
    """
    runs = [model.simulate(point, seeds) for model in models]
    root = np.sqrt([max(model.lengths.requests, 1.0) for model in models])[:, None, None]
    seen = np.array([[[transformed(n, getattr(run, n)) for n in METRICS] for run in level] for level in runs])
    lengths = np.array(
        [[surplus(run, model) for run in level] for model, level in zip(models, runs, strict=True)]
    )
    # One row a realisation; the scale makes levels of many and of few requests alike.
    y, x = (_centred(table) * root for table in (seen, lengths))
    flat_y, flat_x = y.reshape(-1, y.shape[2]), x.reshape(-1, x.shape[2])
    by_length = np.asarray(np.linalg.lstsq(flat_x, flat_y, rcond=1e-6)[0], dtype=float)
    left = flat_y - flat_x @ by_length
    freedom = max(len(models) * (len(seeds) - 1) - flat_x.shape[1], 1)
    pooled = np.sqrt((left**2).sum(axis=0) / freedom)
    own = np.sqrt((left.reshape(y.shape) ** 2).sum(axis=1) * len(models) / freedom)
    sds = np.sqrt((own**2 + pooled**2) / 2) / root[:, :, 0]
    sds = np.where(np.isnan(seen).any(axis=1), np.maximum(sds, UNSEEN_SD), sds)
    scale = np.maximum(pooled, 1e-12)
    correlation = left.T @ left / freedom / np.outer(scale, scale)
    np.fill_diagonal(correlation, 1.0)
    return Noise(np.minimum(sds, LARGEST_SD), correlation, by_length, freedom)


def surplus(run: Observed, model: LevelModel) -> tuple[float, float, float]:
    """Logarithms of simulated over measured lengths: of all that `LevelModel.match` makes equal."""
    wanted = model.lengths
    ratio = run.output_tokens_per_s / max(run.prompt_tokens_per_s, 1e-9)
    context, measured = run.prompt_per_request, wanted.prompt
    if wanted.source == "kv":
        context, measured = run.kv_usage_mean / max(run.running_mean, 1e-9), wanted.held_share
    computed = 0.0 if wanted.computed is None else _log(run.computed_per_request / wanted.computed)
    return _log(context / measured), _log(ratio * wanted.prompt / wanted.output), computed


def _log(value: float) -> float:
    return math.log(min(max(value, 0.1), 10.0)) if value == value else 0.0


def _centred(table: Floats) -> Floats:
    """Differences from the level's mean; what no seed observed differs by nothing."""
    with np.errstate(invalid="ignore"):
        some = ~np.isnan(table)
        mean = np.where(some, table, 0.0).sum(axis=1, keepdims=True) / np.maximum(
            some.sum(axis=1, keepdims=True), 1
        )
        return np.where(some, table - mean, 0.0)


def residual_sds(noise: Noise, names: Sequence[tuple[int, str]], size: float, seeds: int) -> Floats:
    """What each residual, named by level and metric, is to be divided by."""
    return np.hypot(_discrepancies(names, size), _by_chance(noise, names, seeds))


def discrepancy_size(
    raw: Floats, noise: Noise, names: Sequence[tuple[int, str]], parameters: int, seeds: int
) -> float:
    """The size at which the robust squares of `raw` residuals, shapes apart, come out as expected."""
    seen = ~np.isnan(raw) & np.array([name in FLOOR for _, name in names])
    freedom = max(int(seen.sum()) - parameters, 1)

    def excess(size: float) -> float:
        weighted = (raw / residual_sds(noise, names, size, seeds))[seen]
        return float(2 * (np.sqrt(1 + weighted**2) - 1).sum()) / freedom - SOFT_L1_MEAN

    low, high = SIZES
    if excess(low) <= 0:
        return low
    if excess(high) >= 0:
        return high
    from scipy.optimize import brentq

    return float(brentq(excess, low, high, xtol=1e-3))


def residual_covariance(
    noise: Noise, names: Sequence[tuple[int, str]], size: float, seeds: int, sds: Floats
) -> Floats:
    """Of residuals divided by `sds`: levels are independent, metrics of a level are not."""
    level = np.array([at for at, _ in names])
    metric = np.array([METRICS.index(name) for _, name in names])
    chance = _by_chance(noise, names, seeds) / sds
    shared = np.where(level[:, None] == level[None, :], noise.correlation[np.ix_(metric, metric)], 0.0)
    floor = _discrepancies(names, size) / sds
    return np.asarray(np.outer(chance, chance) * shared + np.diag(floor**2))


def _discrepancies(names: Sequence[tuple[int, str]], size: float) -> Floats:
    return np.array([size * FLOOR[name] if name in FLOOR else OF_SHAPE[name] for _, name in names])


def _by_chance(noise: Noise, names: Sequence[tuple[int, str]], seeds: int) -> Floats:
    grown = math.sqrt(1 + 1 / seeds)
    return np.array([grown * noise.sds[at, METRICS.index(name)] for at, name in names])
