"""Fit: the simulator in the loop.

Stage 1 (`model.parameters`): operational laws give starting values. Stage 2, here: every level is
simulated as it was run, and `scipy.optimize.least_squares` moves the parameters until logarithms of
means and rates agree with the measured ones, weighted by how much they may differ (`noise`), with a robust
loss. Draws are common to all trials, so that differences are those of the parameters. Then rounds, until one
gains little: lengths are matched, chance and discrepancy estimated, slopes taken, damped Gauss-Newton steps
made. Weak priors of physics and of the load are residuals like the others.

The slopes that uncertainty rests on are taken across each parameter's own uncertainty: requests are whole,
and across a small step their reshuffling would pass for information.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import MakeEngine
from replicast.calibration.lengths import growth_of, lengths_of
from replicast.calibration.model import LevelModel, Parameter, front_end_of, parameters, point_at
from replicast.calibration.noise import (
    LEAST_SIZE,
    METRICS,
    SIZES,
    Noise,
    discrepancy_size,
    realisation_noise,
    residual_sds,
    surplus,
)
from replicast.calibration.scale import transformed, typical
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.traced import TracedModel, TraceSessions
from replicast.calibration.workers import HERE, Workers
from replicast.sim.engine.factory import make_engine

Floats = NDArray[np.float64]

SEEDS = (1, 2)
STEP = 0.25  # of a logarithm: wide, because requests are whole
NARROWEST, WIDEST = 0.06, 0.8  # of the slopes that uncertainty rests on
LONGEST = 1.0  # of a last step
LAST_STEPS = 5
DAMPING, DAMPED = 0.1, 3.0  # of a step at first, and by how much less or more after each
LEAST_GAIN = 0.05  # of chi-square, for a further step
ROUND_GAIN = 1.0  # of chi-square, for a further round
NOTHING_SEEN = 3.0  # residual of a metric that the simulation does not show
ROUNDS = (2, 4)  # at least, at most
MATCHES = 2  # of lengths, whenever parameters have moved
FIRST_EVALUATIONS = 6  # of the Jacobian


@dataclass(frozen=True, slots=True)
class Fitted:
    """The optimum, and what uncertainty is computed from."""

    params: tuple[Parameter, ...]
    x: Floats
    jacobian: Floats  # of weighted residuals, robust weights applied
    residuals: Floats
    curvature: Floats  # by parameter: how far from straight the residuals are across its uncertainty
    slope_noise: Floats  # by parameter: what of the squared slopes is not slope
    noise: Noise
    discrepancy: float  # in units of `noise.FLOOR`
    problem: Problem
    models: tuple[LevelModel, ...]  # the levels by their lengths, matched

    @property
    def names(self) -> tuple[tuple[int, str], ...]:
        """(level, metric) of each data residual."""
        return self.problem.names

    @property
    def sds(self) -> Floats:
        """What each data residual was divided by."""
        return self.problem.sds

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the realisations that each level is simulated in."""
        return self.problem.seeds

    @property
    def evaluations(self) -> int:
        """Level simulations so far."""
        return self.problem.evaluations


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
    progress: Callable[[str], None] | None = None,
    pool: Workers = HERE,
    sessions: TraceSessions | None = None,
) -> Fitted:
    """The parameters that explain these levels best; independent trials run in `pool`.

    Levels run `sessions` of a trace, or what is drawn by their lengths.
    """
    from scipy.optimize import least_squares

    params = tuple(parameters(levels, facts))
    centre = centre_of(levels)
    front_end = front_end_of(levels, facts)
    growth = growth_of([lengths_of(level, facts) for level in levels])
    replayed = LevelModel if sessions is None else partial(TracedModel, sessions=sessions)
    models = tuple(
        replayed(level, facts, centre, engines, front_end=front_end, growth=growth) for level in levels
    )
    problem = Problem(params, models, tuple(seeds), pool)
    x = np.array([p.start for p in params]) if start is None else start
    x = np.clip(x, problem.low + 1e-6, problem.high - 1e-6)

    def say(cost: float) -> None:
        if progress is not None:
            progress(f"cost {cost:.2f} after {problem.evaluations} level simulations")

    problem.match(x, MATCHES)
    problem.weigh(realisation_noise(models, point_at(params, x), pool=pool), 1.0)
    found = least_squares(
        problem.residuals, x, problem.secant, bounds=(problem.low, problem.high), loss="soft_l1", x_scale=0.3,
        max_nfev=FIRST_EVALUATIONS, xtol=3e-3, ftol=3e-3, gtol=1e-3,
    )  # fmt: skip
    x, widths = found.x, np.full(len(params), STEP)
    say(found.cost)
    for number in range(1, ROUNDS[1] + 1):
        problem.match(x, MATCHES)
        problem.weigh(realisation_noise(models, point_at(params, x), pool=pool), 1.0)
        # A model that explains less than usual is no reason to believe the priors more.
        problem.weigh(problem.noise, min(problem.discrepancy(x), 1.0))
        before = problem.cost(x)
        slopes, curvature, slope_noise, trial = problem.slopes(x, widths)
        x = min(problem.last_steps(x, slopes, slope_noise), trial, key=problem.cost)
        problem.match(x, MATCHES)
        x = problem.last_steps(x, slopes, slope_noise)
        residuals = problem.residuals(x)
        jacobian = slopes * robust(residuals)[:, None]
        sds = np.sqrt(np.diag(np.linalg.inv(squares(jacobian, slope_noise))))
        widths = np.clip(sds, NARROWEST, WIDEST)
        say(chi_square(residuals) / 2)
        if number >= ROUNDS[0] and before - chi_square(residuals) < ROUND_GAIN:
            break
    return Fitted(
        params,
        x,
        jacobian,
        residuals,
        curvature,
        slope_noise,
        problem.noise,
        problem.discrepancy(x, LEAST_SIZE),
        problem,
        tuple(model.by_lengths(point_at(params, x), problem.seeds) for model in models),
    )


def robust(residuals: Floats) -> Floats:
    """Roots of the weights that the soft-L1 loss gives to residuals."""
    return np.asarray((1 + residuals**2) ** -0.25)


def squares(slopes: Floats, noise: Floats, covariance: Floats | None = None) -> Floats:
    """J'VJ of data and priors (the last rows), without the noise of slopes; V is 1 unless given.

    Noise makes the slopes of two parameters look less alike than they are: taken for slope, it would tell
    apart what the data cannot.
    """
    data, priors = slopes[: -len(noise)], slopes[-len(noise) :]
    plain = data.T @ data if covariance is None else data.T @ covariance @ data
    values, vectors = np.linalg.eigh(plain - np.diag(noise))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T + priors.T @ priors)


def chi_square(residuals: Floats) -> float:
    """Twice the cost: a sum of squares where residuals are small."""
    return float(2 * (np.sqrt(1 + residuals**2) - 1).sum())


class Problem:
    """Residuals: (log simulated - log measured) / sd for each level and metric, then the priors."""

    def __init__(
        self,
        params: Sequence[Parameter],
        models: Sequence[LevelModel],
        seeds: tuple[int, ...],
        pool: Workers = HERE,
    ) -> None:
        self._pool = pool
        self.params = tuple(params)
        self.models = tuple(models)
        self.seeds = seeds
        targets = [_targets(model) for model in models]
        self.names = tuple((index, name) for index, level in enumerate(targets) for name in level)
        self._measured = np.array([bounds for level in targets for bounds in level.values()]).reshape(-1, 2)
        self.low, self.high = (np.array([getattr(p, side) for p in params]) for side in ("low", "high"))
        self.noise = Noise.unknown(len(models))
        self.sds = np.ones(len(self.names))
        self.evaluations = 0
        self._last: tuple[Floats, Floats, Floats] | None = None

    def match(self, x: Floats, times: int = 1) -> None:
        """Lengths at `x` as measured."""
        for _ in range(times):
            for model in self.models:
                model.match(point_at(self.params, x), self.seeds)

    def weigh(self, noise: Noise, size: float) -> None:
        """From now on residuals are divided by what `noise` and a discrepancy of `size` let them be."""
        self.noise = noise
        self.sds = residual_sds(noise, self.names, size, len(self.seeds))

    def without(self, level: int) -> Problem:
        """The same had `level` not been measured; lengths and weights stay."""
        models = (*self.models[:level], *self.models[level + 1 :])
        other = Problem(self.params, models, self.seeds)
        other.noise = self.noise.without(level)
        other.sds = self.sds[[at != level for at, _ in self.names]]
        return other

    def discrepancy(self, x: Floats, least: float = SIZES[0]) -> float:
        """Its size, from the residuals at `x`."""
        return discrepancy_size(self.raw(x), self.noise, self.names, len(self.params), len(self.seeds), least)

    def raw(self, x: Floats) -> Floats:
        """Simulated minus measured, lengths being equal; NaN where no realisation shows a metric.

        Of what is measured within bounds: how far it lies outside.
        """
        point = point_at(self.params, x)
        out = []
        for index, model in enumerate(self.models):
            runs = model.simulate(point, self.seeds)
            self.evaluations += len(runs)
            by_length = np.mean([surplus(run, model) for run in runs], axis=0) @ self.noise.by_length[index]
            out += [
                typical(runs, name) - by_length[METRICS.index(name)] for at, name in self.names if at == index
            ]
        return np.asarray(np.array(out) - np.clip(np.array(out), *self._measured.T))

    def residuals(self, x: Floats) -> Floats:
        """All residuals at `x`."""
        data = self.raw(x) / self.sds
        prior = [(value - p.prior) / p.spread for value, p in zip(x, self.params, strict=True)]
        return np.concatenate([np.where(np.isnan(data), NOTHING_SEEN, data), prior])

    def residuals_at(self, points: Sequence[Floats]) -> list[Floats]:
        """All residuals at each of several points."""
        if self._pool.elsewhere:
            self.evaluations += len(points) * len(self.models) * len(self.seeds)
        return self._pool.map(_residuals, [(self, x) for x in points])

    def __getstate__(self) -> dict[str, object]:
        """Without the pool; models leave behind what was simulated."""
        return {**self.__dict__, "_pool": HERE}

    def jacobian(self, x: Floats) -> Floats:
        """Forward differences with a wide step."""
        base = self.residuals(x)
        steps = np.where(x + STEP < self.high, STEP, -STEP)
        there = self.residuals_at([x + step for step in np.diag(steps)])
        return np.stack([(one - base) / step for one, step in zip(there, steps, strict=True)], axis=1)

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

    def cost(self, x: Floats) -> float:
        """Chi-square at `x`."""
        return chi_square(self.residuals(x))

    def slopes(self, x: Floats, widths: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Central differences across `widths`; by parameter how bent residuals are there, and slope noise.

        The last is the best point on the way, which leads on where steps along slopes fail (Hooke and Jeeves
        1961).

        Requests that change places move residuals at random. Of three points with independent noise the
        second difference holds three times as much of it (squared) as the first.
        """
        base, data = self.residuals(x), len(self.names)
        columns, curvature, noise, trials = [], [], [], [(chi_square(base), x)]
        ends = []
        for i, width in enumerate(widths.tolist()):
            up, down = x.copy(), x.copy()
            up[i], down[i] = min(x[i] + width, self.high[i]), max(x[i] - width, self.low[i])
            ends += [up, down]
        found = self.residuals_at(ends)
        for i, (up, down) in enumerate(zip(ends[::2], ends[1::2], strict=True)):
            above, below = found[2 * i : 2 * i + 2]
            trials += [(chi_square(above), up), (chi_square(below), down)]
            slope = (above - below) / (up[i] - down[i])
            bend = above - base - slope * (up[i] - x[i])
            first, second = (float(np.linalg.norm(part[:data])) for part in (above - below, 2 * bend))
            curvature.append(second / max(first, 1e-9))
            noise.append(second**2 / 3 / (up[i] - down[i]) ** 2)
            columns.append(slope)
        _, best = min(trials, key=lambda trial: trial[0])
        return np.stack(columns, axis=1), np.array(curvature), np.array(noise), best

    def last_steps(self, x: Floats, slopes: Floats, noise: Floats) -> Floats:
        """Damped Gauss-Newton steps (Levenberg and Marquardt) with given slopes, as long as they help."""
        residuals, damping = self.residuals(x), DAMPING
        for _ in range(LAST_STEPS):
            weights = robust(residuals)
            jacobian = slopes * weights[:, None]
            curvature = squares(jacobian, noise)
            damped = curvature + damping * np.diag(np.diag(curvature))
            step = -np.linalg.solve(damped, jacobian.T @ (residuals * weights))
            there = np.clip(x + np.clip(step, -LONGEST, LONGEST), self.low, self.high)
            found = self.residuals(there)
            gain = chi_square(residuals) - chi_square(found)
            if gain > 0:
                x, residuals, damping = there, found, damping / DAMPED
                if gain < LEAST_GAIN:
                    break
            else:
                damping = DAMPED**2 * damping
        return x


def _residuals(trial: tuple[Problem, Floats]) -> Floats:
    problem, x = trial
    return problem.residuals(x)


def _targets(model: LevelModel) -> dict[str, tuple[float, float]]:
    """Transformed measured value of each metric of a level that says something, as bounds."""
    exact = {
        name: (transformed(name, value), transformed(name, value))
        for name in METRICS
        if (value := model.measured.get(name)) is not None
        and value > 0
        and not (name == "queue_mean_s" and value < 0.05)
    }
    return exact | {
        name: (transformed(name, low), transformed(name, high)) for name, (low, high) in model.shapes.items()
    }
