"""Counters of one engine."""

from __future__ import annotations

from dataclasses import astuple, dataclass, is_dataclass

from replicast.sim.ticks import Tick


@dataclass(slots=True)
class EngineStats:
    """Counters as vLLM exports them, and a few that it does not. All only grow.

    `prefix_cache_requests/queries/hits` are look-ups and tokens of first admissions, with the
    version's own counting (0.25 counts each retry of a blocked head; RULES section 10).
    `busy_ticks` is time with a step on the GPU. `step_token_sum` is the sum of scheduled tokens,
    `peak_used_blocks` the most blocks held by requests at one time.
    """

    num_steps: int = 0
    step_token_sum: int = 0
    peak_used_blocks: int = 0
    busy_ticks: Tick = 0
    num_preemptions: int = 0
    prefix_cache_requests: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def __eq__(self, other: object) -> bool:
        """Equal are those that count the same: a compiled engine has a class of its own."""
        return is_dataclass(other) and not isinstance(other, type) and astuple(self) == astuple(other)
