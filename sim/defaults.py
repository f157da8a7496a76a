"""From what was given to what vLLM runs with: unset flags, versions, and refusals to boot.

In order:

1. A flag beats the profile, the profile beats vLLM's default. Every value keeps its origin.
2. The version picks the rules: below 0.33 those recorded of 0.25.1, from 0.33 on those of 0.33.0. Two
   defaults are older than both: before 0.14 vLLM scheduled synchronously, before 0.20 it admitted a request
   as soon as the first chunk of its prompt fitted (pull request 37307).
3. Token budget and seats that are unset follow device memory, device name and entry point
   (`EngineArgs.get_batch_defaults`), never the size of the KV pool. Then an unset budget
   is raised to `max_model_len` without chunked prefill and cut to seats x `max_model_len`, and unset
   seats are cut to the budget.
4. What vLLM refuses to boot is refused, in its words (`SchedulerConfig.verify_max_model_len`,
   `check_enough_kv_cache_memory`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import cast, get_args

from replicast.sim.config import (
    FIELDS,
    EngineArgs,
    EngineConfig,
    EntryPoint,
    Field,
    PerformanceMode,
    Policy,
    Rules,
)
from replicast.sim.errors import InputError
from replicast.sim.hybrid import in_flight_tokens, named_groups, parse_retention, verify_hybrid, with_drafts
from replicast.sim.kv_groups import blocks_of_tokens, parse_groups
from replicast.sim.layers import Layers, at_least

__all__ = ["FIELDS", "EngineArgs", "Field", "ResolvedConfig", "resolve", "rules_of", "verify"]

NEWEST = "0.33.0"
FIRST_V1 = (0, 8)  # V1 became the default engine with 0.8
ASYNC_SINCE = (0, 14)
FULL_PROMPT_SINCE = (0, 20)
DEFAULT_MODEL_LEN = 200_000

# GiB that the driver reports, for devices given by name alone.
DEVICE_MEMORY_GIB: Mapping[str, float] = {
    "B300": 268.0,
    "GB300": 268.0,
    "B200": 178.0,
    "GB200": 184.0,
    "MI300X": 191.5,
    "MI325X": 255.5,
    "H200": 140.0,
    "H100": 79.2,
    "H20": 95.6,
    "RTX PRO 6000": 95.0,
    "GB10": 119.0,
    "A100": 79.2,
    "L40S": 44.4,
    "L40": 44.4,
    "L4": 22.0,
    "A10G": 22.0,
    "CPU": 0.0,
}


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """`config` with nothing unset, the origin of each value, and what the user must know.

    An origin is "flag", "profile" or "default", where needed with the reason in brackets.
    """

    config: EngineConfig
    vllm_version: str
    device: str | None
    entry_point: EntryPoint
    origins: dict[str, str]
    warnings: tuple[str, ...]

    def rows(self) -> list[tuple[str, object, str]]:
        """(name, value, origin) of every value, for a table."""
        outside: list[tuple[str, object]] = [
            ("vllm_version", self.vllm_version),
            ("device", self.device),
            ("entry_point", self.entry_point),
        ]
        inside: list[tuple[str, object]] = [
            (f.name, getattr(self.config, f.name)) for f in fields(EngineConfig)
        ]
        return [(name, value, self.origins[name]) for name, value in outside + inside]


def release_of(version: str) -> tuple[int, int]:
    """The release that `version` names.

    >>> release_of("v0.25.1rc2")
    (0, 25)
    """
    text = version.strip().removeprefix("v")
    suffix = r"(?:\.?(?:a|b|rc|post|dev)\d*)*(?:\+[A-Za-z0-9.]+)?"
    match = re.fullmatch(rf"(\d{{1,4}})\.(\d{{1,4}})(?:\.(\d{{1,4}}))?{suffix}", text, re.ASCII)
    if match is None:
        raise InputError(
            f"vllm_version {version!r} is not a vLLM version", remedy="Give one such as 0.33.0 or v0.25.1."
        )
    release = (int(match[1]), int(match[2]))
    if release < FIRST_V1:
        raise InputError(
            f"vllm_version {version} is older than 0.8: only the V1 engine is modelled",
            remedy="Give a version from 0.8 on.",
        )
    return release


def rules_of(version: str) -> tuple[Rules, str | None]:
    """The recorded rules that `version` follows, and a warning unless it is a recorded one.

    >>> rules_of("v0.30.1")[0], rules_of("0.33.0")
    ('0.25.1', ('0.33.0', None))
    """
    release = release_of(version)
    rules: Rules = "0.25.1" if release < (0, 33) else "0.33.0"
    if version.strip().removeprefix("v") == rules:
        return rules, None
    warning = f"vLLM {version} follows the rules recorded of {rules}"
    if release < (0, 25):
        warning += "; unset token budget and seats are assumed to be as in 0.25.1"
    return rules, warning


def batch_defaults(rules: Rules, entry: EntryPoint, name: str, memory_gib: float) -> tuple[int, int, str]:
    """vLLM's default token budget and seats, and the reason (`get_batch_defaults`; one worker on CPU)."""
    serve = entry == "serve"
    new = rules == "0.33.0"
    lower = name.lower()
    if lower == "cpu":
        return (2048, 128, "CPU") if serve else (4096, 256, "CPU")
    if re.search(r"\bgb10\b", lower) and new:
        return (2048, 256, "GB10") if serve else (8192, 256, "GB10")
    if memory_gib >= 160 and new:
        return (16384, 1024, "160 GiB and more")
    if memory_gib >= 70 and "a100" not in lower:
        return (8192 if serve else 16384, 1024, "70 GiB and more")
    return (2048 if serve else 8192, 256, "A100, or below 70 GiB")


def resolve(flags: EngineArgs, profile: EngineArgs | None = None) -> ResolvedConfig:
    """The configuration vLLM would run with, or InputError with its reason not to boot."""
    layers = Layers(flags, profile or EngineArgs())
    warnings: list[str] = []

    version: str = layers.take("vllm_version", NEWEST, "the newest recorded")
    rules, warning = rules_of(version)
    layers.origins["rules"] = layers.origins["vllm_version"]
    if warning:
        warnings.append(warning)
    entry = _choice("entry_point", layers.take("entry_point", "serve", "the server"), get_args(EntryPoint))
    name, memory_gib = _device(layers, warnings)

    chunked: bool = layers.take("enable_chunked_prefill", True)
    named = named_groups(layers, warnings)
    states = named is not None and "mamba" in named
    hybrid = bool(
        layers.take("hybrid_model", states, "kv_groups has states" if states else "not known to be one")
    )
    if states and not hybrid:
        raise InputError(
            f"kv_groups is {named!r}, and hybrid_model is false",
            remedy='Give --kv-groups "full" to take the model for one of full attention.',
        )
    caching_off = hybrid and rules == "0.25.1"
    caching: bool = layers.take(
        "enable_prefix_caching",
        not caching_off,
        "off for hybrid models in 0.25" if caching_off else "vLLM's own",
    )
    block_size = at_least("block_size", layers.take("block_size", 16), 1)
    max_model_len = at_least(
        "max_model_len",
        layers.take("max_model_len", DEFAULT_MODEL_LEN, "the model's own length is not known"),
        1,
    )
    budget, seats = _batch(layers, rules, cast(EntryPoint, entry), name, memory_gib, max_model_len, chunked)

    groups = parse_groups(named, block_size, max_model_len, caching) if named is not None else None
    if hybrid and layers.given("kv_groups") is None:
        warnings.append("kv_groups is unset: the hybrid model is taken for one of full attention")
    retention: str | None = layers.take(
        "prefix_cache_retention_interval", None, "all" if rules == "0.25.1" else "prompt ends and junctions"
    )
    drafts = at_least("num_speculative_tokens", layers.take("num_speculative_tokens", 0), 0)
    lookahead = at_least("num_lookahead_tokens", layers.take("num_lookahead_tokens", 0), 0)
    accept: tuple[int, ...] = layers.take("spec_accept", (0,), "no draft is accepted")
    if drafts and layers.given("spec_accept") is None:
        warnings.append("spec_accept is unset: no draft token is accepted")
    async_scheduling, reserve_full_isl = _scheduling(
        layers, release_of(version), drafts > 0 and lookahead == 0
    )
    pool = layers.pool(lambda tokens: tokens // block_size, f"blocks of {block_size:,}")
    if groups is not None:
        groups = with_drafts(groups, drafts)
        in_flight = in_flight_tokens(budget, async_scheduling, rules)
        pool = layers.pool(
            partial(
                blocks_of_tokens, groups=groups, max_model_len=max_model_len, max_in_flight_tokens=in_flight
            ),
            f"requests of {max_model_len:,}",
        )
    config = EngineConfig(
        num_gpu_blocks=pool,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=max_model_len,
        block_size=block_size,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=caching,
        long_prefill_token_threshold=layers.take("long_prefill_token_threshold", 0),
        scheduling_policy=layers.take("scheduling_policy", "fcfs"),
        scheduler_reserve_full_isl=reserve_full_isl,
        watermark=layers.take("watermark", 0.0),
        async_scheduling=async_scheduling,
        num_speculative_tokens=drafts,
        spec_accept=accept,
        num_lookahead_tokens=lookahead,
        rules=rules,
        max_num_scheduled_tokens=layers.take("max_num_scheduled_tokens", None, "the whole budget"),
        max_num_active_seqs=layers.take("max_num_active_seqs", None, "max_num_seqs"),
        long_prefill_token_threshold_adaptive=layers.take("long_prefill_token_threshold_adaptive", False),
        prefill_schedule_interval=layers.take("prefill_schedule_interval", 1),
        kv_groups=groups,
        prefix_cache_retention_interval=parse_retention(retention, rules, groups),
    )
    verify(config)
    if rules == "0.25.1" and config.prefill_schedule_interval > 1:
        warnings.append("prefill_schedule_interval does nothing for one engine below 0.33")
    return ResolvedConfig(
        config, version, name or None, cast(EntryPoint, entry), layers.origins, tuple(warnings)
    )


def verify(config: EngineConfig) -> None:
    """Refuse what vLLM refuses to boot, with its reason."""
    c = config
    at_least("num_gpu_blocks", c.num_gpu_blocks, 2, "block 0 is the null block")
    at_least("max_num_batched_tokens", c.max_num_batched_tokens, 1)
    at_least("max_num_seqs", c.max_num_seqs, 1)
    at_least("long_prefill_token_threshold", c.long_prefill_token_threshold, 0)
    at_least("prefill_schedule_interval", c.prefill_schedule_interval, 1)
    for name in ("max_num_scheduled_tokens", "max_num_active_seqs"):
        if getattr(c, name) is not None:
            at_least(name, getattr(c, name), 1)
    if (c.max_num_scheduled_tokens or 0) > c.max_num_batched_tokens:
        raise InputError(
            f"max_num_scheduled_tokens ({c.max_num_scheduled_tokens}) is above max_num_batched_tokens "
            f"({c.max_num_batched_tokens})"
        )
    if c.rules == "0.25.1" and (c.max_num_active_seqs or c.long_prefill_token_threshold_adaptive):
        raise InputError(
            "max_num_active_seqs and long_prefill_token_threshold_adaptive are not known to vLLM below 0.33",
            remedy="Leave them out, or give --vllm-version 0.33.0.",
        )
    _choice("scheduling_policy", c.scheduling_policy, get_args(Policy))
    if not (0 <= c.watermark < 1):
        raise InputError(f"watermark is {c.watermark}, must be at least 0 and below 1")
    if not c.spec_accept or not all(0 <= a <= c.num_speculative_tokens for a in c.spec_accept):
        raise InputError(
            f"spec_accept is {c.spec_accept}, each must be 0 to num_speculative_tokens "
            f"({c.num_speculative_tokens})"
        )
    if c.max_num_batched_tokens < c.max_model_len and not c.enable_chunked_prefill:
        raise InputError(
            f"vLLM does not start: max_num_batched_tokens ({c.max_num_batched_tokens}) is smaller than "
            f"max_model_len ({c.max_model_len}). This effectively limits the maximum sequence length to "
            "max_num_batched_tokens and makes vLLM reject longer sequences.",
            remedy="Increase max_num_batched_tokens, decrease max_model_len, or enable chunked prefill.",
        )
    if c.max_num_batched_tokens < c.max_num_seqs:
        raise InputError(
            f"vLLM does not start: max_num_batched_tokens ({c.max_num_batched_tokens}) must be greater than "
            f"or equal to max_num_seqs ({c.max_num_seqs}).",
            remedy="Increase max_num_batched_tokens or decrease max_num_seqs.",
        )
    if c.long_prefill_token_threshold > c.max_model_len:
        raise InputError(
            f"vLLM does not start: long_prefill_token_threshold ({c.long_prefill_token_threshold}) cannot be "
            f"greater than the max_model_len ({c.max_model_len})."
        )
    if c.kv_groups is not None:
        verify_hybrid(c, c.kv_groups)
        return
    needed = -(-c.max_model_len // c.block_size)
    if needed > c.num_usable_blocks:
        fits = c.num_usable_blocks * c.block_size
        raise InputError(
            f"vLLM does not start: to serve at least one request with the model's max seq len "
            f"({c.max_model_len}), {needed} blocks of KV cache are needed, which is larger than the "
            f"available KV cache ({c.num_usable_blocks} blocks of {c.block_size} tokens). Based on the "
            f"available memory, the estimated maximum model length is {fits}.",
            remedy=f"Decrease --max-model-len to {fits} or less, or give a larger KV pool.",
        )


def _batch(
    layers: Layers,
    rules: Rules,
    entry: EntryPoint,
    name: str,
    memory_gib: float,
    max_model_len: int,
    chunked: bool,
) -> tuple[int, int]:
    """Token budget and seats, each cut only where it was unset."""
    mode = _choice("performance_mode", layers.take("performance_mode", "balanced"), get_args(PerformanceMode))
    tokens, seats, why = batch_defaults(rules, entry, name, memory_gib)
    why = f"vllm {entry}, {why}" if entry == "serve" else f"LLM(), {why}"
    if mode == "throughput":
        tokens, seats, why = 2 * tokens, 2 * seats, why + ", doubled for throughput"
    budget: int = layers.take("max_num_batched_tokens", tokens, why)
    max_num_seqs: int = layers.take("max_num_seqs", seats, why)
    at_least("max_num_batched_tokens", budget, 1)
    at_least("max_num_seqs", max_num_seqs, 1)
    if layers.given("max_num_batched_tokens") is None:
        if not chunked and budget < max_model_len:
            budget = max_model_len
            layers.origins["max_num_batched_tokens"] = "default (max_model_len, chunked prefill is off)"
        if budget > max_num_seqs * max_model_len:
            budget = max_num_seqs * max_model_len
            layers.origins["max_num_batched_tokens"] = "default (max_num_seqs x max_model_len)"
    if layers.given("max_num_seqs") is None and max_num_seqs > budget:
        max_num_seqs = budget
        layers.origins["max_num_seqs"] = "default (cut to max_num_batched_tokens)"
    return budget, max_num_seqs


def _scheduling(layers: Layers, release: tuple[int, int], ngram: bool) -> tuple[bool, bool]:
    """`async_scheduling` and `scheduler_reserve_full_isl`, which vLLM has had on since some release."""
    early, full = release < ASYNC_SINCE, release >= FULL_PROMPT_SINCE
    why = "off before 0.14" if early else "off with n-gram speculation" if ngram else "vLLM's own"
    return (
        layers.take("async_scheduling", not (early or ngram), why),
        layers.take("scheduler_reserve_full_isl", full, "vLLM's own" if full else "off before 0.20"),
    )


def _device(layers: Layers, warnings: list[str]) -> tuple[str, float]:
    """Device name and GiB; a flag that names another device leaves the profile's memory behind."""
    name: str = layers.take("device", "", "not known")
    found, named = layers.given("device_memory_gib"), layers.given("device")
    if found and not (named and named[0] == "flag" and found[0] == "profile"):
        memory = float(cast(float, found[1]))
        if not (0 <= memory < math.inf):
            raise InputError(f"device_memory_gib is {memory}, must be 0 or more")
        return name, memory
    known = [key for key in DEVICE_MEMORY_GIB if re.search(rf"\b{key}\b", name, re.IGNORECASE)]
    if known:
        return name, DEVICE_MEMORY_GIB[max(known, key=len)]
    needs = [n for n in ("max_num_batched_tokens", "max_num_seqs") if layers.given(n) is None]
    if needs:
        what = f"device {name!r} is not a known one" if name else "the device is not known"
        warnings.append(f"{what}: {' and '.join(needs)} follow vLLM's defaults for small devices")
    return name, 0.0


def _choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InputError(f"{name} is {value!r}, must be one of {', '.join(choices)}")
    return value
