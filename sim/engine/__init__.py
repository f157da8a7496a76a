"""ONE replica: no clock, no files, no random numbers, no SimPy.

`Engine` is all that a fleet knows of it. The fleet owns the clock and calls, at each tick,
in this order: `complete` (the step that ends now), then replies and arrivals of the same tick
(`submit`), then `begin` (the next step). So a freed seat, a reply and an arrival at one
instant are all seen by the step that starts then, as in vLLM's loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from replicast.sim.request import Request
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


class Engine(Protocol):
    """One vLLM engine on the fleet's clock."""

    stats: EngineStats

    @property
    def next_tick(self) -> Tick | None:
        """When `complete` must be called next; None if nothing is in flight.

        May move earlier after a `submit` (a jump is cut), never later.
        """

    @property
    def num_running(self) -> int:
        """Requests in `running`."""

    @property
    def num_waiting(self) -> int:
        """Requests in `waiting`, those still in the input queue included."""

    @property
    def kv_cache_usage(self) -> float:
        """1 - free/usable; idle cached blocks count as free (RULES section 10)."""

    def submit(self, request: Request, now: Tick) -> None:
        """Put a request into the input queue; the scheduler takes it at the next step boundary."""

    def abort(self, request: Request, now: Tick) -> None:
        """Drop a request wherever it is, at the next step boundary."""

    def complete(self, now: Tick) -> list[Request]:
        """Process the output due at `now` (= `next_tick`); the requests that finished, in output order."""

    def settle(self, now: Tick) -> None:
        """The run ends at `now`, perhaps inside a jump: bring live requests' counts and ticks there.

        What is due at `now` itself has not happened. The engine must not be used afterwards.
        """

    def begin(self, now: Tick) -> None:
        """Take in the input queue and start steps until one must be waited for.

        Call it after `complete`, and after `submit` while `next_tick` is None.
        """
