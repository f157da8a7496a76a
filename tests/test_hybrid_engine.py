"""Jumps over several KV groups equal the engine that walks every step and touches every block."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from reference.engine import StepwiseEngine
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.kv_groups import KVGroup
from replicast.sim.workload import Segment, cut, num_tokens

sys.path.insert(0, str(Path(__file__).parent))

from engine_cases import Case, EndlessError, draw_case, hybrid_free_queue, observe, stepwise_free_queue

CASES = 300
# A chunk in flight frees window blocks two steps later, and lets somebody in.
HARD = (6380,)


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


def test_jumps_equal_steps() -> None:
    compared = jumped = stepped = 0
    for seed in (*HARD, *range(CASES)):
        case = hybrid_case(seed)
        try:
            slow = observe(StepwiseEngine(case.config, case.step_time), case, stepwise_free_queue)
        except (EndlessError, IndexError):
            continue
        engine = HybridEngine(case.config, case.step_time)
        assert observe(engine, case, hybrid_free_queue) == slow, f"seed {seed}"
        compared += 1
        jumped += engine.num_jumped_steps
        stepped += engine.num_single_steps
    assert compared > CASES // 2
    assert jumped > 3 * stepped


@pytest.mark.parametrize("kind", ["full", "mamba"])
def test_hybrid_models_get_the_engine_that_knows_their_groups(kind: str) -> None:
    groups = (KVGroup("full", 16), KVGroup(kind, 16))  # type: ignore[arg-type]
    config = EngineConfig(num_gpu_blocks=101, kv_groups=groups)
    assert isinstance(make_engine(config, draw_case(0).step_time), HybridEngine)
