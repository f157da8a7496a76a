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

from replicast.calibration.laws.figures import (
    in_load,
    kv_full,
    requests,
)
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, label, listed, show
from replicast.calibration.laws.lost_reuse import lost_reuse
from replicast.calibration.sweep import Gauge, Given, SweepLevel

LAW = 10
CHECK = "hit rate"


def prefix_cache(case: Case) -> Answer:
    """Findings on hit rates, and what KV usage does not say."""
    pool = pool_tokens(case.sweep.given)
    off = _off(case)
    findings = [*off, *_usage(case), *_reasons(case)]
    if not off:
        findings += lost_reuse(case, pool)
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
