"""Leaps over decodes equal the engine that walks every step, for hybrid models and plain ones."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.stepwise.engine import StepwiseEngine
from replicast.sim.engine.stepwise.leaps import HybridEngine
from replicast.sim.kv_groups import KVGroup
from replicast.sim.workload import Segment, cut, num_tokens

sys.path.insert(0, str(Path(__file__).parent))

from engine_cases import Case, EndlessError, draw_case, observe, stepwise_free_queue

CASES = 400
# A chunk in flight frees window blocks two steps later, and lets somebody in.
HARD = (6380,)


def hybrid_case(seed: int) -> Case:
    """A random case with wide blocks and long replies, so that there is something to leap over."""
    rng = random.Random(seed)
    case = draw_case(seed)
    block = rng.choice([8, 16, 32, 64])
    full, states = KVGroup("full", block), KVGroup("mamba", block)
    window = KVGroup("sliding_window", block, rng.choice([block, 3 * block + 1, rng.randint(2, 200)]))
    groups = rng.choice(
        [(full, states, states), (full, window), (full, window, states), (full, window, window), (full,)]
    )
    case.config = replace(
        case.config,
        block_size=block,
        num_gpu_blocks=1 + rng.choice([30, 60, 200]),
        max_num_batched_tokens=max(case.config.max_num_batched_tokens, rng.choice([block, 3 * block + 5])),
        max_model_len=rng.choice([300, 10_000]),
        enable_chunked_prefill=True,
        kv_groups=groups,
        prefix_cache_retention_interval=rng.choice([None, 0, 0, block, 3 * block]) if len(groups) > 1 else 0,
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


def test_leaps_equal_steps() -> None:
    compared = leaps = 0
    for seed in (*HARD, *range(CASES)):
        case = hybrid_case(seed)
        try:
            slow = observe(StepwiseEngine(case.config, case.step_time), case, stepwise_free_queue)
        except (EndlessError, IndexError):
            continue
        engine = HybridEngine(case.config, case.step_time)
        assert observe(engine, case, stepwise_free_queue) == slow, f"seed {seed}"
        compared += 1
        leaps += engine.num_leaps
    assert compared > CASES // 2
    assert leaps > compared


@pytest.mark.parametrize("kind", ["full", "mamba"])
def test_hybrid_models_get_the_engine_that_knows_their_groups(kind: str) -> None:
    groups = (KVGroup("full", 16), KVGroup(kind, 16))  # type: ignore[arg-type]
    config = EngineConfig(num_gpu_blocks=101, kv_groups=groups)
    assert isinstance(make_engine(config, draw_case(0).step_time), HybridEngine)
