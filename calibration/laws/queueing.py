"""Law 4: the queue must not dominate where little load explains it; TTFT alone is no fault.

A request waits for the token budget (others' prefill), for a seat or for KV blocks. Where neither seats nor
blocks ran out, only prefill holds it up. A prefill of s seconds delays each of the other requests by at most
s, and c sessions of p requests have c x p - 1 others, so over a level

    sum of queue times <= (c x p - 1) x sum of prefill times.

A broken bound with p told, or even with all that was ever in the system, is other work. Broken only with the
p that c = 1 shows, it may be sub-agents: a warning.
"""

from __future__ import annotations

from replicast.calibration.buckets import REQUEST_EDGES_S
from replicast.calibration.laws.figures import kv_full, mean_of, peak_in_system, seats_full
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, show
from replicast.calibration.sweep import SweepLevel

LAW = 4
CHECK = "queue"
LOW = 2  # sessions of "low concurrency": one, or one beside another
LONG_TTFT_S = 5.0


def queueing(case: Case) -> Answer:
    """Findings on every level that has queue and prefill times."""
    findings: list[Finding] = []
    cells = []
    for at, level in enumerate(case.levels):
        queue, ttft = mean_of(level.queue), mean_of(level.ttft)
        cells.append(f"{show(queue, 2)}/{show(ttft, 2)}" if ttft is not None else "-")
        found = (_bound(case, level, at), _pure_prefill(level, at))
        findings += [f for f in found if f is not None]
    row = Row(
        CHECK,
        "queue/TTFT, s",
        tuple(cells),
        "a queue of at most (c x p - 1) prefills; TTFT alone is no fault",
    )
    return Answer(tuple(findings), (row,))


def _bound(case: Case, level: SweepLevel, at: int) -> Finding | None:
    queue, prefill, peak = mean_of(level.queue), mean_of(level.prefill), peak_in_system(level)
    if queue is None or prefill is None or level.concurrency in (None, 1):
        return None  # one session: law 1
    concurrency = level.concurrency or 1
    base = case.index(1)
    shown = peak_in_system(case.levels[base]) if base is not None else None
    told = case.parallel_per_session
    ever = peak.high if peak is not None else None
    p = float(told) if told is not None else max(shown.high, 1.0) if shown is not None else None
    others = concurrency * p - 1.0 if p is not None else ever - 1.0 if ever is not None else None
    if others is None:
        return None
    blocked = kv_full(level) or seats_full(level, case.sweep.given.max_num_seqs)
    evidence = (("queue_mean_s", queue), ("prefill_mean_s", prefill), ("others", others))
    limit = max(others * prefill, REQUEST_EDGES_S[0])
    if queue > limit and not blocked:
        beyond_all = ever is not None and queue > max((ever - 1.0) * prefill, REQUEST_EDGES_S[0])
        fail = told is not None or beyond_all
        return Finding(
            LAW,
            CHECK,
            "fail" if fail else "warn",
            f"requests queue {show(queue)} s; the {show(others)} others of these sessions can hold one up "
            f"for {show(limit)} s of prefill, and neither KV nor seats ran out: work from outside this "
            "level" + ("" if fail else ", or sub-agents that c=1 did not show"),
            evidence,
            "Restart the server, drain between levels; or tell --parallel-per-session.",
            at,
        )
    if concurrency <= LOW and queue > prefill:
        return Finding(
            LAW,
            CHECK,
            "warn",
            f"the queue ({show(queue)} s) is longer than the prefill ({show(prefill)} s) at {concurrency} "
            "sessions" + (": KV blocks ran out" if kv_full(level) else ""),
            evidence,
            "A larger KV pool, or shorter contexts."
            if kv_full(level)
            else "Repeat the level on an idle server.",
            at,
        )
    return None


def _pure_prefill(level: SweepLevel, at: int) -> Finding | None:
    ttft, queue, prefill = mean_of(level.ttft), mean_of(level.queue), mean_of(level.prefill)
    if level.concurrency not in (1, LOW) or ttft is None or queue is None or prefill is None:
        return None
    if ttft < LONG_TTFT_S or queue > 0.3 * ttft:
        return None
    return Finding(
        LAW,
        CHECK,
        "note",
        f"TTFT {show(ttft)} s is long, and prefill ({show(prefill)} s), not queue ({show(queue)} s): long "
        "prompts with little in the cache. No fault",
        (("ttft_mean_s", ttft), ("queue_mean_s", queue), ("prefill_mean_s", prefill)),
        level=at,
    )
