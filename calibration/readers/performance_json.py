"""performance-summary.json of the sweep harness, and its client microbenchmark form -> `Sweep`.

* The summary divides counter increases by the window and rounds to 0.01: tokens = rate x window, to
  within 4 tokens in 719 s. Rounded figures are named in `derived`.
* Its percentiles are upper edges of vLLM's buckets: they become bounds. null is beyond the last edge.
* Old files lack percentiles, queue and prefill: None here.
* The number of requests is not in the file. The client form has it, and no prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import REQUEST_EDGES_S, TPOT_EDGES_S, TTFT_EDGES_S, bounds_of_edge
from replicast.calibration.readers.counters import load_seconds, order_levels
from replicast.calibration.readers.text import input_file, label, mapping, number, read_json, whole
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError

EDGES: Mapping[str, Sequence[float]] = {
    "ttft": TTFT_EDGES_S,
    "tpot": TPOT_EDGES_S,
    "queue": REQUEST_EDGES_S,
    "prefill": REQUEST_EDGES_S,
}
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def is_performance_summary(value: object) -> bool:
    """Whether a JSON value has the form of either kind of summary."""
    if not isinstance(value, dict) or not isinstance(value.get("levels"), list) or not value["levels"]:
        return False
    first = value["levels"][0]
    keys = ("output_tokens_per_second", "output_tokens_per_s", "ttft_ms_mean")
    return isinstance(first, dict) and "concurrency" in first and any(key in first for key in keys)


def read_performance_json(path: Path, *, model: str | None = None, load_s: float | None = None) -> Sweep:
    """Levels of one summary; `model` must be the file's, where given."""
    where = str(path)
    top = mapping(read_json(path), "the summary", where)
    levels = top.get("levels")
    if not isinstance(levels, list) or not levels:
        raise InputError(
            "no levels in it",
            where=where,
            remedy="give a performance-summary.json; `levels` has an entry a concurrency",
        )
    name = label(top.get("model"), "model", where)
    hf_name = label(top.get("model_hf"), "model_hf", where)
    if model is not None and model not in (name, hf_name):
        raise InputError(f"no model {model} in this file", where=where, remedy=f"its model is {name}")
    read = [
        _level(mapping(level, f"level {n}", where), f"{where}: level {n}", load_s)
        for n, level in enumerate(levels, start=1)
    ]
    client = all("window_seconds" not in level for level in levels)
    given = Given(
        model=hf_name or name,
        instance=top.get("instance_type"),
        price_usd_per_hour=number(top.get("dollars_per_hour"), "dollars_per_hour", where),
        tensor_parallel_size=whole(top.get("tensor_parallel_size"), "tensor_parallel_size", where, least=1),
        max_model_len=whole(top.get("max_model_len"), "max_model_len", where, least=1),
        gpu_memory_utilization=number(top.get("gpu_memory_utilization"), "gpu_memory_utilization", where),
        quantization=top.get("precision"),
    )
    notes = []
    if not client and all(level.queue is None for level in read):
        notes.append("an old summary: no percentiles, no queue and no prefill times")
    if client:
        notes.append("client figures of short requests: no prompt tokens, no gauges")
    repriced = top.get("_repriced")
    if isinstance(repriced, dict):
        notes.append(
            f"repriced from ${repriced.get('from_dollars_per_hour')} to "
            f"${repriced.get('to_dollars_per_hour')} an hour"
        )
    return Sweep(
        source=where,
        format="client-summary" if client else "performance-summary",
        levels=order_levels(read),
        model=name,
        given=replace(given, sources=tuple((fact, where) for fact in given.told())),
        task_input_tokens=number(top.get("task_input_tokens"), "task_input_tokens", where),
        task_output_tokens=number(top.get("task_output_tokens"), "task_output_tokens", where),
        inputs=(input_file(path, len(levels)),),
        notes=tuple(notes),
    )


def _level(level: Mapping[str, Any], where: str, load_s: float | None) -> SweepLevel:
    concurrency = whole(level.get("concurrency"), "concurrency", where, least=1)
    if concurrency is None:
        raise InputError("concurrency is missing", where=where, remedy="every level names its concurrency")
    if "window_seconds" not in level and "requests_per_s" in level:
        return _client_level(level, concurrency, where)
    window_s = number(level.get("window_seconds"), "window_seconds", where)
    if not window_s:
        raise InputError(
            "window_seconds is missing or 0", where=where, remedy="rates need the window they were read over"
        )
    prompt_rate = number(level.get("prompt_tokens_per_second"), "prompt_tokens_per_second", where)
    output_rate = number(level.get("output_tokens_per_second"), "output_tokens_per_second", where)
    load = load_s if load_s is not None else load_seconds(window_s)
    gauges = {
        name: _gauge(level, name, where)
        for name in ("requests_running", "requests_waiting", "kv_cache_usage")
    }
    return SweepLevel(
        concurrency=concurrency,
        name=str(level.get("session_name") or f"c{concurrency}"),
        window_s=window_s,
        load_s=load,
        prompt_tokens=None if prompt_rate is None else prompt_rate * window_s,
        generated_tokens=None if output_rate is None else output_rate * window_s,
        ttft=_histogram(level, "ttft", where),
        queue=_histogram(level, "queue", where),
        prefill=_histogram(level, "prefill", where),
        tpot=_histogram(level, "tpot", where),
        running=gauges["requests_running"],
        waiting=gauges["requests_waiting"],
        kv_usage=gauges["kv_cache_usage"],
        notes=tuple(
            f"the mean of {name} is above its peak: one of the two figures is wrong"
            for name, gauge in gauges.items()
            if gauge is not None and gauge.mean is not None and gauge.mean > (gauge.peak or gauge.mean)
        ),
        derived=("prompt_tokens", "generated_tokens", *(("load_s",) if load_s is None and load else ())),
    )


def _client_level(level: Mapping[str, Any], concurrency: int, where: str) -> SweepLevel:
    done = number(level.get("successful_requests"), "successful_requests", where)
    rate = number(level.get("requests_per_s"), "requests_per_s", where)
    output_rate = number(level.get("output_tokens_per_s"), "output_tokens_per_s", where)
    window_s = done / rate if done and rate else None
    return SweepLevel(
        concurrency=concurrency,
        name=str(level.get("run_name") or f"c{concurrency}"),
        window_s=window_s,
        load_s=window_s,
        requests_finished=done,
        requests_failed=number(level.get("failed_requests"), "failed_requests", where),
        first_tokens=done,
        generated_tokens=output_rate * window_s if output_rate is not None and window_s else None,
        ttft=_mean_of(level, "ttft", done, where),
        tpot=_mean_of(level, "tpot", done, where),
        e2e=_mean_of(level, "e2e", done, where),
        preemptions=number(level.get("preemptions"), "preemptions", where),
        derived=("window_s", "generated_tokens"),
    )


def _mean_of(level: Mapping[str, Any], name: str, count: float | None, where: str) -> Histogram | None:
    mean_ms = number(level.get(f"{name}_ms_mean"), f"{name}_ms_mean", where)
    if mean_ms is None:
        return None
    mean_s = mean_ms / 1000.0
    return Histogram(sum=mean_s * count if count is not None else None, count=count, given_mean=mean_s)


def _histogram(level: Mapping[str, Any], name: str, where: str) -> Histogram | None:
    mean_ms = number(level.get(f"{name}_ms_mean"), f"{name}_ms_mean", where)
    reported = level.get(f"{name}_ms_pctl")
    if mean_ms is None and reported is None:
        return None
    quantiles = []
    for key, q in QUANTILES:
        if isinstance(reported, dict) and key in reported:
            edge_ms = number(reported[key], f"{name} {key}", where)
            edge_s = None if edge_ms is None else edge_ms / 1000.0
            # A null without a mean is "nothing observed", not "beyond the last edge".
            if edge_s is not None or mean_ms is not None:
                quantiles.append((q, bounds_of_edge(edge_s, EDGES[name])))
    return Histogram(
        given_mean=None if mean_ms is None else mean_ms / 1000.0, given_quantiles=tuple(quantiles)
    )


def _gauge(level: Mapping[str, Any], name: str, where: str) -> Gauge | None:
    value = level.get(name)
    if value is None:
        return None
    found = mapping(value, name, where)
    mean = number(found.get("mean"), f"mean {name}", where)
    peak = number(found.get("peak"), f"peak {name}", where)
    if mean is None and peak is None:
        return None
    return Gauge(mean, peak)
