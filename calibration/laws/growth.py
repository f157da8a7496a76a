"""Law 2, its second half: running + waiting must grow with the sessions.

c sessions hold c times as many requests as one, and a slower server makes each stay longer: d log(running +
waiting) / d log c >= 1. Work that is there whatever c is comes from outside the level. It fails if at least
as many pairs of levels fall as rise (Kendall's S), or if the exponent is below 1 by more than noise: that
of SESSION_CV, and DRIFT for sessions that are seen earlier in their life where the server is slow. Without
c = 1 it also fails if an exponent of 0 is ODDS times likelier than 1.
"""

from __future__ import annotations

from math import inf, log, sqrt
from typing import NamedTuple

from replicast.calibration.laws.figures import FAIL_SD, SESSION_CV, Peak
from replicast.calibration.laws.findings import Case, Finding, listed, show

LAW = 2
CHECK = "in system"
STALE = "Restart the server, run c=1 first, drain between levels; end clients of earlier runs."
DRIFT = 0.1
ODDS = 4.0


class Held(NamedTuple):
    """Requests in the system at one level, with its position."""

    at: int
    concurrency: int
    mean: float
    peak: Peak

    @property
    def per_session(self) -> float:
        return self.mean / self.concurrency


def does_not_grow(case: Case, held: list[Held]) -> list[Finding]:
    """A finding on the whole sweep if most work does not belong to its sessions."""
    pairs = [(a, b) for i, a in enumerate(held) for b in held[i + 1 :] if b.concurrency > a.concurrency]
    if not pairs or (len(held) < 3 and held[0].concurrency == 1):
        return []
    grows = sum((b.mean > a.mean) - (b.mean < a.mean) for a, b in pairs)
    exponent, noise = exponent_of(held)
    # Without c=1 nothing else speaks for many requests a session: the likelier of exponents 0 and 1 decides.
    if held[0].concurrency == 1:
        stale = exponent < 1.0 - FAIL_SD * noise
    else:
        stale = 1.0 - 2.0 * exponent > 2.0 * noise**2 * log(ODDS)
    if grows > 0 and not stale:
        return []
    first, last = held[0], held[-1]
    means = ", ".join(show(one.mean) for one in held)
    return [
        Finding(
            LAW,
            CHECK,
            "fail",
            f"{means} requests in the system at {listed([case.levels[one.at] for one in held])}: it does "
            f"not grow as the sessions do. At c={first.concurrency} that is {show(first.per_session)} "
            f"requests a session, at c={last.concurrency} {show(last.per_session)}: most of it is work "
            "from outside these levels",
            (
                ("kendall_s", grows),
                ("pairs", len(pairs)),
                ("exponent", exponent),
                ("exponent_noise", noise),
                ("in_system_mean_first", first.mean),
                ("in_system_mean_last", last.mean),
                ("per_session_first", first.per_session),
                ("per_session_last", last.per_session),
            ),
            STALE,
        )
    ]


def exponent_of(held: list[Held]) -> tuple[float, float]:
    """Of running + waiting in c, by weighted least squares on logarithms, and its standard deviation."""
    points = [(log(one.concurrency), log(one.mean), one.concurrency) for one in held if one.mean > 0]
    weights = [1.0 / (SESSION_CV**2 / c + DRIFT**2) for _, _, c in points]
    total = sum(weights)
    if not total:
        return 1.0, inf
    middle = sum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - middle) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
    if spread <= 0:
        return 1.0, inf
    slope = sum(w * (x - middle) * y for w, (x, y, _) in zip(weights, points, strict=True)) / spread
    return slope, 1.0 / sqrt(spread)
