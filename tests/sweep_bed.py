"""Sweeps with a known truth: levels simulated on the engine and scraped each second, clean or with a fault.

Sessions grow turn by turn, some fork sub-agents; N of them are alive for 600 s, then all are killed and the
collector goes on for another 120 s. Gauges, counters and histograms are what a collector would have kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S, token_edges
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.result import RunResult
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Segment, Session, Turn

LOAD_S, WINDOW_S = 600.0, 719.0
LEVELS = (1, 2, 5, 7, 10, 15, 20)
LEAD_S = 2.0
SHARED = 12_000
BLOCK = 256
LONGEST = 200_000


@dataclass(frozen=True, slots=True)
class Bed:
    """A server and the sessions it is asked to serve. `outsiders` are clients that no level knows of."""

    memory_fixed_s: float = 0.012
    compute_per_token_s: float = 1.2e-4
    kv_pool_tokens: int = 2_400_000
    max_num_batched_tokens: int = 8_192
    enable_prefix_caching: bool = True
    first_prompt: float = 25_000.0
    new_tokens: float = 1_800.0
    output_tokens: float = 450.0
    tool_s: float = 1.0
    turns: int = 45
    fan_out: int = 0
    outsiders: int = 0
    broken_prefix: bool = False  # the harness changes each prompt behind its shared part
    load_s: float = LOAD_S  # how long clients really send


def random_bed(seed: int) -> Bed:
    """Any server that a team might have, and any agents."""
    rng = np.random.default_rng([31, seed])
    return Bed(
        memory_fixed_s=float(rng.uniform(0.006, 0.03)),
        compute_per_token_s=float(np.exp(rng.uniform(np.log(3e-5), np.log(3e-4)))),
        kv_pool_tokens=int(np.exp(rng.uniform(np.log(2e6), np.log(8e6)))),
        max_num_batched_tokens=int(rng.choice([2_048, 8_192, 16_384])),
        first_prompt=float(rng.uniform(15_000, 45_000)),
        new_tokens=float(np.exp(rng.uniform(np.log(600), np.log(6_000)))),
        output_tokens=float(np.exp(rng.uniform(np.log(150), np.log(1_200)))),
        tool_s=float(rng.choice([0.05, 0.5, 3.0])),
        turns=int(rng.integers(15, 90)),
        fan_out=int(rng.choice([0, 0, 3, 5])),
    )


def make_sweep(bed: Bed, seed: int, levels: Sequence[int] = LEVELS) -> Sweep:
    """The sweep that a collector's database would give."""
    made = tuple(make_level(bed, c, seed) for c in levels)
    given = Given(
        kv_pool_tokens=bed.kv_pool_tokens,
        max_num_batched_tokens=bed.max_num_batched_tokens,
        enable_prefix_caching=bed.enable_prefix_caching,
    )
    return Sweep(source="simulated", format="duckdb-collector", levels=made, model="simulated", given=given)


def make_level(bed: Bed, concurrency: int, seed: int) -> SweepLevel:
    """One level, as counted."""
    return level_of(run(bed, concurrency, seed), bed, concurrency)


def run(bed: Bed, concurrency: int, seed: int) -> RunResult:
    """The run behind a level, cut at the deadline."""
    args = EngineArgs(
        kv_cache_tokens=bed.kv_pool_tokens // BLOCK * BLOCK,
        block_size=BLOCK,
        max_model_len=min(LONGEST, bed.kv_pool_tokens // BLOCK * BLOCK - BLOCK),
        max_num_batched_tokens=bed.max_num_batched_tokens,
        max_num_seqs=256,
        enable_prefix_caching=bed.enable_prefix_caching,
    )
    config = resolve(args, EngineArgs(vllm_version="0.33.0", device="H200", device_memory_gib=140.4)).config
    steps = StepTime.from_seconds(
        memory_fixed_s=bed.memory_fixed_s,
        memory_per_kv_token_s=8e-9,
        memory_per_seq_s=2e-4,
        compute_fixed_s=0.0,
        compute_per_token_s=bed.compute_per_token_s,
        compute_per_pair_s=2e-10,
    )
    outsiders = [_outsider(bed, seed, i) for i in range(bed.outsiders)]
    own = [_session(bed, seed, concurrency, i, config.max_model_len) for i in range(concurrency * 3 + 8)]
    fleet = FleetConfig(
        router="round-robin",
        loop="closed",
        sessions=concurrency + bed.outsiders,
        stagger_s=0.0,
        think_cap_s=None,
        warmup_s=0.0,
        horizon_s=bed.load_s,
        front_end=FrontEnd(0.026, 1.7e-6, 0.0),
    )
    return simulate([*outsiders, *own], config, steps, fleet, seed=seed, engines=make_engine)


def _session(bed: Bed, seed: int, concurrency: int, index: int, longest: int) -> Session:
    """A main agent, each of whose turns repeats all before it; now and then sub-agents fork and join."""
    rng = np.random.default_rng([41, seed, concurrency, index])
    turns: list[Turn] = []
    stream = 10 + 1_000 * index
    before: tuple[int, ...] = ()
    start, stop = 0, max(round(bed.first_prompt * rng.lognormal(0, 0.3)) - SHARED, 500)
    for t in range(max(round(bed.turns * rng.lognormal(-0.1, 0.5)), 3)):
        if SHARED + stop - start > 0.8 * longest:
            start, stop = stop, stop + 8_000  # compaction: a summary takes the place of all before
        turns.append(_turn(rng, bed, str(t), (stream, start, stop), before))
        main = len(turns) - 1
        before = (main,)
        stop += turns[main].num_output_tokens + max(round(bed.new_tokens * rng.lognormal(-0.3, 0.8)), 20)
        if bed.fan_out and t % 12 == 1:
            before = tuple(_fork(turns, rng, bed, stream + 1 + 10 * t + k, main) for k in range(bed.fan_out))
    return Session(session_id=f"s{index}", turns=tuple(turns))


def _fork(turns: list[Turn], rng: np.random.Generator, bed: Bed, stream: int, main: int) -> int:
    before, stop = main, 3_000
    for k in range(6):
        turns.append(_turn(rng, bed, f"{main}.{stream}.{k}", (stream, 0, stop), (before,)))
        before = len(turns) - 1
        stop += turns[before].num_output_tokens + 2_000
    return before


def _turn(
    rng: np.random.Generator, bed: Bed, name: str, own: tuple[int, int, int], before: tuple[int, ...]
) -> Turn:
    """Shared part, then tokens of one stream, of which the reply is the continuation."""
    stream, start, stop = own
    output = max(round(bed.output_tokens * rng.lognormal(-0.4, 0.9)), 2)
    delay = float(rng.exponential(bed.tool_s)) if before else 0.0
    if bed.broken_prefix:
        stream += 1_000_000 * (1 + start + stop)
    return Turn(
        turn_id=name,
        agent="main",
        depends_on=before,
        delay_s=delay,
        tool_s=delay,
        prompt=(Segment(1, 0, SHARED), Segment(stream, start, stop - start)),
        output=(Segment(stream, stop, output),),
        num_prompt_tokens=SHARED + stop - start,
        num_output_tokens=output,
    )


def _outsider(bed: Bed, seed: int, index: int) -> Session:
    """A client of an earlier run that keeps asking: long prompts, nothing shared."""
    rng = np.random.default_rng([43, seed, index])
    turns = []
    for t in range(40):
        prompt = int(rng.integers(90_000, 150_000))
        turns.append(
            Turn(
                turn_id=f"{t}",
                agent="outsider",
                depends_on=(t - 1,) if t else (),
                delay_s=0.0,
                prompt=(Segment(2_000_000 + index, t * LONGEST, prompt),),
                output=(Segment(3_000_000 + index, t * LONGEST, 300),),
                num_prompt_tokens=prompt,
                num_output_tokens=300,
            )
        )
    return Session(session_id=f"outsider{index}", turns=tuple(turns))


def level_of(result: RunResult, bed: Bed, concurrency: int) -> SweepLevel:
    """Counters and gauges of a run, read from 2 s before the load to the end of the drain."""
    records, stats = result.records, result.replicas[0].stats
    queued = LEAD_S + records.arrival_s + records.front_end_s + records.input_wait_s
    end = LEAD_S + bed.load_s
    scheduled = np.where(np.isnan(records.queue_s), end, queued + np.nan_to_num(records.queue_s))
    first = scheduled + records.prefill_s
    last = np.where(np.isnan(records.decode_s), end, first + np.nan_to_num(records.decode_s))
    last = np.where(records.finished, last, end)
    times = np.arange(0.0, WINDOW_S + 0.5)
    known = ~np.isnan(queued)

    def held(start: np.ndarray, stop: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        seen = (times[:, None] >= start[known]) & (times[:, None] < stop[known])
        return (seen * (1.0 if weight is None else weight[known])).sum(axis=1)

    contexts = (records.prompt_tokens + records.output_tokens / 2.0) / bed.kv_pool_tokens
    usage = np.minimum(held(scheduled, last, contexts), 1.0)
    began, done = ~np.isnan(records.ttft_s), records.finished
    prompts, cached = records.prompt_tokens, records.cached_tokens

    def finished(values: np.ndarray, edges: tuple[float, ...] = REQUEST_EDGES_S) -> Histogram:
        return Histogram.of(values[done].tolist(), edges)

    def gauge(values: np.ndarray) -> Gauge:
        return Gauge.over_time(times.tolist(), values.tolist())

    tokens = token_edges(LONGEST)
    computed, generated = float((prompts - cached)[began].sum()), float(records.output_tokens.sum())
    return SweepLevel(
        concurrency=concurrency,
        name=f"simulated_c{concurrency}",
        window_s=WINDOW_S,
        load_s=LOAD_S,
        requests_finished=float(done.sum()),
        first_tokens=float(began.sum()),
        prompt_tokens=float(prompts[began].sum()),
        cached_tokens=float(cached[began].sum()),
        generated_tokens=generated,
        ttft=Histogram.of(records.ttft_s[began].tolist(), TTFT_EDGES_S),
        queue=finished(records.queue_s),
        prefill=finished(records.prefill_s),
        decode=finished(records.decode_s),
        inference=finished(records.prefill_s + records.decode_s),
        e2e=finished(records.e2e_s),
        tpot=finished(records.tpot_s, TPOT_EDGES_S),
        iteration_tokens=Histogram(sum=computed + generated, count=generated),
        prompt_per_request=finished(prompts, tokens),
        output_per_request=finished(records.output_tokens, tokens),
        computed_per_request=finished(prompts - cached, tokens),
        running=gauge(held(scheduled, last)),
        waiting=gauge(held(queued, scheduled)),
        kv_usage=gauge(usage),
        preemptions=float(stats.num_preemptions),
        prefix_queries=float(stats.prefix_cache_queries),
        prefix_hits=float(stats.prefix_cache_hits),
        scrapes=len(times),
        scrapes_failed=0,
        resets=0,
        largest_gap_s=1.0,
        engines=1,
    )


def summary_of(sweep: Sweep) -> Sweep:
    """The same as a performance summary tells it: means, peaks and rates, no counts and no scrapes."""
    return replace(sweep, format="performance-summary", levels=tuple(map(_summary, sweep.levels)))


def _summary(level: SweepLevel) -> SweepLevel:
    def mean(histogram: Histogram | None) -> Histogram | None:
        return Histogram(given_mean=histogram.mean) if histogram is not None else None

    def peaks(gauge: Gauge | None) -> Gauge | None:
        return Gauge(gauge.mean, gauge.peak) if gauge is not None else None

    return SweepLevel(
        concurrency=level.concurrency,
        name=level.name,
        window_s=level.window_s,
        load_s=level.load_s,
        prompt_tokens=level.prompt_tokens,
        generated_tokens=level.generated_tokens,
        ttft=mean(level.ttft),
        tpot=mean(level.tpot),
        queue=mean(level.queue),
        prefill=mean(level.prefill),
        running=peaks(level.running),
        waiting=peaks(level.waiting),
        kv_usage=peaks(level.kv_usage),
    )
