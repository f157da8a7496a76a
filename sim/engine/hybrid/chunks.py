"""Where a chunk of a prompt must end so that the states of mamba layers can be cached.

With `mamba_cache_mode` "align" a state is cached only where a chunk ends on a block boundary
(`vllm/v1/core/sched/scheduler.py`, `_mamba_block_aligned_split`). So a chunk that does not finish the
prompt is rounded down to whole blocks, which may leave nothing; the last boundary of the prompt is always
a chunk's end; and where another prompt was seen to branch off (a prefix that some groups have cached
and the states have not) a chunk ends too, that the next such prompt may hit it.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig


class AlignedChunks:
    """The rule of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.is_25 = config.rules == "0.25.1"
        self.block_size = config.block_size
        budget = config.max_num_scheduled_tokens or config.max_num_batched_tokens
        self.budget = min(budget, config.long_prefill_token_threshold or budget)

    def cut(
        self,
        num_prompt_tokens: int,
        num_tokens: int,
        start: int,
        num_new: int,
        shared_prefix_boundary: int,
        admission: bool,
    ) -> int:
        """How many of `num_new` tokens from `start` on a request may compute; decodes as many as asked."""
        prefill_end = num_prompt_tokens if num_prompt_tokens >= num_tokens else num_tokens - 1
        if start >= prefill_end:
            return num_new
        if self.is_25:
            junction = max(shared_prefix_boundary - start, 0) if admission else 0
            return self._cut_25(num_tokens, start, num_new, junction)
        # A block wider than the budget is crossed in parts, each ending at the next boundary at most.
        block_size = self.block_size
        end = start + num_new
        if end < prefill_end:
            whole = end // block_size * block_size
            if whole > start or block_size <= self.budget:
                end = whole
        stop = end
        last = (num_tokens - 1) // block_size * block_size
        if start < last < stop:
            stop = last
        if start % block_size:
            stop = min(stop, (start // block_size + 1) * block_size)
        if start < shared_prefix_boundary < end:
            junction = start + (shared_prefix_boundary - start) // block_size * block_size
            if start < junction < stop:
                stop = junction
        return stop - start if stop > start else 0

    def _cut_25(self, num_tokens: int, start: int, num_new: int, junction: int) -> int:
        """`junction`: tokens from `start` to where another prompt branched off, 0 if nowhere."""
        block_size = self.block_size
        last = num_tokens // block_size * block_size
        if start + num_new < last:
            num_new = num_new // block_size * block_size
        elif start < last < start + num_new:
            num_new = last - start
        if block_size <= junction < num_new:
            num_new = junction // block_size * block_size
        return num_new
