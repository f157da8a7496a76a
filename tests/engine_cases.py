"""Random small workloads, and a driver that runs one through an engine as a fleet would.

`observe` gives all that two engines must agree on. A case is drawn from one seed, so a failure is
one number; `tests/fuzz_engines.py` draws many.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from reference.block_hash import BlockHashes
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.compiled import request_class
from replicast.sim.engine.content_tree import ContentTree, Node
from replicast.sim.engine.step_time import StepTime
from replicast.sim.kv_groups import hash_block_size
from replicast.sim.request import Request
from replicast.sim.workload import Content, Segment, cut, join, num_tokens

MAX_EVENTS = 4000  # preemption can livelock, in vLLM too


class EndlessError(Exception):
    """The case does not end in reasonable time; nothing can be compared."""


@dataclass(slots=True)
class Plan:
    """One request to come: at `tick`, or `delay` after request number `after` has finished."""

    prompt: Content
    output: Content
    max_tokens: int
    tick: int = 0
    after: int | None = None
    delay: int = 0
    stops_at_eos: bool = False
    priority: int = 0
    abort_tick: int | None = None


@dataclass(slots=True)
class Case:
    """A workload, the engine it meets, and how long steps take."""

    config: EngineConfig
    step_time: StepTime
    plans: list[Plan] = field(default_factory=list)


def drive(engine: Engine, case: Case) -> tuple[list[Request], list[tuple[int, int]]]:
    """Run `case` to its end: all requests, and (tick, number) of finishes in order."""
    make = request_class(engine)
    requests = [
        make(i, p.prompt, p.output, num_tokens(p.prompt), p.max_tokens, p.stops_at_eos, p.priority)
        for i, p in enumerate(case.plans)
    ]
    events: list[tuple[int, int, str, int]] = []
    order = 0
    for i, plan in enumerate(case.plans):
        if plan.after is None:
            heapq.heappush(events, (plan.tick, order := order + 1, "submit", i))
        if plan.abort_tick is not None:
            heapq.heappush(events, (plan.abort_tick, order := order + 1, "abort", i))
    submitted: set[int] = set()
    finishes: list[tuple[int, int]] = []
    for _ in range(MAX_EVENTS):
        ticks = [t for t in (engine.next_tick, events[0][0] if events else None) if t is not None]
        if not ticks:
            return requests, finishes
        now = min(ticks)
        turn = engine.next_tick == now
        if turn:
            for request in engine.complete(now):
                finishes.append((now, request.request_id))
                for i, plan in enumerate(case.plans):
                    if plan.after == request.request_id:
                        heapq.heappush(events, (now + plan.delay, order := order + 1, "submit", i))
        while events and events[0][0] == now:
            _, _, kind, i = heapq.heappop(events)
            if kind == "submit":
                submitted.add(i)
                engine.submit(requests[i], now)
            elif i in submitted and requests[i].finish_tick is None:
                engine.abort(requests[i], now)
        if not turn and engine.next_tick == now:  # a jump was cut at this very tick
            assert not engine.complete(now)
            turn = True
        if turn or engine.next_tick is None:
            engine.begin(now)
    raise EndlessError


def observe(
    engine: Engine, case: Case, free_queue: Callable[[Any, list[Request]], list[Any]]
) -> dict[str, Any]:
    """All that must be equal of a run."""
    requests, finishes = drive(engine, case)
    rows = [
        (
            r.request_id,
            r.status.name,
            r.queued_tick,
            r.scheduled_tick,
            r.first_token_tick,
            r.finish_tick,
            r.num_cached_tokens,
            tuple(r.resumed_hit_tokens),
            r.num_preemptions,
            r.num_output_tokens,
        )
        for r in requests
    ]
    return {
        "requests": rows,
        "finishes": finishes,
        "stats": engine.stats,
        "usage": engine.kv_cache_usage,
        "left": (engine.num_running, engine.num_waiting),
        "free_queue": free_queue(engine, requests),
    }


def draw_case(seed: int, features: str = "") -> Case:
    """A small random case; `features` names what it must have ("async", "plain", "tight")."""
    rng = random.Random(seed)
    config = _draw_config(rng, features)
    case = Case(config, _draw_step_time(rng))
    step = max(case.step_time.memory_fixed, case.step_time.compute_fixed, 1)
    span = step * rng.choice([1, 10, 100])
    open_loop = rng.random() < 0.3
    known: list[Content] = []
    priorities = rng.choice([1, 3]) if config.scheduling_policy == "priority" else 1
    for i in range(rng.randint(1, 14)):
        base: Content = ()
        after = None
        if known and rng.random() < 0.75:
            parent = rng.randrange(len(known))
            base = known[parent]
            if rng.random() < 0.4:
                base = cut(base, 0, rng.randint(1, num_tokens(base)))
            if not open_loop and rng.random() < 0.7:
                after = parent
        new = rng.choice([0, rng.randint(1, 3 * config.block_size), rng.randint(1, 60)])
        prompt = join((*base, Segment(rng.choice([1, 2, 3, 100 + i]), rng.choice([0, 0, 5]), new)))
        if rng.random() < 0.3:
            prompt = cut(prompt, 0, max(num_tokens(prompt) // config.block_size, 1) * config.block_size)
        prompt = cut(prompt, 0, config.max_model_len - 1) or (Segment(9, 0, 1),)
        max_tokens = rng.choice([1, 2, rng.randint(1, 40), rng.randint(1, 12)])
        output = (Segment(rng.choice([1000 + i, 1000 + i, 1000 + i, 7]), 0, max_tokens),)
        if rng.random() < 0.3:  # the reply goes on where the prompt's stream ends
            stream, offset, length = prompt[-1]
            output = (Segment(stream, offset + length, max_tokens),)
        if rng.random() < 0.1:
            output = cut(output, 0, max_tokens // 2)
        known.append(join((*prompt, *output)) if rng.random() < 0.7 else prompt)
        tick = rng.randint(0, span)
        if rng.random() < 0.4:
            tick = tick // step * step
        case.plans.append(
            Plan(
                prompt,
                output,
                max_tokens,
                tick,
                after,
                rng.choice([0, 0, 1, step, rng.randint(0, span)]),
                rng.random() < 0.4,
                rng.randrange(priorities),
                rng.randint(tick, tick + 2 * span) if rng.random() < 0.08 else None,
            )
        )
    return case


def _draw_config(rng: random.Random, features: str) -> EngineConfig:
    block_size = rng.choice([1, 2, 3, 4, 4, 16])
    seqs = rng.choice([1, 2, 3, 8])
    budget = max(seqs, rng.choice([4, 7, 16, 32, 100]))
    config = EngineConfig(
        num_gpu_blocks=1 + rng.choice([6, 12, 25, 60, 200]) * rng.choice([1, 1, max(1, 8 // block_size)]),
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=rng.choice([20, 50, 120, 10_000, 10_000]),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.85,
        scheduler_reserve_full_isl=rng.random() < 0.6,
        watermark=rng.choice([0.0, 0.0, 0.0, 0.1]),
        async_scheduling=rng.random() < 0.5,
        scheduling_policy=rng.choice(["fcfs", "fcfs", "priority"]),
        rules=rng.choice(["0.25.1", "0.33.0"]),
    )
    if rng.random() < 0.2:
        config = replace(config, long_prefill_token_threshold=rng.choice([1, 3, 8, 20]))
        if rng.random() < 0.2:
            config = replace(config, long_prefill_token_threshold_adaptive=True)
    if rng.random() < 0.1:
        config = replace(
            config, enable_chunked_prefill=False, max_num_batched_tokens=max(budget, config.max_model_len)
        )
    if rng.random() < 0.1 and "plain" not in features:
        config = replace(
            config,
            num_speculative_tokens=rng.choice([1, 3]),
            spec_accept=tuple(rng.choices([0, 1, 2, 3], k=3)),
            num_lookahead_tokens=rng.choice([0, 0, 2]),
        )
    if rng.random() < 0.05:
        config = replace(config, max_num_scheduled_tokens=max(1, budget - rng.randint(0, seqs)))
    if rng.random() < 0.05:
        config = replace(config, max_num_active_seqs=rng.randint(1, seqs))
    if rng.random() < 0.05:
        config = replace(config, prefill_schedule_interval=rng.randint(2, 4))
    if "plain" in features:
        config = replace(config, long_prefill_token_threshold=0, scheduling_policy="fcfs")
    if "tight" in features:  # the pool is what binds
        config = replace(
            config,
            max_num_seqs=8,
            max_num_batched_tokens=max(100, config.max_num_batched_tokens),
            num_gpu_blocks=1 + 60 // block_size + rng.randint(0, 60 // block_size),
            scheduling_policy=rng.choice(["fcfs", "priority"]),
            long_prefill_token_threshold=0,
        )
    if "async" in features:
        config = replace(config, async_scheduling=True)
    if "sync" in features:
        config = replace(config, async_scheduling=False)
    return config


def _draw_step_time(rng: random.Random) -> StepTime:
    kind = rng.random()
    if kind < 0.25:  # every step alike: arrivals fall on boundaries
        return StepTime(rng.choice([1, 10]), 0, 0, 0, 0, 0)
    if kind < 0.3:
        return StepTime(0, rng.randint(0, 2), 0, 0, rng.randint(0, 2), rng.randint(0, 1))
    scale = rng.choice([10, 1000])
    return StepTime(
        rng.randint(0, scale),
        rng.randint(0, 3),
        rng.randint(0, scale // 5),
        rng.randint(0, scale),
        rng.randint(0, scale // 5),
        rng.randint(0, 2),
    )


def stepwise_free_queue(engine: Any, requests: list[Request]) -> list[int | None]:
    """What the free blocks cache, in the order in which they will be taken."""
    pool = engine._scheduler.kv_cache.pool
    return [pool.block_hash[block] for block in pool.free_queue]


def hybrid_free_queue(engine: Any, requests: list[Request]) -> list[int | None]:
    """The same of the product's engine of hybrid models, where some entries are single blocks."""
    config = engine.config
    return _free_names(
        engine.cache, requests, hash_block_size(config.kv_groups, config.enable_prefix_caching)
    )


def macro_free_queue(engine: Any, requests: list[Request]) -> list[int | None]:
    """The same, where the queue holds intervals: each block is looked up by its node's content."""
    cache = engine.scheduler.kv_cache
    return _free_names(cache, requests, cache.block_size)


def _free_names(cache: Any, requests: list[Request], step: int) -> list[int | None]:
    """What the free blocks cache, as vLLM's hashes of every `step` tokens call it."""
    names: dict[tuple[int, Any, int], int] = {}
    sizes = {tree.block_size for tree in getattr(cache, "_trees", [cache.tree])}
    for request in requests if cache.enable_caching else []:
        missing = request.max_tokens - num_tokens(request.output)
        private = Segment(-1 - request.request_id, 0, missing)
        content = (*request.prompt, *request.output, private)
        total = num_tokens(content[:-1]) + max(missing, 0)
        hashes = BlockHashes(request.prompt, request.output, request.max_tokens, step, private.stream)
        values = hashes.first(total // step)
        for size in sizes:
            nodes, ends = ContentTree(size).path(content)
            for block in range(total // size):
                node = nodes[bisect_right(ends, block)]
                names[size, _structure(node), block] = values[(block + 1) * size // step - 1]
    found: list[int | None] = [None] * cache.unhashed
    for entry in cache.queue:
        size = entry.table.tree.block_size if hasattr(entry, "table") else cache.block_size
        if hasattr(entry, "spans"):
            found += [names[size, _structure(node), block] for _, (node, block) in entry.blocks()]
            continue
        for block in range(entry.high - 1, entry.low - 1, -1):
            found.append(names[size, _structure(entry.node), block])
    return found


def _structure(node: Node | None) -> Any:
    """A node's content, whichever tree it is in."""
    if node is None or node.key is None:
        return None
    return (_structure(node.parent), *node.key[1:])
