"""Law 3: Little's law between what gauges hold and what times and counts say.

The time integral of a gauge is the sum of the times that requests spent there (J. D. C. Little, 1961; an
identity over any window, up to requests that cross its edges):

* waiting x window = sum of queue times. More waiting is work of requests that never finished: at most those
  that were in the system together, each for the longest wait that a finished one had (the upper edge of its
  bucket; twice the mean where there are no buckets, as for exponential times). Less waiting than queue time
  is time from before the window.
* decoding requests <= running: by the sum of decode times where it is counted; else by generated tokens/s x
  time per output token, a mean over finished requests that short replies pull up, so that it is judged with
  the noise of both and fails only where TTFT shows as well that finished requests are others than most.
* e2e times of clients / window <= sessions.
* TTFT = front end + queue + prefill, on equal populations. TTFT counts requests that never finished: a gap
  tells that many did not. Summed, queue and prefill of finished requests are part of all TTFT, up to requests
  that began before the window.

Scrapes: a gauge read every T seconds counts a stay of q seconds as q/T rounded up or down, an error of at
most T/2 a request that averages out: sd = T/2 x sqrt(requests).
"""

from __future__ import annotations

from math import inf, sqrt

from replicast.calibration.laws.figures import (
    FAIL_SD,
    NOISE,
    WARN_SD,
    mean_of,
    peak_in_system,
    scrape_interval,
)
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, show
from replicast.calibration.sweep import Histogram, SweepLevel

LAW = 3
CHECK = "Little"
# Below so many request-seconds of waiting a queue time rests on a handful of waits.
ENOUGH_WAITING_S = 30.0
LARGE_GAP = 0.2
# TTFT - queue - prefill over 28 recorded task windows was at most .026 s + 1.7 ms per 1,000 prompt tokens.
FRONT_END_S, FRONT_END_PER_TOKEN_S, LONGEST_PROMPT = 0.026, 1.7e-6, 200_000


def little(case: Case) -> Answer:
    """Findings on every level."""
    findings: list[Finding] = []
    cells = []
    for at, level in enumerate(case.levels):
        occupancy = decoding_share(level)
        cells.append(f"{occupancy:.2f}" if occupancy is not None else "-")
        found = (
            _waiting(level, at),
            _decoding(level, at, occupancy),
            _clients(case, level, at),
            _parts(level, at) or _gap(level, at),
        )
        findings += [f for f in found if f is not None]
    row = Row(CHECK, "decoding/run", tuple(cells), "Little: decoding / running is at most 1")
    return Answer(tuple(findings), (row,) if any(cell != "-" for cell in cells) else ())


def decoding_share(level: SweepLevel) -> float | None:
    """Decoding over running requests: by the sum of decode times, else by output tokens/s x TPOT."""
    running = level.running.mean if level.running is not None else None
    if not running:
        return None
    if level.decode is not None and level.decode.sum is not None and level.window_s:
        return level.decode.sum / (running * level.window_s)
    rate, tpot = level.output_tokens_per_s, mean_of(level.tpot)
    return rate * tpot / running if rate is not None and tpot is not None else None


def _waiting(level: SweepLevel, at: int) -> Finding | None:
    queue, gauge, peak = level.queue, level.waiting, peak_in_system(level)
    if queue is None or queue.sum is None or gauge is None or gauge.mean is None or peak is None:
        return None
    if not queue.count or not level.window_s:
        return None
    waited = gauge.mean * level.window_s
    if max(waited, queue.sum) < ENOUGH_WAITING_S:
        return None
    interval = scrape_interval(level) or 1.0
    count = max(queue.count, level.first_tokens or 0.0)
    noise = FAIL_SD * interval / 2.0 * sqrt(count) + peak.high * interval
    unfinished = peak.high * min(_longest(queue), level.window_s)
    evidence = (
        ("waiting_request_seconds", waited),
        ("queue_time_sum_s", queue.sum),
        ("requests_finished", queue.count),
        ("explained_by_unfinished_s", unfinished),
        ("noise_s", noise),
    )
    if waited - queue.sum > unfinished + noise:
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"{show(waited)} request-seconds of waiting, but the {show(queue.count)} finished requests "
            f"waited {show(queue.sum)} s and those cut off explain {show(unfinished)} s: the rest belongs "
            "to requests that never finished here",
            evidence,
            "Restart the server and end clients of earlier runs, then repeat the level.",
            at,
        )
    # A reader's window may start a scrape late: a twentieth is allowed beside the noise.
    if queue.sum - waited > noise + 0.05 * queue.sum:
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"finished requests waited {show(queue.sum)} s, but the gauge saw {show(waited)} "
            "request-seconds: they waited before the window began, or scrapes are missing",
            evidence,
            "Drain before the level, and let the collector run through it.",
            at,
        )
    return None


def _longest(queue: Histogram) -> float:
    """Upper edge of the last bucket that counts anything; twice the mean without buckets."""
    last = max((i for i, n in enumerate(queue.counts) if n > 0), default=None)
    if last is None:
        return 2.0 * (queue.mean or 0.0)
    return queue.edges[last] if last < len(queue.edges) else inf


def _decoding(level: SweepLevel, at: int, occupancy: float | None) -> Finding | None:
    running, peak = level.running, peak_in_system(level)
    if occupancy is None or running is None or not running.mean:
        return None
    if level.decode is not None and level.decode.sum is not None and level.window_s and level.decode.count:
        # Those that decoded before the window began, and finished in it.
        longest = min(_longest(level.decode), level.window_s)
        edge = (peak.high if peak is not None else 1.0) * longest / (running.mean * level.window_s)
        if occupancy <= 1.0 + edge:
            return None
        return Finding(
            LAW,
            CHECK,
            "fail",
            f"finished requests decoded for {show(level.decode.sum)} s, the gauge saw "
            f"{show(running.mean * level.window_s)} request-seconds running: they ran before the window, "
            "or counters and gauges are of different servers",
            (("decoding_over_running", occupancy), ("limit", 1.0 + edge)),
            "Drain before the level.",
            at,
        )
    noise = sqrt(NOISE["tpot"] ** 2 + NOISE["output_tokens_per_s"] ** 2)
    sd = (occupancy - 1.0) / noise
    if sd < WARN_SD:
        return None
    gap = _gap_share(level)
    fail = sd > FAIL_SD and gap is not None and gap > LARGE_GAP
    return Finding(
        LAW,
        CHECK,
        "fail" if fail else "warn",
        f"{show(level.output_tokens_per_s)} output tokens/s at {show(mean_of(level.tpot))} s a token are "
        f"{show(occupancy * running.mean)} requests decoding, {show(running.mean)} were running: the time "
        "per token is that of a few finished requests, not of these tokens",
        (
            ("decoding_over_running", occupancy),
            ("standard_deviations", round(sd, 2)),
            ("ttft_gap_share", gap),
        ),
        "Run the level longer, so that more requests finish."
        if fail
        else "Trust its rates more than its TPOT.",
        at,
    )


def _gap_share(level: SweepLevel) -> float | None:
    """Share of TTFT that queue and prefill of finished requests do not explain."""
    ttft, queue, prefill = mean_of(level.ttft), mean_of(level.queue), mean_of(level.prefill)
    return 1.0 - (queue + prefill) / ttft if ttft and queue is not None and prefill is not None else None


def _clients(case: Case, level: SweepLevel, at: int) -> Finding | None:
    if level.running is not None or level.e2e is None or level.e2e.sum is None or not level.concurrency:
        return None
    if not level.window_s or not level.e2e.count:
        return None
    alive = level.e2e.sum / level.window_s
    bound = level.concurrency * (case.parallel_per_session or 1)
    # Requests that cross an edge of the window: at most one a stream.
    edge = bound * level.e2e.sum / level.e2e.count / level.window_s
    if alive <= bound + edge:
        return None
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"clients' requests were {show(alive)} at a time, more than the {bound} that the level names",
        (("alive_mean", alive), ("bound", bound)),
        "Tell --parallel-per-session, or check how the tool counts concurrency.",
        at,
    )


def _parts(level: SweepLevel, at: int) -> Finding | None:
    """Requests that finished began before, so that their queue and prefill are part of all TTFT."""
    ttft, queue, prefill = (item.sum if item is not None else None for item in
                            (level.ttft, level.queue, level.prefill))  # fmt: skip
    if ttft is None or queue is None or prefill is None or level.ttft is None:
        return None
    peak = peak_in_system(level)
    before = (peak.high if peak is not None else level.concurrency or 1) * _longest(level.ttft)
    if queue + prefill <= ttft + before:
        return None
    return Finding(
        LAW,
        CHECK,
        "fail",
        f"finished requests queued and prefilled for {show(queue + prefill)} s, and all requests together "
        f"waited {show(ttft)} s for their first token: counters of different servers or windows",
        (("queue_and_prefill_s", queue + prefill), ("ttft_s", ttft), ("limit_s", ttft + before)),
        "Read all counters of a level from one server at the same instants.",
        at,
    )


def _gap(level: SweepLevel, at: int) -> Finding | None:
    ttft, queue, prefill = mean_of(level.ttft), mean_of(level.queue), mean_of(level.prefill)
    if ttft is None or queue is None or prefill is None:
        return None
    gap = ttft - queue - prefill
    front_end = FRONT_END_S + FRONT_END_PER_TOKEN_S * LONGEST_PROMPT
    if abs(gap) <= max(2 * front_end, 0.1 * ttft):
        return None
    return Finding(
        LAW,
        CHECK,
        "note",
        f"TTFT {show(ttft)} s, queue and prefill {show(queue + prefill)} s: they are of different "
        "requests. Queue and prefill count finished ones only, TTFT also those cut off",
        (("ttft_mean_s", ttft), ("queue_mean_s", queue), ("prefill_mean_s", prefill), ("gap_s", gap)),
        "Simulate the cut and the burst at the start; do not add the parts.",
        at,
    )
