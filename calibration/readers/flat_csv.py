"""sweep.csv, one row a level -> `Sweep`. Blank cells are unknown; column names carry the units.

It also reads rows of `agentic-sweeps-published/sweeps.csv` (report, series, itl_ms, ttft_ms, isl, osl,
kv_pct, hit_pct, running, waiting, in_tps, out_tps). A file of several series needs `model`, which
names one: `series`, or `report/series`. Columns that are not known are left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.buckets import Bounds
from replicast.calibration.readers.boot_log import FACTS, given_of_mapping
from replicast.calibration.readers.counters import load_seconds, order_levels
from replicast.calibration.readers.text import csv_rows, input_file, number, whole
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError

PUBLISHED: Mapping[str, str] = {
    "itl_ms": "itl_mean_ms",
    "ttft_ms": "ttft_mean_ms",
    "isl": "prompt_tokens_per_request",
    "osl": "output_tokens_per_request",
    "in_tps": "prompt_tokens_per_s",
    "out_tps": "output_tokens_per_s",
    "running": "running_mean",
    "waiting": "waiting_mean",
    "output_tokens_per_second": "output_tokens_per_s",
    "prompt_tokens_per_second": "prompt_tokens_per_s",
    "window_seconds": "window_s",
    "output_tokens": "generated_tokens",
    "requests": "requests_finished",
}
SECONDS = ("ttft", "queue", "prefill", "decode", "inference", "e2e", "tpot", "itl")
GAUGES = ("running", "waiting", "kv_usage")
PLAIN = (
    "request_rate", "window_s", "load_s", "requests_finished", "requests_failed", "first_tokens",
    "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions", "prefix_queries", "prefix_hits",
)  # fmt: skip
RATES = ("prompt_tokens_per_s", "output_tokens_per_s", "requests_per_s", "hit_rate")
TEXT = ("report", "series", "label", "model", "name", "notes")
SERIES = ("report", "series", "model")
KNOWN = (
    *PLAIN, *RATES, *TEXT, *FACTS, "concurrency", "tp", "kv_pct", "hit_pct", "prompt_tokens_per_request",
    "output_tokens_per_request", "computed_tokens_per_request",
)  # fmt: skip


def is_flat_csv(header: list[str]) -> bool:
    """Whether columns are those of one row a level."""
    known = [PUBLISHED.get(name, name) for name in header]
    return ("concurrency" in header or "request_rate" in header) and any(
        name in RATES or name in PLAIN[3:] or name.endswith(("_mean_s", "_mean_ms", "_mean"))
        for name in known
    )


def read_flat_csv(path: Path, *, model: str | None = None, load_s: float | None = None) -> Sweep:
    """Levels of one series of the file."""
    rows = [(line, {PUBLISHED.get(k, k): v for k, v in row.items()}) for line, row in csv_rows(path)]
    if not rows:
        raise InputError("no row under the header", where=str(path), remedy="give one row a level")
    names = list(dict.fromkeys(_series(row) for _, row in rows))
    chosen = _choose(path, names, model)
    kept = [(line, row) for line, row in rows if _series(row) == chosen]
    unknown = [name for name in kept[0][1] if name not in KNOWN and not _is_measure(name)]
    notes = [f"columns that are not known are left out: {', '.join(unknown)}"] if unknown else []
    levels = [_level(row, f"{path}:{line}", load_s) for line, row in kept]
    loads = [level.concurrency for level in levels if level.concurrency is not None]
    twice = sorted({load for load in loads if loads.count(load) > 1})
    if twice:
        notes.append(f"levels that appear more than once stay apart: {', '.join(map(str, twice))}")
    first = kept[0][1]
    facts = {name: first[name] for name in (*FACTS, "tp") if first.get(name)}
    given = given_of_mapping(facts, str(path)) if facts else Given()
    if all(level.window_s is None for level in levels):
        notes.append("no window: counts are unknown, rates are as published")
    return Sweep(
        source=str(path),
        format="sweep-csv",
        levels=order_levels(levels),
        model=chosen.rsplit("/", 1)[-1] if chosen else model,
        given=given,
        inputs=(input_file(path, len(rows), len(rows) - len(kept)),),
        dropped=(("rows of other series", len(rows) - len(kept)),) if len(rows) > len(kept) else (),
        notes=tuple(notes),
    )


def series_in(path: Path) -> list[str]:
    """All series of the file, as `model` names them."""
    return list(dict.fromkeys(_series(row) for _, row in csv_rows(path)))


def _series(row: Mapping[str, str]) -> str:
    return "/".join(row[name] for name in SERIES if row.get(name))


def _choose(path: Path, names: list[str], model: str | None) -> str:
    if model is None:
        if len(names) == 1:
            return names[0]
        raise InputError(
            f"the file holds {len(names)} series", where=str(path),
            remedy=f"choose one with --model: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}",
        )  # fmt: skip
    fitting = [name for name in names if name == model or model in name.split("/")]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and names == [""]:
        return ""
    what = f"no model {model}" if not fitting else f"{model} names {len(fitting)} series"
    raise InputError(
        f"{what} in this file", where=str(path), remedy=f"series here: {', '.join(fitting or names)}"
    )


def _is_measure(name: str) -> bool:
    base, _, rest = name.partition("_")
    if base in SECONDS:
        return rest in ("count",) or any(
            rest == f"{what}{unit}"
            for what in ("mean", "sum", "p50", "p90", "p99", "p50_low", "p50_high", "p90_low", "p90_high",
                         "p99_low", "p99_high")
            for unit in ("_s", "_ms")
        )  # fmt: skip
    return any(name == f"{gauge}_{what}" for gauge in GAUGES for what in ("mean", "peak"))


def _level(row: Mapping[str, str], where: str, load_s: float | None) -> SweepLevel:
    concurrency = whole(row.get("concurrency"), "concurrency", where, least=1)
    plain: dict[str, Any] = {name: number(row.get(name), name, where) for name in PLAIN}
    if concurrency is None and plain["request_rate"] is None:
        raise InputError(
            "neither concurrency nor request_rate", where=where, remedy="name the load of each row"
        )
    load = load_s if load_s is not None else plain.pop("load_s", None)
    plain.pop("load_s", None)
    derived: tuple[str, ...] = ()
    if load is None and (load := load_seconds(plain["window_s"])) is not None:
        derived = ("load_s",)
    histograms: dict[str, Any] = {name: _seconds(row, name, where) for name in SECONDS}
    gauges: dict[str, Any] = {name: _gauge(row, name, where) for name in GAUGES}
    rates = {name: number(row.get(name), name, where) for name in RATES}
    hit = number(row.get("hit_pct"), "hit_pct", where)
    if hit is not None:
        rates["hit_rate"] = hit / 100.0
    share = rates["hit_rate"]
    if share is not None and share > 1.0:
        raise InputError(
            f"the hit rate is {share:g}, above 1", where=where, remedy="hit_rate is a share, hit_pct is %"
        )
    level = SweepLevel(
        concurrency=concurrency,
        name=row.get("name")
        or (f"c{concurrency}" if concurrency else f"{plain['request_rate']:g} requests/s"),
        load_s=load,
        given_prompt_tokens_per_s=rates["prompt_tokens_per_s"],
        given_output_tokens_per_s=rates["output_tokens_per_s"],
        given_requests_per_s=rates["requests_per_s"],
        given_hit_rate=share,
        prompt_per_request=_mean(row, "prompt_tokens_per_request", where),
        output_per_request=_mean(row, "output_tokens_per_request", where),
        computed_per_request=_mean(row, "computed_tokens_per_request", where),
        derived=derived,
        **plain,
        **histograms,
        **gauges,
    )
    return _with_counts(level)


def _with_counts(level: SweepLevel) -> SweepLevel:
    """Counts from rates where the window is known."""
    if not level.window_s:
        return level
    derived = list(level.derived)
    found: dict[str, Any] = {}
    for count, rate in (
        ("prompt_tokens", level.given_prompt_tokens_per_s),
        ("generated_tokens", level.given_output_tokens_per_s),
        ("requests_finished", level.given_requests_per_s),
    ):
        if getattr(level, count) is None and rate is not None:
            found[count] = rate * level.window_s
            derived.append(count)
    return replace(level, **found, derived=tuple(derived))


def _seconds(row: Mapping[str, str], name: str, where: str) -> Histogram | None:
    def seconds(what: str) -> float | None:
        for unit, factor in (("_s", 1.0), ("_ms", 1e-3)):
            column = f"{name}_{what}{unit}"
            if row.get(column):
                value = number(row[column], column, where)
                return None if value is None else value * factor
        return None

    quantiles = []
    for percent in (50, 90, 99):
        exact, low, high = (seconds(f"p{percent}{part}") for part in ("", "_low", "_high"))
        if exact is not None:
            quantiles.append((percent / 100, Bounds(exact, exact)))
        elif low is not None or high is not None:
            quantiles.append((percent / 100, Bounds(low or 0.0, high)))
    count, total, mean = (
        number(row.get(f"{name}_count"), f"{name}_count", where),
        seconds("sum"),
        seconds("mean"),
    )
    if total is None and mean is not None and count is not None:
        total = mean * count
    if total is None and mean is None and not quantiles:
        return None
    return Histogram(sum=total, count=count, given_mean=mean, given_quantiles=tuple(quantiles))


def _gauge(row: Mapping[str, str], name: str, where: str) -> Gauge | None:
    mean = number(row.get(f"{name}_mean"), f"{name}_mean", where)
    peak = number(row.get(f"{name}_peak"), f"{name}_peak", where)
    if (
        name == "kv_usage"
        and mean is None
        and (percent := number(row.get("kv_pct"), "kv_pct", where)) is not None
    ):
        mean = percent / 100.0
    if name == "kv_usage" and max(mean or 0.0, peak or 0.0) > 1.0:
        raise InputError("KV usage is above 1", where=where, remedy="kv_usage_mean is a share, kv_pct is %")
    return None if mean is None and peak is None else Gauge(mean, peak)


def _mean(row: Mapping[str, str], name: str, where: str) -> Histogram | None:
    mean = number(row.get(name), name, where)
    return None if mean is None else Histogram(given_mean=mean)
