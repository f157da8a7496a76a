"""The bound by hand: X <= min(k / D, N / (R + Z)), from the sessions and the step time alone.

Per session (asymptotic bounds; Denning and Buzen, Computing Surveys 10, 1978):

    D      GPU seconds it cannot do without: uncached tokens with a cache that never forgets, and its
           share of decode steps at the cheapest, the memory side without the fixed part
    R + Z  seconds it lasts when alone: its longest chain of gaps, prefills and decodes

N live sessions ask for N / (R + Z) sessions a second at most, k replicas serve k / D at most. So fewer than
N D / (R + Z) replicas must queue without bound. The bound knows nothing of queues, evictions and bursts:
what the simulator adds to it is the difference between the two answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine.content_tree import ContentTree
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs
from replicast.sim.fleet.config import FrontEnd
from replicast.sim.ticks import TICKS_PER_S
from replicast.sim.workload import Content, Session


class HandBound(NamedTuple):
    """Per request: `demand_s` is D, `cycle_s` is R + Z; `replicas` is N D / (R + Z), rounded up."""

    demand_s: float
    cycle_s: float
    live_sessions: int
    requests_per_s: float
    replicas: int
    sessions_per_replica: float


def hand_bound(
    sessions: Sequence[Session],
    live_sessions: int,
    engine: EngineConfig,
    step_time: StepTime,
    front_end: FrontEnd,
) -> HandBound:
    """Bounds for `live_sessions` that look like `sessions`, served by this engine."""
    tree = ContentTree(engine.block_size)
    speculated = 1 + engine.num_speculative_tokens
    demand = cycle = 0.0
    requests = 0
    for session in sessions:
        ends: list[float] = []
        for turn in session.turns:
            hit = _never_forgotten(tree, turn.prompt) if engine.enable_prefix_caching else 0
            hit = min(hit, (turn.num_prompt_tokens - 1) // engine.block_size * engine.block_size)
            busy, alone = _times(turn.num_prompt_tokens, hit, turn.num_output_tokens, step_time, speculated)
            start = max((ends[before] for before in turn.depends_on), default=0.0)
            gap = turn.delay_s if turn.depends_on else 0.0
            outside = front_end.fixed_s + front_end.per_prompt_token_s * turn.num_prompt_tokens
            ends.append(start + gap + outside + alone + front_end.delivery_s)
            demand += busy
            requests += 1
        cycle += max(ends, default=0.0)
    demand_s, cycle_s = demand / requests, cycle / requests
    rate = live_sessions / cycle_s if cycle_s > 0 else math.inf
    needed = demand_s * rate
    return HandBound(
        demand_s,
        cycle_s,
        live_sessions,
        rate,
        max(1, math.ceil(needed - 1e-9)) if math.isfinite(needed) else live_sessions,
        cycle_s / demand_s if demand_s > 0 else math.inf,
    )


def _never_forgotten(tree: ContentTree, prompt: Content) -> int:
    """Tokens of a prompt, in whole blocks, that an earlier prompt held; the prompt is kept from now on."""
    hits = 0
    for node, end in zip(*tree.path(prompt), strict=True):
        if node.cached_end > node.first_block:
            hits = min(node.cached_end, end)
        node.cached_end = max(node.cached_end, end)
    return hits * tree.block_size


def _times(prompt: int, hit: int, output: int, step: StepTime, speculated: int) -> tuple[float, float]:
    """GPU seconds a request cannot do without, and its seconds when alone."""
    new = prompt - hit
    tail = output - 1
    context = tail * prompt + tail * (tail + 1) // 2
    pairs = row_pairs(hit, new) + context
    compute = step.compute_per_token * (new + tail) + step.compute_per_pair * pairs
    memory = step.memory_per_seq * (1 + tail / speculated) + step.memory_per_kv_token * (
        prompt + context / speculated
    )
    prefill = step.of(StepLoad(new, 1, prompt, row_pairs(hit, new)))
    steps = tail / speculated
    decode = steps * step.memory_fixed + step.memory_per_seq * steps
    decode += step.memory_per_kv_token * context / speculated
    return max(compute, memory) / TICKS_PER_S, (prefill + decode) / TICKS_PER_S
