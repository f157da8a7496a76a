"""A pinned hit rate: by hand, and the fast engine against the one that walks every step and block."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.engine import StepwiseEngine
from reference.kv_cache import KVCacheManager
from replicast.sim.config import EngineConfig
from replicast.sim.engine.pinned import pinned_engines, pinned_hit_tokens
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.request import Request
from replicast.sim.workload import Segment

sys.path.insert(0, str(Path(__file__).parent))
from engine_cases import EndlessError, draw_case, drive


class PinnedManager(KVCacheManager):
    """Every first admission hits its share, whatever is cached; the blocks are new ones."""

    rate: float
    scheduler: Any

    def get_computed_blocks(self, held: Any, num_tokens: int) -> Any:
        request = self.scheduler.waiting.peek()
        hits = 0 if request.num_preemptions else pinned_hit_tokens(self.rate, num_tokens, self.block_size)
        return SimpleNamespace(num_tokens=hits)

    def admit(self, held: Any, hit: Any, num_new: int, num_tokens: int, **rest: bool) -> bool:
        return super().admit(held, self._no_hit, hit.num_tokens + num_new, num_tokens, **rest)


def oracle(config: EngineConfig, step_time: StepTime, rate: float) -> StepwiseEngine:
    engine = StepwiseEngine(replace(config, enable_prefix_caching=False), step_time)
    manager: Any = engine._scheduler.kv_cache
    manager.__class__ = PinnedManager
    manager.rate, manager.scheduler, manager.block_size = rate, engine._scheduler, config.block_size
    return engine


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.14, 0.5, 0.9, 1.0]))
def test_fast_engine_equals_the_stepwise_one(seed: int, rate: float) -> None:
    case = draw_case(seed)
    seen = []
    for engine in (
        pinned_engines(rate)(case.config, case.step_time),
        oracle(case.config, case.step_time, rate),
    ):
        try:
            requests, finishes = drive(engine, case)
        except EndlessError:
            seen.append(None)
            continue
        rows = [
            (
                (r.status, r.queued_tick, r.scheduled_tick, r.first_token_tick, r.finish_tick),
                (r.num_cached_tokens, tuple(r.resumed_hit_tokens), r.num_preemptions, r.num_output_tokens),
            )
            for r in requests
        ]  # fmt: skip
        seen.append((rows, finishes, engine.kv_cache_usage))
    if None not in seen:
        assert seen[0] == seen[1]


def test_hits_by_hand_and_blocks_are_not_shared() -> None:
    """P = 100, B = 16: floor(0.6 x 99 / 16) = 3 blocks; two equal prompts hold 7 blocks each."""
    config = EngineConfig(num_gpu_blocks=101, max_num_batched_tokens=8192, max_num_seqs=4)
    engine = pinned_engines(0.6)(config, StepTime(10, 0, 0, 0, 1, 0))
    requests = [Request(i, (Segment(1, 0, 100),), (), 100, 5) for i in range(2)]
    for request in requests:
        engine.submit(request, 0)
    engine.begin(0)
    assert [request.num_cached_tokens for request in requests] == [48, 48]
    assert engine.kv_cache_usage == pytest.approx(14 / 100)
    assert engine.stats.prefix_cache_hits == 0  # content look-up is off
    assert engine.next_tick is not None


def test_rate_zero_is_caching_off() -> None:
    for seed in range(30):
        case = draw_case(seed, "plain")
        case = replace(case, config=replace(case.config, enable_prefix_caching=False))
        engines = (
            pinned_engines(0.0)(case.config, case.step_time),
            StepwiseEngine(case.config, case.step_time),
        )
        ends = [[(r.first_token_tick, r.finish_tick) for r in drive(engine, case)[0]] for engine in engines]
        assert ends[0] == ends[1]


def test_rates_beyond_one() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        pinned_engines(1.2)
