"""Levels predicted by a fit that may not have seen them: one at a time, or each left out in turn.

Two kinds of load. *given*: concurrency, window, requests alive at a time and lengths per request are
those of the level (estimated from it where they were not stored); rates, running, waiting and latencies
are outcomes. *concurrency*: only the number of sessions is given, all else is that of the fitted levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from replicast.calibration.agreement import Agreement, agreements
from replicast.calibration.fit import Fitted, Floats, centre_of
from replicast.calibration.harness import MakeEngine
from replicast.calibration.learned import KnownLevel, Learned, lengths_at
from replicast.calibration.lengths import lengths_of
from replicast.calibration.model import LevelModel, front_end_of, point_at
from replicast.calibration.predict import Load, Residuals, output_per_prompt, predict, residuals_of
from replicast.calibration.rows import LOADS, Row, rows_of
from replicast.calibration.scale import measured
from replicast.calibration.server import ServerFacts, seconds_of_load
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.uncertainty import covariance_of, draw_points, without_level
from replicast.calibration.workers import HERE, Workers
from replicast.sim.engine.factory import make_engine

DRAWS = 12


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
        predicted = rows_of(
            level, load, found, learned.levels,
            ratio=output_per_prompt(model, load), held_out=not fitted_too,
        )  # fmt: skip
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
    pool: Workers = HERE,
) -> list[Row]:
    """Each fitted level predicted from a fit without it; levels are independent and run in `pool`."""
    if progress is not None:
        progress(f"{len(fitted.models)} levels, each left out in turn")
    ask = _LeftOut(fitted, covariance_of(fitted), facts, tuple(loads), engines, buckets is not None)
    rows: list[Row] = []
    for found, agreeing in pool.map(partial(_left_out, ask), range(len(fitted.models))):
        rows += found
        if buckets is not None:
            buckets += agreeing
    return rows


class _LeftOut(NamedTuple):
    fitted: Fitted
    covariance: Floats
    facts: ServerFacts
    loads: tuple[Load, ...]
    engines: MakeEngine
    with_buckets: bool


def _left_out(ask: _LeftOut, index: int) -> tuple[list[Row], list[Agreement]]:
    fitted, facts = ask.fitted, ask.facts
    x = without_level(fitted, index)
    point = point_at(fitted.params, x)
    others = [other for j, other in enumerate(fitted.models) if j != index]
    known = tuple(known_level(other, residuals_of(other, point)) for other in others)
    front_end = front_end_of([other.level for other in others], facts)
    centre = centre_of([model.level for model in fitted.models])
    learned = Learned(point, fitted.params, x, ask.covariance, centre, known, front_end)
    buckets: list[Agreement] = []
    rows = predicted_rows(
        fitted.models[index].level, facts, learned, loads=ask.loads, engines=ask.engines,
        buckets=buckets if ask.with_buckets else None,
    )  # fmt: skip
    return rows, buckets


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


def _same(known: KnownLevel, level: SweepLevel) -> bool:
    if known.concurrency != level.concurrency:
        return False
    now = measured(level)
    return all(
        abs((now.get(name) or 0.0) - value) <= 1e-4 * abs(value) + 1e-9
        for name, value in known.measured.items()
    )
