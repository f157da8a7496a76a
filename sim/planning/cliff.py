"""The hit rate against the KV pool, for a few numbers of live sessions: where reuse falls off.

One hour a point: the cliff is tens of points high, hours differ by a few.
"""

from __future__ import annotations

from typing import NamedTuple

from replicast.sim.planning.changes import Change, Variant
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.replications import Task

POOLS = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
LIVE = (0.5, 1.0, 2.0)


class CliffPoint(NamedTuple):
    """One run: pool of a replica in tokens, live sessions of the fleet, and what was hit."""

    pool_tokens: int
    live_sessions: int
    hit_rate: float
    ttft_p90_s: float


def cache_cliff(runner: Runner, replicas: int) -> list[CliffPoint]:
    """Hit rates with `replicas`, pools from an eighth to twice the plan's, half to twice the sessions."""
    tasks: list[Task] = []
    engine = runner.scenario.study().engine
    tokens = engine.num_usable_blocks * engine.block_size
    for live in LIVE:
        for pool in POOLS:
            changes: list[Change] = []
            if live != 1.0:
                changes.append(Change("sessions-each", f"x{live:g}"))
            if pool != 1.0:
                changes.append(Change("kv-pool", f"x{pool:g}"))
            variant: Variant = tuple(changes)
            if pool >= 1 or pool * tokens >= engine.max_model_len:  # vLLM refuses to boot with less
                tasks.append(Task(variant, replicas, 0))
    points = []
    for task, run in zip(tasks, runner.run_all(tasks), strict=True):
        engine = runner.scenario.study(task.variant).engine
        tokens = engine.num_usable_blocks * engine.block_size
        points.append(CliffPoint(tokens, run.live_sessions, run.hit_rate, run.ttft_p90_s))
    return points
