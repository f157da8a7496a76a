"""Stage 3: what the fit knows, and what it does not.

Near the optimum the log parameters are normal. Their covariance is that of an estimate whose weights took
residuals for independent, while those of a level share one realisation (`noise`). Reported: a 95 % interval
and by which method it was made (`likelihood` where the covariance cannot be trusted), whether the prior or
the data decided ("weak"), parameters at a bound, and pairs that the data cannot tell apart, with what would
separate them. Combinations can be well known where their parts are not: prefill seconds a request.

Leaving a level out takes off what it pulls, by a Gauss-Newton step from the optimum of all levels, and goes
on with the same slopes as long as the other levels are explained better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.fit import Fitted, robust, squares
from replicast.calibration.likelihood import WEAK, half_width, profile_interval, reason_to_profile
from replicast.calibration.model import Parameter, Point, point_at
from replicast.calibration.noise import residual_covariance

Floats = NDArray[np.float64]

INSEPARABLE = 0.85
AT_BOUND = 0.02  # of a logarithm
WEAKLY = "weak: the prior decides"
LONGEST_STEP = 0.7
# Of two latents of the load residuals seem to say more than they do: by so much were their errors larger than
# the curvature has them, on 100 servers of `recovery` (700 to 799).
WIDER = {"first_tokens": 1.35, "computed_spread": 1.4}
_DRAWS = 23  # random stream
TRACE_HELPS = {"calls_per_session", "failed_sessions", "computed_spread", "output_spread"}
COUNTED_HELPS = {"compute_per_token_s", "computed_tokens", "first_tokens", "computed_slope"}


class Interval(NamedTuple):
    """One parameter: value, 95 % interval, and what decided it."""

    name: str
    value: float
    low: float
    high: float
    status: str  # "fitted", "weak: ...", "at its lower bound", "at its upper bound"
    method: str = "covariance"  # or "profile likelihood"


class Pair(NamedTuple):
    """Two parameters the data cannot tell apart."""

    first: str
    second: str
    correlation: float
    advice: str


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Covariance of logarithms (of `computed_slope` itself), intervals and inseparable pairs."""

    names: tuple[str, ...]
    covariance: Floats
    intervals: tuple[Interval, ...]
    combined: tuple[Interval, ...]
    pairs: tuple[Pair, ...]


def uncertainty(fitted: Fitted) -> Uncertainty:
    """What the fit's curvature says, and profiles where that cannot be trusted."""
    covariance = covariance_of(fitted)
    sd = np.sqrt(np.diag(covariance))
    intervals = tuple(_interval(fitted, covariance, i) for i in range(len(sd)))
    correlations = covariance / np.outer(sd, sd)
    names = tuple(p.name for p in fitted.params)
    pairs = tuple(
        Pair(names[i], names[j], float(correlations[i, j]), _advice(names[i], names[j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
        if abs(correlations[i, j]) >= INSEPARABLE
    )
    return Uncertainty(names, covariance, intervals, _combined(fitted, covariance, names), pairs)


def covariance_of(fitted: Fitted) -> Floats:
    """Covariance of an estimate whose weights took residuals for independent (Liang and Zeger 1986)."""
    chance = residual_covariance(
        fitted.noise, fitted.names, fitted.discrepancy, len(fitted.seeds), fitted.sds
    )
    inverse = curvature_of(fitted)
    return np.asarray(inverse @ squares(fitted.jacobian, fitted.slope_noise, chance) @ inverse)


def curvature_of(fitted: Fitted) -> Floats:
    """(J'J)^-1: the covariance if residuals were independent and as large as their weights say."""
    return np.asarray(np.linalg.inv(squares(fitted.jacobian, fitted.slope_noise)))


def draw_points(
    params: Sequence[Parameter], x: Floats, covariance: Floats, count: int, seed: int = 5
) -> list[Point]:
    """`count` points drawn from the parameters' uncertainty around `x`, inside their bounds."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DRAWS,)))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    low, high = (np.array([getattr(p, side) for p in params]) for side in ("low", "high"))
    return [
        point_at(params, np.clip(x + root @ rng.standard_normal(len(x)), low, high)) for _ in range(count)
    ]


def without_level(fitted: Fitted, level: int) -> Floats:
    """The optimum had `level` not been measured: what that level pulls is taken off, and the rest settles."""
    left_out = np.array([at == level for at, _ in fitted.names])
    of_level = np.flatnonzero(left_out)
    kept = np.concatenate([np.flatnonzero(~left_out), np.arange(len(left_out), len(fitted.residuals))])
    weights = robust(fitted.residuals)
    pulled = (fitted.residuals * weights)[of_level]
    noise = fitted.slope_noise * (len(kept) - len(fitted.params)) / len(fitted.names)
    # At the optimum all levels pull nowhere; what is left of that is the optimizer's and not the level's.
    step = np.linalg.solve(squares(fitted.jacobian[kept], noise), fitted.jacobian[of_level].T @ pulled)
    problem = fitted.problem.without(level)
    moved = np.clip(fitted.x + np.clip(step, -LONGEST_STEP, LONGEST_STEP), problem.low, problem.high)
    slopes = (fitted.jacobian / weights[:, None])[kept]
    return problem.last_steps(min(moved, fitted.x, key=problem.cost), slopes, noise)


def _interval(fitted: Fitted, covariance: Floats, i: int) -> Interval:
    p, x = fitted.params[i], float(fitted.x[i])
    sd = math.sqrt(covariance[i, i])
    if reason_to_profile(fitted, covariance, i) is None:
        variance = covariance[i, i]
        if sd > WEAK * p.spread:
            # By how far chance has moved what the data hardly tell, it can be wrong beyond the prior.
            variance = max(variance, p.spread**2 + (x - p.prior) ** 2)
        half = half_width(fitted, variance)
        low, high, method = x - half, x + half, "covariance"
    else:
        low, high = profile_interval(fitted, covariance, curvature_of(fitted), i)
        method = "profile likelihood"
    wider = WIDER.get(p.name, 1.0)
    low, high = max(x - wider * (x - low), p.low), min(x + wider * (high - x), p.high)
    if x - p.low < AT_BOUND:
        status = "at its lower bound"
    elif p.high - x < AT_BOUND:
        status = "at its upper bound"
    elif sd > WEAK * p.spread:
        status = WEAKLY
    else:
        status = "fitted"
    if p.name == "computed_slope":
        return Interval(p.name, x, low, high, status, method)
    return Interval(p.name, math.exp(x), math.exp(low), math.exp(high), status, method)


def _combined(fitted: Fitted, covariance: Floats, names: Sequence[str]) -> tuple[Interval, ...]:
    """Products that are known better than their parts: prefill of a request after a session's first, alone.

    computed tokens x (cost of a token + cost of a pair x mean prompt); the cost of a pair is then physics'.
    """
    if not {"compute_per_token_s", "computed_tokens"} <= set(names):
        return ()
    at = {name: math.exp(fitted.x[names.index(name)]) for name in ("compute_per_token_s", "computed_tokens")}
    prompt = float(np.mean([model.lengths.prompt for model in fitted.models]))
    pairs_s = fitted.models[0].facts.priors["compute_per_pair_s"].value * prompt
    token_s = at["compute_per_token_s"] + pairs_s
    share = {"compute_per_token_s": at["compute_per_token_s"] / token_s, "computed_tokens": 1.0}
    pick = np.array([share.get(name, 0.0) for name in names])
    variance = float(pick @ covariance @ pick)
    spreads = np.array([p.spread for p in fitted.params])
    weak = math.sqrt(variance) > WEAK * float(np.linalg.norm(pick * spreads))
    value, wide = at["computed_tokens"] * token_s, math.exp(half_width(fitted, variance))
    status = WEAKLY if weak else "fitted"
    return (Interval("prefill_s_per_request", value, value / wide, value * wide, status),)


def _advice(first: str, second: str) -> str:
    pair = {first, second}
    if pair & TRACE_HELPS:
        return "a trace of the same load (--trace) would separate them"
    if len(pair & COUNTED_HELPS) == 2:
        return (
            "levels with counted cached tokens (the collector's database or Prometheus) would separate them"
        )
    if "compute_per_pair_s" in pair:
        return "lone requests with prompts of several lengths would separate them"
    if "shared_tokens" in pair or "pool_scale" in pair:
        return "the boot log's KV pool and counted requests would separate them"
    if "memory_per_seq_s" in pair:
        return "a level with many sessions of short contexts would separate them"
    return "a level with one session and long outputs would separate them"
