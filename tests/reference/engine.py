"""A replica that runs every step: the scheduler's calls placed on the clock.

vLLM's loop (`vllm/v1/engine/core.py`, `step` and `step_with_batch_queue`), one turn:

1. Take in what has arrived, then schedule a step and launch it. The GPU does one step at a time.
2. Synchronous: wait for its output. Asynchronous: two steps may be in flight, so schedule the
   next one at once, and only then wait for the older one.
3. `update_from_output`, and again.

So an arrival waits for the loop's next turn, and with async scheduling its step runs after
one that was scheduled before it came. Scheduling itself takes no time here. If nothing could
be scheduled though somebody waits, vLLM sleeps 1 ms and tries again; we stop trying where
nothing can change before the next arrival (a prompt that fits into no pool blocks the queue
for ever, in vLLM too).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import TICKS_PER_MS, Tick

from reference.output import SchedulerOutput
from reference.scheduler import Scheduler

SLEEP = TICKS_PER_MS


class StepInFlight(NamedTuple):
    """A step launched and not yet updated from."""

    output: SchedulerOutput
    end: Tick


def load_of(output: SchedulerOutput) -> StepLoad:
    """What the GPU computes in a step."""
    tokens = kv_tokens = pairs = 0
    for row in output.rows:
        n, c = row.num_scheduled_tokens, row.num_computed_tokens
        tokens += n
        kv_tokens += c + n
        pairs += row_pairs(c, n)
    return StepLoad(tokens, len(output.rows), kv_tokens, pairs)


class StepwiseEngine:
    """`Engine` by the rules, step by step and block by block. Exact and slow."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self.config = config
        self.stats = EngineStats()
        self._step_time = step_time
        self._scheduler = Scheduler(config, self.stats)
        self._depth = 2 if config.async_scheduling else 1
        self._input_queue: list[Request] = []
        self._aborts: list[Request] = []
        self._in_flight: deque[StepInFlight] = deque()  # oldest first
        self._gpu_free: Tick = 0
        self._wake: Tick | None = None  # end of a 1 ms sleep

    @property
    def next_tick(self) -> Tick | None:
        """End of the oldest step in flight, or of the loop's sleep."""
        return self._in_flight[0].end if self._in_flight else self._wake

    @property
    def num_running(self) -> int:
        """Requests in `running`."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in `waiting` and in the input queue."""
        return len(self._scheduler.waiting) + len(self._input_queue)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        return self._scheduler.kv_cache.usage

    def submit(self, request: Request, now: Tick) -> None:
        """Put a request into the input queue."""
        request.arrival_tick = now
        self._input_queue.append(request)

    def abort(self, request: Request, now: Tick) -> None:
        """Drop a request at the loop's next turn; now, if the loop rests."""
        self._aborts.append(request)
        if self.next_tick is None:
            self._drain_input(now)

    def settle(self, now: Tick) -> None:
        """Requests are up to date at every tick."""

    def complete(self, now: Tick) -> list[Request]:
        """Update from the step that ends now."""
        if not self._in_flight:
            self._wake = None
            return []
        finished = []
        for request, _, is_finished in self._scheduler.update_from_output(self._in_flight.popleft().output):
            if request.first_token_tick is None:
                request.first_token_tick = now
            if is_finished:
                request.finish_tick = now
                finished.append(request)
        return finished

    def begin(self, now: Tick) -> None:
        """Turn the loop until it must wait."""
        while len(self._in_flight) < self._depth and self._wake is None:
            self._drain_input(now)
            if not self._scheduler.has_unfinished_requests:
                return
            output = self._schedule()
            if output.rows:
                self._launch(output, now)
            elif self._in_flight or not (output.preempted or self._scheduler.running):
                return  # only an update or an arrival can change anything
            elif self._depth == 1:
                self._wake = now + SLEEP

    def _schedule(self) -> SchedulerOutput:
        return self._scheduler.schedule()

    def _drain_input(self, now: Tick) -> None:
        for request in self._input_queue:
            request.queued_tick = now
            self._scheduler.add_request(request)
        self._input_queue.clear()
        for request in self._aborts:
            if request.status < RequestStatus.FINISHED_STOPPED:
                self._scheduler.abort(request)
        self._aborts.clear()

    def _launch(self, output: SchedulerOutput, now: Tick) -> None:
        for row in output.rows:
            if row.request.scheduled_tick is None:
                row.request.scheduled_tick = now
        load = load_of(output)
        duration = self._step_time.of(load)
        self._gpu_free = max(now, self._gpu_free) + duration
        self._in_flight.append(StepInFlight(output, self._gpu_free))
        stats = self.stats
        stats.num_steps += 1
        stats.step_token_sum += load.num_tokens
        stats.busy_ticks += duration
        used = self.config.num_usable_blocks - self._scheduler.kv_cache.pool.num_free_blocks
        stats.peak_used_blocks = max(stats.peak_used_blocks, used)
