"""One step of vLLM's scheduler: who computes how many tokens next, and what their output changes.

The rules of a step, in order (`vllm/v1/core/sched/scheduler.py`, 0.33.0 and 0.25.1):

1. There is no prefill and no decode phase. Each request has tokens it knows and tokens it has
   computed; a step lets the second catch up with the first, within one token budget.
2. Requests in `running` come first, in list order, each with all the tokens it lacks, as far as
   the budget goes. So decodes admitted earlier are never held up by prompts admitted later, and
   a half-done prompt takes all the budget left at its place.
3. A running request that finds no block preempts the last of `running` (priority: the least
   urgent one), if need be itself. The victim loses its blocks, goes to the front of `waiting`
   and computes everything again, but for what the prefix cache still has.
4. Then, unless somebody was preempted, the head of `waiting` is admitted while there are seats,
   budget and blocks. It looks into the prefix cache now, not at its arrival. If it does not fit
   the rest waits too: nobody overtakes.
5. Tokens count as computed, and full blocks as cached, once they are *scheduled*.

`update_from_output` then appends the tokens that a step sampled, and frees what has finished.
With async scheduling it runs one step late: each step in flight that samples leaves a
*placeholder*, so that the next step can be scheduled without knowing the token.

Where the two versions differ, the line says so. Left out: LoRA, images, KV connectors, grammars,
pipeline and data parallelism.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.hybrid.chunks import AlignedChunks
from replicast.sim.request import Request, RequestStatus

from reference.kv_cache import KVCacheManager
from reference.output import (
    Admission,
    RequestOutput,
    ScheduledRow,
    SchedulerOutput,
    SchedulingState,
    new_state,
    state_of,
)
from reference.request_queue import create_request_queue
from reference.step import Step


class Scheduler:
    """vLLM's scheduler of one engine. `stats` gets its counters."""

    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        self.config = config
        self.stats = stats
        self.waiting = create_request_queue(config.scheduling_policy)
        self.running: list[Request] = []
        self._is_25 = config.rules == "0.25.1"
        self.kv_cache = KVCacheManager.of(config)
        self._aligns_chunks = any(
            group.kind == "mamba" and group.mamba_cache_mode == "align" for group in config.kv_groups or ()
        )
        self._chunks = AlignedChunks(config)
        # 0.33: the pace of `prefill_schedule_interval`.
        self._num_executed_steps = 0
        self._last_prefill_step = -config.prefill_schedule_interval
        self._prefill_capacity_bound = False

    # Requests in and out

    def add_request(self, request: Request) -> None:
        """Take in a request (QUEUED)."""
        request.state = new_state(request, self.config)
        request.status = RequestStatus.WAITING
        self.waiting.add(request)

    def abort(self, request: Request) -> None:
        """Drop a request between two steps; output still in flight for it will be thrown away."""
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, RequestStatus.FINISHED_ABORTED)

    @property
    def has_unfinished_requests(self) -> bool:
        """Somebody runs or waits."""
        return bool(self.running) or len(self.waiting) > 0

    # schedule()

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        self.kv_cache.new_step_starts()
        step = self._new_step()
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        rows = [self._after_schedule(row) for row in step.rows.values()]
        self._keep_prefill_pace(step)
        return SchedulerOutput(rows, step.preempted)

    def _new_step(self) -> Step:
        config = self.config
        threshold = config.long_prefill_token_threshold
        if threshold and not self._is_25:
            num_requests = len(self.running) + len(self.waiting)
            if num_requests <= 1:
                threshold = 0  # nobody to protect from a long prompt
            elif config.long_prefill_token_threshold_adaptive:
                threshold = max(threshold, config.max_num_batched_tokens // num_requests)
        budget = config.max_num_scheduled_tokens
        return Step(
            token_budget=config.max_num_batched_tokens if budget is None else budget,
            long_prefill_token_threshold=threshold,
            defer_prefills=self._must_defer_prefills(),
        )

    def _schedule_running(self, step: Step) -> None:
        index = 0
        while index < len(self.running) and step.token_budget > 0:
            request = self.running[index]
            num_new = self._num_new_tokens(request, step)
            if num_new == 0:
                index += 1  # others may still go ahead
                continue
            state = state_of(request)
            while not self.kv_cache.allocate_slots(
                state.blocks,
                request.num_computed_tokens,
                num_new,
                request.num_tokens,
                state.num_in_flight_tokens,
            ):
                index = self._preempt_one(step, index)
                if request.status == RequestStatus.PREEMPTED:
                    break
            if request.status == RequestStatus.PREEMPTED:
                if self.config.scheduling_policy == "priority" and not self._is_25:
                    continue  # the requests behind it are more urgent and may fit now
                return
            self._schedule_one_running(step, request, state, num_new)
            index += 1

    def _num_new_tokens(self, request: Request, step: Step) -> int:
        state = state_of(request)
        computed, placeholders = request.num_computed_tokens, state.num_output_placeholders
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + state.max_tokens:
            return 0  # its last token is in flight
        if step.defer_prefills and state.is_prefill_chunk:
            return 0
        num_new = request.num_tokens + state.num_draft_tokens + placeholders - computed
        if 0 < step.long_prefill_token_threshold < num_new:
            num_new = step.long_prefill_token_threshold
        num_new = min(num_new, step.token_budget, self.config.max_model_len - computed - 1)
        return self._aligned(request, computed, num_new, admission=False)

    def _schedule_one_running(
        self, step: Step, request: Request, state: SchedulingState, num_new: int
    ) -> None:
        computed = request.num_computed_tokens
        past_known = num_new + computed - request.num_tokens - state.num_output_placeholders
        num_drafts = min(max(past_known, 0), state.num_draft_tokens)
        state.num_draft_tokens = 0
        step.prefill_was_running |= state.is_prefill_chunk
        step.add(ScheduledRow(request, num_new, computed, request.num_tokens, num_drafts, 0, None))

    def _preempt_one(self, step: Step, index: int) -> int:
        """Preempt a victim while `running[index]` asks for blocks; the asker's index afterwards."""
        if self.config.scheduling_policy == "priority":
            victim = max(self.running, key=lambda r: (r.priority, r.arrival_tick))
            victim_index = self.running.index(victim)
            del self.running[victim_index]
            was_scheduled = step.drop(victim)
            # 0.25 forgets that a skipped request before the asker moves it, too.
            if was_scheduled if self._is_25 else victim_index < index:
                index -= 1
        else:
            victim = self.running.pop()
        self._preempt(victim)
        step.preempted.append(victim)
        return index

    def _preempt(self, request: Request) -> None:
        state = state_of(request)
        self.kv_cache.free(state.blocks)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        # Output in flight is still delivered, but no longer moves the counters.
        state.num_stale_output_tokens = state.num_in_flight_tokens
        state.num_output_placeholders = 0
        state.num_draft_tokens = 0
        self.waiting.prepend(request)
        self.stats.num_preemptions += 1

    def _schedule_waiting(self, step: Step) -> None:
        seats = self.config.max_num_active_seqs or self.config.max_num_seqs
        while len(self.waiting) and step.token_budget > 0 and len(self.running) < seats:
            request = self.waiting.peek()
            state = state_of(request)
            assert not state.num_stale_output_tokens, "two steps in flight deliver before the next call"
            hit = self.kv_cache.get_computed_blocks(state.blocks, request.num_tokens)
            num_hit_tokens = hit.num_tokens
            if self._is_25:
                self._count_look_up(request, num_hit_tokens)
            if step.defer_prefills and num_hit_tokens < request.num_tokens - 1:
                break
            chunk = self._first_chunk(request, num_hit_tokens, step)
            if chunk is None:
                break
            num_new, num_drafts = chunk
            if not self.kv_cache.admit(
                state.blocks,
                hit,
                num_new,
                request.num_tokens,
                reserve_full_isl=self.config.scheduler_reserve_full_isl,
                use_watermark=bool(self.running),
            ):
                break
            if not self._is_25:
                self._count_look_up(request, num_hit_tokens)
            step.prefill_admitted |= num_hit_tokens < request.num_tokens - 1
            admitted = self._admit(request, num_hit_tokens)
            step.add(
                ScheduledRow(request, num_new, num_hit_tokens, request.num_tokens, num_drafts, 0, admitted)
            )
        if not step.defer_prefills:
            self._prefill_capacity_bound = len(self.waiting) > 0

    def _first_chunk(self, request: Request, num_hit_tokens: int, step: Step) -> tuple[int, int] | None:
        """(tokens, drafts) of a waiting request's first step; None if it must not start now."""
        num_new, num_drafts = request.num_tokens - num_hit_tokens, 0
        if num_new == 1 and self._pads_decode(step, num_hit_tokens):
            num_drafts = self.config.num_speculative_tokens
            padded = num_new + num_drafts
            # The padding and, in 0.33, the sampled token must have a place.
            room = self.config.max_model_len - num_hit_tokens - (0 if self._is_25 else 1)
            if padded <= room or self._is_25:
                if padded > min(step.token_budget, room):
                    return None
                num_new = padded
            else:
                num_drafts = 0
        if 0 < step.long_prefill_token_threshold < num_new:
            num_new = step.long_prefill_token_threshold
        if not self.config.enable_chunked_prefill and num_new > step.token_budget:
            return None
        num_new = self._aligned(request, num_hit_tokens, min(num_new, step.token_budget), admission=True)
        if num_drafts and num_new != 1 + num_drafts and not self._is_25:
            num_new, num_drafts = 1, 0  # cut padding is worth nothing
        return (num_new, num_drafts) if num_new else None

    def _aligned(self, request: Request, start: int, num_new: int, *, admission: bool) -> int:
        if not self._aligns_chunks or not (admission or state_of(request).is_prefill_chunk):
            return num_new
        return self._chunks.cut(
            request.num_prompt_tokens,
            request.num_tokens,
            start,
            num_new,
            state_of(request).blocks.shared_prefix_boundary,
            admission,
        )

    def _pads_decode(self, step: Step, num_hit_tokens: int) -> bool:
        """Speculation pads a one-token admission, so that a step of decodes stays uniform."""
        if not self.config.num_speculative_tokens or step.prefill_was_running:
            return False
        runs_scheduled = any(row.admitted is None for row in step.rows.values())
        return runs_scheduled or (num_hit_tokens > 0 and not self._is_25)

    def _admit(self, request: Request, num_hit_tokens: int) -> Admission:
        self.waiting.pop()
        self.running.append(request)
        is_new = request.status == RequestStatus.WAITING
        if is_new:
            request.num_cached_tokens = num_hit_tokens
        else:
            request.resumed_hit_tokens.append(num_hit_tokens)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit_tokens
        return "new" if is_new else "resumed"

    def _count_look_up(self, request: Request, num_hit_tokens: int) -> None:
        """0.33 counts a look-up at admission, 0.25 each time the head is tried."""
        if not self.config.enable_prefix_caching:
            return
        if request.num_preemptions:
            self.stats.preempted_queries += request.num_tokens
            self.stats.preempted_hits += num_hit_tokens
        else:
            self.stats.prefix_cache_requests += 1
            self.stats.prefix_cache_queries += request.num_tokens
            self.stats.prefix_cache_hits += num_hit_tokens

    def _after_schedule(self, row: ScheduledRow) -> ScheduledRow:
        """Count the row's tokens as computed, and tell whether and how many tokens it samples."""
        request, state = row.request, state_of(row.request)
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
        return row._replace(num_sampled_tokens=1 + accepted)

    # update_from_output()

    def update_from_output(self, output: SchedulerOutput) -> list[RequestOutput]:
        """Deliver what a step sampled, in row order; finished requests give up seat and blocks."""
        delivered: list[RequestOutput] = []
        for row in output.rows:
            request, state = row.request, state_of(row.request)
            if request.status >= RequestStatus.FINISHED_STOPPED:
                continue  # aborted, or a step that async scheduling started before EOS was known
            state.num_in_flight_tokens -= row.num_scheduled_tokens
            is_stale = state.num_stale_output_tokens > 0
            if is_stale:
                state.num_stale_output_tokens -= row.num_scheduled_tokens
            if row.num_sampled_tokens:
                delivered.append(self._deliver(row, request, state, is_stale))
        return delivered

    def _deliver(
        self, row: ScheduledRow, request: Request, state: SchedulingState, is_stale: bool
    ) -> RequestOutput:
        num_new, status = self._stop_check(request, state, row.num_sampled_tokens)
        request.num_output_tokens += num_new
        if not is_stale:
            # Rejected drafts were not computed after all.
            request.num_computed_tokens -= row.num_draft_tokens + 1 - row.num_sampled_tokens
            if self.config.async_scheduling:
                state.num_output_placeholders -= 1 + row.num_draft_tokens
            if self._publishes_on_update:
                # All delivered tokens but the last; fewer where 0.25 verified drafts it had cut.
                computed = request.num_computed_tokens - state.num_output_placeholders
                self.kv_cache.publish(state.blocks, min(request.num_tokens - 1, computed))
        if status is None:
            if not self.config.async_scheduling:
                state.num_draft_tokens = self.config.num_speculative_tokens
            return RequestOutput(request, num_new, finished=False)
        if is_stale:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
        self._finish(request, status)
        return RequestOutput(request, num_new, finished=True)

    @property
    def _publishes_on_update(self) -> bool:
        """Whether blocks were scheduled with tokens not known yet; 0.25 forgets sync speculation."""
        return self.config.async_scheduling or (self.config.num_speculative_tokens > 0 and not self._is_25)

    def _stop_check(
        self, request: Request, state: SchedulingState, num_sampled: int
    ) -> tuple[int, RequestStatus | None]:
        """How many of the sampled tokens are kept, and the final status if one of them is the last."""
        to_eos = request.max_tokens if request.stops_at_eos else None
        to_limit = min(state.max_tokens, self.config.max_model_len - request.num_prompt_tokens)
        end = max(to_limit, request.num_output_tokens + 1)
        status = RequestStatus.FINISHED_LENGTH_CAPPED
        if to_eos is not None and to_eos <= end:
            end, status = to_eos, RequestStatus.FINISHED_STOPPED
        left = end - request.num_output_tokens
        if num_sampled < left:
            return num_sampled, None
        return left, status

    def _finish(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        self.kv_cache.free(state_of(request).blocks)

    # 0.33: a pause between prefills

    def _must_defer_prefills(self) -> bool:
        interval = self.config.prefill_schedule_interval
        return (
            interval > 1
            and not self._is_25  # there it needs data parallelism
            and not self._prefill_capacity_bound
            and self._num_executed_steps + 1 - self._last_prefill_step < interval
            and any(not state_of(request).is_prefill_chunk for request in self.running)
        )

    def _keep_prefill_pace(self, step: Step) -> None:
        if step.rows:
            self._num_executed_steps += 1
        if step.prefill_was_running or step.prefill_admitted:
            self._last_prefill_step = self._num_executed_steps
