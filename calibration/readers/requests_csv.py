"""One row a request -> `Sweep`: arrival, prompt, output, TTFT, E2E, and queue, prefill, decode where known.

Units end the column names: `_s`, `_ms` or `_us`. Rows with an error are counted as failed, and a row
without any time is dropped and counted. Levels come from a `concurrency` or `stage` column; else from
the load profile beside the file (`profile.yaml` of inference-perf: rates and durations); else from the
arrivals (`stages_by_arrival`). Facts about the server are read from `vllm_boot.txt`, `exp-config.yaml` or
`engine.json` beside the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from replicast.calibration.readers.boot_log import given_of_file
from replicast.calibration.readers.requests import level_of_requests, stages_by_arrival
from replicast.calibration.readers.text import csv_rows, input_file, mapping, number, read_text, whole
from replicast.calibration.sweep import ClientRequest, Given, Sweep, SweepLevel
from replicast.sim.errors import InputError

TIMES = ("arrival", "ttft", "e2e", "queue", "prefill", "decode")
UNITS = (("_s", 1.0), ("_ms", 1e-3), ("_us", 1e-6))
COUNTS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("prompt_tokens", "input_tokens", "num_prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens", "num_output_tokens"),
    "cached_tokens": ("cached_tokens", "num_cached_tokens"),
}
SIDE_FILES = ("exp-config.yaml", "engine.json", "vllm_boot.txt")
LOAD_PROFILE = "profile.yaml"
NO_ERROR = ("", "0", "none", "null", "false")


class _Row(NamedTuple):
    request: ClientRequest
    level: str
    concurrency: int | None
    failed: bool


def is_requests_csv(header: list[str]) -> bool:
    """Whether columns are those of one row a request."""
    names = set(header)
    return any(f"ttft{unit}" in names for unit, _ in UNITS) and any(
        name in names for name in COUNTS["prompt_tokens"]
    )


def read_requests_csv(path: Path, *, model: str | None = None) -> Sweep:
    """All levels of one file of requests."""
    dropped: Counter[str] = Counter()
    rows: list[_Row] = []
    for line, cells in csv_rows(path):
        row = _row(cells, f"{path}:{line}")
        if row is None:
            dropped["rows without any time"] += 1
        else:
            rows.append(row)
    total = len(rows) + sum(dropped.values())
    if not any(not row.failed for row in rows):
        raise InputError(
            f"no finished request in {total} rows",
            where=str(path),
            remedy="a row needs ttft_s or e2e_s, and no error",
        )
    given, notes = _side_facts(path)
    profile = _load_profile(path)
    output_len = _forced_output(profile)
    if output_len is not None:
        rows = [row._replace(request=row.request._replace(output_tokens=output_len)) for row in rows]
        notes.append(
            f"the client ignored EOS: every request generated {output_len} tokens, whatever its row says"
        )
    levels = _levels(rows, profile, notes)
    if model is not None and given.model is not None and model != given.model:
        raise InputError(
            f"no model {model} in this file", where=str(path), remedy=f"its model is {given.model}"
        )
    return Sweep(
        source=str(path),
        format="requests-csv",
        levels=tuple(levels),
        model=model or given.model,
        given=given,
        inputs=(input_file(path, total, sum(dropped.values())),),
        dropped=tuple(sorted(dropped.items())),
        notes=tuple(notes),
    )


def _row(cells: Mapping[str, str], where: str) -> _Row | None:
    times = {name: _time(cells, name, where) for name in TIMES}
    counts = {
        name: next((whole(cells[a], a, where) for a in aliases if a in cells), None)
        for name, aliases in COUNTS.items()
    }
    error = next((cells[name] for name in ("error", "errors") if name in cells), "")
    failed = error.lower() not in NO_ERROR
    if not failed and times["ttft"] is None and times["e2e"] is None:
        return None
    if times["ttft"] is not None and times["e2e"] is not None and times["e2e"] < times["ttft"] - 1e-6:
        raise InputError(
            f"e2e ({times['e2e']:g} s) is below ttft ({times['ttft']:g} s)",
            where=where,
            remedy="the reply cannot end before its first token: correct the row or its units",
        )
    request = ClientRequest(
        arrival_s=times["arrival"], ttft_s=times["ttft"], e2e_s=times["e2e"], queue_s=times["queue"],
        prefill_s=times["prefill"], decode_s=times["decode"], **counts,
    )  # fmt: skip
    concurrency = (
        whole(cells["concurrency"], "concurrency", where, least=1) if "concurrency" in cells else None
    )
    return _Row(request, cells.get("stage") or cells.get("level") or "", concurrency, failed)


def _time(cells: Mapping[str, str], name: str, where: str) -> float | None:
    for unit, factor in UNITS:
        if name + unit in cells:
            value = number(cells[name + unit], name + unit, where)
            return None if value is None else value * factor
    return None


def _levels(rows: list[_Row], profile: Mapping[str, Any] | None, notes: list[str]) -> list[SweepLevel]:
    stages = _stage_windows(profile)
    groups: dict[tuple[int | None, str], list[_Row]] = {}
    if any(row.concurrency is not None or row.level for row in rows):
        for row in rows:
            groups.setdefault((row.concurrency, row.level), []).append(row)
        return [_level(part, name or f"c{c}", c) for (c, name), part in groups.items()]
    if stages and all(row.request.arrival_s is not None for row in rows):
        notes.append("stages by the load profile beside the file")
        start = min(row.request.arrival_s or 0.0 for row in rows)
        for row in rows:
            at = (row.request.arrival_s or 0.0) - start
            index = next((i for i, (_, stop) in enumerate(stages) if at < stop), len(stages) - 1)
            groups.setdefault((index, f"stage {index}"), []).append(row)
        return [
            _stage(
                part,
                name,
                stages[index or 0][0],
                stages[index or 0][1] - (stages[index - 1][1] if index else 0),
            )
            for (index, name), part in sorted(groups.items())
        ]
    failed = [row for row in rows if row.failed]
    requests = [row.request for row in rows if not row.failed]
    if failed or any(r.arrival_s is None or r.e2e_s is None for r in requests):
        return [_level(rows, "all", None)]
    parts = stages_by_arrival(requests)
    if len(parts) > 1:
        notes.append("stages recognised by the arrivals: first one request at a time, then changing periods")
    return [level_of_requests(part, name=name, concurrency=c) for name, c, part in parts]


def _level(
    rows: list[_Row], name: str, concurrency: int | None, request_rate: float | None = None
) -> SweepLevel:
    done = [row.request for row in rows if not row.failed]
    lost = [row.request for row in rows if row.failed]
    return level_of_requests(
        done,
        name=name,
        concurrency=concurrency,
        request_rate=request_rate,
        failed=len(lost),
        failed_requests=lost,
    )


def _stage(rows: list[_Row], name: str, request_rate: float, load_s: float) -> SweepLevel:
    """A stage whose duration is told: replies, if any, may come after it."""
    level = _level(rows, name, None, request_rate)
    return replace(level, load_s=load_s, window_s=max(load_s, level.window_s or 0.0))


def _side_facts(path: Path) -> tuple[Given, list[str]]:
    given, notes = Given(), []
    for name in SIDE_FILES:
        side = path.parent / name
        if side.is_file():
            given = given_of_file(side).over(given)
            notes.append(f"facts about the server from {name} beside the file")
    return given, notes


def _load_profile(path: Path) -> Mapping[str, Any] | None:
    side = path.parent / LOAD_PROFILE
    if not side.is_file():
        return None
    text = read_text(side)
    if not text.lstrip().startswith("{"):
        return None  # GuideLLM's: it says `sweep` and no rates
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _stage_windows(profile: Mapping[str, Any] | None) -> list[tuple[float, float]]:
    """(rate, end) of each stage of inference-perf's load."""
    load = profile.get("load") if profile else None
    stages = load.get("stages") if isinstance(load, dict) else None
    windows: list[tuple[float, float]] = []
    end = 0.0
    for stage in stages if isinstance(stages, list) else ():
        told = mapping(stage, "a stage of the load", LOAD_PROFILE)
        rate, duration = (number(told.get(name), name, LOAD_PROFILE) for name in ("rate", "duration"))
        if not rate or not duration:
            raise InputError(
                "a stage of the load has no rate or no duration",
                where=LOAD_PROFILE,
                remedy="correct it, or take the file away: stages then follow from the arrivals",
            )
        end += duration
        windows.append((rate, end))
    return windows


def _forced_output(profile: Mapping[str, Any] | None) -> int | None:
    server = profile.get("server") if profile else None
    data = profile.get("data") if profile else None
    if not isinstance(server, dict) or not server.get("ignore_eos") or not isinstance(data, dict):
        return None
    shape = data.get(str(data.get("type")))
    told = shape.get("output_len") if isinstance(shape, dict) else None
    return whole(told, "output_len", LOAD_PROFILE) or None
