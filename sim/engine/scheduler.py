"""One step of vLLM's scheduler, row by row: who computes how many tokens next.

The rules, in order (`vllm/v1/core/sched/scheduler.py`, 0.33.0 and 0.25.1):

1. There is no prefill and no decode phase: a step lets each request's computed tokens catch up with
   those it knows, within one token budget.
2. `running` comes first, in list order, each with all it lacks as far as the budget goes.
3. A running request that finds no block preempts the last of `running` (priority: the least urgent),
   if need be itself. The victim goes to the front of `waiting` and starts anew, prefix hits apart.
4. Unless somebody was preempted, the head of `waiting` is admitted while there are seats, budget and
   blocks. It looks into the prefix cache now. If it does not fit, the rest waits too.
5. Tokens count as computed, and full blocks as cached, once they are *scheduled*.

`macro.py` jumps over the steps in which all this decides nothing new and calls this file for the
others: preemption, thresholds, speculation, several half-done prompts. `update_from_output` runs one
step late with async scheduling: each sampling step in flight leaves a *placeholder*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from replicast.sim.config import EngineConfig
from replicast.sim.engine.kv_cache import KVCache
from replicast.sim.engine.request_queue import waiting_queue
from replicast.sim.engine.request_state import RequestState, ScheduledRow, SchedulerOutput
from replicast.sim.engine.stats import EngineStats
from replicast.sim.request import Request, RequestStatus
from replicast.sim.workload import Content, Segment

# Members of an enumeration are slow to look up.
WAITING: Final = RequestStatus.WAITING
RUNNING: Final = RequestStatus.RUNNING
STOPPED: Final = RequestStatus.FINISHED_STOPPED
LENGTH_CAPPED: Final = RequestStatus.FINISHED_LENGTH_CAPPED


@dataclass(slots=True)
class Step:
    """A schedule() call under way."""

    token_budget: int
    long_prefill_token_threshold: int
    defer_prefills: bool
    rows: dict[RequestState, ScheduledRow] = field(default_factory=dict)
    preempted: list[RequestState] = field(default_factory=list)
    prefill_was_running: bool = False
    prefill_admitted: bool = False
    has_running_rows: bool = False

    def add(self, row: ScheduledRow) -> None:
        self.rows[row.state] = row
        self.token_budget -= row.num_scheduled_tokens

    def drop(self, state: RequestState) -> bool:
        """Take back a victim's row, if it has one."""
        row = self.rows.pop(state, None)
        if row is None:
            return False
        self.token_budget += row.num_scheduled_tokens
        return True


class Scheduler:
    """vLLM's scheduler of one engine. `stats` gets its counters."""

    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        self.config = config
        self.stats = stats
        self.waiting = waiting_queue(config.scheduling_policy)
        self.running: list[RequestState] = []
        self.kv_cache = KVCache(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            config.watermark,
            config.num_lookahead_tokens,
        )
        self.kv_cache.holders = self.running
        self._counts_look_ups = config.enable_prefix_caching
        self.is_25 = config.rules == "0.25.1"
        cap = config.max_num_scheduled_tokens
        self.token_budget = config.max_num_batched_tokens if cap is None else cap
        self.seats = config.max_num_active_seqs or config.max_num_seqs
        # 0.33: the pace of `prefill_schedule_interval`.
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._prefill_capacity_bound = False

    # Requests in and out

    def add_request(self, request: Request) -> None:
        """Take in a request (QUEUED)."""
        self.take_in(RequestState(request, self.config))

    def take_in(self, state: RequestState) -> None:
        """Name its content, and put it into `waiting`."""
        request = state.request
        request.state = state
        request.status = WAITING
        content = request.prompt + request.output
        missing = request.max_tokens - _length(request.output)
        if missing > 0:
            content += (Segment(-1 - request.request_id, 0, missing),)
        self.kv_cache.name(state, content)
        self.waiting.add(state)

    def abort(self, state: RequestState) -> None:
        """Drop a request between two steps; output still in flight for it will be thrown away."""
        if state.request.status == RUNNING:
            self.running.remove(state)
        else:
            self.waiting.remove(state)
        self.finish(state, RequestStatus.FINISHED_ABORTED)

    def finish(self, state: RequestState, status: RequestStatus) -> None:
        """Give up the blocks; the seat is gone already."""
        state.request.status = status
        self.kv_cache.free(state)
        self.kv_cache.forget(state)

    # schedule()

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        step = self._new_step()
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        rows = [self._after_schedule(row) for row in step.rows.values()]
        if step.rows:
            self._num_executed_steps += 1
        if step.prefill_was_running or step.prefill_admitted:
            self._last_prefill_step = self._num_executed_steps
        return SchedulerOutput(rows, step.preempted)

    def _new_step(self) -> Step:
        config = self.config
        threshold = config.long_prefill_token_threshold
        if threshold and not self.is_25:
            num_requests = len(self.running) + len(self.waiting)
            if num_requests <= 1:
                threshold = 0  # nobody to protect from a long prompt
            elif config.long_prefill_token_threshold_adaptive:
                threshold = max(threshold, config.max_num_batched_tokens // num_requests)
        return Step(self.token_budget, threshold, self._must_defer_prefills())

    def _schedule_running(self, step: Step) -> None:
        index = 0
        while index < len(self.running) and step.token_budget > 0:
            state = self.running[index]
            request = state.request
            num_new = self._num_new_tokens(state, step)
            if num_new == 0:
                index += 1  # others may still go ahead
                continue
            while not self.kv_cache.allocate(state, request.num_computed_tokens, num_new, request.num_tokens):
                index = self._preempt_one(step, index)
                if request.status == RequestStatus.PREEMPTED:
                    break
            if request.status == RequestStatus.PREEMPTED:
                if self.config.scheduling_policy == "priority" and not self.is_25:
                    continue  # the requests behind it are more urgent and may fit now
                return
            self._schedule_one_running(step, state, num_new)
            index += 1

    def _num_new_tokens(self, state: RequestState, step: Step) -> int:
        request = state.request
        computed, placeholders = request.num_computed_tokens, state.num_output_placeholders
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + state.max_tokens:
            return 0  # its last token is in flight
        if step.defer_prefills and state.is_prefill_chunk:
            return 0
        num_new = request.num_tokens + state.num_draft_tokens + placeholders - computed
        if 0 < step.long_prefill_token_threshold < num_new:
            num_new = step.long_prefill_token_threshold
        return min(num_new, step.token_budget, self.config.max_model_len - computed - 1)

    def _schedule_one_running(self, step: Step, state: RequestState, num_new: int) -> None:
        request = state.request
        computed = request.num_computed_tokens
        past_known = num_new + computed - request.num_tokens - state.num_output_placeholders
        num_drafts = min(max(past_known, 0), state.num_draft_tokens)
        state.num_draft_tokens = 0
        step.prefill_was_running |= state.is_prefill_chunk
        step.has_running_rows = True
        step.add(ScheduledRow(state, num_new, computed, num_drafts, 0))

    def _preempt_one(self, step: Step, index: int) -> int:
        """Preempt a victim while `running[index]` asks for blocks; the asker's index afterwards."""
        if self.config.scheduling_policy == "priority":
            victim = max(self.running, key=lambda s: (s.request.priority, s.request.arrival_tick))
            victim_index = self.running.index(victim)
            del self.running[victim_index]
            was_scheduled = step.drop(victim)
            # 0.25 forgets that a skipped request before the asker moves it, too.
            if was_scheduled if self.is_25 else victim_index < index:
                index -= 1
        else:
            victim = self.running.pop()
        self._preempt(victim)
        step.preempted.append(victim)
        return index

    def _preempt(self, state: RequestState) -> None:
        request = state.request
        self.kv_cache.free(state)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        # Output in flight is still delivered, but no longer moves the counters.
        state.num_stale_output_tokens = state.num_in_flight_tokens
        state.num_output_placeholders = 0
        state.num_draft_tokens = 0
        self.waiting.prepend(state)
        self.stats.num_preemptions += 1

    def _schedule_waiting(self, step: Step) -> None:
        while self.waiting and step.token_budget > 0 and len(self.running) < self.seats:
            state = self.waiting.peek()
            num_tokens = state.request.num_tokens
            place = self.kv_cache.look_up(state, num_tokens)
            num_hit_tokens = place[1] * self.config.block_size
            if self.is_25:
                self.count_look_up(state.request, num_hit_tokens)
            if step.defer_prefills and num_hit_tokens < num_tokens - 1:
                break
            chunk = self._first_chunk(num_tokens, num_hit_tokens, step)
            if chunk is None:
                break
            num_new, num_drafts = chunk
            if not self.kv_cache.admit(
                state,
                place,
                num_new,
                num_tokens,
                reserve_full_isl=self.config.scheduler_reserve_full_isl,
                use_watermark=bool(self.running),
            ):
                break
            if not self.is_25:
                self.count_look_up(state.request, num_hit_tokens)
            step.prefill_admitted |= num_hit_tokens < num_tokens - 1
            self.take_seat(num_hit_tokens)
            step.add(ScheduledRow(state, num_new, num_hit_tokens, num_drafts, 0))
        if not step.defer_prefills:
            self._prefill_capacity_bound = len(self.waiting) > 0

    def _first_chunk(self, num_tokens: int, num_hit_tokens: int, step: Step) -> tuple[int, int] | None:
        """(tokens, drafts) of a waiting request's first step; None if it must not start now."""
        num_new, num_drafts = num_tokens - num_hit_tokens, 0
        if num_new == 1 and self._pads_decode(step, num_hit_tokens):
            num_drafts = self.config.num_speculative_tokens
            padded = num_new + num_drafts
            # The padding and, in 0.33, the sampled token must have a place.
            room = self.config.max_model_len - num_hit_tokens - (0 if self.is_25 else 1)
            if padded <= room or self.is_25:
                if padded > min(step.token_budget, room):
                    return None
                num_new = padded
            else:
                num_drafts = 0
        if 0 < step.long_prefill_token_threshold < num_new:
            num_new = step.long_prefill_token_threshold
        if not self.config.enable_chunked_prefill and num_new > step.token_budget:
            return None
        num_new = min(num_new, step.token_budget)
        if num_drafts and num_new != 1 + num_drafts and not self.is_25:
            num_new, num_drafts = 1, 0  # cut padding is worth nothing
        return num_new, num_drafts

    def _pads_decode(self, step: Step, num_hit_tokens: int) -> bool:
        """Speculation pads a one-token admission, so that a step of decodes stays uniform."""
        if not self.config.num_speculative_tokens or step.prefill_was_running:
            return False
        return step.has_running_rows or (num_hit_tokens > 0 and not self.is_25)

    def take_seat(self, num_hit_tokens: int) -> RequestState:
        """The head of `waiting` goes to the end of `running`."""
        state = self.waiting.take()
        self.running.append(state)
        request = state.request
        if request.status == WAITING:
            request.num_cached_tokens = num_hit_tokens
        else:
            request.resumed_hit_tokens.append(num_hit_tokens)
        request.status = RUNNING
        request.num_computed_tokens = num_hit_tokens
        return state

    def count_look_up(self, request: Request, num_hit_tokens: int, times: int = 1) -> None:
        """0.33 counts a look-up at admission, 0.25 each time the head is tried."""
        if not self._counts_look_ups:
            return
        stats = self.stats
        if request.num_preemptions:
            stats.preempted_queries += times * request.num_tokens
            stats.preempted_hits += times * num_hit_tokens
        else:
            stats.prefix_cache_requests += times
            stats.prefix_cache_queries += times * request.num_tokens
            stats.prefix_cache_hits += times * num_hit_tokens

    def _after_schedule(self, row: ScheduledRow) -> ScheduledRow:
        """Count the row's tokens as computed, and tell whether and how many tokens it samples."""
        state = row.state
        request = state.request
        request.num_computed_tokens += row.num_scheduled_tokens
        state.num_in_flight_tokens += row.num_scheduled_tokens
        known = request.num_tokens + state.num_output_placeholders
        state.is_prefill_chunk = request.num_computed_tokens < known
        if state.is_prefill_chunk:
            return row
        if self.config.async_scheduling:
            state.num_output_placeholders += 1 + row.num_draft_tokens
            state.num_draft_tokens = self.config.num_speculative_tokens
        accepted = state.num_accepted(row.num_draft_tokens, self.config.spec_accept)
        return ScheduledRow(*row[:4], 1 + accepted)

    # update_from_output()

    def update_from_output(self, output: SchedulerOutput) -> tuple[list[RequestState], list[RequestState]]:
        """Deliver what a step sampled, in row order: (who got tokens, who has finished)."""
        delivered: list[RequestState] = []
        finished: list[RequestState] = []
        for row in output.rows:
            state = row.state
            if state.request.status >= RequestStatus.FINISHED_STOPPED:
                continue  # aborted, or a step that async scheduling started before EOS was known
            state.num_in_flight_tokens -= row.num_scheduled_tokens
            is_stale = state.num_stale_output_tokens > 0
            if is_stale:
                state.num_stale_output_tokens -= row.num_scheduled_tokens
            if row.num_sampled_tokens:
                delivered.append(state)
                if self._deliver(row, is_stale):
                    finished.append(state)
        return delivered, finished

    def _deliver(self, row: ScheduledRow, is_stale: bool) -> bool:
        """Append a row's tokens; True if that ends the request."""
        state = row.state
        request = state.request
        left = state.num_outputs - request.num_output_tokens
        ends = row.num_sampled_tokens >= left
        request.num_output_tokens += left if ends else row.num_sampled_tokens
        if not is_stale:
            # Rejected drafts were not computed after all.
            request.num_computed_tokens -= row.num_draft_tokens + 1 - row.num_sampled_tokens
            if self.config.async_scheduling:
                state.num_output_placeholders -= 1 + row.num_draft_tokens
            if self._publishes_on_update:
                # All delivered tokens but the last; fewer where 0.25 verified drafts it had cut.
                computed = request.num_computed_tokens - state.num_output_placeholders
                self.kv_cache.publish(state, min(request.num_tokens - 1, computed))
        if not ends:
            if not self.config.async_scheduling:
                state.num_draft_tokens = self.config.num_speculative_tokens
            return False
        if is_stale:
            self.waiting.remove(state)
        else:
            self.running.remove(state)
        self.finish(state, final_status(state))
        return True

    @property
    def _publishes_on_update(self) -> bool:
        """Whether blocks were scheduled with tokens not known yet; 0.25 forgets sync speculation."""
        return self.config.async_scheduling or (self.config.num_speculative_tokens > 0 and not self.is_25)

    # 0.33: a pause between prefills

    def _must_defer_prefills(self) -> bool:
        interval = self.config.prefill_schedule_interval
        return (
            interval > 1
            and not self.is_25  # there it needs data parallelism
            and not self._prefill_capacity_bound
            and self._num_executed_steps + 1 - self._last_prefill_step < interval
            and any(not state.is_prefill_chunk for state in self.running)
        )


def final_status(state: RequestState) -> RequestStatus:
    """How a request that has all its outputs ended."""
    request = state.request
    if request.stops_at_eos and state.num_outputs == request.max_tokens:
        return STOPPED
    return LENGTH_CAPPED


def _length(content: Content) -> int:
    length = 0
    for segment in content:
        length += segment[2]
    return length
