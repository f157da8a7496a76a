"""`run.json` of a published benchmark run (inference-perf, open loop, stages of constant rate) -> `Sweep`.

Means and p90, p99 of TTFT and E2E for each stage, in milliseconds; the load is rate and duration; lengths
are those that were asked for (system prompt + question, output with EOS ignored). `itl_mean` divides by a
re-tokenised length and is not used: TPOT comes from (E2E - TTFT) / (output - 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import Bounds
from replicast.calibration.readers.boot_log import given_of_mapping
from replicast.calibration.readers.text import input_file, label, mapping, number, read_json, whole
from replicast.calibration.sweep import Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError


def is_run_summary(value: object) -> bool:
    """Whether a JSON value is one published run."""
    return isinstance(value, dict) and isinstance(value.get("actual_ms"), dict) and "workload_spec" in value


def read_run_summary(path: Path, *, model: str | None = None) -> Sweep:
    """A level for each stage of the run."""
    where = str(path)
    run = mapping(read_json(path), "the run", where)
    if not is_run_summary(run):
        raise InputError("no actual_ms and workload_spec in it", where=where, remedy="give a run.json")
    name = label(run.get("model"), "model", where)
    if model is not None and model != name:
        raise InputError(f"no model {model} in this file", where=where, remedy=f"its model is {name}")
    workload = _workload(mapping(run["workload_spec"], "workload_spec", where))
    stages = workload.get("stages")
    measured = [key for key in sorted(run["actual_ms"]) if key.startswith("stage_")]
    if not isinstance(stages, list) or len(stages) != len(measured) or not measured:
        raise InputError(
            f"{len(stages) if isinstance(stages, list) else 0} stages asked for, {len(measured)} measured",
            where=where,
            remedy="workload_spec.stages has [rate, seconds] for each stage of actual_ms",
        )
    levels = [
        _level(key, stage, mapping(run["actual_ms"][key], key, where), workload, where)
        for key, stage in zip(measured, stages, strict=True)
    ]
    notes = ["client figures: TTFT and E2E include the network and the client's own work"]
    source = str(workload.get("source", ""))
    if source.startswith("INFERRED"):
        notes.append("lengths and rates are those of the named profile, inferred by the publisher")
    told = {key: value for key, value in run.items() if not isinstance(value, dict)}
    return Sweep(
        source=where,
        format="run-summary",
        levels=tuple(levels),
        model=None if name is None else str(name),
        given=given_of_mapping(told, where),
        inputs=(input_file(path, len(levels)),),
        notes=tuple(notes),
    )


def _workload(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The named profile's form: lengths and [rate, seconds] at the top, as the exact form has them inside."""
    inner = spec.get("inference_perf")
    if not isinstance(inner, dict) or not isinstance(inner.get("stages"), list):
        return spec
    stages = [
        [stage.get("rate"), stage.get("duration")] for stage in inner["stages"] if isinstance(stage, dict)
    ]
    return {**spec, **(inner.get("shared_prefix") or {}), "stages": stages}


def _level(
    key: str, stage: object, actual: Mapping[str, Any], workload: Mapping[str, Any], where: str
) -> SweepLevel:
    place = f"{where}: {key}"
    if not isinstance(stage, list) or len(stage) != 2:
        raise InputError("a stage is not [rate, seconds]", where=place, remedy="correct workload_spec.stages")
    rate, duration = (number(value, "a stage", place) for value in stage)
    count = rate * duration if rate is not None and duration is not None else None
    lengths = [whole(workload.get(part), part, place) for part in ("system_prompt_len", "question_len")]
    prompt = None if None in lengths else sum(length or 0 for length in lengths)
    output = whole(workload.get("output_len"), "output_len", place)
    ttft, e2e = _histogram(actual, "ttft", count, place), _histogram(actual, "e2e", count, place)
    level = SweepLevel(
        concurrency=None,
        name=key.replace("_", " "),
        request_rate=rate,
        window_s=duration,
        load_s=duration,
        requests_finished=count,
        first_tokens=count,
        prompt_tokens=prompt * count if prompt is not None and count is not None else None,
        generated_tokens=output * count if output is not None and count is not None else None,
        ttft=ttft,
        e2e=e2e,
        prompt_per_request=None if prompt is None else Histogram(given_mean=float(prompt)),
        output_per_request=None if output is None else Histogram(given_mean=float(output)),
        derived=("requests_finished", "first_tokens", "prompt_tokens", "generated_tokens"),
    )
    if ttft is None or e2e is None or ttft.mean is None or e2e.mean is None or not output or output < 2:
        return level
    tpot = (e2e.mean - ttft.mean) / (output - 1)
    return replace(level, tpot=Histogram(given_mean=tpot), derived=(*level.derived, "tpot"))


def _histogram(actual: Mapping[str, Any], name: str, count: float | None, where: str) -> Histogram | None:
    mean = number(actual.get(f"{name}_mean"), f"{name}_mean", where)
    quantiles = []
    for key, q in (("p90", 0.9), ("p99", 0.99)):
        value = number(actual.get(f"{name}_{key}"), f"{name}_{key}", where)
        if value is not None:
            quantiles.append((q, Bounds(value / 1000.0, value / 1000.0)))
    if mean is None and not quantiles:
        return None
    mean_s = None if mean is None else mean / 1000.0
    total = None if mean_s is None or count is None else mean_s * count
    return Histogram(total, count, given_mean=mean_s, given_quantiles=tuple(quantiles))
