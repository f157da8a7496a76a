"""One metric of one predicted level, beside what was measured and what interpolation says.

The rival needs no simulator: interpolation in log concurrency between the fitted levels. Two forecasts whose
errors differ are better together (Bates and Granger, Operational Research Quarterly 20, 1969): a share of the
rival, fixed per metric (`SHARES`), enters the prediction, least where the simulation knows most.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from replicast.calibration.learned import KnownLevel, interpolated
from replicast.calibration.predict import LARGEST, Load, Range, with_given_ratio
from replicast.calibration.scale import back, measured, transformed
from replicast.calibration.sweep import SweepLevel

LOADS: tuple[Load, ...] = ("given", "concurrency")
KV_FREE = 0.95  # KV peak up to which the cache does not bind
# The rival's share, in logarithms. Where lengths are guessed both forecasts rest on the same neighbours, and
# about half is best, most where a guess is multiplied (queues) or all there is (computed tokens); where
# they are given the simulation knows what the rival does not, least of prefill (computed tokens).
SHARE_GUESSED = 0.5
GUESSED: Mapping[str, float] = {
    "tpot_mean_s": 0.3,
    "output_tokens_per_s": 0.3,
    "queue_mean_s": 0.6,
    "prefill_mean_s": 0.7,
    "waiting_mean": 0.7,
    "running_mean": 0.3,
    "kv_usage_mean": 0.3,
}
SHARES: Mapping[str, float] = {
    "tpot_mean_s": 0.1,
    "ttft_mean_s": 0.2,
    "queue_mean_s": 0.2,
    "prefill_mean_s": 0.3,
    "prompt_tokens_per_s": 0.1,
    "output_tokens_per_s": 0.1,
    "running_mean": 0.0,
    "waiting_mean": 0.1,
    "kv_usage_mean": 0.0,
}
LABELS = {
    "tpot_mean_s": "TPOT mean",
    "ttft_mean_s": "TTFT mean",
    "queue_mean_s": "queue mean",
    "prefill_mean_s": "prefill mean",
    "prompt_tokens_per_s": "prompt tok/s",
    "output_tokens_per_s": "output tok/s",
    "running_mean": "running",
    "waiting_mean": "waiting",
    "kv_usage_mean": "KV usage",
}


class Row(NamedTuple):
    """One metric of one level. `error` is predicted / measured - 1; `interpolated` is the rival's value.

    `realisation` is the sd of its logarithm from one run of the level to the next, `simulated` the
    prediction without the rival's share.
    """

    level: int
    load: Load
    metric: str
    measured: float
    predicted: float
    low: float
    high: float
    error: float | None
    interpolated: float | None
    held_out: bool
    kv_peak: float | None
    realisation: float = 0.0
    simulated: float = 0.0

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured value."""
        return self.low <= self.measured <= self.high


class Summary(NamedTuple):
    """A metric over its rows: medians of absolute and of signed errors, coverage, and the rival's median."""

    load: Load
    metric: str
    rows: int
    median_absolute: float
    median_signed: float
    coverage: float
    interpolation: float | None


def summarise(rows: Sequence[Row], load: Load, metric: str) -> Summary | None:
    """Medians over the rows of one load and metric; None if there are none.

    Where 0 was measured there is no relative error; whether the interval holds it counts.
    """
    every = [row for row in rows if row.load == load and row.metric == metric]
    chosen = [row for row in every if row.error is not None]
    if not chosen:
        return None
    errors = [row.error or 0.0 for row in chosen]
    rival = [abs(row.interpolated / row.measured - 1) for row in chosen if row.interpolated is not None]
    return Summary(
        load,
        metric,
        len(chosen),
        statistics.median(abs(error) for error in errors),
        statistics.median(errors),
        sum(row.inside for row in every) / len(every),
        statistics.median(rival) if rival else None,
    )


def rows_of(
    level: SweepLevel,
    load: Load,
    found: Mapping[str, Range],
    known: Sequence[KnownLevel],
    *,
    ratio: float | None,
    held_out: bool,
) -> list[Row]:
    """Rows of what was both measured and predicted; `ratio` is outputs over prompts, where the load tells."""
    rows = []
    concurrency = level.concurrency or 1
    peak = level.kv_usage.peak if level.kv_usage else None
    rivals = {name: interpolated(concurrency, name, known) for name in found}
    guesses = with_given_ratio(
        {name: combined(it, rivals[name], name, share_of(load, name)) for name, it in found.items()}, ratio
    )
    for name, value in measured(level).items():
        if value is None or name not in found:
            continue
        guess, rival = guesses[name], rivals[name]
        rows.append(
            Row(
                concurrency, load, name, value, guess.value, guess.low, guess.high,
                guess.value / value - 1 if value > 0 else None, rival,
                held_out, peak, guess.realisation, found[name].value,
            )
        )  # fmt: skip
    return rows


def share_of(load: Load, metric: str) -> float:
    """The rival's share in a prediction."""
    return GUESSED.get(metric, SHARE_GUESSED) if load == "concurrency" else SHARES[metric]


def combined(found: Range, rival: float | None, name: str, share: float) -> Range:
    """The prediction moved towards the rival by `share`, on the scale of residuals."""
    if rival is None or not share:
        return found
    gap = transformed(name, rival) - transformed(name, found.value)
    shift = share * min(max(gap, -LARGEST), LARGEST)
    value, low, high = (back(name, transformed(name, v) + shift) for v in found[:3])
    # What may be nothing at all may still be.
    return Range(value, low if found.low > 0 else 0.0, high, found.realisation)
