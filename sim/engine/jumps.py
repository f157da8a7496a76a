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

from replicast.sim.engine.jump_effects import JumpEffects
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_run import StepRun, like_steps
from replicast.sim.ticks import Tick


class Jumps(JumpEffects):
    """How many steps come next that are alike, and how long they take."""

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
        computed = decodes.base_sum + (clock + 1) * count
        kv_slope = self.memory_per_kv_token * count
        pair_slope = self.compute_per_pair * count
        run = like_steps(
            self.memory_fixed + self.memory_per_kv_token * computed + self.memory_per_seq * count,
            kv_slope,
            self.compute_fixed + self.compute_per_token * count + self.compute_per_pair * computed,
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
        if head is not None and (self.is_25 or not self._chunked):
            return False  # counted in each step; more budget may let it in
        return count < scheduler.token_budget

    def _plan_nothing(self, now: Tick) -> bool:
        """No row at all: wait for what is in flight, if anything is."""
        if self.gpu_free > now:
            self.clock += 1
            self.next_tick = self.gpu_free
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
        needed = (k // block_size + 1) * count + -(-(done + k * chunk) // block_size) - prefill.num_blocks
        if needed > self.cache.num_free:
            k = self._most_steps(k, self.cache.num_free, prefill, chunk)
            if k == 0:
                return False
        computed = decodes.base_sum + (clock + 1) * count
        kv_tokens = computed + done + chunk
        pairs = computed + chunk * done + chunk * (chunk + 1) // 2
        run = like_steps(
            self.memory_fixed + self.memory_per_kv_token * kv_tokens + self.memory_per_seq * (count + 1),
            self.memory_per_kv_token * (count + chunk),
            self.compute_fixed + self.compute_per_token * (count + chunk) + self.compute_per_pair * pairs,
            self.compute_per_pair * (count + chunk * chunk),
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
                blocks += (
                    -(-(self.prefill_computed + middle * chunk) // self._block_size) - prefill.num_blocks
                )
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
        self.next_tick = start + run.ticks(k - 1 if self.is_async and not tail else k)

    def _cut(self, now: Tick) -> None:
        """End the jump under way at its first boundary at or after `now`."""
        if now <= self._lead:
            k = 0
            self.next_tick = self._lead
        else:
            k = self._run.steps_until(now - self._start)
            if self.is_async:
                if k >= self._k:
                    return
                self.next_tick = self._start + self._run.ticks(k)
                k += 1
            else:
                k = k or 1
                if k >= self._k:
                    return
                self.next_tick = self._start + self._run.ticks(k)
        self._k = k
        self._has_tail = False
