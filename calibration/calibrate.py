"""A sweep in, a calibration out: values with intervals, held-out errors, and the profile that holds them.

    calibrate(sweep) -> Calibration -> .report_text(), .to_document(), .profile

Levels that the checks fail are left out and named; a sweep that they refuse is refused, unless forced.
Nothing is fitted from fewer than two levels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replicast.calibration.check import check_sweep, usable_levels
from replicast.calibration.doubts import assumed, at_bounds, contradicted, of_another_load
from replicast.calibration.engines import engines_of, of_one_engine
from replicast.calibration.facts import Model
from replicast.calibration.fit import Fitted, centre_of, fit
from replicast.calibration.harness import MakeEngine
from replicast.calibration.held_out import known_level, leave_one_out
from replicast.calibration.learned import Learned, tables_of
from replicast.calibration.lengths import SHARED_TOKENS, lengths_of, too_long, with_context
from replicast.calibration.model import Point, point_at, step_seconds
from replicast.calibration.physics import check_peak
from replicast.calibration.pool import scaled_pool
from replicast.calibration.predict import residuals_of
from replicast.calibration.profile import Profile, StepSeconds
from replicast.calibration.rows import KV_FREE, LABELS, Row, Summary, summarise
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.calibration.trace_load import TraceLoad, with_trace
from replicast.calibration.uncertainty import Interval, Uncertainty, uncertainty
from replicast.calibration.validate import Validation, choose_levels, failed_levels
from replicast.calibration.workers import workers
from replicast.sim.engine.factory import make_engine
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd
from replicast.sim.planning.quantiles import Estimate, digits
from replicast.sim.report.numbers import significant

SCHEMA = "replicast/calibrate/1"
MIN_LEVELS = 2
LATENTS = (
    "computed_tokens", "computed_slope", "first_tokens", "output_spread", "computed_spread",
    "calls_per_session", "failed_sessions", "shared_tokens",
)  # fmt: skip
PASSES_TPOT = 0.30  # held-out median that a shipped profile must stay below
UNITS = {
    "memory_fixed_s": "s, a step: weights and launches",
    "memory_per_kv_token_s": "s, a context token read",
    "memory_per_seq_s": "s, a further sequence",
    "compute_per_token_s": "s, a prefilled token",
    "compute_per_pair_s": "s, such a token and one of its context",
    "computed_tokens": "tokens a request computes",
    "computed_slope": "its exponent in sessions",
    "first_tokens": "tokens of a first prompt",
    "output_spread": "sd of log(output of a request)",
    "computed_spread": "sd of log(tokens a request computes)",
    "calls_per_session": "requests of a session that completes",
    "failed_sessions": "share of sessions that end after a few",
    "shared_tokens": "tokens all sessions share",
    "pool_scale": "of the KV pool that memory leaves",
    "prefill_s_per_request": "s, of a later request alone: known better than its parts",
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """All that was learnt from one sweep."""

    sweep: Sweep
    facts: ServerFacts
    fitted: Fitted
    uncertainty: Uncertainty
    learned: Learned
    profile: Profile
    held_out: Validation | None
    warnings: tuple[str, ...]
    seconds: float

    @property
    def passes(self) -> bool:
        """Whether the fit stands its own test: no peak beaten, held-out TPOT within 30 %."""
        tpot = summarise(self.held_out.rows, "given", "tpot_mean_s") if self.held_out else None
        honest = not check_peak(self.profile.step_time, self.facts.priors)
        return honest and tpot is not None and tpot.median_absolute <= PASSES_TPOT

    def to_document(self) -> dict[str, Any]:
        """The JSON document."""
        steps = self.profile.step_time._asdict()
        return {
            "schema": SCHEMA,
            "sweep": self.sweep.source,
            "inputs": [
                item._asdict() if hasattr(item, "_asdict") else str(item) for item in self.sweep.inputs
            ],
            "levels": [level.concurrency for level in self.learned.levels],
            "parameters": [interval._asdict() for interval in self._intervals()],
            "inseparable": [pair._asdict() for pair in self.uncertainty.pairs],
            "step_time": steps,
            "engine": _told(self.profile),
            "load": dict(self.profile.tables["load"]),
            "load_given": self.profile.tables.get("load_given", {}),
            "held_out": [line._asdict() for line in self._summaries()],
            "rows": [row._asdict() for row in self.held_out.rows] if self.held_out else [],
            "passes": self.passes,
            "warnings": list(self.warnings),
            "level_simulations": self.fitted.evaluations,
        }

    def report_text(self) -> str:
        """Value, interval, status; then errors; then what it is valid for."""
        count = len(self.fitted.names)
        lines = [
            f"{len(self.learned.levels)} levels, {len(self.fitted.params)} parameters, {count} observations",
            "",
            f" {'parameter':22} {'value':>9}  {'95 % interval':22} {'status':24} what",
        ]
        lines += [interval_line(it) for it in self._intervals()]
        profiled = [it.name for it in self._intervals() if it.method != "covariance"]
        lines.append(
            f" Intervals from the covariance; by profile likelihood: {', '.join(profiled) or 'none'}."
        )
        fitted = {it.name for it in self._intervals()}
        physics = [name for name in ("compute_fixed_s", "compute_per_pair_s") if name not in fitted]
        lines.append(f" From physics: {', '.join(physics)}.")
        if self.facts.load:
            told = ", ".join(f"{name} {significant(v)}" for name, v in self.facts.load.items() if v)
            lines.append(f" Given by the trace: {told}.")
        for pair in self.uncertainty.pairs:
            lines.append(
                f"Cannot be told apart: {pair.first}, {pair.second} ({pair.correlation:+.2f}); {pair.advice}."
            )
        lines += ["", *self._error_lines(), "", self._range_line()]
        lines += [f"Warning: {text}" for text in self.warnings]
        lines += [f"Note: {text}" for text in (*self.facts.notes, *self.sweep.notes)]
        lines += [f"Left out by the reader: {count:,} {why}" for why, count in self.sweep.dropped]
        return "\n".join(lines) + "\n"

    def _intervals(self) -> tuple[Interval, ...]:
        return (*self.uncertainty.intervals, *self.uncertainty.combined)

    def _summaries(self) -> list[Summary]:
        return self.held_out.summary() if self.held_out else []

    def _error_lines(self) -> list[str]:
        if self.held_out is None:
            return ["No held-out errors: they were not asked for, or the levels are fewer than three."]
        lines = ["Held-out error, each level predicted from the others (median; in brackets KV peak <= .95):"]
        free = [row for row in self.held_out.rows if row.kv_peak is None or row.kv_peak <= KV_FREE]
        for line in self._summaries():
            part = summarise(free, line.load, line.metric)
            inner = "-" if part is None else f"{part.median_absolute:.0%}"
            rival = "-" if line.interpolation is None else f"{line.interpolation:.0%}"
            lines.append(
                f" {line.load:12} {LABELS[line.metric]:14} {line.median_absolute:5.0%} ({inner:>4})   "
                f"interpolation {rival:>4}   {line.coverage:.0%} inside the 90 % interval"
            )
        return lines

    def _range_line(self) -> str:
        ranges = self.profile.ranges
        text = ", ".join(
            f"{name} {significant(low)} to {significant(high)}"
            if name == "hit_rate"
            else f"{name} {low:,.0f} to {high:,.0f}"
            for name, (low, high) in ranges.items()
        )
        return f"Valid for: {text}; {self.profile.gpu} x {self.profile.tensor_parallel_size}."


def calibrate(
    sweep: Sweep,
    *,
    given: Given | None = None,
    hardware: str | None = None,
    model: Model | None = None,
    trace: TraceLoad | None = None,
    levels: Sequence[int] | None = None,
    name: str | None = None,
    date: str = "unknown",
    loo: bool = True,
    force: bool = False,
    engines: MakeEngine = make_engine,
    progress: Callable[[str], None] | None = None,
    jobs: int = 1,
) -> Calibration:
    """Learn a server and its load from a sweep; what a `trace` of the same load tells is given.

    `jobs` processes give the same result as one.
    """
    began = time.monotonic()
    told = (given or Given()).over(sweep.given)
    count = max([engines_of(level, told.data_parallel_size) for level in sweep.levels], default=1)
    told = replace(told, data_parallel_size=count)
    facts = server_facts(sweep, told, hardware=hardware, model=model)
    chosen, warnings = choose_levels(sweep, levels)
    chosen, more, warned = healthy(sweep, chosen, force=force)
    if warned:
        warnings.append(f"{warned} warning{'s' * (warned != 1)} of the checks: `replicast check` tells them")
    chosen, shared = of_one_engine(chosen, told.data_parallel_size)
    warnings += [*more, *shared]
    if len(chosen) < MIN_LEVELS:
        raise InputError(
            f"{len(chosen)} usable level{'s' * (len(chosen) != 1)} to calibrate on, {MIN_LEVELS} are needed",
            where=sweep.source,
            remedy="a sweep at 1, 2, 5, 10 and 20 sessions tells most",
        )
    warnings += [text for level in chosen if (text := too_long(level, facts))]
    warnings += contradicted(chosen, facts)
    if trace is not None:
        facts = with_trace(
            facts, trace, counted=all(lengths_of(v, facts).computed is not None for v in chosen)
        )
    with workers(jobs) as pool:
        fitted = fit(
            chosen, facts, engines=engines, progress=progress, pool=pool,
            sessions=trace.sessions if trace else None,
        )  # fmt: skip
        known = uncertainty(fitted)
        point = point_at(fitted.params, fitted.x)
        learned = learned_from(fitted, known, point)
        held_out = None
        if loo and len(chosen) >= 3:
            rows: list[Row] = leave_one_out(fitted, facts, engines=engines, progress=progress, pool=pool)
            held_out = Validation(sweep.source, "leave one level out", True, tuple(rows), ())
    if trace is not None:
        warnings += of_another_load(fitted)
    steps = step_seconds(facts, point)
    warnings += [*check_peak(steps, facts.priors), *at_bounds(known), *assumed(learned)]
    profile = profile_of(sweep, facts, learned, known, steps, held_out, name=name, date=date)
    price = profile.price_usd_per_hour
    profile = replace(
        profile,
        notes=(*profile.notes, *more, *shared),
        price_usd_per_hour=None if price is None else price / count,
    )
    return Calibration(
        sweep, facts, fitted, known, learned, profile, held_out, tuple(warnings), time.monotonic() - began
    )


def healthy(
    sweep: Sweep, levels: list[SweepLevel], *, force: bool
) -> tuple[list[SweepLevel], list[str], int]:
    """The levels that checks leave, what was left out, and how often they warn (0 where forced).

    A refused sweep raises unless forced.
    """
    if force:
        return levels, [f"forced: {text}" for text in failed_levels(sweep, levels)], 0
    result = check_sweep(sweep)
    failed = [sweep.levels[i] for i in result.left_out]
    usable_levels(result)
    kept = [level for level in levels if level not in failed]
    out = [level.name or f"c={level.concurrency}" for level in levels if level in failed]
    return kept, [f"left out, the checks fail it: {name}" for name in out], len(result.of("warn"))


def learned_from(fitted: Fitted, known: Uncertainty, point: Point) -> Learned:
    """The fit, in the form that is stored."""
    levels = tuple(known_level(model, residuals_of(model, point)) for model in fitted.models)
    centre = centre_of([model.level for model in fitted.models])
    return Learned(
        point, fitted.params, fitted.x, known.covariance, centre, levels, fitted.models[0].front_end
    )


def profile_of(
    sweep: Sweep,
    facts: ServerFacts,
    learned: Learned,
    known: Uncertainty,
    steps: StepSeconds,
    held_out: Validation | None,
    *,
    name: str | None,
    date: str,
) -> Profile:
    """The profile: what replays and plans draw from."""
    scale = learned.point.get("pool_scale", 1.0)
    args = facts.args if scale == 1.0 else scaled_pool(facts.args, scale, facts.least_blocks)
    values = {**facts.load, **learned.point.values}
    latents = {name: values[name] for name in LATENTS if name in values}
    # The pool is written as scaled, and lengths that rest on it: nothing is left to scale by.
    written = [i for i, p in enumerate(learned.params) if p.name != "pool_scale"]
    shared = values.get("shared_tokens", SHARED_TOKENS)
    as_read = [with_context(level.lengths, SHARED_TOKENS, scale) for level in learned.levels]
    stored = replace(
        learned,
        levels=tuple(replace(v, lengths=n) for v, n in zip(learned.levels, as_read, strict=True)),
        params=tuple(learned.params[i] for i in written),
        x=learned.x[written],
        covariance=learned.covariance[written][:, written],
    )
    tables: dict[str, dict[str, Any]] = {
        "intervals": {
            it.name: {"value": _g(it.value), "low": _g(it.low), "high": _g(it.high)}
            | {"status": it.status, "method": it.method}
            for it in (*known.intervals, *known.combined)
        },
        **tables_of(stored, latents),
    }
    if facts.load:
        tables["load_given"] = {"source": facts.load_source, "latents": sorted(facts.load)}
    if held_out is not None:
        tables["validation"] = validation_table(held_out)
    lengths = [with_context(level.lengths, shared, scale) for level in learned.levels]
    hits = [max(1 - n.computed / n.prompt, 0.0) for n in lengths if n.computed is not None]
    ranges = {"concurrency": _span([float(level.concurrency) for level in learned.levels])}
    if all(n.source != "guess" for n in lengths):
        ranges["prompt_tokens"] = _span([n.prompt for n in lengths])
        ranges["output_tokens"] = _span([n.output for n in lengths])
    if hits:
        ranges["hit_rate"] = _span(hits)
    return Profile(
        name=name or f"{facts.model.name}-{facts.gpu.name.lower()}-tp{facts.tensor_parallel_size}",
        status="calibrated",
        source=f"{Path(sweep.source).name}, levels {', '.join(str(v.concurrency) for v in learned.levels)}",
        date=date,
        model=f"{facts.model.name}",
        gpu=facts.gpu.name,
        gpu_memory_gib=facts.gpu.memory_gib,
        tensor_parallel_size=facts.tensor_parallel_size,
        vllm_version=facts.vllm_version,
        engine=args,
        step_time=StepSeconds(*(_g(value, 5) for value in steps)),
        front_end=FrontEnd(_g(learned.front_end.fixed_s), _g(learned.front_end.per_prompt_token_s), 0.0),
        price_usd_per_hour=sweep.given.price_usd_per_hour,
        ranges=ranges,
        notes=facts.notes,
        tables=tables,
    )


def validation_table(held_out: Validation) -> dict[str, Any]:
    """Held-out medians by load and metric, as a profile stores them."""
    return {
        f"{line.load}_{line.metric}": {
            "median_error": round(line.median_absolute, 3),
            "coverage": round(line.coverage, 2),
            "levels": line.rows,
        }
        for line in held_out.summary()
    }


def _told(profile: Profile) -> dict[str, Any]:
    return {
        field: value
        for field in profile.engine.__dataclass_fields__
        if (value := getattr(profile.engine, field)) is not None
    }


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high < 2:
        return (round(low, 3), round(high, 3))
    return (float(math.floor(low)), float(math.ceil(high)))


def interval_line(it: Interval) -> str:
    """A parameter's row of the report."""
    span = f"{_figure(it.low, 2)} to {_figure(it.high, 2)}"
    return f" {it.name:22} {_value(it):>9}  {span:22} {it.status:24} {UNITS.get(it.name, '')}"


def _value(it: Interval) -> str:
    """The value with the digits that its interval supports, from one to three."""
    places = digits(Estimate(it.value, it.low, it.high, 1))
    size = math.floor(math.log10(abs(it.value))) if it.value else 0
    kept = min(max(places + size + 1, 1), 3)
    while kept < 3 and not it.low <= float(f"{it.value:.{kept}g}") <= it.high:
        kept += 1
    return "0" if it.low < 0 and round(it.value, places) == 0 else _figure(it.value, kept)


def _figure(value: float, kept: int) -> str:
    return significant(value, kept) if 1e-3 <= abs(value) < 1e7 else f"{value:.{kept}g}"


def _g(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
