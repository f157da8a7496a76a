"""A cheap case of planning: a dozen small sessions on a slow engine; an hour takes tens of milliseconds."""

from __future__ import annotations

from replicast.sim.config import EngineArgs
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.replications import Task
from replicast.sim.planning.scenario import Scenario, check_horizon
from replicast.sim.planning.slo import parse_slos
from replicast.sim.workload import Segment, Session, Turn
from replicast.traces.developers import DeveloperLoad, Developers

SHARED_STREAM = 1


def sessions(count: int = 12) -> list[Session]:
    """Sessions that differ in length, growth and pace; prompts begin with 500 shared tokens."""
    out = []
    for i in range(count):
        turns = []
        own = 0
        for t in range(6 + i % 5):
            own += 300 + 150 * (i % 4) + 40 * t
            prompt = (Segment(SHARED_STREAM, 0, 500), Segment(10 + i, 0, own))
            output = 40 + 10 * (t % 3)
            turns.append(
                Turn(
                    f"s{i}#{t}",
                    f"s{i}",
                    (t - 1,) if t else (),
                    20.0 + 15 * ((i + t) % 4) if t else 0.0,
                    prompt,
                    (Segment(10 + i, own, output),),
                    500 + own,
                    output,
                    trigger="user" if t % 3 == 0 else "tool",
                )
            )
            own += output
        out.append(Session(f"s{i}", tuple(turns)))
    return out


def scenario(
    live: int = 8, slo: tuple[str, ...] = ("ttft:p90<6s",), *, seed: int = 5, pool_tokens: int = 40_000
) -> Scenario:
    """`live` developers, all active; a prompt token takes 3 ms of compute, a step 20 ms."""
    fleet = check_horizon(FleetConfig(warmup_s=120.0))
    assert fleet.horizon_s is not None
    load = DeveloperLoad(
        sessions(), Developers(live, 1.0), token_s=0.02, horizon_s=fleet.horizon_s, seed=seed, longest=16_000
    )
    args = EngineArgs(
        device="H100", kv_cache_tokens=pool_tokens, max_model_len=16_000, max_num_batched_tokens=2048,
        max_num_seqs=64, block_size=16,
    )  # fmt: skip
    step = StepTime.from_seconds(memory_fixed_s=0.02, compute_per_token_s=0.003)
    return Scenario(load, args, EngineArgs(), step, fleet, parse_slos(slo), seed)


def ttft_p90(runner: Runner, replicas: int, count: int, first: int = 0) -> list[float]:
    """TTFT p90 of `count` replications."""
    runs = runner.run_all([Task((), replicas, number) for number in range(first, first + count)])
    return [run.ttft_p90_s for run in runs]
