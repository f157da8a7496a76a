"""What a server is told: vLLM's flags, resolved.

`EngineConfig` holds no unset value: `replicast.sim.defaults` resolves them as vLLM does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["fcfs", "priority"]
Rules = Literal["0.25.1", "0.33.0"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine, in vLLM's flag names; every value is known.

    `num_gpu_blocks` counts the null block, so one fewer is usable. `rules` names the recorded
    vLLM version whose scheduling rules are followed. `spec_accept` gives the accepted drafts of
    each verification, cycled per request, where `num_speculative_tokens` > 0 (n-gram drafts).
    `num_lookahead_tokens` are KV slots past the query (0 for n-gram).
    """

    num_gpu_blocks: int
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 200_000
    block_size: int = 16
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: Policy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = True
    num_speculative_tokens: int = 0
    spec_accept: tuple[int, ...] = (0,)
    num_lookahead_tokens: int = 0
    rules: Rules = "0.33.0"

    @property
    def num_usable_blocks(self) -> int:
        """Blocks a request can hold: all but the null block."""
        return self.num_gpu_blocks - 1
