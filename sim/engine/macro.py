"""The engine in jumps: K like steps at once, exactly as if they had been made one by one.

Between two events all steps of an engine are alike: the same requests decode, at most one prompt (the
last admitted) computes a chunk of all the budget they leave. A jump makes K such steps at once.

Why it is right. In a jump nobody finishes, so nobody frees. Then

* the blocks taken are a number, whoever takes them when, and evict the same contents in any order;
* a blocked head of `waiting` stays blocked: every block taken lowers what is free by one, and lowers
  what the head needs beyond its own hits by at most as much (an idle hit of its own, evicted);
* a chunk of all the budget lets nobody in, so what it publishes is seen after the jump at the earliest;
* what decodes publish is their own reply, which others can name only later. Where somebody does name
  it (an overlapping replay), the content tree knows the writer and it is brought up to date first;
* step times are affine in the step number, so their sum and the boundary an arrival meets are closed
  forms (`step_time.py`).

A jump ends with the first end of a request, before the last chunk of a prompt (which leaves budget for
admissions: an own step), before the pool runs out, or at the boundary at which an arrival could be
admitted. Its effects are applied when it is over, so a jump cut short is a jump of smaller K.

All else is done row by row (`scheduler.py`): preemption, thresholds with a half-done prompt,
speculation. `num_single_steps` counts those steps; `conversion.py` carries the state across.

Asynchronous scheduling makes step k + 1 when step k starts: a jump is planned one step ahead of the
GPU, and who got its last token in step k keeps seat and blocks in step k + 1, without a row
(`_last_in_flight`), or with one if it ends by EOS.
"""

from __future__ import annotations

from collections import deque

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.conversion import can_jump, enter_jumps, leave_jumps
from replicast.sim.engine.decodes import Decodes
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.engine.request_state import RequestState, SchedulerOutput
from replicast.sim.engine.scheduler import Scheduler, final_status
from replicast.sim.engine.step_time import StepLoad, StepRun, StepTime, like_steps, row_pairs
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import TICKS_PER_MS, Tick

NO_RUN = StepRun(0, 0)


class MacroEngine:
    """`Engine` by jumps. Exact and fast."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self.config = config
        self.stats = EngineStats()
        self.num_jumps = 0  # of more than one step
        self.num_jumped_steps = 0
        self.num_mixed_steps = 0  # a prompt's end or an admission, with all decodes as one
        self.num_single_steps = 0  # row by row
        self.step_time = step_time
        self.scheduler = Scheduler(config, self.stats)
        self.scheduler.kv_cache.sync = self._sync
        self.is_async = config.async_scheduling
        self.may_jump = (
            config.num_speculative_tokens == 0
            and config.num_lookahead_tokens == 0
            and (config.prefill_schedule_interval == 1 or config.rules == "0.25.1")
        )
        self._input_queue: list[Request] = []
        self._aborts: list[Request] = []
        self._next: Tick | None = None
        self.gpu_free: Tick = 0

        self.is_jumping = self.may_jump
        self.clock = 0  # steps planned so far
        self.decodes = Decodes(config.block_size)
        self.prefill: RequestState | None = None  # half-done, last of `running`
        self.prefill_computed = 0
        self.last_in_flight: list[RequestState] = []  # wait for their last token, without a row
        self.next_seat = 0
        self.has_rival_writers = False  # two decodes publish the same content
        self._k = 0  # steps of the jump under way, not yet applied
        self._run = NO_RUN
        self._start: Tick = 0  # when its first step starts
        self._taken = 0  # blocks of its first step, taken already
        self._blocked: RequestState | None = None  # 0.25: the head that is tried in each step
        self._blocked_hits = 0

        self.in_flight: deque[tuple[SchedulerOutput, Tick]] = deque()  # row by row, oldest first
        self._wakes = False  # `_next` is the end of a 1 ms sleep

    # What the fleet sees

    @property
    def next_tick(self) -> Tick | None:
        """End of the jump, or of the oldest step in flight, or of the loop's sleep."""
        return self._next

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
        return self.scheduler.kv_cache.usage

    def submit(self, request: Request, now: Tick) -> None:
        """Put a request into the input queue; cuts a jump if it could be admitted sooner."""
        request.arrival_tick = now
        self._input_queue.append(request)
        if self._k > 1 and self.prefill is None:
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
        if self._next is None:
            self._drain_input(now)
        elif self._k > 1:
            self._cut(now)

    def complete(self, now: Tick) -> list[Request]:
        """Apply the jump that ends now, or update from the step that does."""
        self._next = None
        if self.is_jumping:
            return self._apply(now)
        if not self.in_flight:
            self._wakes = False
            return []
        output, _ = self.in_flight.popleft()
        delivered, finished = self.scheduler.update_from_output(output)
        for state in delivered:
            if state.request.first_token_tick is None:
                state.request.first_token_tick = now
        for state in finished:
            state.request.finish_tick = now
        return [state.request for state in finished]

    def begin(self, now: Tick) -> None:
        """Turn the loop until it must wait."""
        while True:
            if self._input_queue or self._aborts:
                self._drain_input(now)
            if not self.is_jumping and can_jump(self):
                enter_jumps(self)
            if self.is_jumping:
                if self._plan(now):
                    if self._next != now:
                        return
                    self._next = None
                    self._apply(now)  # asynchronous: the step after a first one is planned at once
                    continue
                leave_jumps(self, now)
            if not self._step_row_by_row(now):
                break
        if self.in_flight:
            self._next = self.in_flight[0][1]

    def _drain_input(self, now: Tick) -> None:
        scheduler = self.scheduler
        for request in self._input_queue:
            if request.queued_tick is None:
                request.queued_tick = now
            if request.num_prompt_tokens >= self.config.max_model_len:
                self.may_jump = False  # the front end should have refused it
            scheduler.add_request(request)
        self._input_queue.clear()
        if not self.may_jump and self.is_jumping:
            leave_jumps(self, now)
        for request in self._aborts:
            if request.status >= RequestStatus.FINISHED_STOPPED:
                continue
            if self.is_jumping and request.status == RequestStatus.RUNNING:
                leave_jumps(self, now)
            if request.first_token_tick is not None and request.first_token_tick > now:
                request.first_token_tick = None  # was on its way
            assert isinstance(request.state, RequestState)
            scheduler.abort(request.state)
        self._aborts.clear()

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
        self._wakes = True
        self._next = now + TICKS_PER_MS
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

    def _count(self, k: int, tokens: int, duration: Tick) -> None:
        stats = self.stats
        stats.num_steps += k
        stats.step_token_sum += tokens
        stats.busy_ticks += duration
        cache = self.scheduler.kv_cache
        used = cache.num_usable - cache.num_free
        if used > stats.peak_used_blocks:
            stats.peak_used_blocks = used

    # Jumps: what comes next

    def _plan(self, now: Tick) -> bool:
        """Plan the next jump or mixed step; False if it must be made row by row."""
        scheduler = self.scheduler
        count = self.decodes.count
        budget = scheduler.token_budget - count
        prefill = self.prefill
        waiting = scheduler.waiting
        if self.has_rival_writers or budget < 0:
            return False
        looks = waiting and budget > 0 and len(scheduler.running) < scheduler.seats
        if prefill is None:
            if not looks:
                return self._plan_decodes(now)
        elif budget == 0:
            return False
        if self.config.long_prefill_token_threshold:
            return False
        if prefill is not None and prefill.request.num_tokens - self.prefill_computed > budget:
            return self._plan_chunks(now, prefill, budget)
        return self._plan_mixed(now, budget)

    def _plan_decodes(self, now: Tick, taken: int = 0, head: RequestState | None = None) -> bool:
        """Steps of decodes only; `taken` blocks of the first are taken already, `head` is blocked."""
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        if not count:
            return self._plan_nothing(now)
        cache = self.scheduler.kv_cache
        k = 1 if self.last_in_flight else decodes.leaving[0][0] - clock
        free = cache.num_free + taken
        if head is not None and k > 1:
            if any(node.writer is not None for node in head.nodes):
                k = 1
            elif self.scheduler.is_25:
                free = min(free, cache.unhashed + taken)  # its hits must not change
        if (k // decodes.block_size + 1) * count > free:
            k = self._most_steps(k, free, None, 0)
            if k == 0:
                if head is None:
                    return False
                k = 1
        if self.scheduler.is_25:
            self._blocked = head
        step_time = self.step_time
        computed = decodes.base_sum + (clock + 1) * count
        self._start_jump(
            now,
            k,
            taken,
            like_steps(
                step_time.memory_fixed
                + step_time.memory_per_kv_token * computed
                + step_time.memory_per_seq * count,
                step_time.memory_per_kv_token * count,
                step_time.compute_fixed
                + step_time.compute_per_token * count
                + step_time.compute_per_pair * computed,
                step_time.compute_per_pair * count,
            ),
        )
        return True

    def _plan_nothing(self, now: Tick) -> bool:
        """No row at all: wait for what is in flight, if anything is."""
        if self.gpu_free > now:
            self.clock += 1
            self._next = self.gpu_free
        return True

    def _plan_chunks(self, now: Tick, prefill: RequestState, chunk: int) -> bool:
        """Steps in which a prompt takes all the budget that the decodes leave, but for its last chunk."""
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        done = self.prefill_computed
        if any(node.writer is not None for node in prefill.nodes):
            return False
        k = (prefill.request.num_tokens - done - 1) // chunk
        if self.last_in_flight:
            k = 1
        elif count:
            k = min(k, decodes.leaving[0][0] - clock)
        cache = self.scheduler.kv_cache
        block_size = self.config.block_size
        needed = (k // block_size + 1) * count + cdiv(done + k * chunk, block_size) - prefill.num_blocks
        if needed > cache.num_free:
            k = self._most_steps(k, cache.num_free, prefill, chunk)
            if k == 0:
                return False
        step_time = self.step_time
        kv_tokens = decodes.base_sum + (clock + 1) * count + done + chunk
        pairs = decodes.base_sum + (clock + 1) * count + row_pairs(done, chunk)
        self._start_jump(
            now,
            k,
            0,
            like_steps(
                step_time.memory_fixed
                + step_time.memory_per_kv_token * kv_tokens
                + step_time.memory_per_seq * (count + 1),
                step_time.memory_per_kv_token * (count + chunk),
                step_time.compute_fixed
                + step_time.compute_per_token * (count + chunk)
                + step_time.compute_per_pair * pairs,
                step_time.compute_per_pair * (count + chunk * chunk),
            ),
        )
        return True

    def _most_steps(self, k: int, free: int, prefill: RequestState | None, chunk: int) -> int:
        """The most steps up to `k` whose blocks fit into `free`."""
        low, high = 0, k
        while low < high:
            middle = (low + high + 1) // 2
            if self._num_new_blocks(middle, prefill, chunk) <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def _num_new_blocks(self, k: int, prefill: RequestState | None, chunk: int) -> int:
        blocks = self.decodes.num_new_blocks(self.clock, k)
        if prefill is not None:
            blocks += cdiv(self.prefill_computed + k * chunk, self.config.block_size) - prefill.num_blocks
        return blocks

    def _start_jump(self, now: Tick, k: int, taken: int, run: StepRun) -> None:
        self._k = k
        self._run = run
        self._taken = taken
        start = self._start = max(now, self.gpu_free)
        self._next = start + run.ticks(k - 1 if self.is_async else k)

    def _cut(self, now: Tick) -> None:
        """End the jump under way at its first boundary at or after `now`."""
        k = self._run.steps_until(now - self._start)
        k = k + 1 if self.is_async else max(k, 1)
        if k < self._k:
            self._k = k
            self._next = self._start + self._run.ticks(k - 1 if self.is_async else k)

    # Jumps: a mixed step

    def _plan_mixed(self, now: Tick, budget: int) -> bool:
        """One step: all decodes, the last chunk of a prompt, admissions; its effects are applied here."""
        scheduler, decodes, clock = self.scheduler, self.decodes, self.clock
        cache = scheduler.kv_cache
        count = decodes.count
        taken = decodes.num_new_blocks(clock, 1)
        rows = tokens = count
        kv_tokens = pairs = decodes.base_sum + (clock + 1) * count
        prefill = self.prefill
        started: list[RequestState] = []
        if prefill is None:
            if taken > cache.num_free:
                return False
            cache.take(taken)
        else:
            done, target = self.prefill_computed, prefill.request.num_tokens
            need = cdiv(target, cache.block_size) - prefill.num_blocks
            if taken + need > cache.num_free:
                return False
            cache.take(taken + need)
            prefill.num_blocks += need
            cache.publish(prefill, target)
            rows += 1
            tokens += target - done
            kv_tokens += target
            pairs += row_pairs(done, target - done)
            budget -= target - done
            self.prefill = None
            started.append(prefill)
        head = None
        while scheduler.waiting and budget > 0 and len(scheduler.running) < scheduler.seats:
            state = scheduler.waiting.peek()
            chunk = self._admit(state, budget, now)
            if chunk is None:
                head = state
                break
            done, new = chunk
            rows += 1
            tokens += new
            kv_tokens += done + new
            pairs += row_pairs(done, new)
            budget -= new
            if self.prefill is None:
                started.append(state)
        if rows == count:
            return self._plan_decodes(now, taken, head)
        for state in started:
            self._start_decoding(state)
        duration = self.step_time.of(StepLoad(tokens, rows, kv_tokens, pairs))
        start = max(now, self.gpu_free)
        self.gpu_free = end = start + duration
        for state in started:
            if state.request.first_token_tick is None:
                state.request.first_token_tick = end
        self.clock = clock + 1
        self.num_mixed_steps += 1
        self._count(1, tokens, duration)
        self._next = start if self.is_async else end
        return True

    def _admit(self, state: RequestState, budget: int, now: Tick) -> tuple[int, int] | None:
        """Admit the head of `waiting`: (hit tokens, new tokens); None if it must wait."""
        scheduler = self.scheduler
        request = state.request
        cache = scheduler.kv_cache
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        place = cache.look_up(state, num_tokens)
        done = place[1] * cache.block_size
        if scheduler.is_25:
            scheduler.count_look_up(request, done)
            self._blocked_hits = done
        new = num_tokens - done
        if new > budget:
            if not self.config.enable_chunked_prefill:
                return None
            new = budget
        if not cache.admit(
            state,
            place,
            new,
            num_tokens,
            reserve_full_isl=self.config.scheduler_reserve_full_isl,
            use_watermark=bool(scheduler.running),
        ):
            return None
        if not scheduler.is_25:
            scheduler.count_look_up(request, done)
        scheduler.take_seat(done)
        state.seat = self.next_seat
        self.next_seat += 1
        if request.scheduled_tick is None:
            request.scheduled_tick = now
        if done + new < num_tokens:
            self.prefill = state
            self.prefill_computed = done + new
        return done, new

    def _start_decoding(self, state: RequestState) -> None:
        """The step planned now gives `state` its next token; from the next one on it decodes."""
        request = state.request
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        after = self.clock + 1
        leave = after + state.num_outputs - request.num_output_tokens - 1
        if state.runs_past_eos:
            leave += 1
        self.decodes.add(state, num_tokens, after, leave)
        if not self.mark_writer(state):
            self.has_rival_writers = True

    def mark_writer(self, state: RequestState) -> bool:
        """Note where a decode will publish; False if another one will publish there too."""
        first = state.request.num_prompt_tokens // self.config.block_size
        alone = True
        for node, end in zip(reversed(state.nodes), reversed(state.ends), strict=True):
            if end <= first:
                break
            if node.writer is None:
                node.writer = state
            elif node.writer is not state:
                alone = False
        return alone

    def unmark_writer(self, state: RequestState) -> None:
        """It publishes no more."""
        for node in reversed(state.nodes):
            if node.writer is state:
                node.writer = None

    def _sync(self, writer: object) -> None:
        """Publish what a decode has computed up to the step being planned."""
        assert isinstance(writer, RequestState)
        computed = writer.base + self.clock
        if not self.is_async:
            computed += 1
        elif writer.leave <= self.clock:  # no row in this step; its last token is in flight
            computed -= 1
        self.scheduler.kv_cache.publish(writer, computed)

    # Jumps: what came of it

    def _apply(self, now: Tick) -> list[Request]:
        """Apply a jump that is over, and the ends of requests that fall on this boundary."""
        if self._input_queue:
            self._stamp_queued(now)
        if self._k:
            self._apply_jump()
        decodes, clock = self.decodes, self.clock
        finished, self.last_in_flight = self.last_in_flight, []
        leaving = decodes.leaving
        while leaving and leaving[0][0] == clock:
            state = decodes.pop()
            if self.is_async and not state.runs_past_eos:
                self.last_in_flight.append(state)
            else:
                finished.append(state)
        if not finished:
            return []
        if self.is_async:
            finished.sort(key=lambda state: state.seat)
        return [self._finish(state, now) for state in finished]

    def _stamp_queued(self, now: Tick) -> None:
        """Requests that arrived in the jump were queued at its boundaries."""
        start, run = self._start, self._run
        for request in self._input_queue:
            if self._k < 2:
                request.queued_tick = now
                continue
            k = run.steps_until(request.arrival_tick - start)
            request.queued_tick = start + run.ticks(k if self.is_async else max(k, 1))

    def _apply_jump(self) -> None:
        k, clock, decodes = self._k, self.clock, self.decodes
        cache = self.scheduler.kv_cache
        prefill = self.prefill
        tokens = k * decodes.count
        blocks = decodes.num_new_blocks(clock, k) - self._taken
        if prefill is None:
            cache.take(blocks)
        else:
            chunk = self.scheduler.token_budget - decodes.count
            tokens += k * chunk
            self.prefill_computed += k * chunk
            need = cdiv(self.prefill_computed, cache.block_size) - prefill.num_blocks
            cache.take(blocks + need)
            prefill.num_blocks += need
            cache.publish(prefill, self.prefill_computed)
        if self._blocked is not None:  # 0.25 tried it in every step
            self.scheduler.count_look_up(self._blocked.request, self._blocked_hits, k - 1)
            self._blocked = None
        duration = self._run.ticks(k)
        self.gpu_free = self._start + duration
        self.clock = clock + k
        self._k = 0
        self.num_jumps += 1
        self.num_jumped_steps += k
        self._count(k, tokens, duration)

    def _finish(self, state: RequestState, now: Tick) -> Request:
        """A request got its last token: all its full blocks are published, then freed."""
        request = state.request
        cache = self.scheduler.kv_cache
        computed = request.num_prompt_tokens + state.num_outputs - 1
        state.num_blocks = cdiv(computed + state.runs_past_eos, cache.block_size)
        cache.publish(state, computed)
        request.num_output_tokens = state.num_outputs
        request.num_computed_tokens = computed
        request.finish_tick = now
        self.unmark_writer(state)
        self.scheduler.running.remove(state)
        self.scheduler.finish(state, final_status(state))
        return request
