"""Profile likelihood: how far a parameter can go while the others make up for it.

A covariance interval is symmetric and takes residuals for straight lines. Where it cannot be trusted, each
end is sought on the simulator itself: the parameter is moved, the others follow (along the ridge that the
covariance shows, then by Gauss-Newton steps), and the end is where chi-square has risen by what a
normal parameter's rises by at that end (Raue et al., Bioinformatics 25, 2009). Weights take residuals for
independent, so the rise is the nominal one times the ratio of the honest variance to that of the
curvature (Pace, Salvan and Sartori, Statistica Sinica 21, 2011). Draws are those of the fit: a rise is the
parameter's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.fit import LEAST_GAIN, Fitted, chi_square, robust

Floats = NDArray[np.float64]

TRIALS = 2  # of each end
STEPS = 3  # of the other parameters after it: ridges are bent
CURVED = 0.9  # of `Fitted.curvature`: residuals bend by nearly as much as they move
CORRELATED = 0.95
WEAK = 0.75  # of the prior's sd: the data added little
FARTHEST = 2.5  # times where the covariance puts an end


def half_width(fitted: Fitted, variance: float) -> float:
    """Of the 95 % covariance interval: Student's, since the noise is itself an estimate."""
    from scipy.special import stdtrit

    return float(stdtrit(fitted.noise.freedom, 0.975)) * math.sqrt(variance)


def reason_to_profile(fitted: Fitted, covariance: Floats, i: int) -> str | None:
    """Why the covariance interval of parameter `i` is not to be trusted, None where it is."""
    p, x = fitted.params[i], float(fitted.x[i])
    sds = np.sqrt(np.diag(covariance))
    half = half_width(fitted, covariance[i, i])
    if x - half < p.low or x + half > p.high:
        return "a bound"
    if sds[i] > WEAK * p.spread:
        return None  # it is the prior's, which is normal
    correlations = np.abs(np.delete(covariance[i] / (sds * sds[i]), i))
    if correlations.max(initial=0.0) > CORRELATED:
        return "a correlation"
    return "curved" if fitted.curvature[i] > CURVED else None


def profile_interval(fitted: Fitted, covariance: Floats, inverse: Floats, i: int) -> tuple[float, float]:
    """Ends of the 95 % interval of parameter `i`; `inverse` is (J'J)^-1."""
    low, high = (_end(fitted, covariance, inverse, i, side) for side in (-1.0, 1.0))
    return low, high


def _end(fitted: Fitted, covariance: Floats, inverse: Floats, i: int, side: float) -> float:
    """Outward from the covariance's end, as long as chi-square has not risen enough.

    Never nearer: the simulator is rough and the optimum lies where its roughness was lowest, so that
    every rise from there looks steeper than it is.
    """
    p, x = fitted.params[i], float(fitted.x[i])
    expected = half_width(fitted, covariance[i, i])
    wanted = expected / math.sqrt(inverse[i, i])  # root of the rise
    best = chi_square(fitted.residuals)
    farthest = min(p.high - x if side > 0 else x - p.low, FARTHEST * expected)
    inside, root_inside = 0.0, 0.0
    at = nearest = min(expected, farthest)
    for _ in range(TRIALS):
        root = math.sqrt(max(_least(fitted, inverse, i, side * at) - best, 0.0))
        if root >= wanted:
            share = (wanted - root_inside) / (root - root_inside)
            return x + side * max(inside + share * (at - inside), nearest)
        if at >= farthest:
            break
        inside, root_inside = at, root
        at = min(at * min(wanted / max(root, 1e-9), 1.6), farthest)
    return x + side * at


def _least(fitted: Fitted, inverse: Floats, i: int, moved: float) -> float:
    """Chi-square with parameter `i` moved and the others where they suit it best, nearly."""
    problem = fitted.problem
    x = np.clip(fitted.x + moved * inverse[:, i] / inverse[i, i], problem.low, problem.high)
    x[i] = fitted.x[i] + moved
    plain = fitted.jacobian / robust(fitted.residuals)[:, None]
    others = np.arange(len(x)) != i
    residuals = problem.residuals(x)
    for _ in range(STEPS):
        weights = robust(residuals)
        step = -np.linalg.lstsq(plain[:, others] * weights[:, None], residuals * weights, rcond=1e-9)[0]
        there = x.copy()
        there[others] += step
        there = np.clip(there, problem.low, problem.high)
        found = problem.residuals(there)
        gain = chi_square(residuals) - chi_square(found)
        if gain <= 0:
            break
        x, residuals = there, found
        if gain < LEAST_GAIN:
            break
    return chi_square(residuals)
