"""A level predicted by what was learnt from others: value and interval of each metric.

The value is the simulation at the fitted point, the mean of the logarithms of its realisations, corrected by
what the same simulation missed at the fitted levels: kriging of their log residuals over log concurrency
(a model discrepancy after Kennedy and O'Hagan, J. R. Stat. Soc. B 63, 2001). A level that resembles its
neighbours is corrected like them, a far one is not. The correction is shrunk: part of a residual is the
level's own noise (`NOISE`).

The interval adds up, in logarithms: realisations and parameters (an ensemble of seeds, each with a draw of
the parameters), and the discrepancy left over, whose size per metric comes from leaving out levels of 16
real sweeps (`python -m replicast.calibration.accuracy`) and from this sweep's own residuals.

What is given with the load is used: the ratio of outputs to prompts, and the KV cache held per running
request where prompts rest on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import METRICS, Observed
from replicast.calibration.model import LevelModel, Point, back, transformed, typical

Floats = NDArray[np.float64]
# What is told of a level to predict; "lengths" is "given" without the requests alive at a time.
Load = Literal["given", "lengths", "concurrency"]

CORRELATION = 1.0  # of residuals, in units of log concurrency
# Variance of a level's own noise over that of what it shares with neighbours (chosen with the table below).
NOISE = 0.5
LARGEST = 0.7  # a correction never exceeds a factor of two
NOMINAL = 0.90
Z = 1.645
# Realisations over which a prediction, and what it misses at a fitted level, are averaged.
VALUE_SEEDS = tuple(range(11, 27))
RESIDUAL_SEEDS = tuple(range(41, 53))
MATCH_SEEDS = VALUE_SEEDS[:4]
MATCHES = 4
# Sd of log(measured / predicted) that is neither realisation nor parameters: leave-one-level-out, 16 sweeps.
# With only the concurrency given, guessed lengths are part of it.
DISCREPANCY: Mapping[str, Mapping[str, float]] = {
    "given": {
        "tpot_mean_s": 0.13,
        "ttft_mean_s": 0.20,
        "queue_mean_s": 0.25,
        "prefill_mean_s": 0.20,
        "prompt_tokens_per_s": 0.10,
        "output_tokens_per_s": 0.10,
        "running_mean": 0.03,
        "waiting_mean": 0.25,
        "kv_usage_mean": 0.04,
    },
    "concurrency": {
        "tpot_mean_s": 0.25,
        "ttft_mean_s": 0.42,
        "queue_mean_s": 0.45,
        "prefill_mean_s": 0.27,
        "prompt_tokens_per_s": 0.24,
        "output_tokens_per_s": 0.20,
        "running_mean": 0.18,
        "waiting_mean": 0.50,
        "kv_usage_mean": 0.12,
    },
}
PRIOR_LEVELS = 6.0  # what the table above weighs against a sweep's own residuals


class Residuals(NamedTuple):
    """Of one fitted level: transformed measured minus transformed simulated, by metric."""

    concurrency: int
    by_metric: Mapping[str, float]


class Range(NamedTuple):
    """A predicted metric with its 90 % interval."""

    value: float
    low: float
    high: float
    realisation: float = 0.0  # sd of the logarithm from one run of the level to the next


def residuals_of(model: LevelModel, point: Point, seeds: Sequence[int] = RESIDUAL_SEEDS) -> Residuals:
    """What the simulation at `point` misses at a measured level."""
    runs = model.simulate(point, seeds)
    found = {}
    for name, value in model.measured.items():
        simulated = typical(runs, name)
        if value is not None and value > 0 and simulated == simulated:
            found[name] = transformed(name, value) - simulated
    return Residuals(model.concurrency, found)


def correction(concurrency: int, name: str, known: Sequence[Residuals]) -> float:
    """What to add to the transformed simulation of `name` at `concurrency`."""
    having = [r for r in known if name in r.by_metric]
    if not having:
        return 0.0
    where = np.log([max(r.concurrency, 1) for r in having])
    value = np.clip([r.by_metric[name] for r in having], -LARGEST, LARGEST)
    between = np.exp(-np.abs(where[:, None] - where[None, :]) / CORRELATION)
    to = np.exp(-np.abs(math.log(max(concurrency, 1)) - where) / CORRELATION)
    return float(to @ np.linalg.solve(between + NOISE * np.eye(len(where)), value))


def discrepancy(name: str, known: Sequence[Residuals], load: Load = "given") -> float:
    """Sd of what stays unexplained: the table's, moved towards this sweep's own residuals."""
    table = DISCREPANCY["given" if load == "given" else "concurrency"]
    own = [r.by_metric[name] for r in known if name in r.by_metric]
    squares = sum(min(abs(value), 2 * LARGEST) ** 2 for value in own)
    # A fit leaves less at its own levels than at others: its parameters went to them.
    grown = 1.5 * squares
    return math.sqrt((PRIOR_LEVELS * table[name] ** 2 + grown) / (PRIOR_LEVELS + len(own)))


def predict(
    model: LevelModel,
    point: Point,
    known: Sequence[Residuals],
    draws: Sequence[Point] = (),
    load: Load = "given",
) -> dict[str, Range]:
    """Each metric of the level of `model`, at `point`; `draws` are the parameters' uncertainty."""
    for _ in range(MATCHES):
        model.match(point, MATCH_SEEDS)
    runs = [_with_given_lengths(run, model) for run in model.simulate(point, VALUE_SEEDS)]
    drawn = zip(VALUE_SEEDS, draws, strict=False)
    ensemble = runs + [
        _with_given_lengths(run, model) for seed, at in drawn for run in model.simulate(at, (seed,))
    ]
    out: dict[str, Range] = {}
    for name in METRICS:
        value = typical(runs, name)
        if value != value:
            continue
        centre = value + correction(model.concurrency, name, known)
        varied = _spread(ensemble, name)
        sd = math.hypot(varied, discrepancy(name, known, load))
        at, low, high = (back(name, centre + z * sd) for z in (0.0, -Z, Z))
        out[name] = Range(at, low, high, _spread(runs, name))
    return _consistent(out, model)


def _spread(runs: Sequence[Observed], name: str) -> float:
    """Sd of a metric over realisations, on the scale of residuals."""
    values = np.array([transformed(name, getattr(run, name)) for run in runs])
    values = values[np.isfinite(values)]
    return float(values.std(ddof=1)) if len(values) > 2 else 0.3


def _with_given_lengths(seen: Observed, model: LevelModel) -> Observed:
    """Rates that keep the given ratio of outputs to prompts: each then rests on all requests."""
    ratio = model.lengths.output / model.lengths.prompt
    both = math.sqrt(max(seen.prompt_tokens_per_s, 1e-9) * max(seen.output_tokens_per_s, 1e-9))
    return seen._replace(
        prompt_tokens_per_s=both / math.sqrt(ratio), output_tokens_per_s=both * math.sqrt(ratio)
    )


def _consistent(out: dict[str, Range], model: LevelModel) -> dict[str, Range]:
    """The KV gauge follows from what a running request holds, where that is given."""
    held = model.lengths.held_share
    if model.lengths.source == "kv" and held and "running_mean" in out and "kv_usage_mean" in out:
        running, usage = out["running_mean"], out["kv_usage_mean"]
        value = min(held * running.value, 1.0)
        factor = value / max(usage.value, 1e-12)
        high = min(usage.high * factor, 1.0)
        out["kv_usage_mean"] = Range(value, usage.low * factor, high, running.realisation)
    return out
