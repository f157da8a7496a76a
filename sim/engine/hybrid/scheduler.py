"""One step of a hybrid model row by row: the scheduler of all models, with what groups change.

1. Blocks come from all groups, and what a request's windows and states no longer need goes back first.
2. A hit is what all groups agree on, in tokens.
3. With aligned states a chunk of a prompt ends where its state can be cached (`chunks.py`).
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.chunks import AlignedChunks
from replicast.sim.engine.hybrid.kv_cache import HybridCache
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.request_state import RequestState, ScheduledRow, SchedulerOutput
from replicast.sim.engine.scheduler import Scheduler, Step
from replicast.sim.engine.stats import EngineStats
from replicast.sim.request import Request


class HybridScheduler(Scheduler):
    """vLLM's scheduler over several KV groups."""

    def __init__(self, config: EngineConfig, stats: EngineStats) -> None:
        super().__init__(config, stats)
        self.groups = HybridCache(config)
        self.groups.holders = self.running
        self.kv_cache = self.groups
        aligns = any(
            group.kind == "mamba" and group.mamba_cache_mode == "align" for group in config.kv_groups or ()
        )
        self.chunks = AlignedChunks(config) if aligns else None

    def add_request(self, request: Request) -> None:
        self.take_in(HybridState(request, self.config))

    def schedule(self) -> SchedulerOutput:
        self.groups.new_step_starts()
        return super().schedule()

    def aligned(self, state: HybridState, start: int, num_new: int, admission: bool) -> int:
        """How many of `num_new` prompt tokens from `start` on may be computed in one step."""
        chunks = self.chunks
        if chunks is None:
            return num_new
        request = state.request
        prompt = request.num_prompt_tokens
        return chunks.cut(
            prompt,
            prompt + request.num_output_tokens,
            start,
            num_new,
            state.shared_prefix_boundary,
            admission,
        )

    def _num_new_tokens(self, state: RequestState, step: Step) -> int:
        num_new = super()._num_new_tokens(state, step)
        if num_new and state.is_prefill_chunk:
            assert isinstance(state, HybridState)
            return self.aligned(state, state.request.num_computed_tokens, num_new, admission=False)
        return num_new

    def _schedule_waiting(self, step: Step) -> None:
        while self.waiting and step.token_budget > 0 and len(self.running) < self.seats:
            state = self.waiting.peek()
            assert isinstance(state, HybridState)
            num_tokens = state.request.num_tokens
            hit = self.groups.get_computed_blocks(state, num_tokens)
            num_hit_tokens = hit.num_tokens
            if self.is_25:
                self.count_look_up(state.request, num_hit_tokens)
            if step.defer_prefills and num_hit_tokens < num_tokens - 1:
                break
            chunk = self._first_chunk(num_tokens, num_hit_tokens, step)
            if chunk is None:
                break
            num_new, num_drafts = chunk
            wanted = num_new
            num_new = self.aligned(state, num_hit_tokens, num_new, admission=True)
            if num_drafts and num_new != wanted and not self.is_25:
                num_new, num_drafts = 1, 0  # cut padding is worth nothing
            if not num_new or not self.groups.admit_hit(
                state,
                hit,
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
