"""A level predicted by what was learnt from others: value and interval of each metric.

The value is the simulation at the fitted point, the mean of the logarithms of its realisations as they were
with the level's own lengths (`noise.on_lengths`), corrected by what the same simulation missed at the fitted
levels: kriging of their log residuals over log concurrency (a model discrepancy after Kennedy and O'Hagan,
J. R. Stat. Soc. B 63, 2001). A level that resembles its neighbours is corrected like them, a far one is not.
The correction is shrunk: part of a residual is the level's own noise (`NOISE`).

The interval adds up, in logarithms: one realisation with parameters drawn from their uncertainty (lengths
being equal, where they are given), and the discrepancy left over, whose size per metric comes from leaving
out levels of 16 real sweeps (`python -m replicast.calibration.accuracy`) and from this sweep's own residuals.

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
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.noise import OnLengths, on_lengths
from replicast.calibration.scale import back, mean_seen, transformed

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
        "tpot_mean_s": 0.11,
        "ttft_mean_s": 0.10,
        "queue_mean_s": 0.10,
        "prefill_mean_s": 0.10,
        "prompt_tokens_per_s": 0.09,
        "output_tokens_per_s": 0.09,
        "running_mean": 0.008,
        "waiting_mean": 0.12,
        "kv_usage_mean": 0.016,
    },
    "concurrency": {
        "tpot_mean_s": 0.20,
        "ttft_mean_s": 0.42,
        "queue_mean_s": 0.50,
        "prefill_mean_s": 0.20,
        "prompt_tokens_per_s": 0.30,
        "output_tokens_per_s": 0.20,
        "running_mean": 0.18,
        "waiting_mean": 0.45,
        "kv_usage_mean": 0.10,
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
    simulated = mean_seen(on_lengths(model.simulate(point, seeds), model, METRICS).adjusted).tolist()
    found = {}
    for name, at in zip(METRICS, simulated, strict=True):
        value = model.measured.get(name)
        if value is not None and value > 0 and at == at:
            found[name] = transformed(name, value) - at
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
    return math.sqrt((PRIOR_LEVELS * table[name] ** 2 + squares) / (PRIOR_LEVELS + len(own)))


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
    told = on_lengths(model.simulate(point, VALUE_SEEDS), model, METRICS)
    if load == "concurrency":  # lengths are guessed, and differ
        told = told.without_slopes()
    drawn = [run for seed, at in zip(VALUE_SEEDS, draws, strict=False) for run in model.simulate(at, (seed,))]
    at_point = mean_seen(told.adjusted)
    realisation = told.sds
    sds = np.fmax(realisation, _of_draws(drawn, model, told, at_point))
    out: dict[str, Range] = {}
    for i, (name, value) in enumerate(zip(METRICS, at_point.tolist(), strict=True)):
        if value != value:
            continue
        centre = value + correction(model.concurrency, name, known)
        sd = math.hypot(sds[i], discrepancy(name, known, load))
        at, low, high = (back(name, centre + z * sd) for z in (0.0, -Z, Z))
        out[name] = Range(at, low, high, float(realisation[i]))
    return _held_by_running(with_given_ratio(out, output_per_prompt(model, load)), model)


def _of_draws(drawn: Sequence[Observed], model: LevelModel, told: OnLengths, value: Floats) -> Floats:
    """How far each metric is from `value` in one run with parameters that could be."""
    if not drawn:
        return np.zeros(len(METRICS))
    # Few runs have no slopes of their own.
    there = on_lengths(drawn, model, METRICS)._replace(slopes=told.slopes).adjusted
    return np.asarray(np.sqrt(mean_seen((there - value) ** 2)))


def output_per_prompt(model: LevelModel, load: Load) -> float | None:
    """Output tokens for each prompt token of a level, where its load tells."""
    return None if load == "concurrency" else model.lengths.output / model.lengths.prompt


def with_given_ratio(found: Mapping[str, Range], ratio: float | None) -> dict[str, Range]:
    """Both rates moved alike, in logarithms, until outputs over prompts are what the load tells."""
    out = dict(found)
    prompt, output = (found.get(name) for name in ("prompt_tokens_per_s", "output_tokens_per_s"))
    if ratio is not None and prompt and output and prompt.value > 0 and output.value > 0:
        by = math.sqrt(output.value / prompt.value / ratio)
        out["prompt_tokens_per_s"] = _times(prompt, by)
        out["output_tokens_per_s"] = _times(output, 1 / by)
    return out


def _times(found: Range, factor: float) -> Range:
    value, low, high = (factor * v for v in found[:3])
    return found._replace(value=value, low=low, high=high)


def _held_by_running(out: dict[str, Range], model: LevelModel) -> dict[str, Range]:
    """The KV gauge follows from what a running request holds, where that is given."""
    held = model.lengths.held_share
    if model.lengths.source == "kv" and held and "running_mean" in out and "kv_usage_mean" in out:
        running = out["running_mean"]
        value, low, high = (min(held * v, 1.0) for v in running[:3])
        out["kv_usage_mean"] = running._replace(value=value, low=low, high=high)
    return out
