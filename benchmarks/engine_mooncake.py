"""How fast the engine alone is: the Mooncake conversation trace on four engines and a bare event heap.

    python benchmarks/engine_mooncake.py ../shared/traces/mooncake/conversation_trace.jsonl

Four engines, block 16, 40,000 blocks each, budget 8192, round robin, arrivals as recorded. Requests are
built before the clock starts. `--profile` prints where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import heapq
import json
import pstats
import resource
import sys
import time
from pathlib import Path

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.compiled import compiled_class, request_class
from replicast.sim.engine.macro import MacroEngine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.request import Request
from replicast.sim.ticks import ticks
from replicast.sim.workload import Segment, cut, join

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from reference.engine import StepwiseEngine

BLOCK = 512  # tokens of one chain id of the trace


def read_requests(
    path: Path, make: type[Request], limit: int | None, speed: float, prompts: int = 1, outputs: int = 1
) -> list[Request]:
    """The trace's requests in order of arrival; each chain id is 512 tokens of stream 0.

    `prompts` and `outputs` make these so many times as long, at equal numbers of segments.
    """
    block = BLOCK * prompts
    requests = []
    with path.open() as lines:
        for i, line in enumerate(lines):
            if i == limit:
                break
            row = json.loads(line)
            tokens, ids = row["input_length"] * prompts, row["hash_ids"]
            made = max(row["output_length"], 1) * outputs
            parts = [Segment(0, chain * block, block) for chain in ids]
            prompt = cut(join(parts), 0, tokens)
            output = (Segment(1 + i, 0, made),)
            arrival = ticks(row["timestamp"] / 1000 / speed)
            requests.append(make(i, prompt, output, tokens, made, arrival_tick=arrival))
    return requests


def run(engines: list[Engine], requests: list[Request]) -> int:
    """Round robin on a bare heap; how many requests finished."""
    events = [(request.arrival_tick, request.request_id, -1) for request in requests]
    heapq.heapify(events)
    due: list[int | None] = [None] * len(engines)
    finished = 0
    order = len(requests)
    pop, push = heapq.heappop, heapq.heappush
    while events:
        now, i, which = pop(events)
        if which < 0:
            which = i % len(engines)
            engine = engines[which]
            engine.submit(requests[i], now)
            if engine.next_tick is None:
                engine.begin(now)
        else:
            engine = engines[which]
            if engine.next_tick != now:
                continue  # it was cut meanwhile
            finished += len(engine.complete(now))
            engine.begin(now)
        tick = engine.next_tick
        if tick is not None and tick != due[which]:
            due[which] = tick
            order += 1
            push(events, (tick, order, which))
    return finished


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals this many times as fast")
    parser.add_argument("--prompts", type=int, default=1, help="prompts this many times as long")
    parser.add_argument("--outputs", type=int, default=1, help="outputs this many times as long")
    parser.add_argument("--blocks", type=int, default=40_000, help="usable KV blocks of an engine")
    parser.add_argument("--engine", choices=["macro", "compiled", "stepwise"], default="macro")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    config = EngineConfig(
        num_gpu_blocks=args.blocks + 1, async_scheduling=not args.sync, max_model_len=10_000_000
    )
    step_time = StepTime.from_seconds(
        memory_fixed_s=0.006,
        memory_per_kv_token_s=1.0e-8,
        memory_per_seq_s=2e-5,
        compute_fixed_s=0.002,
        compute_per_token_s=1.2e-5,
        compute_per_pair_s=1e-10,
    )
    compiled = compiled_class()
    if args.engine == "compiled" and compiled is None:
        parser.error("build it first: python -m replicast.sim.engine.compiled")
    make = {"macro": MacroEngine, "compiled": compiled, "stepwise": StepwiseEngine}[args.engine]
    assert make is not None
    best = 0.0
    for _ in range(args.repeat):
        engines: list[Engine] = [make(config, step_time) for _ in range(4)]
        requests = read_requests(
            args.trace, request_class(engines[0]), args.limit, args.speed, args.prompts, args.outputs
        )
        gc.collect()
        gc.freeze()
        profile = cProfile.Profile() if args.profile else None
        start, cpu_start = time.perf_counter(), time.process_time()
        if profile:
            profile.enable()
        finished = run(engines, requests)
        if profile:
            profile.disable()
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        best = max(best, finished / cpu)
        print(f"{finished} requests in {wall:.3f} s, {cpu:.3f} s of CPU: {finished / cpu:,.0f} requests/s")
        if profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"best {best:,.0f} requests/s of CPU time, peak {peak_mb:.0f} MB")
    totals = [engine.stats for engine in engines]
    hits, queries = sum(s.prefix_cache_hits for s in totals), sum(s.prefix_cache_queries for s in totals)
    print(
        f"hit rate {hits / queries:.4f},"
        f" steps {sum(s.num_steps for s in totals)}, preemptions {sum(s.num_preemptions for s in totals)},"
        f" last finish {max(r.finish_tick or 0 for r in requests) / 1e15:.6f} s"
    )
    if args.engine != "stepwise":
        for name in ("num_jumps", "num_jumped_steps", "num_mixed_steps", "num_single_steps"):
            print(f"{name} {sum(getattr(engine, name) for engine in engines)}", end="  ")
        print()


if __name__ == "__main__":
    main()
