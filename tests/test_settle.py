"""A run that ends in the middle of a jump writes down what stepping would have delivered by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from reference.engine import StepwiseEngine
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.engine.macro import MacroEngine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.kv_groups import KVGroup
from replicast.sim.request import Request
from replicast.sim.ticks import Tick
from replicast.sim.workload import Segment

Case = tuple[EngineConfig, StepTime, list[Request], Tick]
Seen = tuple[int, Tick | None, Tick | None, Tick | None, Tick | None]


def case(seed: int, block_size: int) -> Case:
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    config = EngineConfig(
        num_gpu_blocks=draw(1000, 6400) // block_size,
        block_size=block_size,
        max_num_batched_tokens=int(rng.choice([64, 256, 2048])),
        max_num_seqs=int(rng.choice([2, 8, 32])),
        max_model_len=900,
        async_scheduling=bool(draw(0, 2)),
        rules="0.33.0" if draw(0, 2) else "0.25.1",
    )
    times = StepTime(draw(1, 50), draw(0, 3), draw(0, 3), draw(1, 50), draw(0, 3), 0)
    requests, now = [], 0
    for i in range(draw(2, 14)):
        now += draw(0, 400)
        prompt, output = draw(1, 500), draw(1, 60)
        requests.append(
            Request(
                request_id=i,
                prompt=(Segment(draw(0, 3), 0, prompt),),
                output=(Segment(100 + i, 0, output),),
                num_prompt_tokens=prompt,
                max_tokens=output,
                stops_at_eos=bool(draw(0, 2)),
                arrival_tick=now,
            )
        )
    return config, times, requests, draw(1, now + 3000)


def run_until(make: Callable[[EngineConfig, StepTime], Engine], case: Case) -> list[Seen]:
    """What is known of each request when the run ends; what is due at that tick has not happened."""
    config, times, requests, end = case
    engine, coming = make(config, times), list(requests)
    while True:
        due = engine.next_tick
        ticks = [tick for tick in (due, coming[0].arrival_tick if coming else None) if tick is not None]
        if not ticks or min(ticks) >= end:
            break
        now = min(ticks)
        if due == now:
            engine.complete(now)
        while coming and coming[0].arrival_tick == now:
            engine.submit(coming.pop(0), now)
        if due == now or engine.next_tick is None:
            engine.begin(now)
    engine.settle(end)
    return [
        (r.num_output_tokens, r.first_token_tick, r.queued_tick, r.scheduled_tick, r.finish_tick)
        for r in requests
    ]


@pytest.mark.parametrize("seed", [*range(150), 1023, 1388, 2432, 13377, 20755])
def test_jumps_settle_as_steps_do(seed: int) -> None:
    assert run_until(MacroEngine, case(seed, 16)) == run_until(StepwiseEngine, case(seed, 16))


@pytest.mark.parametrize("seed", range(100))
def test_hybrid_jumps_settle_as_steps_do(seed: int) -> None:
    groups = (
        (KVGroup("full", 64), KVGroup("mamba", 64)),
        (KVGroup("full", 64), KVGroup("sliding_window", 64, 99)),
    )
    config, *rest = case(seed, 64)
    hybrid = replace(config, kv_groups=groups[seed % 2])
    assert run_until(HybridEngine, (hybrid, *case(seed, 64)[1:])) == run_until(
        StepwiseEngine, (hybrid, *rest)
    )
