"""One vLLM engine on the fleet's clock: exact, and as fast as what happens, not as what is computed.

The loop of vLLM (`vllm/v1/engine/core.py`): take in what has arrived, make the next step, wait for the
output, and again; asynchronous, the next step is made before the output of the last one is waited for.
Here the loop turns once a *jump* (`jumps.py`): so many steps as decide nothing new. What a jump cannot
hold is done row by row (`scheduler.py`): preemption, thresholds with a half-done prompt, speculation.
`conversion.py` carries the state across, `num_single_steps` counts how often.
"""

from __future__ import annotations

from collections import deque

from replicast.sim.config import EngineConfig
from replicast.sim.engine.conversion import can_jump, enter_jumps, leave_jumps
from replicast.sim.engine.interface import Engine
from replicast.sim.engine.mixed_step import MixedSteps
from replicast.sim.engine.request_state import RequestState, SchedulerOutput
from replicast.sim.engine.scheduler import RUNNING
from replicast.sim.engine.settle import settle
from replicast.sim.engine.step_time import StepLoad, StepTime, row_pairs
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import TICKS_PER_MS, Tick


class MacroEngine(MixedSteps, Engine):  # type: ignore[misc, unused-ignore]  # compiled: its own `EngineStats`
    """`Engine` by jumps."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        super().__init__(config, step_time)
        self.may_jump = (
            config.num_speculative_tokens == 0
            and config.num_lookahead_tokens == 0
            and (config.prefill_schedule_interval == 1 or self.is_25)
        )
        self.is_jumping = self.may_jump
        self.in_flight: deque[tuple[SchedulerOutput, Tick]] = deque()  # row by row, oldest first
        self._input_queue: list[Request] = []
        self._aborts: list[Request] = []

    # What the fleet sees

    @property
    def num_running(self) -> int:
        """Requests in `running`."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in `waiting` and in the input queue."""
        return len(self.scheduler.waiting) + len(self._input_queue)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the usable blocks that requests hold, as of the start of a jump under way."""
        return self.cache.usage

    def submit(self, request: Request, now: Tick) -> None:
        """Put a request into the input queue; cuts a jump if it could be admitted sooner."""
        request.arrival_tick = now
        self._input_queue.append(request)
        if self._k and self.prefill is None:
            scheduler = self.scheduler
            if (
                scheduler.waiting.would_lead(request)
                and len(scheduler.running) < scheduler.seats
                and self.decodes.count < scheduler.token_budget
            ):
                self._cut(now)

    def abort(self, request: Request, now: Tick) -> None:
        """Drop a request at the loop's next turn; now, if the loop rests."""
        self._aborts.append(request)
        if self.next_tick is None:
            self._drain_input(now)
        elif self._k:
            self._cut(now)

    def complete(self, now: Tick) -> list[Request]:
        """Apply the jump that ends now, or update from the step that does."""
        self.next_tick = None
        if self.is_jumping:
            if self._input_queue and self._k:
                self._stamp_queued()
            return self._apply(now)
        if not self.in_flight:  # the sleep is over
            return []
        output, _ = self.in_flight.popleft()
        delivered, finished = self.scheduler.update_from_output(output)
        for state in delivered:
            if state.request.first_token_tick is None:
                state.request.first_token_tick = now
        for state in finished:
            state.request.finish_tick = now
            state.request.state = None
        return [state.request for state in finished]

    def begin(self, now: Tick) -> None:
        """Turn the loop until it must wait."""
        while True:
            if self._input_queue or self._aborts:
                self._drain_input(now)
            if not self.is_jumping and self._can_jump():
                self._enter_jumps()
            if self.is_jumping:
                if self._plan(now):
                    if self.next_tick != now:
                        return
                    self.next_tick = None
                    self._apply(now)  # asynchronous: the step after a first one is planned at once
                    continue
                self._leave_jumps(now)
            if not self._step_row_by_row(now):
                break
        if self.in_flight:
            self.next_tick = self.in_flight[0][1]

    def settle(self, now: Tick) -> None:
        """Bring the counts of live requests to `now`, exclusive; the run ends here."""
        if self._k:
            self._stamp_queued()
            for request in self._input_queue:
                if request.queued_tick is not None and request.queued_tick >= now:
                    request.queued_tick = None
        settle(self, now)

    # Requests in and out

    def _stamp_queued(self) -> None:
        """Requests that arrived in the jump were queued at its boundaries."""
        start, run = self._start, self._run
        for request in self._input_queue:
            arrival = request.arrival_tick
            if arrival <= self._lead:
                request.queued_tick = self._lead
            else:
                k = run.steps_until(arrival - start)
                request.queued_tick = start + run.ticks(k if k or self.is_async else 1)

    def _drain_input(self, now: Tick) -> None:
        scheduler = self.scheduler
        for request in self._input_queue:
            if request.queued_tick is None:
                request.queued_tick = now
            if request.num_prompt_tokens >= self.config.max_model_len:
                self.may_jump = False  # the front end should have refused it
            scheduler.add_request(request)
        self._input_queue.clear()
        if self.is_jumping and not self.may_jump:
            self._leave_jumps(now)
        if self._aborts:
            self._drain_aborts(now)

    def _drain_aborts(self, now: Tick) -> None:
        for request in self._aborts:
            if request.status >= RequestStatus.FINISHED_STOPPED:
                continue
            if self.is_jumping and request.status == RUNNING:
                self._leave_jumps(now)
            if request.first_token_tick is not None and request.first_token_tick > now:
                request.first_token_tick = None  # it was on its way
            assert isinstance(request.state, RequestState)
            self.scheduler.abort(request.state)
        self._aborts.clear()

    # Between jumps and single steps

    def _can_jump(self) -> bool:
        return can_jump(self)

    def _enter_jumps(self) -> None:
        enter_jumps(self)

    def _leave_jumps(self, now: Tick) -> None:
        leave_jumps(self, now)

    # Row by row

    def _step_row_by_row(self, now: Tick) -> bool:
        """One turn of vLLM's loop; False if it must wait."""
        scheduler = self.scheduler
        depth = 2 if self.is_async else 1
        if len(self.in_flight) >= depth or not (scheduler.running or scheduler.waiting):
            return False
        output = scheduler.schedule()
        if output.rows:
            self._launch(output, now)
            return len(self.in_flight) < depth
        if self.in_flight or not (output.preempted or scheduler.running):
            return False  # only an update or an arrival can change anything
        if self.is_async:
            return True
        self.next_tick = now + TICKS_PER_MS  # vLLM sleeps
        return False

    def _launch(self, output: SchedulerOutput, now: Tick) -> None:
        kv_tokens = tokens = pairs = 0
        for state, n, c, _, _ in output.rows:
            if state.request.scheduled_tick is None:
                state.request.scheduled_tick = now
            tokens += n
            kv_tokens += c + n
            pairs += row_pairs(c, n)
        duration = self.step_time.of(StepLoad(tokens, len(output.rows), kv_tokens, pairs))
        self.gpu_free = max(now, self.gpu_free) + duration
        self.in_flight.append((output, self.gpu_free))
        self.clock += 1
        self.num_single_steps += 1
        self._count(1, tokens, duration)
