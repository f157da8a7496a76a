"""How prompts grow from turn to turn of a session, learnt from the levels of a sweep.

    prompt at turn t = first + gained x share(t),    share(t) = (t / RAMP) ^ RAMP_POWER, at most 1

Levels are cut at a deadline: at many sessions each has few turns, at one it has many. So mean prompts by
turns per stream tell both terms. In most agentic sweeps levels of three turns a stream have prompts nearly
as long as levels of seventy: a session begins with two thirds of the mean (system prompt, tools, skill, files
of the task). It decides when contexts outgrow the cache: what begins long fits from the start or not at all,
what begins short fits at first and thrashes at the end.

Least squares of relative errors, with priors that are relative to the mean prompt, so that they hold for
short prompts too. The priors are what the sweeps have in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RAMP = 40  # turns until a session's prompt has reached its level
RAMP_POWER = 0.57  # of 523 recorded sessions
CALLS_PER_SESSION = 66.0  # mean; the median of 28 task windows
CALLS_SPREAD = 0.6  # sd of the logarithm
FAILED_SESSIONS = 0.1  # share; 0 to 75 % in levels of one server
FAILED_CALLS = 6.0  # median; failed sessions of that server wrote 3,143 tokens, a call 512
FAILED_SPREAD = 0.8
MOST_FAILED = 0.9
MOST_TURNS = 400  # from there on a stream is as if it had always been under way
LEVEL_SD = 0.12  # of a level's mean prompt around its sweep's curve
FIRST, FIRST_SD = 0.65, 0.25  # of the mean prompt
GAINED, GAINED_SD = 0.7, 0.6
LEAST_PIVOT = 0.1  # levels of one or two turns tell nothing of growth


def grown_share(turn: int) -> float:
    """What of its growth a session's prompt has at its `turn`."""
    return float(min(turn / RAMP, 1.0) ** RAMP_POWER)


class Endings(NamedTuple):
    """When sessions end: `calls` (mean) of one that completes, the share that fails after a few."""

    calls: float = CALLS_PER_SESSION
    failed: float = FAILED_SESSIONS

    @property
    def mean_calls(self) -> float:
        """Of all sessions."""
        return self.failed * _FEW + (1 - self.failed) * self.calls

    def drawn(self, calls_z: float, failed_z: float) -> float:
        """Calls of one session, by two standard normal numbers."""
        if _STANDARD.cdf(failed_z) < self.failed:
            return FAILED_CALLS * math.exp(FAILED_SPREAD * calls_z)
        return self.calls * math.exp(CALLS_SPREAD * calls_z - CALLS_SPREAD**2 / 2)

    def ended(self, turns: float) -> float:
        """Share of sessions that have at most `turns`."""
        at = math.log(turns)
        completed = NormalDist(math.log(self.calls) - CALLS_SPREAD**2 / 2, CALLS_SPREAD).cdf(at)
        return self.failed * _FAILS.cdf(at) + (1 - self.failed) * completed


_STANDARD = NormalDist()
_FEW = FAILED_CALLS * math.exp(FAILED_SPREAD**2 / 2)
_FAILS = NormalDist(math.log(FAILED_CALLS), FAILED_SPREAD)
USUAL = Endings()


def learn_endings(calls: Sequence[int]) -> Endings:
    """Endings under which sessions of so many `calls` are likeliest, with their mean."""
    from scipy.optimize import minimize_scalar

    number, count = np.unique(np.maximum(calls, 1), return_counts=True)
    mean = float(number @ count / count.sum())

    def endings(failed: float) -> Endings:
        return Endings((mean - failed * _FEW) / (1 - failed), failed)

    def unlikely(failed: float) -> float:
        at = endings(failed)
        shares = [at.ended(n + 0.5) - (at.ended(n - 0.5) if n > 1 else 0.0) for n in number.tolist()]
        return -float(count @ np.log(np.maximum(shares, 1e-12)))

    most = min(max((mean - 1) / max(_FEW - 1, mean - 1), 0.0), MOST_FAILED)
    found = minimize_scalar(unlikely, bounds=(0.0, most), method="bounded").x if most else 0.0
    return min(endings(0.0), endings(float(found)), key=lambda at: unlikely(at.failed))


def mean_share(turns: float, endings: Endings = USUAL) -> float:
    """Mean of `grown_share` over the first `turns` of a stream, whose sessions end and begin anew."""
    turns = min(turns, float(MOST_TURNS))
    return float(np.interp(turns, np.arange(MOST_TURNS + 1), _total_shares(endings))) / turns


@lru_cache(maxsize=64)
def _total_shares(endings: Endings) -> NDArray[np.float64]:
    """Expected sums of `grown_share` over 0, 1, ... turns of a stream.

    The renewal equation: either the first session lasts as long, or it ends and the stream starts again.
    """
    turns = np.arange(MOST_TURNS + 1)
    of_session = np.concatenate([[0.0], np.cumsum([grown_share(int(turn)) for turn in turns[:-1]])])
    ended = np.array([endings.ended(turn + 0.5) for turn in turns.tolist()])
    ending = np.diff(ended, prepend=0.0)
    total = np.zeros(MOST_TURNS + 1)
    for turn in range(1, MOST_TURNS + 1):
        anew = of_session[1:turn] + total[turn - 1 : 0 : -1]
        total[turn] = ending[1:turn] @ anew + (1 - ended[turn - 1]) * of_session[turn]
    return total


class Growth(NamedTuple):
    """Tokens of a session's first prompt, and what prompts have gained after RAMP turns.

    `pivot` is the share of growth where the curve is best known: the mean of the levels it was learnt from.
    """

    first_tokens: float
    gained_tokens: float
    pivot: float = 0.5

    def mean(self, turns: float, endings: Endings = USUAL) -> float:
        """Mean prompt of streams of `turns` turns."""
        return self.first_tokens + self.gained_tokens * mean_share(turns, endings)

    def scaled(self, turns: float, mean: float, endings: Endings = USUAL) -> Growth:
        """The same curve, so high that `turns` turns have this mean."""
        factor = mean / self.mean(turns, endings)
        return Growth(factor * self.first_tokens, factor * self.gained_tokens, self.pivot)

    def starting(self, first_tokens: float) -> Growth:
        """The curve with another first prompt, as high at its pivot; one that starts above it is flat."""
        gained = self.gained_tokens + (self.first_tokens - first_tokens) / self.pivot
        return Growth(first_tokens, max(gained, 0.0), self.pivot)


def learn_growth(levels: Sequence[tuple[float, float]]) -> Growth:
    """The curve of levels given as (turns per stream, mean prompt in tokens).

    >>> few, many = (mean_share(turns) for turns in (4, 60))
    >>> curve = learn_growth(3 * [(4, 50_000 + 20_000 * few), (60, 50_000 + 20_000 * many)])
    >>> round(curve.first_tokens, -3), round(curve.gained_tokens, -3)
    (48000.0, 24000.0)
    """
    prompts = np.array([prompt for _, prompt in levels])
    shares = np.array([mean_share(turns) for turns, _ in levels])
    usual = float(prompts.mean())
    relative = LEVEL_SD * prompts / usual
    system = np.vstack(
        [
            np.column_stack([np.ones_like(shares), shares]) / relative[:, None],
            np.diag([1 / FIRST_SD, 1 / GAINED_SD]),
        ]
    )
    wanted = np.concatenate([prompts / usual / relative, [FIRST / FIRST_SD, GAINED / GAINED_SD]])
    found = np.linalg.lstsq(system, wanted, rcond=None)[0]
    if found.min() < 0:  # the other term alone
        kept = int(found.argmax())
        found = np.zeros(2)
        found[kept] = np.linalg.lstsq(system[:, [kept]], wanted, rcond=None)[0][0]
    first, gained = (usual * found).tolist()
    return Growth(first, gained, max(float(shares.mean()), LEAST_PIVOT))
