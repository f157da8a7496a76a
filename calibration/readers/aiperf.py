"""AIPerf's results -> `Sweep`: a level for each run folder.

`profile_export.jsonl` has one record a request (`metadata`, `metrics` with value and unit, `error`);
`profile_export_aiperf.json` has the means and the load that was asked for. The records are used where
they are, the other file for the concurrency. Records outside the profiling phase are dropped and counted;
those with an error, or cancelled, failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import Bounds
from replicast.calibration.readers.counters import order_levels
from replicast.calibration.readers.requests import level_of_requests
from replicast.calibration.readers.scrapes import concurrency_in_name
from replicast.calibration.readers.text import (
    input_file,
    mapping,
    number,
    parse_json,
    read_json,
    read_text,
    whole,
)
from replicast.calibration.sweep import ClientRequest, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
SUMMARY_NAME = "profile_export_aiperf.json"


def is_aiperf_record(value: object) -> bool:
    """Whether a JSON value is one line of profile_export.jsonl."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("metadata"), dict)
        and "request_start_ns" in value["metadata"]
        and "metrics" in value
    )


def is_aiperf_summary(value: object) -> bool:
    """Whether a JSON value is the aggregate of one run."""
    return (
        isinstance(value, dict) and isinstance(value.get("request_latency"), dict) and "input_config" in value
    )


def read_aiperf(paths: Sequence[Path], *, model: str | None = None) -> Sweep:
    """A level for each run; a summary beside records only names the load."""
    dropped: Counter[str] = Counter()
    levels, inputs = [], []
    served: dict[str, None] = {}
    records = {path.parent for path in paths if path.suffix == ".jsonl"}
    for path in sorted(paths):
        if path.suffix != ".jsonl" and path.parent in records:
            continue
        summary_path = path.parent / SUMMARY_NAME if path.suffix == ".jsonl" else path
        summary = (
            mapping(read_json(summary_path), "the summary", str(summary_path))
            if summary_path.is_file()
            else {}
        )
        concurrency, rate, names = _load(summary, str(summary_path))
        for name in names:
            served[name] = None
        if concurrency is None:
            concurrency = concurrency_in_name(path)
        if path.suffix == ".jsonl":
            level, rows = _of_records(path, concurrency, rate, dropped)
        else:
            level, rows = _of_summary(summary, str(path), concurrency, rate), 1
        levels.append(level)
        inputs.append(input_file(path, rows))
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    if len(served) > 1 or (model is not None and served and model not in served):
        raise InputError(
            f"results of {', '.join(served)}" + (f", not {model}" if model else ""),
            where=where,
            remedy="give results of one model",
        )
    chosen = model or next(iter(served), None)
    return Sweep(
        source=where,
        format="aiperf",
        levels=order_levels(levels),
        model=chosen,
        given=Given(model=chosen),
        inputs=tuple(inputs),
        dropped=tuple(sorted(dropped.items())),
        notes=("client figures: TTFT and E2E include the network and the client's own work",),
    )


def _load(summary: Mapping[str, Any], where: str) -> tuple[int | None, float | None, list[str]]:
    config = summary.get("input_config")
    if not isinstance(config, dict):
        return None, None, []
    load, endpoint = config.get("loadgen"), config.get("endpoint")
    names = endpoint.get("model_names") if isinstance(endpoint, dict) else None
    if not isinstance(load, dict):
        load = {}
    return (
        whole(load.get("concurrency"), "concurrency", where, least=1),
        number(load.get("request_rate"), "request_rate", where),
        [str(name) for name in names] if isinstance(names, list) else [],
    )


def _name(concurrency: int | None, rate: float | None, path: str) -> str:
    return f"c{concurrency}" if concurrency else f"{rate:g} requests/s" if rate else Path(path).parent.name


def _of_records(
    path: Path, concurrency: int | None, rate: float | None, dropped: Counter[str]
) -> tuple[SweepLevel, int]:
    requests: list[ClientRequest] = []
    failed = rows = 0
    for n, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{n}"
        record = parse_json(line, where)
        if not is_aiperf_record(record):
            raise InputError(
                "not a record of AIPerf", where=where, remedy="give profile_export.jsonl as it is"
            )
        rows += 1
        metadata = record["metadata"]
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            dropped["records outside the profiling phase"] += 1
        elif record.get("error") or metadata.get("was_cancelled"):
            failed += 1
        else:
            requests.append(_request(metadata, mapping(record["metrics"], "metrics", where), where))
    if not requests:
        raise InputError(
            f"no finished request in {rows} records", where=str(path), remedy="give a run that got replies"
        )
    level = level_of_requests(
        requests,
        name=_name(concurrency, rate, str(path)),
        concurrency=concurrency,
        request_rate=rate,
        failed=failed,
    )
    return level, rows


def _request(metadata: Mapping[str, Any], metrics: Mapping[str, Any], where: str) -> ClientRequest:
    start_ns = number(metadata.get("request_start_ns"), "request_start_ns", where)
    end_ns = number(metadata.get("request_end_ns"), "request_end_ns", where)
    latency = _seconds(metrics, "request_latency", where)
    if latency is None and start_ns is not None and end_ns is not None:
        latency = (end_ns - start_ns) * 1e-9
    return ClientRequest(
        arrival_s=None if start_ns is None else start_ns * 1e-9,
        prompt_tokens=_tokens(metrics, "input_sequence_length", where),
        output_tokens=_tokens(metrics, "output_sequence_length", where),
        ttft_s=_seconds(metrics, "time_to_first_token", where),
        e2e_s=latency,
    )


def _value(metrics: Mapping[str, Any], name: str, key: str, where: str) -> tuple[float | None, str]:
    metric = metrics.get(name)
    if not isinstance(metric, dict):
        return None, ""
    return number(metric.get(key), name, where), str(metric.get("unit", ""))


def _seconds(metrics: Mapping[str, Any], name: str, where: str, key: str = "value") -> float | None:
    value, unit = _value(metrics, name, key, where)
    if value is None:
        return None
    if unit not in SECONDS:
        raise InputError(f"{name} has the unit {unit!r}", where=where, remedy=f"known: {', '.join(SECONDS)}")
    return value * SECONDS[unit]


def _tokens(metrics: Mapping[str, Any], name: str, where: str) -> int | None:
    value, _ = _value(metrics, name, "value", where)
    return None if value is None else round(value)


def _of_summary(
    summary: Mapping[str, Any], where: str, concurrency: int | None, rate: float | None
) -> SweepLevel:
    count, _ = _value(summary, "request_count", "avg", where)
    window_s = _seconds(summary, "benchmark_duration", where, "avg")
    failed, _ = _value(summary, "error_request_count", "avg", where)

    def histogram(name: str) -> Histogram | None:
        mean = _seconds(summary, name, where, "avg")
        if mean is None:
            return None
        quantiles = []
        for key, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            at = _seconds(summary, name, where, key)
            if at is not None:
                quantiles.append((q, Bounds(at, at)))
        return Histogram(
            mean * count if count else None, count, given_mean=mean, given_quantiles=tuple(quantiles)
        )

    def total(name: str, per_request: str) -> float | None:
        value, _ = _value(summary, name, "avg", where)
        mean, _ = _value(summary, per_request, "avg", where)
        return value if value is not None else mean * count if mean is not None and count else None

    return SweepLevel(
        concurrency=concurrency,
        name=_name(concurrency, rate, where),
        request_rate=rate,
        window_s=window_s,
        load_s=window_s,
        requests_finished=count,
        requests_failed=failed,
        first_tokens=count,
        prompt_tokens=total("total_isl", "input_sequence_length"),
        generated_tokens=total("total_osl", "output_sequence_length"),
        ttft=histogram("time_to_first_token"),
        # One mean a request, unweighted: what vLLM calls TPOT.
        tpot=histogram("inter_token_latency"),
        e2e=histogram("request_latency"),
    )
