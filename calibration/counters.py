"""A simulated level as a server's metrics at each scrape: what a collector would have seen of it.

Counters and histograms are cumulative since the server started, and grow when vLLM observes them: prompt
tokens, their cached part and TTFT at the first token; queue, prefill, decode, e2e, per-request time per token
and token counts when a request finishes; generated tokens as they come. Gauges are those of the instant.
With `write_collector_db` this makes a database whose truth is known: the test bed of calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.generate import CollectorSession, EngineState, HistogramState, Scrape, edges_of
from replicast.calibration.harness import Draw, ServerModel, run_level
from replicast.calibration.workload import LevelLoad, draw_sessions
from replicast.sim.fleet.result import RunResult

Floats = NDArray[np.float64]

LEAD_S = 2.7  # the collector starts before the load, and not in step with it
EPOCH_S = 1_800_000_000.0
HISTOGRAMS = (
    "time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds", "request_prompt_tokens", "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
)  # fmt: skip
COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "finished",
    "preemptions",
)


@dataclass(slots=True)
class ServerCounters:
    """What one server has counted since it started; `collect` adds a level to it."""

    max_model_len: int
    counters: dict[str, float]
    histograms: dict[str, tuple[float, Floats]]

    @classmethod
    def fresh(cls, max_model_len: int) -> ServerCounters:
        """A server that has just started."""
        return cls(
            max_model_len,
            dict.fromkeys(COUNTERS, 0.0),
            {name: (0.0, np.zeros(len(edges_of(name, max_model_len)) + 1)) for name in HISTOGRAMS},
        )


def collected_sweep(
    loads: Sequence[LevelLoad],
    server: ServerModel,
    seed: int,
    *,
    interval_s: float = 1.0,
    draw: Draw = draw_sessions,
) -> list[CollectorSession]:
    """One collector session a level, on one server that is never restarted."""
    counted = ServerCounters.fresh(server.config.max_model_len)
    sessions = []
    start_s = EPOCH_S
    for load in loads:
        sessions.append(collect(load, run_level(load, server, seed, draw), counted, start_s, interval_s))
        start_s += load.window_s + 30.0
    return sessions


def collect(
    load: LevelLoad, run: RunResult, counted: ServerCounters, start_s: float, interval_s: float = 1.0
) -> CollectorSession:
    """The scrapes of one level; `counted` goes on from here."""
    at = np.arange(0.0, load.window_s + interval_s / 2, interval_s)
    times = at - LEAD_S  # on the load's clock
    records = run.records
    ttft, cut_s = records.ttft_s, run.duration_s
    first = records.arrival_s + ttft
    began, done = ~np.isnan(ttft), records.finished
    end = np.where(done, first + records.decode_s, cut_s)
    outputs = records.output_tokens.astype(float)
    counters = {
        "prompt_tokens_total": _steps(first[began], records.prompt_tokens[began].astype(float), times),
        "prompt_tokens_cached_total": _steps(first[began], records.cached_tokens[began].astype(float), times),
        "generation_tokens_total": _ramps(first[began], end[began], outputs[began], times),
        "finished": _steps(end[done], np.ones(int(done.sum())), times),
    }
    inference = records.prefill_s + records.decode_s
    computed = records.prompt_tokens - records.cached_tokens
    observed = {
        "time_to_first_token_seconds": (first[began], ttft[began]),
        "request_queue_time_seconds": (end[done], records.queue_s[done]),
        "request_prefill_time_seconds": (end[done], records.prefill_s[done]),
        "request_decode_time_seconds": (end[done], records.decode_s[done]),
        "request_inference_time_seconds": (end[done], inference[done]),
        "e2e_request_latency_seconds": (end[done], records.e2e_s[done]),
        "request_time_per_output_token_seconds": (end[done], records.tpot_s[done]),
        "request_prompt_tokens": (end[done], records.prompt_tokens[done].astype(float)),
        "request_generation_tokens": (end[done], records.output_tokens[done].astype(float)),
        "request_prefill_kv_computed_tokens": (end[done], computed[done].astype(float)),
    }
    sums: dict[str, Floats] = {}
    buckets: dict[str, Floats] = {}
    for name, (when, values) in observed.items():
        sums[name] = _steps(when, values, times)
        buckets[name] = _bucket_steps(when, values, times, edges_of(name, counted.max_model_len))
    handed = records.arrival_s + records.front_end_s
    scheduled = handed + records.input_wait_s + records.queue_s
    running = _alive(scheduled, end, times)
    waiting = _alive(handed, np.where(np.isnan(scheduled), cut_s, scheduled), times)
    usage = _usage(run, times)
    # When each happened is not recorded; a window's total is what readers take.
    preemptions = float(run.replicas[0].stats.num_preemptions)
    preempted = np.floor(preemptions * np.clip(times / max(cut_s, 1e-9), 0.0, 1.0))
    scrapes = []
    for i, offset in enumerate(at.tolist()):
        state = EngineState(
            counters={
                **{
                    name: counted.counters[name] + float(values[i])
                    for name, values in counters.items()
                    if name != "finished"
                },
                "request_success_total": {
                    "stop": counted.counters["finished"] + float(counters["finished"][i])
                },
                "num_preemptions_total": counted.counters["preemptions"] + float(preempted[i]),
            },
            gauges={
                "num_requests_running": float(running[i]),
                "num_requests_waiting": float(waiting[i]),
                "kv_cache_usage_perc": float(usage[i]),
            },
            histograms={
                name: HistogramState(
                    counted.histograms[name][0] + float(sums[name][i]),
                    tuple((counted.histograms[name][1] + buckets[name][i]).tolist()),
                )
                for name in HISTOGRAMS
            },
        )
        scrapes.append(Scrape(start_s + offset, (state,)))
    for name, values in counters.items():
        counted.counters[name] += float(values[-1])
    counted.counters["preemptions"] += preemptions
    for name in HISTOGRAMS:
        total, counts = counted.histograms[name]
        counted.histograms[name] = (total + float(sums[name][-1]), counts + buckets[name][-1])
    return CollectorSession(load.concurrency, tuple(scrapes))


def _steps(when: Floats, amount: Floats, times: Floats) -> Floats:
    """Total of `amount` observed up to each of `times`."""
    order = np.argsort(when, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(np.asarray(amount, dtype=float)[order])])
    return np.asarray(total[np.searchsorted(when[order], times, side="right")])


def _ramps(start: Floats, end: Floats, amount: Floats, times: Floats) -> Floats:
    """Tokens generated up to each time: one at the first token, the rest evenly until the last."""
    out = np.zeros(len(times))
    for a, b, n in zip(start.tolist(), end.tolist(), amount.tolist(), strict=True):
        share = np.clip((times - a) / max(b - a, 1e-9), 0.0, 1.0)
        out += np.where(times >= a, np.floor(1 + share * (n - 1)), 0.0)
    return out


def _bucket_steps(when: Floats, values: Floats, times: Floats, edges: tuple[float, ...]) -> Floats:
    """Counts per bucket up to each time."""
    order = np.argsort(when, kind="stable")
    one_hot = np.zeros((len(values) + 1, len(edges) + 1))
    one_hot[np.arange(1, len(values) + 1), np.searchsorted(edges, values[order], side="left")] = 1.0
    return np.asarray(np.cumsum(one_hot, axis=0)[np.searchsorted(when[order], times, side="right")])


def _alive(start: Floats, end: Floats, times: Floats) -> Floats:
    """How many intervals hold each time."""
    some = ~np.isnan(start)
    begun = np.searchsorted(np.sort(start[some]), times, side="right")
    ended = np.searchsorted(np.sort(end[some]), times, side="right")
    return np.asarray(np.maximum(begun - ended, 0), dtype=float)


def _usage(run: RunResult, times: Floats) -> Floats:
    series = run.replicas[0].series
    if not series:
        return np.where((times >= 0) & (times <= run.duration_s), run.replicas[0].mean_kv_usage, 0.0)
    ends = np.array([point.end_s for point in series])
    values = np.array([point.kv_usage for point in series])
    at = np.minimum(np.searchsorted(ends, times, side="left"), len(values) - 1)
    return np.where((times >= 0) & (times <= run.duration_s), values[at], 0.0)
