"""The step between two jumps: all decodes as one, the last chunk of a prompt, then admissions.

In vLLM's order: the decodes take their blocks, the prompt's last chunk takes and publishes, then the
head of `waiting` looks up, takes and publishes, and so on while there are seats, budget and blocks. So
the second of two equal prompts hits what the first one published in the same step. A step like this
is never cut, so its effects are applied when it is planned.
"""

from __future__ import annotations

from replicast.sim.engine.jump_effects import NEVER
from replicast.sim.engine.jumps import Jumps
from replicast.sim.engine.request_state import RequestState
from replicast.sim.request import Request
from replicast.sim.ticks import Tick


class MixedSteps(Jumps):
    """What an engine that jumps does next."""

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
        if self._threshold:
            return False
        if prefill is not None:
            request = prefill.request
            left = request.num_prompt_tokens + request.num_output_tokens - self.prefill_computed
            if left > budget:
                return self._plan_chunks(now, prefill, left, budget)
        return self._plan_mixed(now, budget)

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
            need = -(-(target) // self._block_size) - prefill.num_blocks
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
        duration = self._step_ticks(tokens, rows, kv_tokens, pairs)
        gpu_free = self.gpu_free
        start = now if now > gpu_free else gpu_free
        self.gpu_free = end = start + duration
        for state in started:
            self._start_decoding(state, clock + 1, end)
        self.clock = clock + 1
        self.num_mixed_steps += 1
        self._count(1, tokens, duration)
        self.next_tick = boundary = start if self.is_async else end
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
            if not self._chunked:
                return done, 0
            new = budget
        if not cache.admit(
            state,
            place,
            new,
            num_tokens,
            reserve_full_isl=self._reserve_full_isl,
            use_watermark=bool(scheduler.running),
        ):
            return done, 0
        self._take_seat(request, done, now)
        if done + new < num_tokens:
            self.prefill = state
            self.prefill_computed = done + new
        return done, new

    def _take_seat(self, request: Request, num_hit_tokens: int, now: Tick) -> None:
        """The head of `waiting` is admitted."""
        scheduler = self.scheduler
        if not self.is_25:
            scheduler.count_look_up(request, num_hit_tokens)
        state = scheduler.take_seat(num_hit_tokens)
        state.seat = self.next_seat
        self.next_seat += 1
        if request.scheduled_tick is None:
            request.scheduled_tick = now

    def _start_decoding(self, state: RequestState, after: int, end: Tick) -> None:
        """The step before step `after`, over at `end`, gives `state` a token; from then on it decodes."""
        request = state.request
        if request.first_token_tick is None:
            request.first_token_tick = end
        outputs = request.num_output_tokens
        leave = after + state.num_outputs - outputs - 1 + state.runs_past_eos
        self.decodes.add(state, request.num_prompt_tokens + outputs, after, leave)
        if not self.mark_writer(state):
            self.has_rival_writers = True
