"""GuideLLM's report (JSON) -> `Sweep`: a level for each benchmark of the report.

Read from the tool's result classes (versions 0.3 to 2): `benchmarks[]` with `config.strategy` (earlier
`args.strategy`), `metrics` and `requests.{successful, incomplete, errored}`. Times are seconds since the
epoch in `info.timings`, latencies milliseconds. Where only a sample of the requests was kept, sums come
from `metrics`, which counts all. Its `time_per_output_token_ms` contains the first token, so
`inter_token_latency_ms` is what vLLM calls TPOT (there it is weighted by tokens).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import Bounds
from replicast.calibration.readers.counters import order_levels
from replicast.calibration.readers.requests import level_of_requests
from replicast.calibration.readers.text import input_file, mapping, number, read_json, whole
from replicast.calibration.sweep import ClientRequest, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError


def is_guidellm(value: object) -> bool:
    """Whether a JSON value is a report."""
    benchmarks = value.get("benchmarks") if isinstance(value, dict) else None
    return (
        isinstance(benchmarks, list)
        and bool(benchmarks)
        and isinstance(benchmarks[0], dict)
        and "metrics" in benchmarks[0]
    )


def read_guidellm(paths: Sequence[Path], *, model: str | None = None) -> Sweep:
    """All benchmarks of the reports."""
    levels: list[SweepLevel] = []
    inputs = []
    served: dict[str, None] = {}
    for path in paths:
        report = mapping(read_json(path), "the report", str(path))
        if not is_guidellm(report):
            raise InputError(
                "no benchmarks in it", where=str(path), remedy="give the JSON of guidellm's --output-path"
            )
        for n, benchmark in enumerate(report["benchmarks"], start=1):
            place = f"{path}: benchmark {n}"
            one = mapping(benchmark, "the benchmark", place)
            if name := _model(one, report):
                served[name] = None
            levels.append(_level(one, place))
        inputs.append(input_file(path, len(report["benchmarks"])))
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    if len(served) > 1 or (model is not None and served and model not in served):
        raise InputError(
            f"reports of {', '.join(served)}" + (f", not {model}" if model else ""),
            where=where,
            remedy="give reports of one model",
        )
    name = model or next(iter(served), None)
    return Sweep(
        source=where,
        format="guidellm",
        levels=order_levels(levels),
        model=name,
        given=Given(model=name),
        inputs=tuple(inputs),
        notes=("client figures: TTFT and E2E include the network and the client's own work",),
    )


def _model(benchmark: Mapping[str, Any], report: Mapping[str, Any]) -> str | None:
    for holder in (
        benchmark.get("config"),
        benchmark.get("args"),
        benchmark,
        report.get("args"),
        report.get("config"),
    ):
        for inner in (holder, holder.get("backend") if isinstance(holder, dict) else None):
            if isinstance(inner, dict) and isinstance(inner.get("model"), str) and inner["model"]:
                return str(inner["model"])
    return None


def _strategy(benchmark: Mapping[str, Any]) -> Mapping[str, Any]:
    for holder in (benchmark.get("config"), benchmark.get("args"), benchmark):
        found = holder.get("strategy") if isinstance(holder, dict) else None
        if isinstance(found, dict):
            return found
    return {}


def _level(benchmark: Mapping[str, Any], where: str) -> SweepLevel:
    strategy = _strategy(benchmark)
    kind = str(strategy.get("type_") or strategy.get("kind") or "unknown")
    concurrency = 1 if kind == "synchronous" else whole(strategy.get("streams"), "streams", where, least=1)
    rate = number(strategy.get("rate"), "rate", where) if kind in ("constant", "poisson", "async") else None
    name = f"{kind} {rate:g}/s" if rate is not None else f"{kind} c{concurrency}" if concurrency else kind
    requests = mapping(benchmark.get("requests") or {}, "requests", where)
    done = [_request(mapping(r, "a request", where), where) for r in requests.get("successful") or ()]
    metrics = mapping(benchmark.get("metrics") or {}, "metrics", where)
    totals = mapping(metrics.get("request_totals") or {}, "request_totals", where)
    count = whole(totals.get("successful"), "request_totals", where)
    start = number(benchmark.get("start_time"), "start_time", where)
    stop = number(benchmark.get("end_time"), "end_time", where)
    window_s = number(benchmark.get("duration"), "duration", where)
    if window_s is None and start is not None and stop is not None:
        window_s = stop - start
    level = level_of_requests(
        done,
        name=name,
        concurrency=concurrency,
        request_rate=rate,
        window_s=window_s,
        failed=whole(totals.get("errored"), "errored", where)
        if totals
        else len(requests.get("errored") or ()),
        unfinished=whole(totals.get("incomplete"), "incomplete", where)
        if totals
        else len(requests.get("incomplete") or ()),
    )
    level = replace(level, start_s=start, stop_s=stop)
    if count is not None and count > len(done):
        return _from_metrics(level, metrics, count, where)
    return level


def _request(request: Mapping[str, Any], where: str) -> ClientRequest:
    info = request.get("info")
    timings = info.get("timings") if isinstance(info, dict) else None
    timings = timings if isinstance(timings, dict) else {}
    start = number(timings.get("request_start", request.get("start_time")), "request_start", where)
    first = number(timings.get("first_token_iteration"), "first_token_iteration", where)
    end = number(timings.get("request_end", request.get("end_time")), "request_end", where)
    ttft_ms = number(request.get("time_to_first_token_ms"), "time_to_first_token_ms", where)
    latency = number(request.get("request_latency"), "request_latency", where)
    if ttft_ms is None and first is not None and start is not None:
        ttft_ms = 1000.0 * (first - start)
    if latency is None and end is not None and start is not None:
        latency = end - start
    ours, theirs = request.get("input_metrics"), request.get("output_metrics")
    prompt = ours if isinstance(ours, dict) else {}
    output = theirs if isinstance(theirs, dict) else {}
    return ClientRequest(
        arrival_s=start,
        prompt_tokens=_first(
            where, request.get("prompt_tokens"), prompt.get("total_tokens"), prompt.get("text_tokens")
        ),
        output_tokens=_first(
            where, request.get("output_tokens"), output.get("total_tokens"), output.get("text_tokens")
        ),
        ttft_s=None if ttft_ms is None else ttft_ms / 1000.0,
        e2e_s=latency,
        cached_tokens=_first(where, request.get("cached_tokens"), prompt.get("cached_tokens")),
    )


def _first(where: str, *values: object) -> int | None:
    return next((whole(value, "tokens", where) for value in values if value is not None), None)


def _from_metrics(level: SweepLevel, metrics: Mapping[str, Any], count: int, where: str) -> SweepLevel:
    """Sums of all requests where the list holds a sample of them."""
    found: dict[str, Any] = {
        ours: _distribution(metrics, theirs, factor, where)
        for ours, theirs, factor in (
            ("ttft", "time_to_first_token_ms", 1e-3),
            ("tpot", "inter_token_latency_ms", 1e-3),
            ("e2e", "request_latency", 1.0),
            ("prompt_per_request", "prompt_token_count", 1.0),
            ("output_per_request", "output_token_count", 1.0),
        )
    }
    prompt, output = found["prompt_per_request"], found["output_per_request"]
    note = f"the report keeps {len(level.requests)} of {count} requests: sums are those of its metrics"
    return replace(
        level,
        requests_finished=float(count),
        first_tokens=float(count),
        prompt_tokens=prompt.sum if prompt else None,
        generated_tokens=output.sum if output else None,
        cached_tokens=None,
        computed_per_request=None,
        notes=(*level.notes, note),
        **found,
    )


def _distribution(metrics: Mapping[str, Any], name: str, factor: float, where: str) -> Histogram | None:
    value = metrics.get(name)
    done = value.get("successful") if isinstance(value, dict) else None
    if not isinstance(done, dict):
        return None
    mean, total = (number(done.get(key), f"{name}.{key}", where) for key in ("mean", "total_sum"))
    count = number(done.get("count"), f"{name}.count", where)
    percentiles = done.get("percentiles")
    quantiles = []
    for key, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        at = number(percentiles.get(key), key, where) if isinstance(percentiles, dict) else None
        if at is not None:
            quantiles.append((q, Bounds(at * factor, at * factor)))
    return Histogram(
        sum=None if total is None else total * factor,
        count=count,
        given_mean=None if mean is None else mean * factor,
        given_quantiles=tuple(quantiles),
    )
