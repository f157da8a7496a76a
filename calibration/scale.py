"""Metrics of a level, measured or simulated, on the scale on which they are compared: logarithms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import Observed
from replicast.calibration.spread import counted_log_sd
from replicast.calibration.sweep import Gauge, Histogram, SweepLevel

Floats = NDArray[np.float64]

QUEUE_OFFSET_S = 0.3  # below the first bucket edge a queue time says nothing


def mean_observed(runs: Sequence[Observed]) -> Observed:
    """Means over seeds; what no seed observed stays NaN."""
    return Observed(*mean_seen(np.array(runs, dtype=float)).tolist())


def mean_seen(table: Floats) -> Floats:
    """Means of the rows; NaN of what no row shows."""
    some = ~np.isnan(table)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(some, table, 0.0).sum(axis=0) / some.sum(axis=0))


def typical(runs: Sequence[Observed], name: str) -> float:
    """A metric over realisations, on the scale of residuals; NaN where none observed it.

    A measured level is one realisation: as likely above this mean of logarithms as below it, while the mean
    of a long-tailed time lies above most of its realisations.
    """
    values = [transformed(name, value) for run in runs if (value := getattr(run, name)) == value]
    return sum(values) / len(values) if values else math.nan


def measured(level: SweepLevel) -> dict[str, float | None]:
    """A measured level's metrics by name."""

    def mean(item: Histogram | Gauge | None) -> float | None:
        return item.mean if item is not None else None

    return {
        "tpot_mean_s": mean(level.tpot),
        "ttft_mean_s": mean(level.ttft),
        "queue_mean_s": mean(level.queue),
        "prefill_mean_s": mean(level.prefill),
        "prompt_tokens_per_s": level.prompt_tokens_per_s,
        "output_tokens_per_s": level.output_tokens_per_s,
        "running_mean": mean(level.running),
        "waiting_mean": mean(level.waiting),
        "kv_usage_mean": mean(level.kv_usage),
        "output_log_sd": counted_log_sd(level.output_per_request),
        "computed_log_sd": counted_log_sd(level.computed_per_request),
    }


OFFSETS: Mapping[str, float] = {
    "queue_mean_s": QUEUE_OFFSET_S,
    "ttft_mean_s": 0.02,
    "waiting_mean": 0.1,
    "computed_log_sd": 0.05,
}


def transformed(name: str, value: float) -> float:
    """The scale on which residuals are taken: logarithms, above what counters resolve."""
    return math.log(max(value + OFFSETS.get(name, 0.0), 1e-12))


def back(name: str, value: float) -> float:
    """The inverse of `transformed`, never below 0."""
    return max(math.exp(value) - OFFSETS.get(name, 0.0), 0.0)
