"""Predicted against measured, level by level; held-out levels are what counts.

Two kinds of load. *given*: concurrency, window, requests alive at a time and lengths per request are
those of the level (estimated from it where they were not stored); rates, running, waiting and latencies
are outcomes. *concurrency*: only the number of sessions is given, all else is that of the fitted levels.

With `loo` each level is predicted from a fit to the others. Beside each prediction stands the rival that
needs no simulator: interpolation in log concurrency between the fitted levels. Two forecasts whose errors
differ are better together (Bates and Granger, Operational Research Quarterly 20, 1969): a share of the
rival, fixed per metric (`SHARES`), enters the prediction, least where the simulation knows most.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from replicast.calibration.agreement import Agreement, agreement_lines, agreements
from replicast.calibration.check import check_sweep, same_model
from replicast.calibration.engines import of_one_engine
from replicast.calibration.fit import Fitted, centre_of, fit
from replicast.calibration.harness import METRICS, MakeEngine
from replicast.calibration.learned import KnownLevel, Learned, facts_of, interpolated, learned_of, lengths_at
from replicast.calibration.lengths import lengths_of
from replicast.calibration.model import LevelModel, back, front_end_of, measured, point_at, transformed
from replicast.calibration.predict import LARGEST, Load, Range, Residuals, predict, residuals_of
from replicast.calibration.profile import Profile
from replicast.calibration.server import ServerFacts, physics_of, seconds_of_load
from replicast.calibration.sweep import Sweep, SweepLevel
from replicast.calibration.uncertainty import covariance_of, draw_points, without_level
from replicast.sim.engine.factory import make_engine
from replicast.sim.errors import InputError
from replicast.sim.planning.quantiles import Estimate, digits
from replicast.sim.report.numbers import fixed

LOADS: tuple[Load, ...] = ("given", "concurrency")
SCHEMA = "replicast/validate/1"
LEAST_FOR_LOO = 3  # two others to fit
KV_FREE = 0.95  # KV peak up to which the cache does not bind
DRAWS = 6
# The rival's share, in logarithms. Where lengths are guessed both forecasts rest on the same neighbours, and
# more than half is best, most where a guess is multiplied (queues) or all there is (computed tokens); where
# they are given the simulation knows what the rival does not, least of prefill (computed tokens).
SHARE_GUESSED = 0.6
GUESSED: Mapping[str, float] = {"queue_mean_s": 0.7, "prefill_mean_s": 0.7, "waiting_mean": 0.7}
SHARES: Mapping[str, float] = {
    "tpot_mean_s": 0.0,
    "ttft_mean_s": 0.3,
    "queue_mean_s": 0.2,
    "prefill_mean_s": 0.4,
    "prompt_tokens_per_s": 0.2,
    "output_tokens_per_s": 0.2,
    "running_mean": 0.0,
    "waiting_mean": 0.2,
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


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, and what was left out."""

    sweep: str
    profile: str
    loo: bool
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    buckets: tuple[Agreement, ...] = ()

    def summary(self, rows: Sequence[Row] | None = None) -> list[Summary]:
        """One line a load and metric."""
        chosen = self.rows if rows is None else rows
        return [found for load in LOADS for name in METRICS if (found := summarise(chosen, load, name))]

    def to_document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "sweep": self.sweep,
            "profile": self.profile,
            "leave_one_out": self.loo,
            "rows": [row._asdict() for row in self.rows],
            "summary": [line._asdict() for line in self.summary()],
            "buckets": [row._asdict() for row in self.buckets],
            "warnings": list(self.warnings),
        }

    def report_text(self) -> str:
        """Tables for a terminal: the summary first, then every level."""
        how = "each level predicted from the others" if self.loo else f"profile {self.profile}"
        lines = [f"{self.sweep}: {how}", ""]
        lines.append(
            f"{'load':12} {'metric':14} {'levels':>6} {'|error|':>8} {'signed':>8} {'in 90 %':>8} "
            f"{'interpolation':>14}"
        )
        for line in self.summary():
            rival = "-" if line.interpolation is None else f"{line.interpolation:.0%}"
            lines.append(
                f"{line.load:12} {LABELS[line.metric]:14} {line.rows:6d} {line.median_absolute:8.0%} "
                f"{line.median_signed:+8.0%} {line.coverage:8.0%} {rival:>14}"
            )
        lines += [
            "",
            f"{'level':>5} {'load':12} {'metric':14} {'measured':>10} {'predicted':>10}  90 % interval",
        ]
        for row in self.rows:
            error = "" if row.error is None else f"{row.error:+.0%}"
            places = digits(Estimate(row.predicted, row.low, row.high, 1))
            measured = f"{row.measured:,.0f}" if row.measured >= 1000 else f"{row.measured:.4g}"
            lines.append(
                f"{row.level:5d} {row.load:12} {LABELS[row.metric]:14} {measured:>10} "
                f"{fixed(row.predicted, places):>10}  "
                f"{fixed(row.low, places)} to {fixed(row.high, places)}  {error}"
            )
        lines += agreement_lines(self.buckets)
        lines += [f"Warning: {text}" for text in self.warnings]
        return "\n".join(lines) + "\n"


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


def validate(
    sweep: Sweep,
    profile: Profile,
    *,
    levels: Sequence[int] | None = None,
    loo: bool = False,
    loads: Sequence[Load] = LOADS,
    facts: ServerFacts | None = None,
    engines: MakeEngine = make_engine,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """The sweep's levels as `profile` predicts them, or with `loo` as the other levels do."""
    chosen, warnings = choose_levels(sweep, levels)
    if not same_model(sweep.model, profile.model):
        warnings.append(f"the sweep is of {sweep.model}, profile {profile.name} of {profile.model}")
    facts = facts or facts_of(profile)
    unlike = failed_levels(sweep, chosen)
    chosen, shared = of_one_engine(chosen, sweep.given.data_parallel_size)
    warnings += [*unlike, *shared]
    buckets: list[Agreement] = []
    if loo:
        if len(chosen) < LEAST_FOR_LOO:
            raise InputError(
                f"{len(chosen)} usable level{'s' * (len(chosen) != 1)}, and each cannot be predicted from "
                f"the others with fewer than {LEAST_FOR_LOO}",
                where=sweep.source,
                remedy="Give a sweep of more levels, or leave --loo out.",
            )
        # What the profile learnt of these levels must not come back as prior.
        facts = replace(facts, priors=physics_of(sweep, facts))
        fitted = fit(chosen, facts, engines=engines, progress=progress)
        rows = leave_one_out(fitted, facts, loads=loads, engines=engines, buckets=buckets, progress=progress)
    else:
        learned = learned_of(profile)
        if not learned.levels:
            warnings.append(
                f"profile {profile.name} holds no fitted levels: no correction, lengths are the level's"
            )
        rows = []
        for level in chosen:
            rows += predicted_rows(level, facts, learned, loads=loads, engines=engines, buckets=buckets)
            if progress is not None:
                progress(f"level {level.concurrency}")
    return Validation(sweep.source, profile.name, loo, tuple(rows), tuple(warnings), tuple(buckets))


def failed_levels(sweep: Sweep, levels: Sequence[SweepLevel]) -> list[str]:
    """What the checks say of levels that are used all the same."""
    result = check_sweep(sweep)
    if not result.ok:
        return [f"the checks call this sweep not usable: {result.of('fail')[0].text}"]
    failed = [sweep.levels[i] for i in result.left_out]
    return [f"the checks fail level {level.name}" for level in levels if level in failed]


def choose_levels(sweep: Sweep, wanted: Sequence[int] | None) -> tuple[list[SweepLevel], list[str]]:
    """Usable levels with a concurrency, and warnings about those that are not there."""
    usable = [level for level in sweep.usable_levels(1) if level.concurrency is not None]
    warnings = [f"level {level.name} left out: {level.unusable}" for level in sweep.levels if level.unusable]
    if wanted is not None:
        present = {level.concurrency for level in usable}
        warnings += [f"level {c} is not in {sweep.source}" for c in wanted if c not in present]
        usable = [level for level in usable if level.concurrency in set(wanted)]
    if not usable:
        there = [str(level.concurrency) for level in sweep.levels if level.concurrency is not None]
        raise InputError(
            "none of the levels asked for can be used" if there else "no level has a number of sessions",
            where=sweep.source,
            remedy=f"levels in it: {', '.join(there)}"
            if there
            else "give levels at a concurrency; rates and single requests are read by `replicast check`",
        )
    return usable, warnings


def predicted_rows(
    level: SweepLevel,
    facts: ServerFacts,
    learned: Learned,
    *,
    loads: Sequence[Load] = LOADS,
    engines: MakeEngine = make_engine,
    buckets: list[Agreement] | None = None,
) -> list[Row]:
    """Rows of one level as `learned` predicts it; its histograms, the load given, go to `buckets`."""
    draws = draw_points_of(learned)
    rows: list[Row] = []
    fitted_too = any(_same(known, level) for known in learned.levels)
    for load in loads:
        model = model_for(level, facts, learned, load, engines)
        if model is None:
            continue
        found = predict(model, learned.point, learned.residuals(), draws, load)
        predicted = rows_of(level, load, found, learned.levels, held_out=not fitted_too)
        rows += predicted
        if buckets is not None and load == "given":
            means = {row.metric: row.predicted for row in predicted}
            buckets += agreements(model, learned.point, load, means)
    return rows


def model_for(
    level: SweepLevel, facts: ServerFacts, learned: Learned, load: Load, engines: MakeEngine
) -> LevelModel | None:
    """The level to simulate under one kind of load; None where nothing tells its lengths."""
    own = lengths_of(level, facts)
    if load != "given":
        load_s, _ = seconds_of_load(level)
        others = lengths_at(level.concurrency or 1, load_s, learned.levels)
        if others is None:
            return None
        own = others if load == "concurrency" else replace(own, alive=others.alive)
    return LevelModel(level, facts, learned.centre, engines, own, learned.front_end, learned.growth)


def leave_one_out(
    fitted: Fitted,
    facts: ServerFacts,
    *,
    loads: Sequence[Load] = LOADS,
    engines: MakeEngine = make_engine,
    buckets: list[Agreement] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Each fitted level predicted from a fit without it."""
    covariance = covariance_of(fitted)
    centre = centre_of([model.level for model in fitted.models])
    rows: list[Row] = []
    for index, model in enumerate(fitted.models):
        x = without_level(fitted, index)
        point = point_at(fitted.params, x)
        others = [other for j, other in enumerate(fitted.models) if j != index]
        known = tuple(known_level(other, residuals_of(other, point)) for other in others)
        front_end = front_end_of([other.level for other in others], facts)
        learned = Learned(point, fitted.params, x, covariance, centre, known, front_end)
        rows += predicted_rows(model.level, facts, learned, loads=loads, engines=engines, buckets=buckets)
        if progress is not None:
            progress(f"level {model.concurrency} left out")
    return rows


def known_level(model: LevelModel, residuals: Residuals) -> KnownLevel:
    """A fitted level as a calibration remembers it."""
    load_s, _ = seconds_of_load(model.level)
    return KnownLevel(
        model.concurrency,
        lengths_of(model.level, model.facts),
        load_s,
        {name: value for name, value in measured(model.level).items() if value is not None},
        residuals.by_metric,
    )


def draw_points_of(learned: Learned) -> list[Any]:
    """Draws of the fitted parameters, with everything else as it is."""
    if not len(learned.x):
        return []
    drawn = draw_points(learned.params, learned.x, learned.covariance, DRAWS)
    return [type(learned.point)({**learned.point.values, **point.values}) for point in drawn]


def rows_of(
    level: SweepLevel, load: Load, found: dict[str, Range], known: Sequence[KnownLevel], *, held_out: bool
) -> list[Row]:
    """Rows of what was both measured and predicted."""
    rows = []
    concurrency = level.concurrency or 1
    peak = level.kv_usage.peak if level.kv_usage else None
    for name, value in measured(level).items():
        if value is None or name not in found:
            continue
        rival = interpolated(concurrency, name, known)
        guess = combined(found[name], rival, name, share_of(load, name))
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


def _same(known: KnownLevel, level: SweepLevel) -> bool:
    if known.concurrency != level.concurrency:
        return False
    now = measured(level)
    return all(
        abs((now.get(name) or 0.0) - value) <= 1e-4 * abs(value) + 1e-9
        for name, value in known.measured.items()
    )
