"""KV groups: layers that share one kind of cache, all over one pool of blocks.

A model with only full attention has one group. A hybrid model has several (RULES section 9): each
keeps its own blocks of a request, all taken from the same pool, where any block is one page of any
group. Block sizes may differ; hits then lie on multiples of all of them (`scheduler_block_size`), and
hashes are taken at the finest step that all are made of (`hash_block_size`), as in vLLM's
`resolve_kv_cache_block_sizes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Literal, cast, get_args

from replicast.sim.errors import InputError

GroupKind = Literal["full", "sliding_window", "mamba"]
MambaCacheMode = Literal["align", "all", "none"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One group; groups that are equal are looked up together.

    `sliding_window` only for that kind. For "mamba" (and gated delta nets): `mamba_cache_mode` as in
    vLLM, `num_speculative_blocks` states kept beside the running one for drafts.
    """

    kind: GroupKind
    block_size: int
    sliding_window: int | None = None
    mamba_cache_mode: MambaCacheMode = "align"
    num_speculative_blocks: int = 0


_TERM = re.compile(
    r"(?:(?P<count>[1-9]\d{0,3})\s*x\s*)?(?P<kind>full|sliding_window|mamba)"
    r"(?::(?P<window>[1-9]\d{0,8}))?(?:@(?P<block>[1-9]\d{0,8}))?",
    re.ASCII,
)


def parse_groups(text: str, block_size: int, max_model_len: int, align: bool) -> tuple[KVGroup, ...]:
    """Groups as a profile or flag names them; with `@` their own block size.

    Without `align` (no prefix caching) a state takes one block a request, as in vLLM.

    >>> parse_groups("full, 3 x mamba", 1056, 200_000, align=True)[1:] == 3 * (KVGroup("mamba", 1056),)
    True
    >>> parse_groups("full, sliding_window:1024@32", 16, 200_000, align=True)[1].sliding_window
    1024
    """
    groups: list[KVGroup] = []
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None or (match["kind"] == "sliding_window") != (match["window"] is not None):
            raise InputError(
                f"kv_groups is {text!r}: {term.strip()!r} is not a KV group",
                remedy="Give groups such as: full, 5 x sliding_window:1024, 3 x mamba.",
            )
        size = int(match["block"] or block_size)
        group = KVGroup(
            cast(GroupKind, match["kind"]), size, int(match["window"]) if match["window"] else None
        )
        if group.kind == "mamba" and not align:
            group = KVGroup("mamba", max_model_len, mamba_cache_mode="none")
        groups += [group] * int(match["count"] or 1)
    return tuple(groups)


def num_blocks_needed(group: KVGroup, max_model_len: int, max_in_flight_tokens: int) -> int:
    """The most blocks one request of `max_model_len` holds: what vLLM wants to have room for at start-up."""
    if group.kind == "mamba":
        running = 2 if group.mamba_cache_mode == "align" else 1
        return running + group.num_speculative_blocks
    tokens = max_model_len
    if group.sliding_window is not None:
        tokens = min(group.sliding_window - 1 + max_in_flight_tokens, max_model_len)
    return -(-tokens // group.block_size) + (group.sliding_window is not None)


def blocks_per_request(groups: Sequence[KVGroup], max_model_len: int, max_in_flight_tokens: int = 0) -> int:
    """Blocks that vLLM counts for one request of max_model_len."""
    return sum(num_blocks_needed(group, max_model_len, max_in_flight_tokens) for group in groups)


def blocks_of_tokens(
    tokens: int, groups: Sequence[KVGroup], max_model_len: int, max_in_flight_tokens: int = 0
) -> int:
    """The blocks behind the boot log's "GPU KV cache size", which for several groups is the number of
    requests of max_model_len that fit, times max_model_len.

    >>> blocks_of_tokens(413_075, parse_groups("full, 3 x mamba", 2096, 262_144, align=True), 262_144)
    208
    """
    return -(-tokens * blocks_per_request(groups, max_model_len, max_in_flight_tokens) // max_model_len)


def scheduler_block_size(groups: Sequence[KVGroup]) -> int:
    """Hits are multiples of this many tokens."""
    return lcm(*(group.block_size for group in groups))


def hash_block_size(groups: Sequence[KVGroup], enable_prefix_caching: bool) -> int:
    """Tokens between two hashes."""
    unaligned = any(g.kind == "mamba" and g.mamba_cache_mode != "align" for g in groups)
    if len(groups) == 1 or unaligned or not enable_prefix_caching:
        return scheduler_block_size(groups)
    return gcd(*(group.block_size for group in groups))


def verify_groups(
    groups: Sequence[KVGroup],
    block_size: int,
    enable_prefix_caching: bool,
    retention_interval: int | None,
) -> None:
    """Refuse groups that vLLM does not start with, or that are not modelled."""
    if not groups:
        raise InputError("kv_groups is empty", remedy="Leave it out for a model with full attention only.")
    for number, group in enumerate(groups, 1):
        _verify_group(group, f"kv_groups, group {number}")
    if len(groups) == 1 and groups[0].block_size != block_size:
        raise InputError(
            f"the block size of the only KV group ({groups[0].block_size}) is not block_size ({block_size})"
        )
    states = [group for group in groups if group.kind == "mamba"]
    if len({group.mamba_cache_mode for group in states}) > 1:
        raise InputError("the KV groups have different mamba_cache_modes", remedy="Give all the same.")
    if enable_prefix_caching and any(g.mamba_cache_mode != "align" for g in states):
        raise InputError(
            "prefix caching of mamba layers is modelled with mamba_cache_mode 'align' only",
            remedy="Give align (vLLM's default with prefix caching), or turn prefix caching off.",
        )
    others = sorted({group.block_size for group in groups} - {block_size})
    if enable_prefix_caching and states and others:
        raise InputError(
            f"KV groups with mamba layers have blocks of {others[0]} tokens beside block_size ({block_size})",
            remedy="Give all groups block_size, as vLLM does.",
        )
    _verify_retention(groups, retention_interval)


def _verify_group(group: KVGroup, where: str) -> None:
    if group.kind not in get_args(GroupKind):
        known = ", ".join(get_args(GroupKind))
        raise InputError(f"kind is {group.kind!r}, must be one of {known}", where=where)
    if group.mamba_cache_mode not in get_args(MambaCacheMode):
        known = ", ".join(get_args(MambaCacheMode))
        raise InputError(
            f"mamba_cache_mode is {group.mamba_cache_mode!r}, must be one of {known}", where=where
        )
    if group.block_size < 1:
        raise InputError(f"block_size is {group.block_size}, must be 1 or more", where=where)
    if (group.kind == "sliding_window") != (group.sliding_window is not None):
        raise InputError("sliding_window belongs to groups of that kind, and to all of them", where=where)
    if group.sliding_window is not None and group.sliding_window < 1:
        raise InputError(f"sliding_window is {group.sliding_window}, must be 1 or more", where=where)
    if group.num_speculative_blocks < 0 or (group.num_speculative_blocks and group.kind != "mamba"):
        raise InputError(
            f"num_speculative_blocks is {group.num_speculative_blocks}; only mamba groups have any",
            where=where,
        )


def _verify_retention(groups: Sequence[KVGroup], retention_interval: int | None) -> None:
    if not retention_interval:
        return
    unit = scheduler_block_size(groups)
    if all(group.kind == "full" for group in groups):
        raise InputError(
            f"prefix_cache_retention_interval is {retention_interval}, but no KV group is sparse",
            remedy="Leave it out: it applies to sliding-window and mamba layers only.",
        )
    if retention_interval < 0 or retention_interval % unit:
        raise InputError(
            f"prefix_cache_retention_interval is {retention_interval}, must be a multiple of the block size"
            f" ({unit})"
        )
