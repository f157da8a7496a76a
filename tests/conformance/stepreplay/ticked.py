"""Runs a scenario with a clock through the engine that fleets use, on ticks."""

from __future__ import annotations

from collections.abc import Mapping

from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.request import Request
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Content, cut, join, num_tokens

from .scenario import RequestSpec, Scenario


def run_on_ticks(scenario: Scenario) -> Mapping[str, Request]:
    """All requests as served; one with `after` arrives `delay_s` after the other's finish."""
    assert scenario.clock, "only scenarios with a clock say how long a step takes"
    step_time = StepTime.from_seconds(
        memory_fixed_s=0.0,
        compute_fixed_s=scenario.clock.base_s,
        compute_per_token_s=scenario.clock.per_token_s,
    )
    engine = make_engine(scenario.config, step_time)
    served: dict[str, Request] = {}
    ahead: list[tuple[Tick, int, RequestSpec]] = [
        (ticks(spec.arrival_s or 0.0), spec.index, spec) for spec in scenario.requests if spec.after is None
    ]
    while ahead or engine.next_tick is not None:
        ahead.sort()
        times = [engine.next_tick, ahead[0][0] if ahead else None]
        now = min(tick for tick in times if tick is not None)
        is_due = engine.next_tick == now
        for request in engine.complete(now) if is_due else []:
            ahead += [
                (now + ticks(spec.delay_s), spec.index, spec)
                for spec in scenario.requests
                if spec.after == request.tag
            ]
        ahead.sort()
        while ahead and ahead[0][0] <= now:
            spec = ahead.pop(0)[2]
            served[spec.id] = _request(spec, served)
            engine.submit(served[spec.id], now)
        if is_due or engine.next_tick is None:
            engine.begin(now)
    return served


def _request(spec: RequestSpec, served: Mapping[str, Request]) -> Request:
    inherited: Content = ()
    if spec.prompt_from is not None:
        source = served[spec.prompt_from]
        inherited = cut((*source.prompt, *source.output), 0, source.num_tokens)
    prompt = join((*inherited, *spec.prompt))
    return Request(
        request_id=spec.index,
        prompt=prompt,
        output=spec.output,
        num_prompt_tokens=num_tokens(prompt),
        max_tokens=spec.stops_at or spec.output_len,
        stops_at_eos=spec.stops_at is not None,
        priority=spec.priority,
        tag=spec.id,
    )
