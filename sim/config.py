"""What a server is told, in vLLM's flag names: as given, and resolved.

`EngineArgs` is what a command line or profile gives, `FIELDS` describes it for flags.
`EngineConfig` holds no unset value: `replicast.sim.defaults` resolves them as vLLM does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from replicast.sim.kv_groups import KVGroup

Policy = Literal["fcfs", "priority"]
Rules = Literal["0.25.1", "0.33.0"]
EntryPoint = Literal["serve", "llm"]
PerformanceMode = Literal["balanced", "interactivity", "throughput"]
Kind = Literal["int", "float", "bool", "str", "ints"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine, in vLLM's flag names; every value is known.

    `num_gpu_blocks` counts the null block, so one fewer is usable. `rules` names the recorded
    vLLM version whose scheduling rules are followed. `spec_accept` gives the accepted drafts of
    each verification, cycled per request, where `num_speculative_tokens` > 0 (n-gram drafts).
    `num_lookahead_tokens` are KV slots past the query (0 for n-gram).

    The first four fields after `rules` are rarely set. `max_num_scheduled_tokens` caps the step's tokens
    below `max_num_batched_tokens`; the other three exist from 0.33 on (the interval did nothing
    for a single engine before).

    `kv_groups` are those of a hybrid model, None is one group of full attention. The retention interval
    says which of their window tails and states stay cached (0.33): None all, 0 only those at the end of
    prompts and at junctions, n also one every n tokens.
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
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    kv_groups: tuple[KVGroup, ...] | None = None
    prefix_cache_retention_interval: int | None = 0

    @property
    def num_usable_blocks(self) -> int:
        """Blocks a request can hold: all but the null block."""
        return self.num_gpu_blocks - 1


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """What was given, in vLLM's flag names; None is unset.

    The KV pool is `num_gpu_blocks` (null block included, as in `vllm:cache_config_info`) or
    `kv_cache_tokens` (the boot log's "GPU KV cache size"). `hybrid_model` marks models with
    linear-attention or Mamba layers, for which 0.25 leaves prefix caching off. `kv_groups` names the
    groups of such a model (`kv_groups.parse_groups`).
    """

    vllm_version: str | None = None
    device: str | None = None
    device_memory_gib: float | None = None
    entry_point: EntryPoint | None = None
    performance_mode: PerformanceMode | None = None
    hybrid_model: bool | None = None
    kv_cache_tokens: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    long_prefill_token_threshold: int | None = None
    scheduling_policy: Policy | None = None
    scheduler_reserve_full_isl: bool | None = None
    watermark: float | None = None
    async_scheduling: bool | None = None
    num_speculative_tokens: int | None = None
    spec_accept: tuple[int, ...] | None = None
    num_lookahead_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    long_prefill_token_threshold_adaptive: bool | None = None
    prefill_schedule_interval: int | None = None
    kv_groups: str | None = None
    prefix_cache_retention_interval: str | None = None


class Field(NamedTuple):
    """One field of `EngineArgs` as a command line needs it."""

    name: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """`--max-num-seqs` for `max_num_seqs`."""
        return "--" + self.name.replace("_", "-")


FIELDS: tuple[Field, ...] = (
    Field("vllm_version", "str", "vLLM version, any V1; below 0.33 the rules of 0.25.1 are followed."),
    Field("device", "str", "Device name, for vLLM's defaults: H200, L40S, A100, ..."),
    Field("device_memory_gib", "float", "Device memory in GiB, for vLLM's defaults."),
    Field("entry_point", "str", "How vLLM is started, for its defaults.", get_args(EntryPoint)),
    Field(
        "performance_mode", "str", "'throughput' doubles unset budget and seats.", get_args(PerformanceMode)
    ),
    Field("hybrid_model", "bool", "Model with linear-attention layers: 0.25 leaves prefix caching off."),
    Field("kv_cache_tokens", "int", "KV pool in tokens, as the boot log gives it."),
    Field("num_gpu_blocks", "int", "KV pool in blocks, null block included."),
    Field("block_size", "int", "Tokens of a KV block."),
    Field("max_model_len", "int", "Longest prompt plus output, in tokens."),
    Field("max_num_batched_tokens", "int", "Token budget of a step."),
    Field("max_num_seqs", "int", "Most requests running at one time."),
    Field("enable_chunked_prefill", "bool", "Cut prompts into chunks of the budget."),
    Field("enable_prefix_caching", "bool", "Reuse KV blocks of equal prefixes."),
    Field(
        "long_prefill_token_threshold", "int", "Most prompt tokens of one request in a step; 0 is no limit."
    ),
    Field("scheduling_policy", "str", "Order of the waiting queue.", get_args(Policy)),
    Field("scheduler_reserve_full_isl", "bool", "Admit a request only if its whole prompt fits now."),
    Field("watermark", "float", "Share of blocks an admission must leave free."),
    Field("async_scheduling", "bool", "Schedule the next step while this one runs."),
    Field("num_speculative_tokens", "int", "Draft tokens of a verification; 0 is no speculation."),
    Field("spec_accept", "ints", "Accepted drafts of each verification, cycled: 2,0,3."),
    Field("num_lookahead_tokens", "int", "KV slots past the query (0 for n-gram drafts)."),
    Field("max_num_scheduled_tokens", "int", "Token budget of a step where drafts lower it."),
    Field("max_num_active_seqs", "int", "Seats below max_num_seqs (from 0.33)."),
    Field("long_prefill_token_threshold_adaptive", "bool", "Raise the threshold when few wait (from 0.33)."),
    Field("prefill_schedule_interval", "int", "Steps between prefill steps while a decode runs (from 0.33)."),
    Field("kv_groups", "str", "KV groups of a hybrid model: 'full, 3 x mamba', 'full, sliding_window:1024'."),
    Field(
        "prefix_cache_retention_interval",
        "str",
        "Which window tails and states of hybrid models stay cached (from 0.33): "
        "0 (prompt ends), n (every n tokens too) or dense (all).",
    ),
)
