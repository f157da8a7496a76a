"""`vllm bench serve` results, one or several -> `Sweep`.

`--save-result` writes one JSON object a run, `--append-result` one a line. A run is a level:
`max_concurrency` is its load, or `request_rate` where no limit was set. With `--save-detailed` the arrays
give every request (rows with an error, or without a first token, failed); without, means are all there
is. The client's own waiting for a free slot (`queue_times`) lies outside TTFT and E2E.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import TPOT_EDGES_S, Bounds
from replicast.calibration.readers.counters import order_levels
from replicast.calibration.readers.requests import level_of_requests
from replicast.calibration.readers.text import input_file, number, parse_json, read_text, whole
from replicast.calibration.sweep import ClientRequest, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
METRICS = (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el"))


def is_bench_serve(value: object) -> bool:
    """Whether a JSON value is one run's result."""
    return isinstance(value, dict) and {"completed", "duration", "total_input_tokens"} <= value.keys()


def read_bench_serve(paths: Sequence[Path], *, model: str | None = None) -> Sweep:
    """A level for each run of the files."""
    runs = [(place, run) for path in paths for place, run in _runs(path)]
    served = list(dict.fromkeys(str(run["model_id"]) for _, run in runs if run.get("model_id")))
    where = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    if model is None and len(served) > 1:
        raise InputError(
            f"results of {len(served)} models: {', '.join(served)}",
            where=where,
            remedy=f"choose one with --model {served[0]}",
        )
    if model is not None and served and model not in served:
        raise InputError(
            f"no model {model} in these results", where=where, remedy=f"models: {', '.join(served)}"
        )
    kept = [(place, run) for place, run in runs if model is None or run.get("model_id") in (model, None)]
    levels = [_level(run, place) for place, run in kept]
    notes = ["client figures: TTFT and E2E include the network and the client's own work"]
    if not all(level.requests for level in levels):
        notes.append("means only for some runs: --save-detailed keeps every request")
    per_file = {str(path): sum(place.startswith(str(path)) for place, _ in runs) for path in paths}
    name = model or (served[0] if served else None)
    return Sweep(
        source=where,
        format="vllm-bench-serve",
        levels=order_levels(levels),
        model=name,
        given=Given(model=name),
        inputs=tuple(input_file(path, per_file[str(path)]) for path in paths),
        dropped=(("runs of other models", len(runs) - len(kept)),) if len(runs) > len(kept) else (),
        notes=tuple(notes),
    )


def _runs(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    text = read_text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        json.loads(lines[0])
        many = len(lines) > 1
    except (ValueError, RecursionError):
        many = False
    found = (
        [(f"{path}:{n}", parse_json(line, f"{path}:{n}")) for n, line in enumerate(lines, start=1)]
        if many
        else [(str(path), parse_json(text, str(path)))]
    )
    for place, run in found:
        if not is_bench_serve(run):
            raise InputError(
                "not a result of vllm bench serve",
                where=place,
                remedy="give the file of --save-result; it has completed, duration and total_input_tokens",
            )
    return found


def _level(run: Mapping[str, Any], where: str) -> SweepLevel:
    completed = whole(run.get("completed"), "completed", where)
    failed = whole(run.get("failed"), "failed", where)
    prompts = whole(run.get("num_prompts"), "num_prompts", where)
    if failed is None and prompts is not None and completed is not None:
        failed = max(0, prompts - completed)
    concurrency = whole(run.get("max_concurrency"), "max_concurrency", where, least=1)
    rate = run.get("request_rate")
    request_rate = number(rate, "request_rate", where) if rate not in (None, "inf") else None
    duration = number(run.get("duration"), "duration", where)
    name = (
        f"c{concurrency}"
        if concurrency
        else f"{request_rate:g} requests/s"
        if request_rate
        else "all at once"
    )
    if all(isinstance(run.get(array), list) for array in ARRAYS):
        level = _detailed(run, where, name, concurrency, request_rate, duration)
    else:
        histograms: dict[str, Any] = {
            ours: _summary(run, theirs, completed, where) for ours, theirs in METRICS
        }
        level = SweepLevel(
            concurrency=concurrency, name=name, request_rate=request_rate, window_s=duration, load_s=duration,
            first_tokens=None if completed is None else float(completed), **histograms,
        )  # fmt: skip
    return replace(
        level,
        requests_finished=None if completed is None else float(completed),
        requests_failed=None if failed is None else float(failed),
        prompt_tokens=number(run.get("total_input_tokens"), "total_input_tokens", where),
        generated_tokens=number(run.get("total_output_tokens"), "total_output_tokens", where),
        notes=(*level.notes, *_notes(run, where)),
    )


def _detailed(
    run: Mapping[str, Any],
    where: str,
    name: str,
    concurrency: int | None,
    request_rate: float | None,
    duration: float | None,
) -> SweepLevel:
    size = len(run["ttfts"])
    if any(len(run[array]) != size for array in ARRAYS):
        raise InputError(
            "the arrays differ in length", where=where, remedy="the file is damaged: save it again"
        )
    errors = run.get("errors") or [""] * size
    starts = run.get("start_times") or [None] * size
    latencies = run.get("latencies") or [None] * size
    requests, itls = [], []
    for i in range(size):
        ttft = number(run["ttfts"][i], f"ttfts[{i}]", where)
        if errors[i] or not ttft:
            continue
        gaps = [number(gap, f"itls[{i}]", where) or 0.0 for gap in run["itls"][i]]
        latency = number(latencies[i], f"latencies[{i}]", where)
        itls += gaps
        requests.append(
            ClientRequest(
                arrival_s=number(starts[i], f"start_times[{i}]", where, least=None),
                prompt_tokens=whole(run["input_lens"][i], f"input_lens[{i}]", where),
                output_tokens=whole(run["output_lens"][i], f"output_lens[{i}]", where),
                ttft_s=ttft,
                e2e_s=latency if latency is not None else ttft + sum(gaps),
            )
        )
    level = level_of_requests(
        requests, name=name, concurrency=concurrency, request_rate=request_rate, window_s=duration
    )
    return replace(level, itl=Histogram.of(itls, TPOT_EDGES_S) if itls else None)


def _summary(run: Mapping[str, Any], name: str, completed: int | None, where: str) -> Histogram | None:
    mean_ms = number(run.get(f"mean_{name}_ms"), f"mean_{name}_ms", where)
    if mean_ms is None or not completed:
        return None
    quantiles: list[tuple[float, Bounds]] = []
    for key, q in (("median", 0.5), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        value = number(run.get(f"{key}_{name}_ms"), f"{key}_{name}_ms", where)
        if value is not None and q not in [at for at, _ in quantiles]:
            quantiles.append((q, Bounds(value / 1000.0, value / 1000.0)))
    mean_s = mean_ms / 1000.0
    # One value a request for these; ITL has one a token, and how many is not told.
    count = float(completed) if name in ("ttft", "e2el") else None
    return Histogram(
        sum=None if count is None else mean_s * count,
        count=count,
        given_mean=mean_s,
        given_quantiles=tuple(quantiles),
    )


def _notes(run: Mapping[str, Any], where: str) -> list[str]:
    waits = [number(wait, "queue_times", where, least=None) or 0.0 for wait in run.get("queue_times") or ()]
    mean = sum(waits) / len(waits) if waits else number(run.get("mean_client_queue_time_ms"), "queue", where)
    if not waits and mean is not None:
        mean /= 1000.0
    return [f"requests waited {mean:.3g} s for a client slot, outside TTFT"] if mean and mean > 0.001 else []
