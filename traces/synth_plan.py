"""Which main sessions a synthetic trace has: how long, from which prompt, in which window.

Long sessions hold most requests, so plain sampling makes request-weighted figures swing with a
few of them. Hence N draws take one value from each of N equal slices of a distribution, pairings
run evenly through sessions sorted by length, and of several plans the most typical one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from replicast.traces.synth_fit import Bools, Floats, Quantiles, SynthSpec
from scipy.special import ndtri

LARGE_WINDOW = 950_000  # tokens at which a 1M-token window compacts
SMALL_WINDOW = (156_000, 174_000)  # the same for 200K
LARGE_FIRST = 160_000  # a first prompt above it belongs to a large window
PLANS_DRAWN = 40
COMPACTED, PACE_SPREAD = 0.3, 0.35  # rough, to tell plans apart
FIRST_LEAN, PACE_LEAN = -0.4, -0.3  # longer continuations start lower; longer sessions grow slower
GOLDEN = (5**0.5 - 1) / 2
STEPS = (GOLDEN, 2**0.5, 3**0.5, 7**0.5)  # irrational and unrelated
GROUP_SKEW = 0.55  # Zipf: the commonest of 343 groups then holds 25 of 710 sessions


@dataclass(slots=True)
class Plan:
    """One main session before its turns are drawn."""

    fresh: bool
    turns: int
    first: int
    window: int
    group: int
    shared: int
    pace: float  # of its growth, standard normal over sessions
    subagents: int = 0


def strata(rng: np.random.Generator, n: int) -> Floats:
    """n uniform draws in rising order, one in each n-th of (0, 1)."""
    return (np.arange(n) + rng.uniform(0.02, 0.98, n)) / n


def shuffled(rng: np.random.Generator, table: Quantiles, n: int) -> Floats:
    return rng.permutation(table.at(strata(rng, n)))


def ranked(values: Floats, score: Floats) -> Floats:
    """`values`, which rise, handed out by rank of `score`."""
    out = np.empty_like(values)
    out[np.argsort(score, kind="stable")] = values
    return out


def marked(rng: np.random.Generator, among: Bools, share: float) -> Bools:
    """Marks that share of `among`, one in each of as many equal stretches."""
    places = np.flatnonzero(among)
    out = np.zeros(among.size, dtype=bool)
    count = round(share * places.size)
    out[places[(places.size * strata(rng, count)).astype(int)]] = True
    return out


def _leaning(u: Floats, even: Floats, lean: float) -> Floats:
    """Standard normal scores from `even`, correlated with those of `u` by `lean`."""
    return np.asarray(lean * ndtri(u) + (1 - lean**2) ** 0.5 * ndtri(even))


def plan_sessions(spec: SynthSpec, sessions: int, seed: int) -> list[Plan]:
    rng = np.random.default_rng([seed, 1])
    continued = round(spec.continued_share * sessions)
    drawn = [
        _plans_of(spec, rng, sessions - continued, fresh=True) + _plans_of(spec, rng, continued, fresh=False)
        for _ in range(PLANS_DRAWN)
    ]
    plans = _most_typical(spec, drawn)
    plans = [plans[i] for i in rng.permutation(sessions)]
    parents = round(spec.subagent_share * sessions)
    counts = np.maximum(1, np.round(shuffled(rng, spec.subagents, parents) * spec.subagent_scale))
    for index, count in zip(rng.permutation(sessions)[:parents], counts, strict=True):
        plans[index].subagents = int(count)
    return plans


def _most_typical(spec: SynthSpec, drawn: list[list[Plan]]) -> list[Plan]:
    """The plans whose prompts, were growth even, come nearest to the mean of all that were drawn."""
    growth = spec.growth.mean() * spec.growth_scale * spec.prompt_scale
    measured = []
    for plans in drawn:
        turns = np.array([plan.turns for plan in plans])
        first, window, pace = (
            np.repeat([getattr(plan, name) for plan in plans], turns) for name in ("first", "window", "pace")
        )
        age = np.concatenate([np.arange(n) for n in turns])
        low = COMPACTED * window
        prompt = first + age * growth * np.exp(PACE_SPREAD * pace)
        prompt = np.where(prompt > window, low + (prompt - low) % (window - low), prompt)
        measured.append(np.log([*np.quantile(prompt, (0.5, 0.9, 0.99)), first.mean()]))
    table = np.array(measured)
    return drawn[int(np.argmin(np.abs(table - table.mean(axis=0)).max(axis=1)))]


def _plans_of(spec: SynthSpec, rng: np.random.Generator, n: int, *, fresh: bool) -> list[Plan]:
    u = strata(rng, n)
    turns = (spec.turns_fresh if fresh else spec.turns_continued).at(u) * spec.turns_scale
    # Golden-ratio sequences run evenly through every stretch of sessions sorted by length.
    even = [np.clip((np.arange(n) * step + rng.uniform()) % 1, 1e-6, 1 - 1e-6) for step in STEPS]
    first_rank = _leaning(u, even[0], 0.0 if fresh else FIRST_LEAN)
    first = ranked((spec.first_fresh if fresh else spec.first_continued).at(strata(rng, n)), first_rank)
    pace = _leaning(u, even[3], PACE_LEAN)
    large = even[1] < (spec.large_context_share if fresh else spec.large_context_share_continued)
    large |= first > LARGE_FIRST
    small_window = SMALL_WINDOW[0] + (SMALL_WINDOW[1] - SMALL_WINDOW[0]) * even[2]
    window = np.where(large, LARGE_WINDOW, small_window) * spec.prompt_scale
    weights = np.arange(1, spec.prefix_groups + 1) ** -GROUP_SKEW
    group = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.permutation(strata(rng, n)))
    plans = []
    for i in range(n):
        limit = min(int(window[i]), spec.max_prompt_tokens)
        shared = _shared_tokens(spec, int(group[i]))
        start = round(first[i] * spec.prompt_scale)
        if fresh:  # a fresh prompt is its tools and system text, and a task
            start = max(start, round(shared * 1.06) + 100)
        start = min(start, limit)
        length, key = max(1, round(turns[i])), int(group[i])
        plans.append(Plan(fresh, length, start, limit, key, min(shared, start), float(pace[i])))
    return plans


def _shared_tokens(spec: SynthSpec, group: int) -> int:
    """Tools and system text of a group: its own, whatever the seed."""
    if spec.shared_prefix_tokens is not None:
        return spec.shared_prefix_tokens
    return round(float(spec.shared_prefix.at(np.array([(group * GOLDEN + 0.5) % 1]))[0]) * spec.prompt_scale)
