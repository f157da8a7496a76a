"""What vLLM asks of a hybrid model's settings before it starts."""

from __future__ import annotations

from dataclasses import replace

from replicast.sim.config import EngineConfig, Rules
from replicast.sim.errors import InputError
from replicast.sim.kv_groups import KVGroup, blocks_per_request, verify_groups
from replicast.sim.layers import Layers


def in_flight_tokens(max_num_batched_tokens: int, async_scheduling: bool, rules: Rules) -> int:
    """The most tokens scheduled and not yet computed; 0.25 counts one batch even where two are in flight."""
    return max_num_batched_tokens * (2 if async_scheduling and rules != "0.25.1" else 1)


def with_drafts(groups: tuple[KVGroup, ...], num_speculative_tokens: int) -> tuple[KVGroup, ...]:
    """The groups of a model that speculates: a state more for each draft."""
    return tuple(
        replace(group, num_speculative_blocks=num_speculative_tokens) if group.kind == "mamba" else group
        for group in groups
    )


def verify_hybrid(c: EngineConfig, groups: tuple[KVGroup, ...]) -> None:
    """Refuse what vLLM refuses to boot with these groups."""
    verify_groups(groups, c.block_size, c.enable_prefix_caching, c.prefix_cache_retention_interval)
    in_flight = in_flight_tokens(c.max_num_batched_tokens, c.async_scheduling, c.rules)
    needed = blocks_per_request(groups, c.max_model_len, in_flight)
    if needed > c.num_usable_blocks:
        raise InputError(
            f"vLLM does not start: to serve at least one request with the model's max seq len "
            f"({c.max_model_len}), {needed} blocks of KV cache are needed over all KV groups, which is "
            f"larger than the available KV cache ({c.num_usable_blocks} blocks).",
            remedy="Decrease --max-model-len, or give a larger KV pool.",
        )
    wide = max(
        (g.block_size for g in groups if g.kind == "mamba" and g.mamba_cache_mode == "align"), default=0
    )
    if c.rules == "0.25.1" and wide > c.max_num_batched_tokens:
        raise InputError(
            f"vLLM does not start: in mamba cache align mode, block_size ({wide}) must be at most "
            f"max_num_batched_tokens ({c.max_num_batched_tokens})."
        )
    if c.rules == "0.25.1" and wide > c.long_prefill_token_threshold > 0:
        raise InputError(
            f"vLLM does not start: in mamba cache align mode, long_prefill_token_threshold "
            f"({c.long_prefill_token_threshold}) must be at least block_size ({wide})."
        )


def parse_retention(text: str | None, rules: Rules, groups: tuple[KVGroup, ...] | None) -> int | None:
    """The retention interval in tokens: None keeps all, 0 only prompt ends and junctions."""
    if text is None:
        return None if rules == "0.25.1" else 0
    if rules == "0.25.1" or groups is None:
        raise InputError(
            "prefix_cache_retention_interval is for hybrid models from vLLM 0.33 on",
            remedy="Leave it out, or give --kv-groups and --vllm-version 0.33.0.",
        )
    if text == "dense":
        return None
    if not text.isascii() or not text.isdigit():
        raise InputError(f"prefix_cache_retention_interval is {text!r}, must be dense or a number of tokens")
    return int(text)


def named_groups(layers: Layers, warnings: list[str]) -> str | None:
    """The KV groups as text. Smaller blocks than the profile's hold no state: then full attention only.

    vLLM would raise the block size again (`Platform` in vllm/platforms/interface.py, 0.33.0);
    who names one means a pool of such blocks.
    """
    named: str | None = layers.take("kv_groups", None, "full attention only")
    asked, kept = layers.flags.block_size, layers.profile.block_size
    states = named is not None and "mamba" in named and layers.flags.kv_groups is None
    if not states or asked is None or kept is None or asked >= kept:
        return named
    warnings.append(
        f"block_size {asked} holds no state of the hybrid model, whose blocks have {kept:,} tokens: "
        "it is taken for one of full attention"
    )
    layers.origins["kv_groups"] = "flag (block_size)"
    return None
