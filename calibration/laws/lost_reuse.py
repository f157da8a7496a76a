"""Law 10, its causes: which levels reuse less than sessions do by themselves, and why.

*Lost*: fewer hits than any recorded session has by itself. *Fell*: more computed per prompt token than at c
= 1, by more than noise; as a rule evictions once live contexts pass the pool. Each of four causes is then
simulated on the level's own lengths (`cache_causes.py`); those that miss the measured rates are excluded.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from replicast.calibration.laws.cache_causes import CAUSES, CacheLoad, Cause, hit_rate
from replicast.calibration.laws.figures import (
    FAIL_SD,
    NOISE,
    WARN_SD,
    alive,
    prompt_length,
    requests,
)
from replicast.calibration.laws.findings import Case, Finding, Severity, label, listed
from replicast.calibration.sweep import SweepLevel

LAW = 10
CHECK = "hit rate"
LOWEST_ALONE = 0.61  # of recorded conversations
TURNS = 10  # requests a session from which its cold start no longer dominates
STATE_TOKENS = 8_192.0  # a chunk of the default token budget
TYPICAL_GROWTH = 0.03  # of a prompt, by a turn of a recorded session
LEAST_GROWTH = 0.005
COLD_TOKENS = 25_000.0  # computed by the first prompt of a session
ALONE = "sessions reuse by themselves"
_SEED = 7

EXCLUDES = {
    "eviction": "hits at c=1 as low as later, or live contexts far below the pool; not KV usage, not "
    "preemptions",
    "no sharing": "any rate below what a session alone reuses",
    "broken prefix": "a hit rate that changes with the load, or computed tokens a request far below its "
    "prompt",
    "coarse states": "a model with full attention only, or misses of more than one chunk a request",
}


def lost_reuse(case: Case, pool: float | None) -> list[Finding]:
    """A finding on levels that lost reuse, and one on levels that reuse less than c = 1."""
    lost = [at for at, level in enumerate(case.levels) if _lost(level)]
    falls = {at: _fall(case, level) for at, level in enumerate(case.levels) if at not in lost}
    fell = [at for at, sd in falls.items() if sd > (WARN_SD if _overfull(case.levels[at], pool) else FAIL_SD)]
    findings = [_causes(case, lost, pool, "warn")] if lost else []
    if fell:
        far = max(falls[at] for at in fell) > FAIL_SD
        findings.append(_causes(case, fell, pool, "warn" if far else "note", than="c=1"))
    return findings


def _lost(level: SweepLevel) -> bool:
    """Whether sessions reuse less here than any recorded session does by itself."""
    hit, count = level.hit_rate, requests(level)
    return (
        hit is not None
        and count is not None
        and count >= TURNS * (level.concurrency or 1)
        and hit < LOWEST_ALONE
    )


def _fall(case: Case, level: SweepLevel) -> float:
    """Standard deviations by which more is computed a prompt token than at c = 1; 0 if not known."""
    at = case.index(1)
    if at is None or case.levels[at] is level or (requests(case.levels[at]) or 0) < TURNS:
        return 0.0
    alone, hit = case.levels[at].hit_rate, level.hit_rate
    if not alone or not hit or alone >= 1.0 or hit >= 1.0:
        return 0.0
    if (requests(level) or 0) < TURNS * (level.concurrency or 1):
        return 0.0
    return log((1 - hit) / (1 - alone)) / NOISE["prefill"]


def _overfull(level: SweepLevel, pool: float | None) -> bool:
    """Whether live contexts do not fit the pool."""
    live = _live_tokens(level)
    return pool is not None and live is not None and live > pool


def _live_tokens(level: SweepLevel) -> float | None:
    """Contexts of all live sessions, if each stays in the cache between its turns."""
    prompt = prompt_length(level)
    return alive(level) * prompt if prompt is not None else None


def _causes(case: Case, low: list[int], pool: float | None, severity: Severity, than: str = ALONE) -> Finding:
    levels = [level for level in case.levels if level.hit_rate is not None and prompt_length(level)]
    worst = min((case.levels[at] for at in low), key=lambda level: level.hit_rate or 0.0)
    fits, excluded = [], []
    evidence: list[tuple[str, float | int | str | None]] = [
        ("hit_rate", worst.hit_rate),
        ("live_tokens", _live_tokens(worst)),
        ("pool_tokens", pool),
        ("preemptions", worst.preemptions),
    ]
    for cause in CAUSES:
        if cause == "eviction" and pool is None:
            fits.append("eviction (the pool is not told)")
            continue
        if cause == "coarse states" and case.facts is not None and not case.facts.model.hybrid:
            excluded.append("coarse states (the model has full attention only)")
            continue
        expected = _simulated(case, cause, worst, pool)
        name = cause.replace(" ", "_")
        evidence += [(f"hit_rate_if_{name}_low", expected.low), (f"hit_rate_if_{name}_high", expected.high)]
        off = [(_deviation(level, _simulated(case, cause, level, pool)), i) for i, level in enumerate(levels)]
        sd, at = max(off)
        if sd > FAIL_SD:
            there, hit = _simulated(case, cause, levels[at], pool), levels[at].hit_rate or 0.0
            excluded.append(f"{cause} (would give {there} at {label(levels[at])}, not {100 * hit:.0f}%)")
        else:
            fits.append(f"{cause} (would give {expected})")
    who = f"{listed([case.levels[at] for at in low])} reuse" if len(low) > 1 else "reuses"
    text = (
        f"{who} {100 * (worst.hit_rate or 0):.0f}% of prompt tokens, less than {than}. Fits: "
        f"{'; '.join(fits) or 'none of four causes alone'}. Excluded: {'; '.join(excluded) or 'none'}"
    )
    remedy = _remedy(fits, pool)
    return Finding(LAW, CHECK, severity, text, tuple(evidence), remedy, low[0] if len(low) == 1 else None)


def _remedy(fits: list[str], pool: float | None) -> str:
    names = [text.split(" (")[0] for text in fits]
    if pool is None:
        return (
            "Tell the pool (--given kv_pool_tokens=N, from the boot log); without it eviction cannot be told."
        )
    if names == ["eviction"]:
        return "A larger pool, fewer sessions a replica, or session affinity."
    if not names:
        return "Look at the prompts of one session: several causes may act together."
    return "To decide: " + "; ".join(f"{name} is excluded by {EXCLUDES[name]}" for name in names)


class _Expected(NamedTuple):
    """Between what the hit rate would be."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = f"{100 * self.low:.0f}", f"{100 * self.high:.0f}"
        return f"{low}%" if low == high else f"{low} to {high}%"


def _simulated(case: Case, cause: Cause, level: SweepLevel, pool: float | None) -> _Expected:
    """Hit rate of the level's sessions under one cause.

    Under eviction at worst all that is alive (sub-agents, strangers) holds a context and comes in turn, at
    best only sessions do, at random.
    """
    own = level.concurrency or max(round(alive(level)), 1)
    rivals = max(round(alive(level)), 1) if cause == "eviction" else own
    count, prompt = requests(level) or 1.0, prompt_length(level) or 1.0
    turns = max(round(count / own), 1)
    load = CacheLoad(own, turns, prompt, _new_tokens(case, prompt), pool, STATE_TOKENS)
    found = (
        hit_rate(cause, load._replace(sessions=rivals), _SEED, in_turn=True),
        hit_rate(cause, load, _SEED),
    )
    return _Expected(min(found), max(found))


def _new_tokens(case: Case, prompt: float) -> float:
    """Tokens that a turn adds: what the level with the best hit rate computes, less cold first prompts."""
    known = [
        level for level in case.levels if (level.hit_rate or 0.0) >= LOWEST_ALONE and prompt_length(level)
    ]
    best = max(known, key=lambda level: level.hit_rate or 0.0, default=None)
    if best is None:
        return TYPICAL_GROWTH * prompt
    length, count = prompt_length(best) or prompt, requests(best) or 1.0
    cold = min(length, COLD_TOKENS) * (best.concurrency or 1) / count
    return max((1.0 - (best.hit_rate or 0.0)) * length - cold, LEAST_GROWTH * prompt)


def _deviation(level: SweepLevel, expected: _Expected) -> float:
    """Standard deviations by which computed tokens miss what was expected."""
    missed = max(1.0 - (level.hit_rate or 0.0), 1e-3)
    least, most = max(1.0 - expected.high, 1e-3), max(1.0 - expected.low, 1e-3)
    return max(log(missed / most), log(least / missed), 0.0) / NOISE["prefill"]
