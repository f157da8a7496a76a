"""A server from one synchronous stage: requests known one by one, each alone in the server.

`learn` calibrates from two levels on as `calibrate.py` does. A single level whose requests are known and had
the server to themselves tells all step-time coefficients but one: what a further sequence of a step costs is
not seen, and stays as physics has it. No load is learnt. Of many rows `MOST_ROWS` are fitted, spread over all
lengths of prompts; held out is every other one of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from replicast.calibration.calibrate import (
    PASSES_TPOT,
    SCHEMA,
    Calibration,
    calibrate,
    healthy,
    interval_line,
)
from replicast.calibration.facts import Model
from replicast.calibration.harness import MakeEngine
from replicast.calibration.perrequest import FITTED, RequestFit, fit_requests, lone_requests, request_priors
from replicast.calibration.profile import Profile, StepSeconds
from replicast.calibration.replay import replay_requests
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import ClientRequest, Given, Sweep, SweepLevel
from replicast.calibration.trace_load import TraceLoad
from replicast.calibration.uncertainty import Interval
from replicast.calibration.validate import choose_levels
from replicast.sim.engine.factory import make_engine
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

LEAST_ROWS = 5
MOST_ROWS = 100
LEAST_RANGE = 1.5  # longest over shortest prompt
LONE_SHARE = 0.8  # of a level's requests that must have been alone
CACHED_SHARE = 0.02  # of prompt tokens that may have come from the cache
NOTE = (
    "Learnt from requests that were alone: what a further sequence costs is from physics, and more than one "
    "at a time is extrapolated."
)


@dataclass(frozen=True, slots=True)
class Synchronous:
    """What lone requests tell. `misses` are medians of what held-out rows were missed by."""

    sweep: Sweep
    fitted: RequestFit
    intervals: tuple[Interval, ...]
    profile: Profile
    misses: dict[str, float]
    warnings: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether held-out rows keep their pace within 30 %."""
        return self.misses.get("tpot", math.inf) <= PASSES_TPOT

    def to_document(self) -> dict[str, Any]:
        """The JSON document, of the same form as a calibration's."""
        return {
            "schema": SCHEMA,
            "sweep": self.sweep.source,
            "inputs": list(self.sweep.inputs),
            "levels": [1],
            "lone_requests": self.fitted.rows_used,
            "parameters": [interval._asdict() for interval in self.intervals],
            "inseparable": [],
            "step_time": self.profile.step_time._asdict(),
            "load": {},
            "held_out": [{"metric": name, "median_absolute": miss} for name, miss in self.misses.items()],
            "rows": [],
            "passes": self.passes,
            "warnings": list(self.warnings),
        }

    def report_text(self) -> str:
        """Value, interval, status; then errors; then what it is valid for."""
        lines = [
            f"{self.fitted.rows_used} lone requests, {len(self.intervals)} parameters",
            "",
            f" {'parameter':22} {'value':>9}  {'95 % interval':22} {'status':24} what",
        ]
        lines += [interval_line(it) for it in self.intervals]
        lines += [" Not seen, from elsewhere: memory_per_seq_s.", ""]
        told = ", ".join(f"{name.upper()} {miss:.1%}" for name, miss in self.misses.items())
        lines.append(
            f"Held-out error, every other request from the rest (median): {told or 'not asked for'}."
        )
        spans = ", ".join(
            f"{name} {low:,.0f} to {high:,.0f}" for name, (low, high) in self.profile.ranges.items()
        )
        lines.append(f"Valid for: {spans}; {self.profile.gpu} x {self.profile.tensor_parallel_size}.")
        lines += [f"Warning: {text}" for text in self.warnings]
        lines += [f"Note: {text}" for text in self.profile.notes]
        return "\n".join(lines) + "\n"


def learn(
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
) -> Calibration | Synchronous:
    """What a sweep teaches: server and load, or of one synchronous stage the server."""
    chosen, warnings = choose_levels(sweep, levels)
    rows = _lone(chosen[0]) if len(chosen) == 1 else []
    if not rows:
        return calibrate(
            sweep, given=given, hardware=hardware, model=model, trace=trace, levels=levels, name=name,
            date=date, loo=loo, force=force, engines=engines, progress=progress, jobs=jobs,
        )  # fmt: skip
    _check_distinct(rows, sweep.source)
    _check_spread(rows, sweep.source)
    if trace is not None:
        warnings.append("the trace is not used: lone requests tell the server, not the load")
    warnings += healthy(sweep, chosen, force=force)[1]
    facts = server_facts(sweep, given, hardware=hardware, model=model)
    rows = _spread(rows)
    if progress is not None:
        progress(f"{len(rows)} lone requests are fitted")
    fitted = fit_requests(rows, facts, engines=engines)
    misses: dict[str, float] = {}
    if loo and len(rows) >= 2 * LEAST_ROWS + 2:
        half = fit_requests(rows[::2], facts, engines=engines)
        misses = _misses(rows[1::2], facts, half, engines)
    intervals = _intervals(fitted, facts)
    profile = _profile(sweep, facts, fitted, intervals, rows, name=name, date=date)
    return Synchronous(sweep, fitted, intervals, profile, misses, tuple(warnings))


def _lone(level: SweepLevel) -> list[ClientRequest]:
    """The level's lone requests; none where most were not alone."""
    known = [r for r in level.requests if r.ttft_s is not None and r.arrival_s is not None]
    kept, _ = lone_requests(known)
    return kept if len(kept) >= max(LEAST_ROWS, LONE_SHARE * len(level.requests)) else []


def _check_distinct(rows: Sequence[ClientRequest], where: str) -> None:
    """Refuse prompts that the cache had answered in part: which part is not known."""
    prompts = sum(r.prompt_tokens or 0 for r in rows)
    cached = sum(r.cached_tokens or 0 for r in rows)
    if cached > CACHED_SHARE * prompts:
        raise InputError(
            f"{cached / prompts:.0%} of the prompt tokens of lone requests came from the cache",
            where=where,
            remedy="give lone requests with prompts of their own, or a sweep of two levels or more",
        )


def _check_spread(rows: Sequence[ClientRequest], where: str) -> None:
    """Refuse prompts of about one length: slope and intercept are then one fact; and replies of one token."""
    prompts = [float(r.prompt_tokens or 0) for r in rows]
    if max(prompts) < LEAST_RANGE * max(min(prompts), 1.0):
        raise InputError(
            f"lone requests have prompts of {min(prompts):,.0f} to {max(prompts):,.0f} tokens: what a token "
            "costs cannot be told from what a step does",
            where=where,
            remedy=f"send lone requests whose longest prompt is {LEAST_RANGE:g} times the shortest or more",
        )
    if sum((r.output_tokens or 0) > 1 for r in rows) < LEAST_ROWS:
        raise InputError(
            "lone requests have no second token: how long a decode step takes is not in them",
            where=where,
            remedy="ask for replies of some hundred tokens",
        )


def _spread(rows: Sequence[ClientRequest]) -> list[ClientRequest]:
    """At most `MOST_ROWS`, evenly over the lengths of prompts, in their order."""
    by_length = sorted(range(len(rows)), key=lambda i: (rows[i].prompt_tokens or 0, i))
    places = np.unique(np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)).tolist()
    return [rows[i] for i in sorted(by_length[place] for place in places)]


def _misses(
    rows: Sequence[ClientRequest], facts: ServerFacts, fitted: RequestFit, engines: MakeEngine
) -> dict[str, float]:
    """Medians of absolute relative errors."""
    apart = [r._replace(arrival_s=1e4 * i) for i, r in enumerate(rows)]
    told = replay_requests(apart, facts.config, fitted.steps, fitted.front_end, engines=engines)
    ttft_s, e2e_s, outputs = np.array([[r.ttft_s, r.e2e_s, r.output_tokens] for r in rows], dtype=float).T
    paced = outputs > 1
    pace_s = (e2e_s - ttft_s)[paced] / (outputs[paced] - 1)
    errors = {"ttft": np.abs(told.ttft_s / ttft_s - 1), "tpot": np.abs(told.tpot_s[paced] / pace_s - 1)}
    known = {name: each[np.isfinite(each)] for name, each in errors.items()}
    return {name: float(np.median(each)) for name, each in known.items() if len(each)}


def _intervals(fitted: RequestFit, facts: ServerFacts) -> tuple[Interval, ...]:
    front = (fitted.front_end.fixed_s, fitted.front_end.per_prompt_token_s)
    values = {
        **fitted.steps._asdict(),
        **dict(zip(("front_end_fixed_s", "front_end_per_token_s"), front, strict=True)),
    }
    priors = request_priors(facts)
    found = []
    for name, variance in zip(FITTED, np.diag(fitted.covariance).tolist(), strict=True):
        sd = math.sqrt(variance)
        status = "fitted" if sd < 0.5 * priors[name].spread else "weak: the prior decides"
        value, factor = values[name], math.exp(1.96 * sd)
        found.append(Interval(name, value, max(value / factor, priors[name].low), value * factor, status))
    return tuple(found)


def _profile(
    sweep: Sweep,
    facts: ServerFacts,
    fitted: RequestFit,
    intervals: Sequence[Interval],
    rows: Sequence[ClientRequest],
    *,
    name: str | None,
    date: str,
) -> Profile:
    steps = [i for i, known in enumerate(FITTED) if known in StepSeconds._fields]
    priors = request_priors(facts)
    prompts, outputs = (
        [float(getattr(r, which) or 0) for r in rows] for which in ("prompt_tokens", "output_tokens")
    )
    return Profile(
        name=name or f"{facts.model.name}-{facts.gpu.name.lower()}-tp{facts.tensor_parallel_size}",
        status="calibrated",
        source=f"{Path(sweep.source).name}, {fitted.rows_used} lone requests",
        date=date,
        model=facts.model.name,
        gpu=facts.gpu.name,
        gpu_memory_gib=facts.gpu.memory_gib,
        tensor_parallel_size=facts.tensor_parallel_size,
        vllm_version=facts.vllm_version,
        engine=facts.args,
        step_time=StepSeconds(*(_figures(value) for value in fitted.steps)),
        front_end=FrontEnd(_figures(fitted.front_end.fixed_s), _figures(fitted.front_end.per_prompt_token_s)),
        price_usd_per_hour=sweep.given.price_usd_per_hour,
        ranges={
            "concurrency": (1.0, 1.0),
            "prompt_tokens": (min(prompts), max(prompts)),
            "output_tokens": (min(outputs), max(outputs)),
        },
        notes=(*facts.notes, NOTE),
        tables={
            "intervals": {
                it.name: {"value": _figures(it.value), "low": _figures(it.low), "high": _figures(it.high)}
                | {"status": it.status, "method": it.method}
                for it in intervals
            },
            "covariance": {
                "names": [FITTED[i] for i in steps],
                "low": [_figures(math.log(max(priors[FITTED[i]].low, 1e-13))) for i in steps],
                "high": [5.0 for _ in steps],
                "log_matrix": [[_figures(float(fitted.covariance[i, j])) for j in steps] for i in steps],
            },
        },
    )


def _figures(value: float) -> float:
    return float(f"{value:.5g}")
