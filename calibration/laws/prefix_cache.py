"""Law 10: does the hit rate fit the sessions and the pool, and which cause of a low one do counters exclude?

A session repeats its own prompt every turn, so it hits by itself: 66 to 99 % of prompt tokens in 28 recorded
task windows, 61 to 99 % in recorded conversations, whatever other sessions do. Lower, with ten requests a
session or more, is lost reuse. c = 1 cannot evict itself while its context fits the pool; hits that fall from
there on as live contexts pass the pool are evictions.

What the counters do not say: `kv_cache_usage` counts cached idle blocks as free, so evictions of cached
prefixes show neither in it nor in preemptions; and `reason="capacity"` labels all waiting but that for LoRA,
KV transfer or grammar: budget, seats and blocks alike.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import NamedTuple

from replicast.calibration.laws.cache_causes import CAUSES, CacheLoad, Cause, hit_rate
from replicast.calibration.laws.figures import (
    FAIL_SD,
    NOISE,
    WARN_SD,
    alive,
    in_load,
    kv_full,
    prompt_length,
    requests,
)
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, Severity, label, listed, show
from replicast.calibration.sweep import Gauge, Given, SweepLevel

LAW = 10
CHECK = "hit rate"
LOWEST_ALONE = 0.61  # of recorded conversations
TURNS = 10  # requests a session from which its cold start no longer dominates
STATE_TOKENS = 8_192.0  # a chunk of the default token budget
TYPICAL_GROWTH = 0.03  # of a prompt, by a turn of a recorded session
LEAST_GROWTH = 0.005
COLD_TOKENS = 25_000.0  # computed by the first prompt of a session
_SEED = 7

EXCLUDES = {
    "eviction": "hits at c=1 as low as later, or live contexts far below the pool; not KV usage, not "
    "preemptions",
    "no sharing": "any rate below what a session alone reuses",
    "broken prefix": "a hit rate that changes with the load, or computed tokens a request far below its "
    "prompt",
    "coarse states": "a model with full attention only, or misses of more than one chunk a request",
}


def prefix_cache(case: Case) -> Answer:
    """Findings on hit rates, and what KV usage does not say."""
    pool = pool_tokens(case.sweep.given)
    off = _off(case)
    findings = [*off, *_usage(case), *_reasons(case)]
    if not off:
        lost = [at for at, level in enumerate(case.levels) if _lost(level)]
        fell = [at for at, level in enumerate(case.levels) if at not in lost and _fell(case, level, pool)]
        if lost:
            findings.append(_causes(case, lost, pool, "warn"))
        if fell:
            findings.append(_causes(case, fell, pool, "note"))
    hits = [level.hit_rate for level in case.levels]
    prompted = any(level.prompt_tokens_per_s for level in case.levels)
    if prompted and all(hit is None for hit in hits) and not off:
        text = (
            "cached tokens are not in this source: a cache that is off, evicted or never hit would not show"
        )
        findings.append(Finding(LAW, CHECK, "note", text, remedy="Give the collector's database."))
    rows = []
    if any(hit is not None for hit in hits):
        cells = tuple(f"{100 * hit:.0f}%" if hit is not None else "-" for hit in hits)
        rows.append(Row(CHECK, "hit rate", cells, "a session alone reuses 61 to 99% of its prompt tokens"))
    peaks = [level.kv_usage.peak if level.kv_usage is not None else None for level in case.levels]
    if any(peak is not None for peak in peaks):
        cells = tuple(f"{100 * peak:.0f}%" if peak is not None else "-" for peak in peaks)
        rows.append(Row("KV usage", "KV peak", cells, "of live requests; cached idle blocks count as free"))
    return Answer(tuple(findings), tuple(rows))


def pool_tokens(given: Given) -> float | None:
    """Tokens that the KV cache holds, where told."""
    if given.kv_pool_tokens is not None:
        return float(given.kv_pool_tokens)
    if given.num_gpu_blocks is not None and given.block_size is not None:
        return float((given.num_gpu_blocks - 1) * given.block_size)
    return None


def _off(case: Case) -> list[Finding]:
    if case.sweep.given.enable_prefix_caching is False:
        text = "prefix caching is off: every prompt is computed whole, which agentic sessions do not survive"
        return [
            Finding(
                LAW,
                CHECK,
                "warn",
                text,
                (("enable_prefix_caching", "off"),),
                "Start with --enable-prefix-caching.",
            )
        ]
    counted = [
        level for level in case.levels if level.cached_tokens is not None and (requests(level) or 0) > 1
    ]
    if not counted or any(level.cached_tokens for level in counted):
        return []
    prompts = sum(level.prompt_tokens or 0.0 for level in counted)
    looked = sum(level.prefix_queries or 0.0 for level in counted)
    why = (
        "looked up and never hit: every prompt differs from its start"
        if looked
        else "never looked up: the cache is off"
    )
    return [
        Finding(
            LAW,
            CHECK,
            "warn",
            f"none of {show(prompts)} prompt tokens was cached. Prefixes were {why}",
            (("prompt_tokens", prompts), ("prefix_queries", looked), ("hit_rate", 0.0)),
            "Look at the first 100 tokens of two prompts of a session."
            if looked
            else "Start with --enable-prefix-caching.",
        )
    ]


def _lost(level: SweepLevel) -> bool:
    """Whether sessions reuse less here than any recorded session does by itself."""
    hit, count = level.hit_rate, requests(level)
    return (
        hit is not None
        and count is not None
        and count >= TURNS * (level.concurrency or 1)
        and hit < LOWEST_ALONE
    )


def _fell(case: Case, level: SweepLevel, pool: float | None) -> bool:
    """Whether more is computed a token than one session alone makes it."""
    at = case.index(1)
    if at is None or case.levels[at] is level or (requests(case.levels[at]) or 0) < TURNS:
        return False
    alone, hit = case.levels[at].hit_rate, level.hit_rate
    if (
        not alone
        or not hit
        or alone >= 1.0
        or hit >= 1.0
        or (requests(level) or 0) < TURNS * (level.concurrency or 1)
    ):
        return False
    live = _live_tokens(level)
    full = pool is not None and live is not None and live > pool
    return log((1 - hit) / (1 - alone)) / NOISE["prefill"] > (WARN_SD if full else FAIL_SD)


def _live_tokens(level: SweepLevel) -> float | None:
    """Contexts of all live sessions, if each stays in the cache between its turns."""
    prompt = prompt_length(level)
    return alive(level) * prompt if prompt is not None else None


def _causes(case: Case, low: list[int], pool: float | None, severity: Severity) -> Finding:
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
    than = "sessions reuse by themselves" if severity == "warn" else "c=1"
    text = (
        f"{listed([case.levels[at] for at in low])} {'reuse' if len(low) > 1 else 'reuses'} "
        f"{100 * (worst.hit_rate or 0):.0f}% of prompt tokens, less than {than}. Fits: "
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


def _usage(case: Case) -> list[Finding]:
    known = [
        level for level in case.levels if level.concurrency and in_load(level.kv_usage, level) is not None
    ]
    full = [level for level in known if kv_full(level)]
    findings = []
    if full:
        findings.append(
            Finding(
                LAW,
                "KV usage",
                "note",
                f"KV blocks ran out at {listed(full)}: requests waited for blocks, and cached contexts "
                "were evicted. Rates there depend on evictions, which must be simulated",
                tuple(
                    (f"kv_usage_peak_{label(level)}", level.kv_usage.peak) for level in full if level.kv_usage
                ),
            )
        )
    falls = _falls(case)
    return [*findings, falls] if falls is not None else findings


def _falls(case: Case) -> Finding | None:
    """KV usage that falls from level to level: what it does and does not say."""
    held = [
        (usage, _size(level.waiting, level) or 0.0)
        for level in case.levels
        if level.concurrency and (usage := _size(level.kv_usage, level)) is not None
    ]
    if len(held) < 3 or any(b[0] >= a[0] for a, b in pairwise(held)):
        return None
    first, last = held[0], held[-1]
    queued = all(b[1] > a[1] for a, b in pairwise(held))
    text = f"KV usage falls from {100 * first[0]:.0f}% to {100 * last[0]:.0f}% as sessions are added"
    evidence = (
        ("kv_usage_first", first[0]),
        ("kv_usage_last", last[0]),
        ("waiting_first", first[1]),
        ("waiting_last", last[1]),
    )
    if queued:
        return Finding(
            LAW,
            "KV usage",
            "warn",
            f"{text} while the queue grows: live requests are not short of blocks, so look for work from "
            "outside the levels. It excludes no evictions: cached idle blocks count as free",
            evidence,
            "Restart the server, run c=1 first, drain between levels.",
        )
    return Finding(
        LAW,
        "KV usage",
        "note",
        f"{text}: fewer or shorter requests run. It counts cached idle blocks as free, so it excludes "
        "neither evictions nor waiting for blocks",
        evidence,
    )


def _size(gauge: Gauge | None, level: SweepLevel) -> float | None:
    """Mean under load, else the peak."""
    mean = in_load(gauge, level)
    return mean if mean is not None else gauge.peak if gauge is not None else None


def _reasons(case: Case) -> list[Finding]:
    for level in case.levels:
        for reason, gauge in level.waiting_by_reason:
            if reason == "capacity" and gauge.peak:
                text = (
                    'waiting for "capacity" is for token budget, seats or KV blocks alike: it does not '
                    "say which"
                )
                return [
                    Finding(LAW, "waiting reason", "note", text, (("waiting_capacity_peak", gauge.peak),))
                ]
    return []
