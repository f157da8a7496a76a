"""How far an engine can go without deciding anything new, and what that takes.

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
admissions: a mixed step of its own), before the pool runs out, or at the boundary at which an arrival
could be admitted. Its effects are applied when it is over, so a jump cut short is a smaller K.

Asynchronous scheduling makes step k + 1 when step k starts: a jump is planned one step ahead of the
GPU. Who gets its last token in step k has no row in step k + 1 (unless it ends by EOS, unforeseen) but
holds seat and blocks until then: `last_in_flight`. So that such an end costs one event and not two, a
jump up to it may take in that next step as its *tail*. Likewise a mixed step after which nobody waits
is followed by its decodes at once, from its boundary `_lead` on, where an arrival may still cut in.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.decodes import Decodes
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.scheduler import Scheduler, final_status
from replicast.sim.engine.step_time import StepRun, StepTime, like_steps
from replicast.sim.request import Request
from replicast.sim.ticks import Tick

NO_RUN = StepRun(1, 0)
NEVER = -1


class Jumps:
    """The state of an engine while it jumps, the next jump, and its effects."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        self.config = config
        self.stats = EngineStats()
        self.num_jumps = 0
        self.num_jumped_steps = 0
        self.num_mixed_steps = 0  # a prompt's end or an admission, with all decodes as one
        self.num_single_steps = 0  # row by row
        self.step_time = step_time
        self.scheduler = Scheduler(config, self.stats)
        self.cache = self.scheduler.kv_cache
        self.cache.sync = self._sync
        self.is_async = config.async_scheduling
        self.is_25 = config.rules == "0.25.1"
        self._block_size = config.block_size

        self.clock = 0  # steps planned so far
        self.gpu_free: Tick = 0
        self.decodes = Decodes(config.block_size)
        self.prefill: RequestState | None = None  # half-done, last of `running`
        self.prefill_computed = 0
        self.last_in_flight: list[RequestState] = []
        self.next_seat = 0
        self.has_rival_writers = False  # two decodes publish the same content

        self._next: Tick | None = None  # when the next step is planned
        self._k = 0  # steps of the jump under way, not yet applied
        self._run = NO_RUN
        self._start: Tick = 0  # when its first step starts on the GPU
        self._lead: Tick = NEVER  # when its first step is planned, if that is still to come
        self._has_tail = False
        self._taken = 0  # blocks of its first step, taken already
        self._blocked: RequestState | None = None  # 0.25: the head that is tried in each step
        self._blocked_hits = 0

    # What comes next

    def _plan(self, now: Tick) -> bool:
        """Plan the next jump or mixed step; False if the next step must be made row by row."""
        scheduler = self.scheduler
        budget = scheduler.token_budget - self.decodes.count
        prefill = self.prefill
        if self.has_rival_writers or budget < 0:
            return False
        looks = scheduler.waiting and budget > 0 and len(scheduler.running) < scheduler.seats
        if prefill is None:
            if not looks:
                return self._plan_decodes(now)
        elif budget == 0:
            return False
        if self.config.long_prefill_token_threshold:
            return False
        if prefill is not None:
            request = prefill.request
            left = request.num_prompt_tokens + request.num_output_tokens - self.prefill_computed
            if left > budget:
                return self._plan_chunks(now, prefill, left, budget)
        return self._plan_mixed(now, budget)

    def _plan_decodes(self, now: Tick, taken: int = 0, head: RequestState | None = None) -> bool:
        """Steps of decodes only; `taken` blocks of the first are taken already, `head` is blocked."""
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        if not count:
            return self._plan_nothing(now)
        until_leave = decodes.leaving[0][0] - clock
        k = 1 if self.last_in_flight else until_leave
        free = self.cache.num_free + taken
        if head is not None:
            if any(node.writer is not None for node in head.nodes):
                k = 1  # its hits may grow
            elif self.is_25:
                free = min(free, self.cache.unhashed + taken)  # its hits must not shrink
            self._blocked = head if self.is_25 else None
        if ((k + 1) // self._block_size + 1) * count > free:
            k = self._most_steps(k, free, None, 0)
            if k == 0:
                if head is None:
                    return False
                k = 1
            tail = False
        else:
            tail = k == until_leave and self.is_async and self._may_have_tail(count, head)
        step_time = self.step_time
        computed = decodes.base_sum + (clock + 1) * count
        kv_slope = step_time.memory_per_kv_token * count
        pair_slope = step_time.compute_per_pair * count
        run = like_steps(
            step_time.memory_fixed
            + step_time.memory_per_kv_token * computed
            + step_time.memory_per_seq * count,
            kv_slope,
            step_time.compute_fixed
            + step_time.compute_per_token * count
            + step_time.compute_per_pair * computed,
            pair_slope,
        )
        self._start_jump(now, k, run, taken, tail)
        return True

    def _may_have_tail(self, count: int, head: RequestState | None) -> bool:
        """Whether the step after the jump is one of fewer decodes and nothing else, for certain."""
        leaving = self.decodes.leaving
        first = leaving[0]
        if first[2].runs_past_eos or self.last_in_flight:
            return False
        # Others that leave with it are near the top of the heap.
        for other in leaving[1:3]:
            if other[0] == first[0]:
                return False
        scheduler = self.scheduler
        if head is not None and (self.is_25 or not self.config.enable_chunked_prefill):
            return False  # counted in each step; more budget may let it in
        return count < scheduler.token_budget

    def _plan_nothing(self, now: Tick) -> bool:
        """No row at all: wait for what is in flight, if anything is."""
        if self.gpu_free > now:
            self.clock += 1
            self._next = self.gpu_free
        return True

    def _plan_chunks(self, now: Tick, prefill: RequestState, left: int, chunk: int) -> bool:
        """Steps in which a prompt takes all the budget that the decodes leave, but for its last chunk."""
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        done = self.prefill_computed
        if any(node.writer is not None for node in prefill.nodes):
            return False
        k = (left - 1) // chunk
        if self.last_in_flight:
            k = 1
        elif count:
            k = min(k, decodes.leaving[0][0] - clock)
        block_size = self._block_size
        needed = (k // block_size + 1) * count + cdiv(done + k * chunk, block_size) - prefill.num_blocks
        if needed > self.cache.num_free:
            k = self._most_steps(k, self.cache.num_free, prefill, chunk)
            if k == 0:
                return False
        step_time = self.step_time
        computed = decodes.base_sum + (clock + 1) * count
        kv_tokens = computed + done + chunk
        pairs = computed + chunk * done + chunk * (chunk + 1) // 2
        run = like_steps(
            step_time.memory_fixed
            + step_time.memory_per_kv_token * kv_tokens
            + step_time.memory_per_seq * (count + 1),
            step_time.memory_per_kv_token * (count + chunk),
            step_time.compute_fixed
            + step_time.compute_per_token * (count + chunk)
            + step_time.compute_per_pair * pairs,
            step_time.compute_per_pair * (count + chunk * chunk),
        )
        self._start_jump(now, k, run, 0, False)
        return True

    def _most_steps(self, k: int, free: int, prefill: RequestState | None, chunk: int) -> int:
        """The most steps up to `k` whose blocks fit into `free`."""
        low, high = 0, k
        while low < high:
            middle = (low + high + 1) // 2
            blocks = self.decodes.num_new_blocks(self.clock, middle)
            if prefill is not None:
                blocks += cdiv(self.prefill_computed + middle * chunk, self._block_size) - prefill.num_blocks
            if blocks <= free:
                low = middle
            else:
                high = middle - 1
        return low

    def _start_jump(self, now: Tick, k: int, run: StepRun, taken: int, tail: bool) -> None:
        self._k = k
        self._run = run
        self._taken = taken
        self._has_tail = tail
        gpu_free = self.gpu_free
        start = self._start = now if now > gpu_free else gpu_free
        self._next = start + run.ticks(k - 1 if self.is_async and not tail else k)

    def _cut(self, now: Tick) -> None:
        """End the jump under way at its first boundary at or after `now`."""
        if now <= self._lead:
            k = 0
            self._next = self._lead
        else:
            k = self._run.steps_until(now - self._start)
            if self.is_async:
                if k >= self._k:
                    return
                self._next = self._start + self._run.ticks(k)
                k += 1
            else:
                k = k or 1
                if k >= self._k:
                    return
                self._next = self._start + self._run.ticks(k)
        self._k = k
        self._has_tail = False

    # A mixed step

    def _plan_mixed(self, now: Tick, budget: int) -> bool:
        """One step: all decodes, the last chunk of a prompt, admissions; its effects are applied here."""
        scheduler, cache, decodes, clock = self.scheduler, self.cache, self.decodes, self.clock
        count = decodes.count
        taken = decodes.num_new_blocks(clock, 1) if count else 0
        rows = tokens = count
        kv_tokens = pairs = decodes.base_sum + (clock + 1) * count
        prefill = self.prefill
        started: list[RequestState] = []
        if prefill is None:
            if taken > cache.num_free:
                return False
            if taken:
                cache.take(taken)
        else:
            done = self.prefill_computed
            target = prefill.request.num_tokens
            need = cdiv(target, self._block_size) - prefill.num_blocks
            if taken + need > cache.num_free:
                return False
            cache.take(taken + need)
            prefill.num_blocks += need
            cache.publish(prefill, target)
            new = target - done
            rows += 1
            tokens += new
            kv_tokens += target
            pairs += new * done + new * (new + 1) // 2
            budget -= new
            self.prefill = None
            started.append(prefill)
        waiting, running, seats = scheduler.waiting, scheduler.running, scheduler.seats
        head = None
        while waiting and budget > 0 and len(running) < seats:
            state = waiting.peek()
            done, new = self._admit(state, budget, now)
            if not new:
                head = state
                break
            rows += 1
            tokens += new
            kv_tokens += done + new
            pairs += new * done + new * (new + 1) // 2
            budget -= new
            if self.prefill is None:
                started.append(state)
        if rows == count:
            return self._plan_decodes(now, taken, head)
        step_time = self.step_time
        duration = max(
            step_time.memory_fixed
            + step_time.memory_per_kv_token * kv_tokens
            + step_time.memory_per_seq * rows,
            step_time.compute_fixed
            + step_time.compute_per_token * tokens
            + step_time.compute_per_pair * pairs,
            1,
        )
        gpu_free = self.gpu_free
        start = now if now > gpu_free else gpu_free
        self.gpu_free = end = start + duration
        for state in started:
            self._start_decoding(state, end)
        self.clock = clock + 1
        self.num_mixed_steps += 1
        self._count(1, tokens, duration)
        self._next = boundary = start if self.is_async else end
        nothing_due = not (waiting or self.prefill or self.last_in_flight or self.has_rival_writers)
        if nothing_due and decodes.leaving[0][0] > clock + 1 and self._plan_decodes(boundary):
            self._lead = boundary if boundary > now else NEVER
        return True

    def _admit(self, state: RequestState, budget: int, now: Tick) -> tuple[int, int]:
        """Admit the head of `waiting`: (hit tokens, new tokens); no new tokens: it must wait."""
        scheduler, cache = self.scheduler, self.cache
        request = state.request
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        place = cache.look_up(state, num_tokens)
        done = place[1] * self._block_size
        if self.is_25:
            scheduler.count_look_up(request, done)
            self._blocked_hits = done
        new = num_tokens - done
        if new > budget:
            if not self.config.enable_chunked_prefill:
                return done, 0
            new = budget
        if not cache.admit(
            state,
            place,
            new,
            num_tokens,
            reserve_full_isl=self.config.scheduler_reserve_full_isl,
            use_watermark=bool(scheduler.running),
        ):
            return done, 0
        if not self.is_25:
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

    def _start_decoding(self, state: RequestState, end: Tick) -> None:
        """The step planned now, over at `end`, gives `state` a token; from the next one on it decodes."""
        request = state.request
        if request.first_token_tick is None:
            request.first_token_tick = end
        outputs = request.num_output_tokens
        after = self.clock + 1
        leave = after + state.num_outputs - outputs - 1 + state.runs_past_eos
        self.decodes.add(state, request.num_prompt_tokens + outputs, after, leave)
        if not self.mark_writer(state):
            self.has_rival_writers = True

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

    # What came of it

    def _apply(self, now: Tick) -> list[Request]:
        """Apply the jump that is over, and the ends of requests that fall on this boundary."""
        finished, self.last_in_flight = self.last_in_flight, []
        if self._k:
            self._apply_jump()
        self._lead = NEVER
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

    def _apply_jump(self) -> None:
        k, clock, decodes, cache = self._k, self.clock, self.decodes, self.cache
        count = decodes.count
        tokens = k * count
        blocks = decodes.num_new_blocks(clock, k) - self._taken
        prefill = self.prefill
        if prefill is None:
            if blocks:
                cache.take(blocks)
        else:
            chunk = self.scheduler.token_budget - count
            tokens += k * chunk
            self.prefill_computed = done = self.prefill_computed + k * chunk
            need = cdiv(done, self._block_size) - prefill.num_blocks
            cache.take(blocks + need)
            prefill.num_blocks += need
            cache.publish(prefill, done)
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

    def _apply_tail(self) -> None:
        """The step after the jump: those whose last token is in flight have no row in it."""
        self._has_tail = False
        decodes, clock, step_time = self.decodes, self.clock, self.step_time
        count = decodes.count
        self.clock = clock + 1
        if not count:
            return
        blocks = decodes.num_new_blocks(clock, 1)
        if blocks:
            self.cache.take(blocks)
        computed = decodes.base_sum + (clock + 1) * count
        duration = max(
            step_time.memory_fixed
            + step_time.memory_per_kv_token * computed
            + step_time.memory_per_seq * count,
            step_time.compute_fixed
            + step_time.compute_per_token * count
            + step_time.compute_per_pair * computed,
            1,
        )
        self.gpu_free += duration
        self.num_jumped_steps += 1
        self._count(1, count, duration)

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
        """A request got its last token: all its full blocks are published, then freed."""
        request = state.request
        computed = request.num_prompt_tokens + state.num_outputs - 1
        state.num_blocks = cdiv(computed + state.runs_past_eos, self._block_size)
        request.num_output_tokens = state.num_outputs
        request.num_computed_tokens = computed
        request.finish_tick = now
        request.status = final_status(state)
        self.unmark_writer(state)
        self.cache.finish(state, computed)
        self.scheduler.running.remove(state)
        request.state = None
        return request
