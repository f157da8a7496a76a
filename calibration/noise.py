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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import Observed
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.scale import mean_seen, transformed
from replicast.calibration.workers import HERE, Workers

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
SD_SEEDS = tuple(range(1, 13))
LARGEST_SD = 1.5
UNSEEN_SD = 0.5  # of a metric that not every realisation shows
SIZES = (0.2, 3.0)  # of the discrepancy: gauges are read at instants, lengths matched to a per cent or two
LEAST_SIZE = 0.02  # of what intervals rest on: residuals that are no larger than chance doubt nothing
SOFT_L1_MEAN = 0.709  # of 2 (sqrt(1 + z^2) - 1), z standard normal


@dataclass(frozen=True, slots=True)
class Noise:
    """Sd of one realisation by level and metric (in the order of `METRICS`), and how metrics correlate.

    `weighed` is the sd that residuals are weighed by; `sds` what they have, on which uncertainty rests.

    `by_length` is how much a metric of a level moves with each of the lengths, all in logarithms; `freedom`
    is how many degrees of freedom all this rests on. Levels share nothing of it: alone a session has nearly
    the same time per token in every realisation, among twenty it has not.
    """

    sds: Floats
    weighed: Floats
    correlation: Floats
    by_length: Floats
    freedom: int

    @classmethod
    def unknown(cls, levels: int) -> Noise:
        """Before anything was simulated."""
        count = len(METRICS)
        wide = np.full((levels, count), LARGEST_SD)
        return cls(wide, wide, np.eye(count), np.zeros((levels, LENGTHS, count)), 1)

    def without(self, level: int) -> Noise:
        """The same of the other levels."""
        sds, weighed, by_length = (
            np.delete(part, level, axis=0) for part in (self.sds, self.weighed, self.by_length)
        )
        return replace(self, sds=sds, weighed=weighed, by_length=by_length)


def realisation_noise(
    models: Sequence[LevelModel], point: Point, seeds: Sequence[int] = SD_SEEDS, pool: Workers = HERE
) -> Noise:
    """How metrics vary from one realisation of a level to the next, lengths being equal."""
    levels = pool.map(_of_level, [(model, point, seeds) for model in models])
    sds = np.array([level.sds for level in levels])
    # One row a realisation of any level.
    scaled = np.concatenate([level.left / np.maximum(level.sds, 1e-12) for level in levels])
    freedom = len(models) * max(len(seeds) - 1 - LENGTHS, 1)
    correlation = scaled.T @ scaled / freedom
    np.fill_diagonal(correlation, 1.0)
    unseen = np.array([np.isnan(level.seen).any(axis=0) for level in levels])
    sds = np.minimum(np.where(unseen, np.maximum(sds, UNSEEN_SD), sds), LARGEST_SD)
    weighed = sds if all(model.replays for model in models) else _half_alike(sds, models)
    return Noise(sds, weighed, correlation, np.array([level.slopes for level in levels]), freedom)


def _half_alike(sds: Floats, models: Sequence[LevelModel]) -> Floats:
    """Half what a level says alone, half what all say together, as if sd x sqrt(requests) were alike.

    Real sessions differ by more than drawn ones, and most where they are few.
    """
    root = np.sqrt([max(model.lengths.requests, 1.0) for model in models])[:, None]
    together = ((sds * root) ** 2).mean(axis=0) / root**2
    return np.asarray(np.minimum(np.sqrt((sds**2 + together) / 2), LARGEST_SD))


def _of_level(asked: tuple[LevelModel, Point, Sequence[int]]) -> OnLengths:
    model, point, seeds = asked
    return on_lengths(model.simulate(point, seeds), model, METRICS)


class OnLengths(NamedTuple):
    """Metrics of a level's realisations (rows), regressed on their lengths.

    `seen` are the metrics themselves (columns), on the scale of residuals, `lengths` the `surplus` of each
    realisation, `slopes` a row a length, and `left` what slopes leave of differences from the mean.
    """

    seen: Floats
    lengths: Floats
    slopes: Floats
    left: Floats

    def without_slopes(self) -> OnLengths:
        """The same where lengths may be what they are."""
        return self._replace(slopes=np.zeros_like(self.slopes), left=_centred(self.seen))

    @property
    def adjusted(self) -> Floats:
        """The metrics as they were, had lengths been the measured ones."""
        return np.asarray(self.seen - self.lengths @ self.slopes)

    @property
    def sds(self) -> Floats:
        """Of each metric from one realisation to the next, lengths being equal."""
        freedom = max(len(self.left) - 1 - LENGTHS, 1)
        return np.asarray(np.sqrt((self.left**2).sum(axis=0) / freedom))


def on_lengths(runs: Sequence[Observed], model: LevelModel, names: Sequence[str]) -> OnLengths:
    """Control variates: what a level's lengths say of its metrics."""
    seen = np.array([[transformed(name, getattr(run, name)) for name in names] for run in runs])
    lengths = np.array([surplus(run, model) for run in runs])
    y, x = _centred(seen), _centred(lengths)
    slopes = np.asarray(np.linalg.lstsq(x, y, rcond=1e-6)[0], dtype=float)
    return OnLengths(seen, lengths, slopes, y - x @ slopes)


def surplus(run: Observed, model: LevelModel) -> tuple[float, float, float]:
    """Logarithms of simulated over measured lengths, of all that `LevelModel.match` makes equal."""
    wanted = model.lengths
    ratio = run.output_tokens_per_s / max(run.prompt_tokens_per_s, 1e-9)
    context, measured = run.prompt_per_request, wanted.prompt
    if wanted.source == "kv":
        context, measured = run.kv_usage_mean / max(run.running_mean, 1e-9), wanted.held_share
    computed = 0.0 if wanted.computed is None else _log(run.computed_per_request / wanted.computed)
    longer = _log(context / measured) if model.tells_prompt else 0.0
    return longer, _log(ratio * wanted.prompt / wanted.output), computed


def _log(value: float) -> float:
    return math.log(min(max(value, 0.1), 10.0)) if value == value else 0.0


def _centred(table: Floats) -> Floats:
    """Differences from the mean of the rows; what no row holds differs by nothing."""
    return np.where(np.isnan(table), 0.0, table - mean_seen(table))


def residual_sds(noise: Noise, names: Sequence[tuple[int, str]], size: float, seeds: int) -> Floats:
    """What each residual, named by level and metric, is to be divided by."""
    return np.hypot(_discrepancies(names, size), _by_chance(noise.weighed, names, seeds))


def discrepancy_size(
    raw: Floats,
    noise: Noise,
    names: Sequence[tuple[int, str]],
    parameters: int,
    seeds: int,
    least: float = SIZES[0],
) -> float:
    """The size at which the robust squares of `raw` residuals, shapes apart, come out as expected."""
    seen = ~np.isnan(raw) & np.array([name in FLOOR for _, name in names])
    freedom = max(int(seen.sum()) - parameters, 1)
    chance = _by_chance(noise.sds, names, seeds)

    def excess(size: float) -> float:
        weighted = (raw / np.hypot(_discrepancies(names, size), chance))[seen]
        return float(2 * (np.sqrt(1 + weighted**2) - 1).sum()) / freedom - SOFT_L1_MEAN

    low, high = least, SIZES[1]
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
    chance = _by_chance(noise.sds, names, seeds) / sds
    shared = np.where(level[:, None] == level[None, :], noise.correlation[np.ix_(metric, metric)], 0.0)
    floor = _discrepancies(names, size) / sds
    return np.asarray(np.outer(chance, chance) * shared + np.diag(floor**2))


def _discrepancies(names: Sequence[tuple[int, str]], size: float) -> Floats:
    return np.array([size * FLOOR[name] if name in FLOOR else OF_SHAPE[name] for _, name in names])


def _by_chance(one: Floats, names: Sequence[tuple[int, str]], seeds: int) -> Floats:
    grown = math.sqrt(1 + 1 / seeds)
    return np.array([grown * one[at, METRICS.index(name)] for at, name in names])
