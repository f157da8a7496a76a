"""The KV pool behind a sweep, in vLLM's flags: as it is given, or as memory leaves it.

A plain model's pool is tokens in blocks of 16. A hybrid model's is blocks over all its groups: boot logs
tell it as the tokens of as many requests of max_model_len as fit (`hybrid.py`), `vllm:cache_config_info`
in blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from replicast.calibration.hybrid import Caches
from replicast.calibration.sweep import Given
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import batch_defaults, rules_of
from replicast.sim.kv_groups import KVGroup, blocks_per_request, parse_groups

LONGEST = 200_000
HOLDS_MORE = 1.1  # a pool must hold what the gauges saw
IN_FLIGHT = 2 * 8192  # tokens scheduled and not yet computed, of which a window holds all


class Pool(NamedTuple):
    """Flags that name the pool and the longest request, whether the pool was given, and notes."""

    args: EngineArgs
    given: bool
    notes: tuple[str, ...]


def plain_pool(told: Given, expected_tokens: float, *, known: bool) -> Pool:
    """The pool of a model with full attention only; `known`: the expectation rests on facts."""
    block = told.block_size or 16
    tokens = told.kv_pool_tokens
    if told.num_gpu_blocks is not None:
        tokens = (told.num_gpu_blocks - 1) * block
    notes: list[str] = []
    given = tokens is not None
    if tokens is None:
        tokens = int(max(expected_tokens, HOLDS_MORE * (told.max_model_len or LONGEST)))
        notes.append(f"the KV pool is not given: {tokens:,} tokens, as memory leaves them")
    elif known and not 0.4 < tokens / max(expected_tokens, 1.0) < 2.5:
        notes.append(
            f"the given KV pool of {tokens:,} tokens is far from the {expected_tokens:,.0f} that memory "
            "leaves"
        )
    args = EngineArgs(
        kv_cache_tokens=max(tokens // block, 8) * block,
        block_size=block,
        max_model_len=min(told.max_model_len or LONGEST, max(tokens - block, 1024)),
    )
    return Pool(args, given, tuple(notes))


def hybrid_pool(told: Given, caches: Caches, expected: int, vllm_version: str, memory_gib: float) -> Pool:
    """The pool of a hybrid model, `expected` blocks where it is not given."""
    block = max(told.block_size or 0, caches.block_size)
    max_model_len = told.max_model_len or LONGEST
    groups = parse_groups(caches.kv_groups, block, max_model_len, align=True)
    notes: list[str] = []
    blocks, tokens = told.num_gpu_blocks, told.kv_pool_tokens
    if tokens is not None and blocks is not None and blocks * (told.block_size or 16) == tokens:
        blocks = None  # a reader's quotient, which holds for plain models
    given = blocks is not None or tokens is not None
    if blocks is not None:
        tokens = None
    elif tokens is None:
        blocks = max(expected, 1 + blocks_per_request(groups, int(HOLDS_MORE * max_model_len), IN_FLIGHT))
        notes.append(f"the KV pool is not given: {blocks:,} blocks, as memory leaves them")
    budget, why = _budget(told, block, groups, vllm_version, memory_gib)
    args = EngineArgs(
        num_gpu_blocks=blocks,
        kv_cache_tokens=tokens,
        block_size=block,
        kv_groups=caches.kv_groups,
        max_model_len=min(max_model_len, tokens or _longest(groups, blocks or 0)),
        max_num_batched_tokens=budget,
    )
    return Pool(args, given, (*notes, *why))


def scaled_pool(args: EngineArgs, scale: float, least_blocks: int) -> EngineArgs:
    """`args` with a pool of `scale` times the size, which holds the longest request's `least_blocks`."""
    if args.num_gpu_blocks is not None:
        return replace(args, num_gpu_blocks=max(round(scale * args.num_gpu_blocks), 1 + least_blocks))
    block = args.block_size or 16
    blocks = max(round(scale * (args.kv_cache_tokens or 0) / block), 1 + least_blocks)
    return replace(args, kv_cache_tokens=blocks * block)


def longest_request(args: EngineArgs) -> int:
    """Tokens of the longest request that the pool of `args` holds."""
    if args.kv_groups is None:
        return args.kv_cache_tokens or 0
    groups = parse_groups(args.kv_groups, args.block_size or 16, LONGEST, align=True)
    return _longest(groups, args.num_gpu_blocks or 0)


def _longest(groups: tuple[KVGroup, ...], blocks: int) -> int:
    full = [group for group in groups if group.kind == "full"]
    others = [group for group in groups if group.kind != "full"]
    left = blocks - 1 - blocks_per_request(others, LONGEST, IN_FLIGHT)
    return max(left // len(full), 1) * full[0].block_size


def _budget(
    told: Given, block: int, groups: tuple[KVGroup, ...], vllm_version: str, memory_gib: float
) -> tuple[int | None, tuple[str, ...]]:
    """The token budget: 0.25 does not start below a block with states; releases between do."""
    rules, _ = rules_of(vllm_version)
    budget = told.max_num_batched_tokens or batch_defaults(rules, "serve", "", memory_gib)[0]
    if rules != "0.25.1" or budget >= block or all(group.kind != "mamba" for group in groups):
        return told.max_num_batched_tokens, ()
    return block, (f"max_num_batched_tokens is {budget:,}, below a block: {block:,} is taken",)
