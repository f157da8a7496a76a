"""Random small workloads on models with several KV groups, for `engine_cases.observe`."""

from __future__ import annotations

import random
from dataclasses import replace

from engine_cases import Case, draw_case
from replicast.sim.kv_groups import KVGroup
from replicast.sim.workload import Segment, cut, num_tokens


def draw_groups(rng: random.Random, block: int, caching: bool) -> tuple[KVGroup, ...]:
    """Groups of all kinds; those with states have equal blocks, as vLLM wants it."""
    full, states = KVGroup("full", block), KVGroup("mamba", block)
    window = KVGroup("sliding_window", block, rng.choice([block, 3 * block + 1, rng.randint(2, 200)]))
    other = KVGroup("sliding_window", block * 2, rng.randint(2, 200))
    if not caching and rng.random() < 0.4:
        states = KVGroup("mamba", rng.choice([block, 10_000]), mamba_cache_mode="none")
    if rng.random() < 0.1:
        states = replace(states, num_speculative_blocks=rng.randint(1, 2))
    return rng.choice(
        [
            (full, states, states),
            (full, window),
            (full, other),
            (full, window, states),
            (full, window, window, window),
            (states, states),
            (full,),
        ]
    )


def hybrid_case(seed: int) -> Case:
    """A random case with wide blocks and long replies, so that there is something to jump over."""
    rng = random.Random(seed)
    case = draw_case(seed)
    block = rng.choice([8, 16, 32, 64])
    groups = draw_groups(rng, block, case.config.enable_prefix_caching)
    chunked = rng.random() < 0.9
    budget = max(case.config.max_num_batched_tokens, rng.choice([block, 3 * block + 5]))
    case.config = replace(
        case.config,
        block_size=groups[0].block_size if groups[0].block_size < 10_000 else block,
        num_gpu_blocks=1 + rng.choice([30, 60, 200]),
        max_num_batched_tokens=budget if chunked else max(budget, 300),
        max_model_len=rng.choice([300, 10_000]) if chunked else 300,
        enable_chunked_prefill=chunked,
        kv_groups=groups,
        prefix_cache_retention_interval=rng.choice([None, 0, 0, 2 * block, 4 * block])
        if len(groups) > 1
        else 0,
    )
    for plan in case.plans:
        plan.max_tokens = rng.choice([plan.max_tokens, rng.randint(1, 150)])
        grown = cut((*plan.prompt, Segment(rng.choice([1, 2]), 0, rng.randint(0, 4 * block))), 0, 250)
        plan.prompt = grown if num_tokens(grown) else plan.prompt
        plan.output = (Segment(rng.choice([2, 77, 1000 + len(plan.prompt)]), 0, plan.max_tokens),)
        if plan.abort_tick is not None:
            plan.abort_tick *= rng.choice([1, 20])
        plan.tick *= rng.choice([1, 5, 30])
    return case
