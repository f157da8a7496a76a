"""Which reader a path needs, by its content; `read_sweep` is the one door to all of them.

A folder is read by what it holds: a collector's database (or its export), results of a benchmark tool,
Prometheus files with their manifest, or a file of requests. Files of several formats are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from replicast.calibration.readers import aiperf, bench_serve, guidellm, scrapes
from replicast.calibration.readers.boot_log import given_of_mapping, is_boot_log, notes_on, parse_given
from replicast.calibration.readers.duckdb_collector import read_duckdb
from replicast.calibration.readers.flat_csv import is_flat_csv, read_flat_csv
from replicast.calibration.readers.performance_json import is_performance_summary, read_performance_json
from replicast.calibration.readers.prometheus import is_exposition, is_range_export, read_prometheus
from replicast.calibration.readers.requests_csv import SIDE_FILES, is_requests_csv, read_requests_csv
from replicast.calibration.readers.run_summary import is_run_summary, read_run_summary
from replicast.calibration.readers.text import column_names, parse_json, read_json, read_text
from replicast.calibration.sweep import HISTOGRAM_FIELDS, Given, Histogram, Sweep
from replicast.sim.errors import InputError

FORMATS = (
    "duckdb-collector", "performance-summary", "prometheus", "sweep-csv", "vllm-bench-serve", "guidellm",
    "aiperf", "requests-csv", "run-summary",
)  # fmt: skip
MANIFEST = "manifest"
MOST_SESSIONS = 10_000
SLACK = 1.01  # of figures that are rounded
FULL = 1.001  # of the KV pool, rounding allowed for
NEVER = (".md", ".py", ".sh", ".png", ".svg", ".yaml", ".yml", ".toml", ".log", ".wal", ".html")


def read_sweep(
    *paths: Path | str,
    format: str | None = None,
    model: str | None = None,
    given: Given | Mapping[str, Any] | Sequence[str] | None = None,
    load_s: float | None = None,
) -> Sweep:
    """Read one sweep from a file, a folder or several files of one format.

    `model` chooses among several in the source. `given` (facts told beside the source) wins over what the
    source tells. `load_s` is how long load was offered in each level, where it is not the harness's.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"no format {format}", remedy=f"formats are {', '.join(FORMATS)}")
    passed_over: list[str] = []
    files, manifest, found = _files([Path(path) for path in paths], format, passed_over)
    sweep = _read(files, found, manifest, model, load_s)
    _check_loads(sweep)
    _check_order(sweep, load_is_told=load_s is not None)
    if passed_over:
        listed = ", ".join(passed_over[:4]) + (", …" if len(passed_over) > 4 else "")
        note = (
            f"{len(passed_over)} file(s) of the folder are no sweep of this format and passed over: {listed}"
        )
        sweep = replace(sweep, notes=(*sweep.notes, note))
    if given is None:
        return sweep
    if isinstance(given, Mapping):
        told = given_of_mapping(given, "given")
    else:
        told = given if isinstance(given, Given) else parse_given(given)
        if not isinstance(given, Given):
            sweep = replace(sweep, notes=(*sweep.notes, *notes_on(given)))
    return replace(sweep, given=told.over(sweep.given))


def _check_loads(sweep: Sweep) -> None:
    """What is simulated is bounded: a slip of the pen must not ask for a billion sessions or pools."""
    for level in sweep.levels:
        if (level.concurrency or 0) > MOST_SESSIONS:
            raise InputError(
                f"a level has {level.concurrency:,} sessions, more than {MOST_SESSIONS:,}",
                where=sweep.source,
                remedy="correct the concurrency",
            )
        usage = max(level.kv_usage.mean or 0.0, level.kv_usage.peak or 0.0) if level.kv_usage else 0.0
        if usage > FULL:
            raise InputError(
                f"KV usage of {level.name or level.concurrency} is {usage:g}, beyond 1",
                where=sweep.source,
                remedy="kv_cache_usage_perc is a share of the pool: divide percent by 100",
            )


def _check_order(sweep: Sweep, *, load_is_told: bool) -> None:
    """Figures that contradict each other are a slip of the pen or of a column."""
    for level in sweep.levels:
        name = level.name or f"level {level.concurrency}"
        if not load_is_told and level.load_s and level.window_s and level.load_s > SLACK * level.window_s:
            raise InputError(
                f"{name}: load of {level.load_s:g} s in a window of {level.window_s:g} s",
                where=sweep.source,
                remedy="window_s is what counters were read over: load and drain",
            )
        for metric in HISTOGRAM_FIELDS:
            told = getattr(level, metric)
            if told is not None:
                _check_quantiles(told, f"{name}: {metric}", sweep.source)
            ends = [(q, bounds.high) for q, bounds in sorted(told.given_quantiles)] if told else []
            known = [(q, high) for q, high in ends if high is not None]
            for (q, high), (next_q, next_high) in pairwise(known):
                if high > SLACK * next_high:
                    raise InputError(
                        f"{name}: {metric} p{100 * q:g} is {high:g}, "
                        f"above p{100 * next_q:g} of {next_high:g}",
                        where=sweep.source,
                        remedy="correct the percentiles",
                    )


def _check_quantiles(told: Histogram, name: str, where: str) -> None:
    """Bounds in their order, and a median of twice the mean at most (Markov)."""
    for q, bounds in told.given_quantiles:
        if bounds.high is not None and bounds.low > bounds.high:
            what = f"{name} p{100 * q:g} is between {bounds.low:g} and {bounds.high:g}"
        elif told.mean is not None and q <= 0.5 and bounds.low > SLACK * told.mean / (1 - q):
            what = f"{name} p{100 * q:g} is {bounds.low:g}, which a mean of {told.mean:g} does not allow"
        else:
            continue
        raise InputError(what, where=where, remedy="correct the percentiles, their units, or the mean")


def detect(path: Path) -> str:
    """The format of one file, or of an exported database's folder."""
    if path.is_dir():
        if (path / "schema.sql").is_file() or any(path.glob("metric_samples.*")):
            return "duckdb-collector"
        raise InputError("a folder", where=str(path), remedy="give the files in it")
    head = _head(path)
    if head[8:12] == b"DUCK":
        return "duckdb-collector"
    if path.suffix in (".duckdb", ".db"):
        raise InputError(
            "this is not a DuckDB file: its header is missing" if head else "the file is empty",
            where=str(path),
            remedy="a half-written database cannot be read: copy it again once the collector has stopped",
        )
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        return _detect_json(path, text)
    if is_exposition(text):
        return "prometheus"
    if is_boot_log(text):
        raise InputError(
            "this is a server's boot log, which says what is given",
            where=str(path),
            remedy="give the sweep itself, and this file with --given",
        )
    header = _header(text)
    if is_requests_csv(header):
        return "requests-csv"
    if is_flat_csv(header):
        return "sweep-csv"
    raise InputError(
        "no format of a sweep is recognised in it",
        where=str(path),
        remedy=f"docs/sweep-formats.md lists them; --format forces one of {', '.join(FORMATS)}",
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(4096)
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})", where=str(path), remedy="check the path"
        ) from error


def _header(text: str) -> list[str]:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return column_names(first)


def _detect_json(path: Path, text: str) -> str:
    first_line = text.lstrip().splitlines()[0]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = json.loads(first_line)  # JSON lines
        except (ValueError, RecursionError):
            value = parse_json(text, str(path))  # says where it breaks
    checks = (
        (scrapes.is_manifest, MANIFEST),
        (is_performance_summary, "performance-summary"),
        (is_range_export, "prometheus"),
        (bench_serve.is_bench_serve, "vllm-bench-serve"),
        (guidellm.is_guidellm, "guidellm"),
        (aiperf.is_aiperf_record, "aiperf"),
        (aiperf.is_aiperf_summary, "aiperf"),
        (is_run_summary, "run-summary"),
    )
    for fits, name in checks:
        if fits(value):
            return name
    keys = ", ".join(sorted(value)[:8]) if isinstance(value, dict) else type(value).__name__
    raise InputError(
        f"JSON of no known sweep (it has {keys or 'nothing'})",
        where=str(path),
        remedy="docs/sweep-formats.md lists the formats",
    )


def _files(
    paths: Sequence[Path], format: str | None, passed_over: list[str]
) -> tuple[list[Path], Path | None, str]:
    """Files to read together, their manifest, their format."""
    if not paths:
        raise InputError("no file to read", remedy="name a sweep's file or folder")
    found: dict[str, list[Path]] = {}
    for path in paths:
        if not path.exists():
            raise InputError("no such file or folder", where=str(path), remedy="check the path")
        if path.is_dir() and not (path / "schema.sql").is_file() and not any(path.glob("metric_samples.*")):
            for name, members in _in_folder(path, format, passed_over).items():
                found.setdefault(name, []).extend(members)
        else:
            name = detect(path) if format is None or _is_manifest_file(path) else format
            found.setdefault(name, []).append(path)
    manifests = found.pop(MANIFEST, [])
    if len(manifests) > 1:
        raise InputError(
            f"{len(manifests)} manifests", where=str(manifests[1]), remedy="give one manifest of all levels"
        )
    if not found:
        raise InputError(
            "a manifest, and nothing it speaks of",
            where=str(manifests[0]),
            remedy="give the exports beside it",
        )
    if len(found) > 1:
        listed = "; ".join(f"{name}: {members[0].name}" for name, members in found.items())
        raise InputError(
            f"files of several formats ({listed})",
            where=str(paths[0]),
            remedy="give one sweep's files, or choose with --format",
        )
    name, members = next(iter(found.items()))
    return sorted(dict.fromkeys(members)), manifests[0] if manifests else None, name


def _is_manifest_file(path: Path) -> bool:
    return path.suffix == ".json" and scrapes.is_manifest(read_json(path))


def _in_folder(folder: Path, format: str | None, passed_over: list[str]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    unknown: list[str] = []
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not path.is_file() or hidden or path.suffix in NEVER:
            continue
        try:
            name = detect(path)
        except InputError as error:
            unknown.append(f"{path.name}: {error.what}")
            if path.name not in SIDE_FILES:
                passed_over.append(path.name)
            continue
        if format is None or name in (format, MANIFEST):
            found.setdefault(name, []).append(path)
        else:
            passed_over.append(path.name)
    if not found:
        why = f" ({'; '.join(unknown[:3])})" if unknown else ""
        raise InputError(
            f"no sweep in this folder{why}",
            where=str(folder),
            remedy="docs/sweep-formats.md lists the formats",
        )
    return found


def _read(
    files: Sequence[Path], name: str, manifest: Path | None, model: str | None, load_s: float | None
) -> Sweep:
    if name == "prometheus":
        return read_prometheus(files, manifest=manifest, model=model, load_s=load_s)
    if name == "vllm-bench-serve":
        return bench_serve.read_bench_serve(files, model=model)
    if name == "guidellm":
        return guidellm.read_guidellm(files, model=model)
    if name == "aiperf":
        return aiperf.read_aiperf(files, model=model)
    if len(files) > 1:
        raise InputError(
            f"{len(files)} files of the format {name}: {', '.join(file.name for file in files[:4])}",
            where=str(files[0]),
            remedy="one such file is a whole sweep: give one",
        )
    if name == "duckdb-collector":
        return read_duckdb(files[0], model=model, load_s=load_s)
    if name == "performance-summary":
        return read_performance_json(files[0], model=model, load_s=load_s)
    if name == "sweep-csv":
        return read_flat_csv(files[0], model=model, load_s=load_s)
    if name == "run-summary":
        return read_run_summary(files[0], model=model)
    return read_requests_csv(files[0], model=model)
