"""When enough replications have been run, and what they say of a limit.

A replication is one hour. Its figure x (TTFT p90, say) is compared with the limit on a logarithmic scale,
where hours spread about alike whether they are good or bad. The question is about the typical hour,
the geometric mean over hours: its interval is Student's t over replications.

Looking after every few replications and stopping when the verdict is clear would make wrong verdicts
more frequent than one look promises. So the looks share the error (Bonferroni): a quarter of alpha is
split evenly over all looks but the last, the last one has the rest. The interval shown is that of the look
at which it stopped; at all looks together it fails to hold the truth with probability alpha at most
(repeated confidence intervals, Jennison and Turnbull, JRSS B 51, 1989), as far as the logarithms are normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from replicast.sim.planning.distributions import t_quantile
from replicast.sim.planning.quantiles import Estimate

Verdict = Literal["meets", "fails", "inconclusive"]

EARLY_SHARE = 0.25
_STEPS = (4, 6, 9, 14)
_LARGEST = 1e6  # seconds; an hour in which the figure is infinite counts as this


class Rule(NamedTuple):
    """Sizes at which to look, and the error that each look may spend."""

    looks: tuple[int, ...]
    alphas: tuple[float, ...]

    @property
    def most(self) -> int:
        """Replications of the last look."""
        return self.looks[-1]

    def alpha(self, n: int) -> float:
        """The error that a look at `n` replications may spend."""
        return self.alphas[self.looks.index(n)]


def stopping_rule(most: int, alpha: float = 0.05, *, early: bool = True) -> Rule:
    """Looks after 4, 6, 9, 14 and `most` replications; one look only if `early` is off.

    >>> stopping_rule(20).looks, [round(a, 4) for a in stopping_rule(20).alphas]
    ((4, 6, 9, 14, 20), [0.0031, 0.0031, 0.0031, 0.0031, 0.0375])
    """
    before = tuple(n for n in _STEPS if n < most) if early else ()
    if not before:
        return Rule((most,), (alpha,))
    each = EARLY_SHARE * alpha / len(before)
    return Rule((*before, most), (*(each for _ in before), (1 - EARLY_SHARE) * alpha))


def typical(values: Sequence[float], alpha: float) -> Estimate:
    """Geometric mean over replications and its `1 - alpha` interval.

    >>> typical([2.0, 2.0, 2.0], 0.05)
    Estimate(value=2.0, low=2.0, high=2.0, n=3)
    """
    known = [min(max(value, 1e-9), _LARGEST) for value in values if not math.isnan(value)]
    n = len(known)
    if not n:
        return Estimate(None, None, None, 0)
    logs = [math.log(value) for value in known]
    mean = math.fsum(logs) / n
    value = _exp(mean)
    if n < 2:
        return Estimate(value, None, None, n)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (n - 1))
    half = t_quantile(n - 1, 1 - alpha / 2) * spread / math.sqrt(n)
    return Estimate(value, _exp(mean - half), _exp(mean + half), n)


def average(values: Sequence[float], alpha: float) -> Estimate:
    """Arithmetic mean over replications and its `1 - alpha` interval, for shares and differences."""
    known = [value for value in values if math.isfinite(value)]
    n = len(known)
    if not n:
        return Estimate(None, None, None, 0)
    mean = math.fsum(known) / n
    if n < 2:
        return Estimate(mean, None, None, n)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / (n - 1))
    half = t_quantile(n - 1, 1 - alpha / 2) * spread / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def judge(estimate: Estimate, limit: float) -> Verdict:
    """`meets` or `fails` where the whole interval lies on one side of the limit."""
    if estimate.low is None or estimate.high is None:
        return "inconclusive"
    if estimate.high < limit:
        return "meets"
    return "fails" if estimate.low >= limit else "inconclusive"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """All SLOs must hold; one that fails decides."""
    if "fails" in verdicts:
        return "fails"
    return "inconclusive" if "inconclusive" in verdicts else "meets"


def _exp(x: float) -> float:
    """Exact where the logarithm was of a round number, as far as floats allow."""
    return float(f"{math.exp(x):.12g}")
