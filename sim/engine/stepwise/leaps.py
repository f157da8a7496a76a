"""The step-by-step engine, leaping over decodes that change nothing but counts.

Between two events all requests in `running` decode one token a step. Where no block is taken, published
or freed, a step leaves the pool as it was, so the next one decides the same, a blocked head of `waiting`
included. `HybridEngine` makes one such step by the rules; if the pool has not changed in it, the steps up
to the next block boundary, window edge or last token are one leap, whose time is a closed form
(`step_run.py`) and whose effects are counts. An arrival cuts a leap at the boundary at which the loop
would have seen it.

Exact: `tests/test_hybrid_engine.py` compares all ticks with the engine that walks. Plain models have a
faster engine (`macro.py`); here blocks are many tokens wide, as those of hybrid models are.
"""

from __future__ import annotations

from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_run import StepRun, like_steps
from replicast.sim.engine.step_time import StepTime
from replicast.sim.engine.stepwise.engine import StepInFlight, StepwiseEngine
from replicast.sim.engine.stepwise.groups.full import RequestBlocks
from replicast.sim.engine.stepwise.kv_cache import KVCacheManager
from replicast.sim.engine.stepwise.output import ScheduledRow, SchedulerOutput, state_of
from replicast.sim.request import Request
from replicast.sim.ticks import Tick

# A change of step k can still have effects on the pool in steps k + 1 and k + 2.
SETTLED = 3


class Leap(NamedTuple):
    """`num_steps` steps from `start` on; with async scheduling the last one is then still to run."""

    num_steps: int
    start: Tick
    run: StepRun


def may_leap(config: EngineConfig) -> bool:
    """Whether steps of an engine can be alike at all."""
    return not (
        config.num_speculative_tokens or config.num_lookahead_tokens or config.prefill_schedule_interval > 1
    )


class QuietCache(KVCacheManager):
    """The same blocks; what changes none of them is over at once."""

    def allocate_slots(
        self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int, num_in_flight: int = 0
    ) -> bool:
        if num_new != 1:
            held.num_single = 0
        elif held.num_single >= SETTLED and self.num_quiet_steps(num_computed):
            return True
        done = super().allocate_slots(held, num_computed, num_new, num_tokens, num_in_flight)
        if done and num_new == 1:
            held.num_single += 1
        return done

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        if num_tokens < held.next_publish:
            return
        super().publish(held, num_tokens)
        held.next_publish = (num_tokens // self._finest + 1) * self._finest

    def free(self, held: RequestBlocks) -> None:
        held.num_single = held.next_publish = 0
        super().free(held)

    def num_quiet_steps(self, computed: int) -> int:
        """Steps of one token, after as many before, that leave a request's blocks as they are."""
        steps = self.max_model_len
        for size in self._block_sizes:
            past = computed % size
            if past < SETTLED:
                return 0
            steps = min(steps, size - 1 - past)
        for size, window in self._windows:
            outside = computed - window + 1
            past = outside % size if outside > 0 else outside
            if outside > 0 and past < SETTLED:
                return 0
            steps = min(steps, size - 1 - past)
        return steps


class HybridEngine(StepwiseEngine):
    """`Engine` by the rules, in leaps."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        super().__init__(config, step_time)
        self.num_leaps = 0
        self._may_leap = may_leap(config)
        self._cache = QuietCache.of(config)
        if self._may_leap:
            self._scheduler.kv_cache = self._cache
        self._leap: Leap | None = None
        self._version = -1  # of the pool, before the last step was scheduled
        self._was_pure = False  # it was one token for each in `running`
        self._counts = (0, 0, 0, 0, 0)  # look-ups it counted

    @property
    def next_tick(self) -> Tick | None:
        if self._leap is None:
            return super().next_tick
        num_steps, start, run = self._leap
        return start + run.ticks(num_steps - 1 if self._depth == 2 else num_steps)

    def submit(self, request: Request, now: Tick) -> None:
        super().submit(request, now)
        self._cut(now)

    def abort(self, request: Request, now: Tick) -> None:
        super().abort(request, now)
        self._cut(now)

    def complete(self, now: Tick) -> list[Request]:
        if self._leap is not None:
            self._land(self._leap)
            return []
        return super().complete(now)

    def settle(self, now: Tick) -> None:
        if self._leap is None or now <= self._leap.start:
            return
        steps = self._leap.run.steps_until(now - self._leap.start) - 1
        for request in self._scheduler.running:
            request.num_output_tokens += steps + (self._depth == 2)  # the step before it has ended, too

    def begin(self, now: Tick) -> None:
        if self._may_leap and self._was_pure and not self._input_queue and not self._aborts:
            self._leap = self._plan(now)
            if self._leap is not None:
                return
        super().begin(now)

    def _schedule(self) -> SchedulerOutput:
        scheduler = self._scheduler
        self._version = scheduler.kv_cache.pool.version
        before = self._look_ups()
        output = super()._schedule()
        rows = output.rows
        self._was_pure = (
            len(rows) == len(scheduler.running)
            and not output.preempted
            and all(
                row.num_scheduled_tokens == row.num_sampled_tokens == 1
                and row.admitted is None
                and row.request.first_token_tick is not None
                for row in rows
            )
        )
        self._counts = tuple(  # type: ignore[assignment]
            new - old for new, old in zip(self._look_ups(), before, strict=True)
        )
        return output

    # Leaps

    def _plan(self, now: Tick) -> Leap | None:
        """The leap that starts now, if one does."""
        scheduler = self._scheduler
        running = scheduler.running
        if len(self._in_flight) != self._depth - 1 or self._cache.pool.version != self._version:
            return None
        if not running or (self._in_flight and len(self._in_flight[0].output.rows) != len(running)):
            return None
        steps = min(self._steps_alike(request) for request in running)
        if steps < 2:
            return None
        count = len(running)
        computed = sum(request.num_computed_tokens for request in running) + count
        time = self._step_time
        run = like_steps(
            time.memory_fixed + time.memory_per_kv_token * computed + time.memory_per_seq * count,
            time.memory_per_kv_token * count,
            time.compute_fixed + time.compute_per_token * count + time.compute_per_pair * computed,
            time.compute_per_pair * count,
        )
        return Leap(steps, max(now, self._gpu_free), run)

    def _steps_alike(self, request: Request) -> int:
        """Steps that leave all blocks of `request` as they are and do not end it."""
        state = state_of(request)
        if state.blocks.num_single < SETTLED:
            return 0  # windows are freed as chunks in flight are computed
        outputs = min(
            request.max_tokens, state.max_tokens, self.config.max_model_len - request.num_prompt_tokens
        )
        steps = outputs - 1 - request.num_output_tokens
        return min(steps, self._cache.num_quiet_steps(request.num_computed_tokens))

    def _cut(self, now: Tick) -> None:
        """End the leap under way at the first boundary at which the loop looks at its input."""
        if self._leap is None:
            return
        num_steps, start, run = self._leap
        steps = run.steps_until(now - start)
        steps = 1 + steps if self._depth == 2 else max(steps, 1)
        self._leap = Leap(min(num_steps, steps), start, run)

    def _land(self, leap: Leap) -> None:
        """What the leap did."""
        num_steps, start, run = leap
        self._leap = None
        self.num_leaps += 1
        running = self._scheduler.running
        for request in running:
            request.num_computed_tokens += num_steps
            request.num_output_tokens += num_steps
        duration = run.ticks(num_steps)
        self._gpu_free = start + duration
        if self._depth == 2:
            rows = [
                ScheduledRow(request, 1, request.num_computed_tokens - 1, request.num_tokens - 1, 0, 1, None)
                for request in running
            ]
            self._in_flight.popleft()
            self._in_flight.append(StepInFlight(SchedulerOutput(rows, []), self._gpu_free))
        stats = self.stats
        stats.num_steps += num_steps
        stats.step_token_sum += num_steps * len(running)
        stats.busy_ticks += duration
        queries, hits, requests, preempted_queries, preempted_hits = self._counts
        stats.prefix_cache_queries += num_steps * queries
        stats.prefix_cache_hits += num_steps * hits
        stats.prefix_cache_requests += num_steps * requests
        stats.preempted_queries += num_steps * preempted_queries
        stats.preempted_hits += num_steps * preempted_hits

    def _look_ups(self) -> tuple[int, int, int, int, int]:
        s = self.stats
        return (
            s.prefix_cache_queries,
            s.prefix_cache_hits,
            s.prefix_cache_requests,
            s.preempted_queries,
            s.preempted_hits,
        )
