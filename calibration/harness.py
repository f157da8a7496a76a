"""A sweep level, simulated as it was run, and read as its counters were.

The harness (public agentic sweeps): N sessions start at t = 0 on one server; a finished session is
replaced at once; there is tool time but no human; at the deadline all sessions are killed; the
collector reads counters until a drain later. So:

* TTFT is observed at the first token, for requests that are killed later too; queue, prefill and TPOT only of
  requests that finished. Prompt tokens count at the first token, generated tokens as they come.
* Rates and gauge means are over the whole window, idle drain included.

The result is a `SweepLevel` of the same shape as a measured one, bucket counts included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S, token_edges
from replicast.calibration.shape import Quantile, shape
from replicast.calibration.spread import log_sd_of
from replicast.calibration.sweep import Gauge, Histogram, SweepLevel
from replicast.calibration.workload import LevelLoad, draw_sessions
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.records import Records
from replicast.sim.fleet.result import RunResult
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Session

Floats = NDArray[np.float64]

MOST_DRAWS = 5  # of sessions, twice as many each time
EARLY = 0.98  # of the load: sessions that end just before the deadline leave no stream without work for long

MakeEngine = Callable[[EngineConfig, StepTime], Engine]
# Sessions of a level, by its load, a seed and max_model_len.
Draw = Callable[[LevelLoad, int, int], Sequence[Session]]

METRICS = (
    "tpot_mean_s",
    "ttft_mean_s",
    "queue_mean_s",
    "prefill_mean_s",
    "prompt_tokens_per_s",
    "output_tokens_per_s",
    "running_mean",
    "waiting_mean",
    "kv_usage_mean",
)


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The server that a level ran on."""

    config: EngineConfig
    step_time: StepTime
    front_end: FrontEnd
    engines: MakeEngine = make_engine


class Observed(NamedTuple):
    """What a level's counters say; NaN where nothing was observed. The first nine are `METRICS`.

    The last eight, quantiles over means, are those of `noise.OF_SHAPE` that were asked for.
    """

    tpot_mean_s: float
    ttft_mean_s: float
    queue_mean_s: float
    prefill_mean_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    running_mean: float
    waiting_mean: float
    kv_usage_mean: float
    first_tokens: float
    finished: float
    prompt_per_request: float
    output_per_request: float
    computed_per_request: float
    output_log_sd: float
    computed_log_sd: float
    ttft_middle: float = math.nan
    ttft_tail: float = math.nan
    queue_middle: float = math.nan
    queue_tail: float = math.nan
    prefill_middle: float = math.nan
    prefill_tail: float = math.nan
    tpot_middle: float = math.nan
    tpot_tail: float = math.nan


def run_level(load: LevelLoad, server: ServerModel, seed: int, draw: Draw = draw_sessions) -> RunResult:
    """The run of one level, cut at the deadline.

    A server faster than `expected_requests` allows for runs out of sessions: then more are drawn.
    """
    for _ in range(MOST_DRAWS):
        run = _run(load, server, seed, draw)
        if run.window.end_s >= EARLY * load.load_s:
            break
        load = replace(load, expected_requests=2 * load.expected_requests)
    return run


def _run(load: LevelLoad, server: ServerModel, seed: int, draw: Draw) -> RunResult:
    sessions = draw(load, seed, server.config.max_model_len)
    fleet = FleetConfig(
        replicas=1,
        router="round-robin",
        loop="closed",
        sessions=load.streams,
        stagger_s=0.0,
        think_cap_s=None,
        warmup_s=0.0,
        horizon_s=load.load_s,
        cooldown_s=0.0,
        over_length="truncate-session",
        front_end=server.front_end,
    )
    return simulate(sessions, server.config, server.step_time, fleet, seed=seed, engines=server.engines)


def observe(run: RunResult, load: LevelLoad, wanted: Mapping[str, Quantile] | None = None) -> Observed:
    """Means and rates as the collector would give them, and the quantiles that are `wanted`."""
    records, replica = run.records, run.replicas[0]
    ttft = records.ttft_s
    began = ~np.isnan(ttft)
    done = records.finished
    # Gauges are time means of the run, which ends at the deadline; the window goes on.
    loaded = min(run.window.end_s - run.window.start_s, load.load_s) / load.window_s
    first_tokens = int(began.sum())
    prompt = float(records.prompt_tokens[began].sum())
    output = float(records.output_tokens.sum())
    computed = float((records.prompt_tokens - records.cached_tokens)[began].sum())
    per = 1.0 / first_tokens if first_tokens else math.nan
    of_each = latencies(records) if wanted else {}
    return Observed(
        tpot_mean_s=_mean(records.tpot_s[done]),
        ttft_mean_s=_mean(ttft[began]),
        queue_mean_s=_mean(records.queue_s[done]),
        prefill_mean_s=_mean(records.prefill_s[done]),
        prompt_tokens_per_s=prompt / load.window_s,
        output_tokens_per_s=output / load.window_s,
        running_mean=replica.mean_running * loaded,
        waiting_mean=replica.mean_waiting * loaded,
        kv_usage_mean=replica.mean_kv_usage * loaded,
        first_tokens=first_tokens,
        finished=int(done.sum()),
        prompt_per_request=prompt * per,
        output_per_request=output * per,
        computed_per_request=computed * per,
        output_log_sd=log_sd_of(records.output_tokens[done]),
        computed_log_sd=log_sd_of((records.prompt_tokens - records.cached_tokens)[done]),
        **{
            name: shape(name, of_each[name.split("_")[0]], quantile)
            for name, quantile in (wanted or {}).items()
        },
    )


def latencies(records: Records) -> dict[str, Floats]:
    """Of each histogram, in s: TTFT of requests that began, the rest of those that finished."""
    began, done = ~np.isnan(records.ttft_s), records.finished
    tpot = records.tpot_s[done]
    return {
        "ttft": records.ttft_s[began],
        "queue": records.queue_s[done],
        "prefill": records.prefill_s[done],
        "tpot": tpot[~np.isnan(tpot)],
    }


def simulated_level(
    load: LevelLoad, server: ServerModel, seed: int, draw: Draw = draw_sessions
) -> SweepLevel:
    """The level that a collector would have recorded."""
    run = run_level(load, server, seed, draw)
    seen = observe(run, load)
    records, replica = run.records, run.replicas[0]
    ttft, done = records.ttft_s, records.finished
    began = ~np.isnan(ttft)
    prompts, outputs = records.prompt_tokens, records.output_tokens
    tokens = token_edges(server.config.max_model_len)
    stats = replica.stats

    def finished(values: np.ndarray, edges: tuple[float, ...] = REQUEST_EDGES_S) -> Histogram:
        return Histogram.of(values[done].tolist(), edges)

    return SweepLevel(
        concurrency=load.concurrency,
        name=f"simulated_c{load.concurrency}",
        window_s=load.window_s,
        load_s=load.load_s,
        requests_finished=seen.finished,
        requests_unfinished=float(len(records) - done.sum()),
        first_tokens=seen.first_tokens,
        prompt_tokens=float(prompts[began].sum()),
        cached_tokens=float(records.cached_tokens[began].sum()),
        generated_tokens=float(outputs.sum()),
        ttft=Histogram.of(ttft[began].tolist(), TTFT_EDGES_S),
        queue=finished(records.queue_s),
        prefill=finished(records.prefill_s),
        decode=finished(records.decode_s),
        inference=finished(records.prefill_s + records.decode_s),
        e2e=finished(records.e2e_s),
        tpot=finished(records.tpot_s, TPOT_EDGES_S),
        prompt_per_request=finished(prompts, tokens),
        output_per_request=finished(outputs, tokens),
        computed_per_request=finished(prompts - records.cached_tokens, tokens),
        running=Gauge(seen.running_mean, float(replica.peak_running)),
        waiting=Gauge(seen.waiting_mean, float(replica.peak_waiting)),
        kv_usage=Gauge(seen.kv_usage_mean, replica.peak_kv_usage),
        preemptions=float(stats.num_preemptions),
        prefix_queries=float(stats.prefix_cache_queries),
        prefix_hits=float(stats.prefix_cache_hits),
    )


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
