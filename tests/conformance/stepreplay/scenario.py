"""Reads a scenario: a small workload as it was given to vLLM's own scheduler.

`tests/conformance/README.md` describes the format. What an engine here cannot do is refused, never ignored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from replicast.sim.config import EngineConfig, Rules
from replicast.sim.errors import InputError
from replicast.sim.kv_groups import GroupKind, KVGroup, verify_groups
from replicast.sim.workload import Content, Segment, join

Json = dict[str, Any]

DEFAULTS: Mapping[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 1001,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "max_model_len": 200000,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": 0,
    "policy": "fcfs",
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "async_scheduling": False,
    "num_spec_tokens": 0,
    "spec_accept": [0],
    "num_lookahead_tokens": 0,
    "kv_groups": None,
    "scheduler_extra": {},
}
HYBRID_ONLY = ("retention_interval",)
GROUP_KINDS: Mapping[str, GroupKind] = {"full": "full", "swa": "sliding_window", "mamba": "mamba"}

# Fields of vLLM's SchedulerConfig that a scenario may set beyond the above.
EXTRA_MODELLED: Mapping[Rules, tuple[str, ...]] = {
    "0.25.1": ("max_num_scheduled_tokens", "prefill_schedule_interval"),
    "0.33.0": (
        "max_num_scheduled_tokens",
        "prefill_schedule_interval",
        "max_num_active_seqs",
        "long_prefill_token_threshold_adaptive",
    ),
}
# These are read by the API server or for images only: no step depends on them.
EXTRA_WITHOUT_EFFECT: Mapping[Rules, tuple[str, ...]] = {
    "0.25.1": ("stream_interval", "disable_chunked_mm_input", "max_long_partial_prefills"),
    "0.33.0": (
        "stream_interval",
        "disable_chunked_mm_input",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
    ),
}

MOST = 10_000_000  # blocks, tokens, steps: the engine that walks them keeps each block

EOS = Segment(0, 1, 1)  # token id 1, which is also token 1 of stream 0


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request of a scenario."""

    id: str
    index: int
    prompt: Content
    prompt_from: str | None
    keep_output: bool
    trim: int
    output_len: int
    output: Content
    stops_at: int | None  # tokens up to and including EOS
    arrival_step: int
    arrival_s: float | None
    after: str | None
    delay_steps: int
    delay_s: float
    abort_step: int | None
    priority: int
    arrival_time: float
    bypass_length_check: bool


@dataclass(frozen=True, slots=True)
class Clock:
    """Virtual time: a step takes `base_s + per_token_s x tokens`."""

    base_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario. `config_lines` is the configuration as the recording's header shows it."""

    name: str | None
    about: str | None
    config: EngineConfig
    config_lines: Json
    detail: Literal["counts", "blocks", "full"]
    max_steps: int
    requests: tuple[RequestSpec, ...]
    clock: Clock | None


def load_scenario(path: Path, rules: Rules) -> Scenario:
    """The scenario in `path`, to be run by the rules of one vLLM version."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON ({error})", where=str(path)) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("requests"), list):
        raise InputError("is not a scenario: it has no list `requests`", where=str(path))
    try:
        return _scenario(raw, rules)
    except InputError as error:
        raise InputError(error.what, where=str(path), remedy=error.remedy) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"is not a scenario ({type(error).__name__}: {error})", where=str(path)) from error


def _scenario(raw: Json, rules: Rules) -> Scenario:
    given = {**DEFAULTS, **raw.get("config", {})}
    requests = tuple(_request(entry, index) for index, entry in enumerate(raw["requests"]))
    ids = Counter(request.id for request in requests)
    for request in requests:
        if ids[request.id] > 1:
            raise InputError(f"request id {request.id!r} is given twice")
        for other in (request.after, request.prompt_from):
            if other is not None and other not in ids:
                raise InputError(f"request {request.id!r} names {other!r}, which is not a request")
    clock = raw.get("clock")
    detail = raw.get("detail", "counts")
    if detail not in ("counts", "blocks", "full"):
        raise InputError(f"`detail` is {detail!r}, not counts, blocks or full")
    return Scenario(
        name=raw.get("name"),
        about=raw.get("about"),
        config=_engine_config(given, rules),
        config_lines=given,
        detail=detail,
        max_steps=_whole(raw, "max_steps", 20000),
        requests=requests,
        clock=Clock(float(clock["base_s"]), float(clock["per_token_s"])) if clock else None,
    )


def _engine_config(given: Json, rules: Rules) -> EngineConfig:
    unknown = [key for key in given if key not in DEFAULTS and key not in HYBRID_ONLY]
    if unknown:
        raise InputError(f"unknown configuration {', '.join(sorted(unknown))}")
    if given["policy"] not in ("fcfs", "priority"):
        raise InputError(f"`policy` is {given['policy']!r}, not fcfs or priority")
    groups = _kv_groups(given)
    return EngineConfig(
        num_gpu_blocks=_positive(given, "num_gpu_blocks"),
        max_num_batched_tokens=_positive(given, "max_num_batched_tokens"),
        max_num_seqs=_positive(given, "max_num_seqs"),
        max_model_len=_positive(given, "max_model_len"),
        block_size=_positive(given, "block_size"),
        enable_chunked_prefill=given["enable_chunked_prefill"],
        enable_prefix_caching=given["enable_prefix_caching"],
        long_prefill_token_threshold=_whole(given, "long_prefill_token_threshold"),
        scheduling_policy=given["policy"],
        scheduler_reserve_full_isl=given["scheduler_reserve_full_isl"],
        watermark=float(given["watermark"]),
        async_scheduling=given["async_scheduling"],
        num_speculative_tokens=_whole(given, "num_spec_tokens"),
        spec_accept=tuple(int(accepted) for accepted in given["spec_accept"]) or (0,),
        num_lookahead_tokens=_whole(given, "num_lookahead_tokens"),
        rules=rules,
        kv_groups=groups,
        prefix_cache_retention_interval=_retention(given, rules),
        **_extra(given["scheduler_extra"], rules),
    )


def _kv_groups(given: Json) -> tuple[KVGroup, ...] | None:
    if not given["kv_groups"]:
        return None
    groups = tuple(_kv_group(entry, given["block_size"]) for entry in given["kv_groups"])
    retention = given.get("retention_interval", "default")
    verify_groups(
        groups,
        given["block_size"],
        given["enable_prefix_caching"],
        0 if retention == "default" else retention,
    )
    return groups


def _kv_group(entry: Json, block_size: int) -> KVGroup:
    kind = entry["type"]
    if kind not in GROUP_KINDS:
        raise InputError(f"a KV group has the type {kind!r}, not {', '.join(GROUP_KINDS)}")
    return KVGroup(
        GROUP_KINDS[kind],
        int(entry.get("block_size", block_size)),
        sliding_window=int(entry["window"]) if kind == "swa" else None,
        mamba_cache_mode=entry.get("mode", "align") if kind == "mamba" else "align",
        num_speculative_blocks=int(entry.get("spec_blocks", 0)) if kind == "mamba" else 0,
    )


def _retention(given: Json, rules: Rules) -> int | None:
    """0.25 has no such setting and keeps all."""
    interval = given.get("retention_interval", "default")
    if rules == "0.25.1":
        return None
    return 0 if interval == "default" else cast("int | None", interval)


def _positive(given: Json, key: str) -> int:
    return _whole(given, key, least=1)


def _whole(given: Json, key: str, default: int | None = None, least: int = 0) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise InputError(f"`{key}` is {value!r}, not a whole number from {least} to {MOST:,}")
    return value


def _extra(given: Json, rules: Rules) -> Json:
    extra = {}
    for key, value in given.items():
        if key in EXTRA_MODELLED[rules]:
            extra[key] = value if value is None or isinstance(value, bool) else _whole(given, key)
        elif key not in EXTRA_WITHOUT_EFFECT[rules] and not (
            key == "max_num_partial_prefills" and value == 1 and rules == "0.25.1"
        ):
            raise InputError(
                f"`scheduler_extra` sets {key}, which is not modelled for vLLM {rules}",
                remedy=f"modelled there: {', '.join(EXTRA_MODELLED[rules])}",
            )
    return extra


def _request(entry: Json, index: int) -> RequestSpec:
    request_id = entry["id"]
    if not isinstance(request_id, str):
        raise InputError(f"request {index + 1} has the id {request_id!r}, not a string")
    output_len = _positive(entry, "output_len")
    segments = [
        (int(stream), _whole({"prompt": length}, "prompt")) for stream, length in entry.get("prompt", [])
    ]
    stop = entry.get("stop", "length")
    if stop not in ("length", "eos"):
        raise InputError(f"request {request_id!r} stops by {stop!r}, not length or eos")
    seed = int(entry.get("output_seed", 1_000_000 + index))
    output: tuple[Segment, ...] = (Segment(seed, 0, output_len),)
    stops_at = None
    if stop == "eos":
        # Stream 0 has the EOS token itself in second place.
        stops_at = min(output_len, 2) if seed == 0 else output_len
        output = (Segment(seed, 0, stops_at - 1), EOS)
    return RequestSpec(
        id=request_id,
        index=index,
        prompt=join(Segment(stream, 0, length) for stream, length in segments),
        prompt_from=entry.get("prompt_from"),
        keep_output=entry.get("keep_output", True),
        trim=_whole(entry, "trim", 0),
        output_len=output_len,
        output=output,
        stops_at=stops_at,
        arrival_step=_whole(entry, "arrival_step", 0),
        arrival_s=cast("float | None", entry.get("arrival_s")),
        after=entry.get("after"),
        delay_steps=_whole(entry, "delay_steps", 0),
        delay_s=float(entry.get("delay_s", 0.0)),
        abort_step=None if entry.get("abort_step") is None else _whole(entry, "abort_step"),
        priority=int(entry.get("priority", 0)),
        arrival_time=float(entry.get("arrival_time", index)),
        bypass_length_check=bool(entry.get("bypass_length_check", False)),
    )
