"""Fit: the simulator in the loop.

Stage 1 (`model.parameters`): operational laws give starting values. Stage 2, here: every level is
simulated as it was run, and `scipy.optimize.least_squares` moves the parameters until logarithms of
means and rates agree with the measured ones, weighted by how much one realisation of a level varies,
with a robust loss. Draws are common to all trials, so that differences are those of the parameters.
Lengths are matched between rounds. Weak priors of physics and of the load are residuals like the
others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import MakeEngine
from replicast.calibration.model import (
    LevelModel,
    Parameter,
    front_end_of,
    measured,
    parameters,
    point_at,
    transformed,
    typical,
)
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel
from replicast.sim.engine.factory import make_engine

Floats = NDArray[np.float64]

# Model discrepancy of a metric's logarithm: what the model cannot say, beside the realisation.
FLOOR = {
    "tpot_mean_s": 0.10,
    "ttft_mean_s": 0.20,
    "queue_mean_s": 0.40,
    "prefill_mean_s": 0.15,
    "prompt_tokens_per_s": 0.15,
    "output_tokens_per_s": 0.15,
    "running_mean": 0.05,
    "kv_usage_mean": 0.07,
}
SEEDS = (1, 2)
SD_SEEDS = (1, 2, 3, 4, 5)
STEP = 0.06  # of a logarithm: wide, because requests are whole
ROUNDS = ((2, 7), (1, 6))  # per round: matches of lengths before it, evaluations of the Jacobian in it


@dataclass(frozen=True, slots=True)
class Fitted:
    """The optimum, and what uncertainty is computed from."""

    params: tuple[Parameter, ...]
    x: Floats
    jacobian: Floats  # of weighted residuals, robust weights applied
    residuals: Floats
    names: tuple[tuple[int, str], ...]  # (level, metric) of each data residual
    sds: tuple[float, ...]  # what each was divided by
    models: tuple[LevelModel, ...]
    seeds: tuple[int, ...]
    evaluations: int


def centre_of(levels: Sequence[SweepLevel]) -> float:
    """Geometric mean of the concurrencies."""
    return math.exp(sum(math.log(level.concurrency or 1) for level in levels) / len(levels))


def fit(
    levels: Sequence[SweepLevel],
    facts: ServerFacts,
    *,
    engines: MakeEngine = make_engine,
    seeds: Sequence[int] = SEEDS,
    start: Floats | None = None,
    rounds: Sequence[tuple[int, int]] = ROUNDS,
    progress: Callable[[str], None] | None = None,
) -> Fitted:
    """The parameters that explain these levels best."""
    from scipy.optimize import least_squares

    params = parameters(levels, facts)
    centre = centre_of(levels)
    front_end = front_end_of(levels, facts)
    models = [LevelModel(level, facts, centre, engines, front_end=front_end) for level in levels]
    low, high = (np.array([getattr(p, side) for p in params]) for side in ("low", "high"))
    x = np.array([p.start for p in params]) if start is None else start
    x = np.clip(x, low + 1e-6, high - 1e-6)
    problem: _Problem | None = None
    for matches, evaluations in rounds:
        for _ in range(matches):
            for model in models:
                model.match(point_at(params, x), seeds)
        if problem is None:
            sds = realisation_sd(models, params, x, SD_SEEDS)
            problem = _Problem(params, models, tuple(seeds), sds)
        problem.forget()
        found = least_squares(
            problem.residuals, x, problem.secant, bounds=(low, high), loss="soft_l1", x_scale=0.3,
            max_nfev=evaluations, xtol=3e-3, ftol=3e-3, gtol=1e-3,
        )  # fmt: skip
        x = found.x
        if progress is not None:
            progress(f"cost {found.cost:.2f} after {problem.evaluations} level simulations")
    assert problem is not None
    residuals = problem.residuals(x)
    jacobian = problem.jacobian(x)
    robust = (1 + residuals**2) ** -0.25
    return Fitted(
        tuple(params), x, jacobian * robust[:, None], residuals, problem.names, problem.sds, tuple(models),
        tuple(seeds), problem.evaluations,
    )  # fmt: skip


class _Problem:
    """Residuals: (log simulated - log measured) / sd for each level and metric, then the priors."""

    def __init__(
        self,
        params: Sequence[Parameter],
        models: Sequence[LevelModel],
        seeds: tuple[int, ...],
        realisation: Sequence[Mapping[str, float]],
    ) -> None:
        self._params = params
        self._models = models
        self._seeds = seeds
        self._targets: list[dict[str, tuple[float, float]]] = []
        names = []
        for index, model in enumerate(models):
            targets = targets_of(model, realisation[index])
            self._targets.append(targets)
            names += [(index, name) for name in targets]
        self.names = tuple(names)
        self.sds = tuple(sd for targets in self._targets for _, sd in targets.values())
        self.evaluations = 0
        self._last: tuple[Floats, Floats, Floats] | None = None

    def residuals(self, x: Floats) -> Floats:
        """All residuals at `x`."""
        rows = [self._level(index, x) for index in range(len(self._models))]
        return np.concatenate([*rows, self._prior(x)])

    def jacobian(self, x: Floats) -> Floats:
        """Forward differences with a wide step."""
        base = self.residuals(x)
        columns = []
        for i, p in enumerate(self._params):
            step = STEP if x[i] + STEP < p.high else -STEP
            moved = x.copy()
            moved[i] += step
            columns.append((self.residuals(moved) - base) / step)
        return np.stack(columns, axis=1)

    def secant(self, x: Floats) -> Floats:
        """The Jacobian of the first point, kept up with each step taken (Broyden 1965): one run a step."""
        residuals = self.residuals(x)
        if self._last is None:
            jacobian = self.jacobian(x)
        else:
            before, there, jacobian = self._last
            moved = x - before
            if (length := float(moved @ moved)) > 0:
                jacobian = jacobian + np.outer(residuals - there - jacobian @ moved, moved) / length
        self._last = (x.copy(), residuals, jacobian)
        return jacobian

    def forget(self) -> None:
        """Lengths have changed: residuals and their slopes are others now."""
        if self._last is not None:
            x, _, jacobian = self._last
            self._last = (x, self.residuals(x), jacobian)

    def _level(self, index: int, x: Floats) -> Floats:
        runs = self._models[index].simulate(point_at(self._params, x), self._seeds)
        self.evaluations += len(runs)
        out = []
        for name, (target, sd) in self._targets[index].items():
            value = typical(runs, name)
            out.append((value - target) / sd if value == value else 3.0)
        return np.array(out)

    def _prior(self, x: Floats) -> Floats:
        return np.array([(value - p.prior) / p.spread for value, p in zip(x, self._params, strict=True)])


def realisation_sd(
    models: Sequence[LevelModel], params: Sequence[Parameter], x: Floats, seeds: Sequence[int]
) -> list[dict[str, float]]:
    """How much each metric's residual varies from one realisation of a level to the next.

    Few seeds tell little of a level, so half is what all levels say together: sd x sqrt(requests) is alike.
    """
    tables = []
    for model in models:
        runs = model.simulate(point_at(params, x), seeds)
        rows = [[transformed(name, getattr(run, name)) for name in FLOOR] for run in runs]
        tables.append(np.nanstd(np.array(rows), axis=0, ddof=1))
    own = np.nan_to_num(np.array(tables), nan=0.5)
    root = np.sqrt([max(model.lengths.requests, 1.0) for model in models])[:, None]
    pooled = np.sqrt(np.mean((own * root) ** 2, axis=0)) / root
    both = np.minimum(np.sqrt((own**2 + pooled**2) / 2), 1.5)
    return [dict(zip(FLOOR, row.tolist(), strict=True)) for row in both]


def targets_of(model: LevelModel, realisation: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """(transformed measured value, sd) of each metric of a level that says something."""
    out: dict[str, tuple[float, float]] = {}
    for name, floor in FLOOR.items():
        value = measured(model.level)[name]
        if value is None or value <= 0 or (name == "queue_mean_s" and value < 0.05):
            continue
        out[name] = (transformed(name, value), math.hypot(floor, realisation[name]))
    return out
