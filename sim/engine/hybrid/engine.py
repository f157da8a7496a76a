"""The engine of hybrid models: a request costs something in the steps in which something of its own happens.

As with plain models (`macro.py`, whose loop, jumps and counts these are), all decodes are one sum and K
like steps are one jump. What differs is the pool: what a request does to its blocks falls on few steps,
known in advance (`due.py`).

* A jump of decodes goes up to the first end of a request, whoever is due meanwhile. Nobody looks at the
  pool before it is over, so then those who were due are touched, in the order of steps and seats: the same
  calls on the pool as step by step. It may only begin where all blocks it takes are free, which is counted
  without what it gives back.
* If the head of `waiting` was refused, it is looked at again when the pool can have changed: in the step
  after one in which somebody was due. Where nobody is, the same question has the same answer.
* A step with chunks of several prompts, or an admission, is one of its own: the decodes that are due and the
  half-done prompts in the order of their seats, then admissions; all other decodes only count.
* The chunks of the only half-done prompt and the decodes that follow are one jump, too.

Several prompts may be half-done, since a chunk cut to whole blocks leaves budget to the next; a decode may
then stand behind one. Where that one leaves it no token, and where blocks may not suffice, the step is made
row by row (`num_single_steps` counts them).
"""

from __future__ import annotations

from replicast.sim.engine.hybrid.pool_effects import PoolEffects
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.hybrid.step_list import StepList
from replicast.sim.engine.jump_effects import NEVER
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_run import StepRun, like_steps
from replicast.sim.ticks import Tick


class HybridEngine(PoolEffects):
    """`Engine` by jumps, over several KV groups."""

    def _plan(self, now: Tick) -> bool:
        scheduler = self.scheduler
        budget = scheduler.token_budget - self.decodes.count
        self._chunks = []
        if budget < 0:
            return False
        looks = scheduler.waiting and budget > 0 and len(scheduler.running) < scheduler.seats
        if not looks and not self.prefills:
            return self._plan_decodes(now)
        if self._threshold:
            return False
        if not looks and self._plan_prompt(now):
            return True
        return self._plan_mixed(now, budget)

    def _plan_decodes(self, now: Tick, taken: int = 0, head: RequestState | None = None) -> bool:
        """Steps of decodes only; of the first, `taken` were due, who have been. `head` is blocked."""
        decodes, clock = self.decodes, self.clock
        count = decodes.count
        if not count:
            return not self.prefills and self._plan_nothing(now)
        until_leave = decodes.leaving[0][0] - clock
        k = until_leave
        if self.last_in_flight or self.prefills or (head is not None and taken):
            k = 1
        elif head is not None:
            k = self.due.next(clock + k) - clock
        tail = False
        if head is not None:
            self._blocked = head if self.is_25 else None
        elif not taken:
            fits = self._most_to_take(k + 1) * count <= self.groups.num_free
            if not fits:
                k = self._most_decodes(k)
                if not k:
                    return False
            tail = (
                k == until_leave
                and self.is_async
                and self._may_have_tail(count, None)
                and (fits or self._most_decodes(k + 1) > k)
            )
        run = self._decode_steps(count, decodes.base_sum + (clock + 1) * count)
        self._start_jump(now, k, run, 0, tail)
        return True

    def _plan_prompt(self, now: Tick) -> bool:
        """The chunks of the only half-done prompt, and the decodes after it; False: not as a jump."""
        prefill, count, clock = self.prefills[0], self.decodes.count, self.clock
        if len(self.prefills) > 1 or self.last_in_flight or self._num_decodes_behind(prefill):
            return False
        most = self.decodes.leaving[0][0] - clock if count else prefill.target
        budget = self.scheduler.token_budget - count
        computed = self.decodes.base_sum + (clock + 1) * count
        done, target, elapsed = prefill.computed, prefill.target, 0
        chunks: list[int] = []
        ends: list[Tick] = []
        while done < target and len(chunks) < most:
            new = min(target - done, budget)
            if new > 0:
                new = self.hybrid.aligned(prefill, done, new, admission=False)
            if new <= 0:
                break
            pairs = computed + new * done + new * (new + 1) // 2
            done += new
            elapsed += self._step_ticks(count + new, count + 1, computed + done, pairs)
            computed += count
            chunks.append(new)
            ends.append(elapsed)
        k = len(chunks)
        more = self._num_steps_after(prefill, k) if done == target else 0
        most = self._num_groups * ((done - prefill.computed) // self._smallest + k + 1)
        free = self.groups.num_free - most
        after: StepRun | None = None
        if not k or self._most_to_take(k) * count > free:
            return False
        if more and self._most_to_take(k + more) * (count + 1) <= free:
            after = self._decode_steps(count + 1, computed + target + 1)
            k += more
        self._chunks = chunks
        self._start_jump(now, k, StepList(ends, after), 0, False)
        return True

    def _num_steps_after(self, prefill: HybridState, k: int) -> int:
        """Decode steps that come next for certain, once the only half-done prompt is over after `k` steps."""
        scheduler, decodes = self.scheduler, self.decodes
        if scheduler.waiting and len(scheduler.running) < scheduler.seats:
            return 0
        if decodes.count >= scheduler.token_budget:
            return 0
        most = prefill.num_outputs - prefill.request.num_output_tokens - 1 + prefill.runs_past_eos
        return min(most, decodes.leaving[0][0] - self.clock - k) if decodes.count else most

    def _decode_steps(self, count: int, computed: int) -> StepRun:
        """Steps of `count` decodes, which in the first look at `computed` tokens."""
        return like_steps(
            self.memory_fixed + self.memory_per_kv_token * computed + self.memory_per_seq * count,
            self.memory_per_kv_token * count,
            self.compute_fixed + self.compute_per_token * count + self.compute_per_pair * computed,
            self.compute_per_pair * count,
        )

    def _plan_mixed(self, now: Tick, budget: int) -> bool:
        """One step: the decodes that are due, chunks of prompts, admissions; its effects are applied here."""
        scheduler, decodes, clock = self.scheduler, self.decodes, self.clock
        count = decodes.count
        due = self.due.pop(clock)
        if self.prefills:
            budget = self._cut_chunks(budget)
        if budget < 0 or not self._has_room(due):
            return False
        if scheduler.waiting:
            self.groups.new_step_starts()
        rows = tokens = count
        kv_tokens = pairs = decodes.base_sum + (clock + 1) * count
        started: list[HybridState] = []
        for state in self._in_seats(due):
            new = state.chunk
            if not new:
                self._touch(state, clock)
                self.due.put(state, clock + 1)
                continue
            done = self._compute_chunk(state, clock)
            if done + new == state.target:
                self.prefills.remove(state)
                started.append(state)
            rows += 1
            tokens += new
            kv_tokens += done + new
            pairs += new * done + new * (new + 1) // 2
        waiting, running, seats = scheduler.waiting, scheduler.running, scheduler.seats
        head: RequestState | None = None
        while waiting and budget > 0 and len(running) < seats:
            head = waiting.peek()
            done, new = self._admit(head, budget, now)
            if not new:
                break
            assert isinstance(head, HybridState)
            if done + new == head.target:
                started.append(head)
            else:
                self.prefills.append(head)
            head = None
            rows += 1
            tokens += new
            kv_tokens += done + new
            pairs += new * done + new * (new + 1) // 2
            budget -= new
        if rows == count:
            return self._plan_decodes(now, len(due), head)
        duration = self._step_ticks(tokens, rows, kv_tokens, pairs)
        start = max(now, self.gpu_free)
        self.gpu_free = end = start + duration
        for state in started:
            self._start_decoding(state, clock + 1, end)
        self.clock = clock + 1
        self.num_mixed_steps += 1
        self._count(1, tokens, duration)
        self.next_tick = boundary = start if self.is_async else end
        if not (waiting or self.last_in_flight) and not (
            decodes.count and decodes.leaving[0][0] == clock + 1
        ):
            planned = self._plan_prompt(boundary) if self.prefills else self._plan_decodes(boundary)
            if planned:
                self._lead = boundary if boundary > now else NEVER
        return True

    # A step with prompts in it

    def _cut_chunks(self, budget: int) -> int:
        """Size the chunks of the half-done prompts; the budget left, below 0 if a decode has to starve."""
        for prefill in self.prefills:
            done = prefill.computed
            new = min(prefill.target - done, max(budget + self._num_decodes_behind(prefill), 0))
            if new:
                new = self.hybrid.aligned(prefill, done, new, admission=False)
            prefill.chunk = new
            budget -= new
        return budget

    def _num_decodes_behind(self, prefill: HybridState) -> int:
        """Decodes that come after a half-done prompt."""
        number, running = 0, self.scheduler.running
        if running[-1] is prefill:
            return 0
        for state in reversed(running):
            if state is prefill:
                break
            number += state not in self.prefills and state.leave > self.clock
        return number

    def _in_seats(self, due: list[HybridState]) -> list[HybridState]:
        """Decodes that are due and prompts with a chunk, in order."""
        prefills = [state for state in self.prefills if state.chunk]
        if not due or not prefills:
            return due or prefills
        return sorted(due + prefills, key=lambda state: state.seat)

    def _has_room(self, due: list[HybridState]) -> bool:
        """Whether all running requests find their blocks, whatever is given back meanwhile."""
        num_groups = self._num_groups
        most = len(due) * num_groups
        for state in due:
            state.chunk = 0
        for state in self.prefills:
            most += num_groups * (state.chunk // self._smallest + 2)
        free = self.groups.num_free
        if most <= free:
            return True
        needed = 0
        for state in due:
            needed += self.groups.num_to_take(state, state.base + self.clock + 1)
        for state in self.prefills:
            if state.chunk:
                needed += self.groups.num_to_take(state, state.computed + state.chunk)
        return needed <= free

    def _admit(self, state: RequestState, budget: int, now: Tick) -> tuple[int, int]:
        """Admit the head of `waiting`: (hit tokens, new tokens); no new tokens: it must wait."""
        assert isinstance(state, HybridState)
        scheduler, request = self.hybrid, state.request
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        hit = self.groups.get_computed_blocks(state, num_tokens)
        done = hit.num_tokens
        if self.is_25:
            scheduler.count_look_up(request, done)
            self._blocked_hits = done
        new = num_tokens - done
        if new > budget:
            if not self._chunked:
                return done, 0
            new = budget
        new = scheduler.aligned(state, done, new, admission=True)
        if not new or not self.groups.admit_hit(
            state,
            hit,
            new,
            num_tokens,
            reserve_full_isl=self._reserve_full_isl,
            use_watermark=bool(scheduler.running),
        ):
            return done, 0
        self._take_seat(request, done, now)
        state.target = num_tokens
        state.computed = done + new
        state.last_clock = self.clock
        state.last_tokens = new
        return done, new
