"""What a jump did: its effects on the counters, the cache and the requests, applied when it is over.

State and effects of an engine while it jumps; `jumps.py` says why K steps may be made at once,
`mixed_step.py` makes the step in between. Requests that get their last token on one boundary free in
the order in which they were admitted, for that order decides the free queue.
"""

from __future__ import annotations

from typing import Final

from replicast.sim.config import EngineConfig
from replicast.sim.engine.decodes import Decodes
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.scheduler import LENGTH_CAPPED, STOPPED, Scheduler
from replicast.sim.engine.stats import EngineStats
from replicast.sim.engine.step_run import StepRun
from replicast.sim.engine.step_time import StepTime
from replicast.sim.request import Request
from replicast.sim.ticks import Tick

NO_RUN: Final = StepRun(1, 0)
NEVER: Final = -1


class JumpEffects:
    """The state of an engine while it jumps, and how a jump changes it."""

    next_tick: Tick | None = None  # when the next step is planned

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self.config = config
        self.stats = EngineStats()
        self.num_jumps = 0
        self.num_jumped_steps = 0
        self.num_mixed_steps = 0  # a prompt's end or an admission, with all decodes as one
        self.num_single_steps = 0  # row by row
        self.step_time = step_time
        self.memory_fixed = step_time.memory_fixed
        self.memory_per_kv_token = step_time.memory_per_kv_token
        self.memory_per_seq = step_time.memory_per_seq
        self.compute_fixed = step_time.compute_fixed
        self.compute_per_token = step_time.compute_per_token
        self.compute_per_pair = step_time.compute_per_pair
        self.scheduler = self._make_scheduler()
        self.cache = self.scheduler.kv_cache
        self.cache.sync = self._sync
        self.is_async = config.async_scheduling
        self.is_25 = config.rules == "0.25.1"
        self._block_size = config.block_size
        self._chunked = config.enable_chunked_prefill
        self._reserve_full_isl = config.scheduler_reserve_full_isl
        self._threshold = config.long_prefill_token_threshold

        self.clock = 0  # steps planned so far
        self.gpu_free: Tick = 0
        self.decodes = Decodes(config.block_size)
        self.prefill: RequestState | None = None  # half-done, last of `running`
        self.prefill_computed = 0
        self.last_in_flight: list[RequestState] = []
        self.next_seat = 0
        self.has_rival_writers = False  # two decodes publish the same content

        self._k = 0  # steps of the jump under way, not yet applied
        self._run = NO_RUN
        self._start: Tick = 0  # when its first step starts on the GPU
        self._lead: Tick = NEVER  # when its first step is planned, if that is still to come
        self._has_tail = False
        self._taken = 0  # blocks of its first step, taken already
        self._blocked: RequestState | None = None  # 0.25: the head that is tried in each step
        self._blocked_hits = 0

    def _make_scheduler(self) -> Scheduler:
        """What makes single steps, and holds the cache."""
        assert self.config.kv_groups is None, "hybrid models have an engine of their own"
        return Scheduler(self.config, self.stats)

    # What came of it

    def _apply(self, now: Tick) -> list[Request]:
        """Apply the jump that is over, and the ends of requests that fall on this boundary."""
        finished, self.last_in_flight = self.last_in_flight, []
        if self._k:
            self._apply_jump(now)
        self._lead = NEVER
        leaving = self.decodes.leaving
        if leaving and leaving[0][0] == self.clock:
            self._pop_leaving(finished)
        if self._has_tail:
            finished, self.last_in_flight = self.last_in_flight, finished
            self._apply_tail()
            self._pop_leaving(finished)
        if not finished:
            return []
        if self.is_async and len(finished) > 1:
            finished.sort(key=lambda state: state.seat)
        return [self._finish(state, now) for state in finished]

    def _pop_leaving(self, finished: list[RequestState]) -> None:
        decodes, clock = self.decodes, self.clock
        leaving = decodes.leaving
        while leaving and leaving[0][0] == clock:
            state = decodes.pop()
            if self.is_async and not state.runs_past_eos:
                self.last_in_flight.append(state)
            else:
                finished.append(state)

    def _apply_jump(self, now: Tick) -> None:
        k, clock, count = self._k, self.clock, self.decodes.count
        tokens = k * count
        self._take_blocks(k)
        prefill = self.prefill
        if prefill is not None:
            chunk = self.scheduler.token_budget - count
            tokens += k * chunk
            self.prefill_computed = done = self.prefill_computed + k * chunk
            need = -(-(done) // self._block_size) - prefill.num_blocks
            self.cache.take(need)
            prefill.num_blocks += need
            self.cache.publish(prefill, done)
        if self._blocked is not None:  # 0.25 tried it in every step
            self.scheduler.count_look_up(self._blocked.request, self._blocked_hits, k - 1)
            self._blocked = None
        over = self._has_tail or not self.is_async  # else its last step is still to run
        duration = now - self._start if over else self._run.ticks(k)
        self.gpu_free = self._start + duration
        self.clock = clock + k
        self._k = 0
        self.num_jumps += 1
        self.num_jumped_steps += k
        self._count(k, tokens, duration)

    def _apply_tail(self) -> None:
        """The step after the jump: those whose last token is in flight have no row in it."""
        self._has_tail = False
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        if not count:
            self.clock = clock + 1
            return
        self._take_blocks(1)
        computed = decodes.base_sum + (clock + 1) * count
        duration = self._step_ticks(count, count, computed, computed)
        self.gpu_free += duration
        self.clock = clock + 1
        self.num_jumped_steps += 1
        self._count(1, count, duration)

    def _step_ticks(self, tokens: int, rows: int, kv_tokens: int, pairs: int) -> Tick:
        """`StepTime.of` one step."""
        memory = self.memory_fixed + self.memory_per_kv_token * kv_tokens + self.memory_per_seq * rows
        compute = self.compute_fixed + self.compute_per_token * tokens + self.compute_per_pair * pairs
        return max(max(memory, compute), 1)

    def _take_blocks(self, k: int) -> None:
        """What the decodes take in the `k` steps from `clock` on."""
        blocks = self.decodes.num_new_blocks(self.clock, k) - self._taken
        self._taken = 0
        if blocks:
            self.cache.take(blocks)

    def _count(self, k: int, tokens: int, duration: Tick) -> None:
        stats = self.stats
        stats.num_steps += k
        stats.step_token_sum += tokens
        stats.busy_ticks += duration
        cache = self.cache
        used = cache.num_usable - cache.num_free
        if used > stats.peak_used_blocks:
            stats.peak_used_blocks = used

    def _finish(self, state: RequestState, now: Tick) -> Request:
        """A request got its last token."""
        request = state.request
        computed = request.num_prompt_tokens + state.num_outputs - 1
        request.num_output_tokens = state.num_outputs
        request.num_computed_tokens = computed
        request.finish_tick = now
        if request.stops_at_eos and state.num_outputs == request.max_tokens:
            request.status = STOPPED
        else:
            request.status = LENGTH_CAPPED
        self._give_up_blocks(state, computed)
        self.scheduler.running.remove(state)
        request.state = None
        return request

    def _give_up_blocks(self, state: RequestState, computed: int) -> None:
        """All its full blocks are published, then freed."""
        state.num_blocks = -(-(computed + state.runs_past_eos) // self._block_size)
        self.unmark_writer(state)
        self.cache.finish(state, computed)

    # Who publishes where

    def mark_writer(self, state: RequestState) -> bool:
        """Note where a decode will publish; False if another one will publish there too."""
        first = state.num_published
        nodes, ends = state.nodes, state.ends
        index = len(nodes) - 1
        alone = True
        while index >= 0 and ends[index] > first:
            node = nodes[index]
            if node.writer is None:
                node.writer = state
            elif node.writer is not state:
                alone = False
            index -= 1
        return alone

    def unmark_writer(self, state: RequestState) -> None:
        """It publishes no more."""
        for node in reversed(state.nodes):
            if node.writer is state:
                node.writer = None
            elif not self.has_rival_writers:
                return

    def _sync(self, writer: object) -> None:
        """Publish what a decode has computed up to the step being planned."""
        assert isinstance(writer, RequestState)
        computed = writer.base + self.clock
        if not self.is_async:
            computed += 1
        elif writer.leave <= self.clock:  # no row in this step; its last token is in flight
            computed -= 1
        self.cache.publish(writer, computed)
