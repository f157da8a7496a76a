"""Where a chunk of a prompt must end so that the states of mamba layers can be cached.

With `mamba_cache_mode` "align" a state is cached only where a chunk ends on a block boundary
(`vllm/v1/core/sched/scheduler.py`, `_mamba_block_aligned_split`). So a chunk that does not finish the
prompt is rounded down to whole blocks, which may leave nothing; the last boundary of the prompt is always
a chunk's end; and where another prompt was seen to branch off (a prefix that some groups have cached
and the states have not) a chunk ends too, that the next such prompt may hit it.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig


def aligned_chunk(
    config: EngineConfig,
    num_prompt_tokens: int,
    num_tokens: int,
    start: int,
    num_new: int,
    shared_prefix_boundary: int,
    *,
    admission: bool,
) -> int:
    """How many of `num_new` tokens from `start` on a request may compute; decodes as many as asked."""
    prefill_end = max(num_prompt_tokens, num_tokens - 1)
    if start >= prefill_end:
        return num_new
    if config.rules == "0.25.1":
        junction = max(shared_prefix_boundary - start, 0) if admission else 0
        return _chunk_25(config.block_size, num_tokens, start, num_new, junction)
    budget = config.max_num_scheduled_tokens or config.max_num_batched_tokens
    if config.long_prefill_token_threshold:
        budget = min(budget, config.long_prefill_token_threshold)
    return _chunk_33(
        config.block_size, budget, num_tokens, prefill_end, start, num_new, shared_prefix_boundary
    )


def _chunk_25(block_size: int, num_tokens: int, start: int, num_new: int, junction: int) -> int:
    """`junction`: tokens from `start` to where another prompt branched off, 0 if nowhere."""
    last = num_tokens // block_size * block_size
    if start + num_new < last:
        num_new = num_new // block_size * block_size
    elif start < last < start + num_new:
        num_new = last - start
    if block_size <= junction < num_new:
        num_new = junction // block_size * block_size
    return num_new


def _chunk_33(
    block_size: int,
    budget: int,
    num_tokens: int,
    prefill_end: int,
    start: int,
    num_new: int,
    shared_prefix_boundary: int,
) -> int:
    """A block wider than the `budget` is crossed in parts, each ending at the next boundary at most."""
    end = start + num_new
    if end < prefill_end:
        whole = end // block_size * block_size
        if whole > start or block_size <= budget:
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
    return max(stop - start, 0)
