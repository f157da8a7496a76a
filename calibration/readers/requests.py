"""Requests known one by one -> a `SweepLevel`; and where one load of a client's run ends.

A client's TTFT and E2E include the network and its own work, a server's span does not: the reader's
`notes` say which it is. TPOT is (last - first token) / (outputs - 1), as vLLM observes it; requests of
one output token have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S, token_edges
from replicast.calibration.sweep import ClientRequest, Histogram, SweepLevel

QUANTILES = (0.5, 0.9, 0.99)
LONE_ROWS = 5  # so many requests alone in the system are a synchronous stage
PERIOD_CHANGE = 0.02
LOOK_AHEAD = 5


def level_of_requests(
    requests: Sequence[ClientRequest],
    *,
    name: str,
    concurrency: int | None = None,
    request_rate: float | None = None,
    window_s: float | None = None,
    failed: int | None = None,
    failed_requests: Sequence[ClientRequest] = (),
    unfinished: int | None = None,
    notes: Sequence[str] = (),
) -> SweepLevel:
    """One level from its finished requests, times counted from the first arrival.

    Failed ones are load too: they stay among `requests`, without times.
    """
    arrivals = [r.arrival_s for r in (*requests, *failed_requests) if r.arrival_s is not None]
    start = min(arrivals, default=0.0)
    shifted = tuple(_from(start, r) for r in requests)
    lost = tuple(_from(start, r)._replace(ttft_s=None, e2e_s=None) for r in failed_requests)
    ends = [r.arrival_s + r.e2e_s for r in shifted if r.arrival_s is not None and r.e2e_s is not None]
    if window_s is None and ends:
        window_s = max(ends)
    if concurrency is None and request_rate is None and len(arrivals) > 2 and max(arrivals) > start:
        request_rate = (len(arrivals) - 1) / (max(arrivals) - start)
    cached = [r.cached_tokens for r in shifted if r.cached_tokens is not None]
    tokens = token_edges()
    level = SweepLevel(
        concurrency=concurrency,
        name=name,
        request_rate=request_rate,
        window_s=window_s,
        load_s=window_s,
        requests_finished=float(len(shifted)),
        requests_failed=None if failed is None else float(failed),
        requests_unfinished=None if unfinished is None else float(unfinished),
        first_tokens=float(sum(r.ttft_s is not None for r in shifted)),
        prompt_tokens=_sum([r.prompt_tokens for r in shifted]),
        cached_tokens=float(sum(cached)) if cached and len(cached) == len(shifted) else None,
        generated_tokens=_sum([r.output_tokens for r in shifted]),
        ttft=_histogram([r.ttft_s for r in shifted], TTFT_EDGES_S),
        queue=_histogram([r.queue_s for r in shifted], REQUEST_EDGES_S),
        prefill=_histogram([r.prefill_s for r in shifted], REQUEST_EDGES_S),
        decode=_histogram([r.decode_s for r in shifted], REQUEST_EDGES_S),
        e2e=_histogram([r.e2e_s for r in shifted], REQUEST_EDGES_S),
        tpot=_histogram([tpot_s(r) for r in shifted], TPOT_EDGES_S),
        prompt_per_request=_histogram([r.prompt_tokens for r in shifted], tokens),
        output_per_request=_histogram([r.output_tokens for r in shifted], tokens),
        requests=tuple(sorted((*shifted, *lost), key=lambda r: r.arrival_s or 0.0)),
        notes=tuple(notes),
    )
    if level.cached_tokens is None:
        return level
    computed = [
        r.prompt_tokens - r.cached_tokens
        for r in shifted
        if r.prompt_tokens is not None and r.cached_tokens is not None
    ]
    return replace(level, computed_per_request=_histogram(computed, tokens))


def _from(start_s: float, request: ClientRequest) -> ClientRequest:
    return request if request.arrival_s is None else request._replace(arrival_s=request.arrival_s - start_s)


def tpot_s(request: ClientRequest) -> float | None:
    """Mean time between output tokens of one request."""
    if request.output_tokens is None or request.output_tokens < 2:
        return None
    decode = request.decode_s
    if decode is None and request.e2e_s is not None and request.ttft_s is not None:
        decode = request.e2e_s - request.ttft_s
    return None if decode is None else decode / (request.output_tokens - 1)


def stages_by_arrival(requests: Sequence[ClientRequest]) -> list[tuple[str, int | None, list[ClientRequest]]]:
    """Stages of a rate sweep that was recorded without stage names: (name, concurrency, requests).

    Such a sweep (GuideLLM's `sweep`) sends requests one by one, then all at once, then at constant
    rates, and waits for the last reply between stages. So: the first rows, as long as each is alone in
    the system for all its life, are *synchronous*. After them a stage ends where a request finds the
    system empty and the period of arrivals changes by more than 2 % there. A file whose first five
    requests are not alone is one stage.
    """
    rows = sorted(requests, key=lambda r: r.arrival_s or 0.0)
    arrivals = [r.arrival_s or 0.0 for r in rows]
    ends = [a + (r.e2e_s or 0.0) for a, r in zip(arrivals, rows, strict=True)]
    lone = 0
    while lone < len(rows) and (lone + 1 == len(rows) or ends[lone] <= arrivals[lone + 1]):
        lone += 1
    if lone < LONE_ROWS:
        return [("all", None, rows)]
    stages: list[tuple[str, int | None, list[ClientRequest]]] = [("synchronous", 1, rows[:lone])]
    starts = _stage_starts(arrivals, ends, lone)
    for first, last in pairwise([*starts, len(rows)]):
        part = rows[first:last]
        span = arrivals[last - 1] - arrivals[first]
        if span <= 0.1 * (max(ends[first:last]) - arrivals[first]):
            stages.append((f"burst of {len(part)}", None, part))
        else:
            gaps = [b - a for a, b in pairwise(arrivals[first:last])]
            period = _median_low(gaps) or span / len(gaps)  # coarse stamps: most gaps are 0
            stages.append((f"{1 / period:.3g} requests/s", None, part))
    return stages


def _stage_starts(arrivals: Sequence[float], ends: Sequence[float], first: int) -> list[int]:
    if first >= len(arrivals):
        return []
    latest_end = list(accumulate(ends, max))
    # The wait for the last reply before each row that finds the system empty; 0 for the others.
    idle = [
        arrivals[i] - arrivals[i - 1] if i > 0 and latest_end[i - 1] <= arrivals[i] else 0.0
        for i in range(len(arrivals))
    ]
    starts = [first]
    period = _period(arrivals, first, 15)
    for i in range(first + 1, len(arrivals) - 3):
        here = _period(arrivals, i, LOOK_AHEAD)
        # Near a boundary several rows may look like one: the longest wait is the pause between stages.
        if idle[i] <= 0 or idle[i] < max(idle[i : i + LOOK_AHEAD]):
            continue
        if abs(here - period) > PERIOD_CHANGE * period:
            starts.append(i)
            period = _period(arrivals, i, 15)
    return starts


def _period(arrivals: Sequence[float], start: int, gaps: int) -> float:
    part = [b - a for a, b in pairwise(arrivals[start : start + gaps + 1])]
    if not part:
        return 0.0
    # Of a long stretch the 60th percentile: a stalled client catches up with a burst of small gaps.
    return sorted(part)[int(0.6 * len(part))] if gaps > LOOK_AHEAD else _median_low(part)


def _median_low(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _sum(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None


def _histogram(values: Sequence[float | None], edges: Sequence[float]) -> Histogram | None:
    known = [value for value in values if value is not None]
    return Histogram.of(known, edges, QUANTILES) if known else None
