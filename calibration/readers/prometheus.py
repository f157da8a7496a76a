"""Prometheus: text snapshots of /metrics, and range-query JSON of the HTTP API -> `Sweep`.

Snapshots: two or more scrapes a level. The time of a scrape is, in this order: a line
`# scraped_at <time>` (which also separates several scrapes in one file), a time in the file's name
(epoch seconds or 20260726T101530Z), or the file's modification time, which is noted. The level is a
`c<N>` in the file's or folder's name, or a manifest (see `scrapes.py`). Of several files one that cannot be
read is left out and named, as is a page that lacks the end that others have.

Range exports: the answer of /api/v1/query_range, one metric or many a file. Only raw series are used: a
result of rate() or sum() has no name and is dropped and counted. Levels come from a manifest or from
`c<N>` in the names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from replicast.calibration.readers.counters import PREFIX, given_of_config, merge_levels, order_levels
from replicast.calibration.readers.duckdb_open import INSTALL
from replicast.calibration.readers.scrapes import (
    Load,
    ScrapeSet,
    concurrency_in_name,
    config_labels,
    epoch,
    is_manifest,
    read_manifest,
    window_of,
)
from replicast.calibration.readers.text import input_file, read_json, read_text
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.sim.errors import InputError

SCRAPED_AT = re.compile(r"^#\s*scraped_at[:= ]\s*(\S+)", re.MULTILINE)
EPOCH_IN_NAME = re.compile(r"(?<![0-9])(1[0-9]{9})(?:[0-9]{3})?(?:\.([0-9]+))?(?![0-9])")
DATE_IN_NAME = re.compile(
    r"(20[0-9]{2})-?([01][0-9])-?([0-3][0-9])[T_ -]([0-2][0-9])[-:]?([0-5][0-9])[-:]?([0-5][0-9])"
)


def is_exposition(text: str) -> bool:
    """Whether a text is a /metrics page with vLLM's metrics."""
    return re.search(r"^(# (HELP|TYPE) )?vllm:", text, re.MULTILINE) is not None


def is_range_export(value: object) -> bool:
    """Whether a JSON value is an answer of Prometheus's query API."""
    return isinstance(value, dict) and "status" in value and ("data" in value or "error" in value)


def read_prometheus(
    paths: Sequence[Path],
    *,
    manifest: Path | None = None,
    model: str | None = None,
    load_s: float | None = None,
) -> Sweep:
    """Levels of snapshots and range exports together."""
    source = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({len(paths)} files)"
    notes: list[str] = []
    dropped: Counter[str] = Counter()
    groups: dict[tuple[int | None, Path | None], ScrapeSet] = {}
    inputs = []
    broken: list[InputError] = []
    ranges = False
    for path in sorted(paths):
        concurrency = concurrency_in_name(path)
        scrapes = ScrapeSet()
        try:
            text = read_text(path)
            if is_json := text.lstrip().startswith("{"):
                rows = _add_range(scrapes, path, dropped)
            else:
                rows = _add_snapshots(scrapes, path, text, notes)
        except InputError as error:
            if len(paths) == 1:
                raise
            broken.append(error)
            continue
        ranges = ranges or is_json
        _add(groups.setdefault((concurrency, path.parent if concurrency else None), ScrapeSet()), scrapes)
        inputs.append(input_file(path, rows))
    if len(broken) == len(paths):
        raise broken[0]
    left_out = [f"{Path(error.where or '').name} is left out: {error.what}" for error in broken]
    if broken:
        dropped["files that cannot be read"] += len(broken)
    for scrapes in groups.values():
        if not ranges and (ends := scrapes.cut_off()):
            scrapes.without(ends)
            dropped["pages that are cut off"] += len(ends)
            left_out += [f"the page of {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} is left out: its "
                         "end is missing" for at in ends]  # fmt: skip
    notes += left_out
    named: str | None = None
    if manifest is not None:
        value = read_json(manifest)
        if not is_manifest(value):
            raise InputError(
                "not a manifest of levels",
                where=str(manifest),
                remedy="give levels with concurrency, start, stop",
            )
        named, loads = read_manifest(value, str(manifest))
        everything = _joined(groups.values())
        parts = [(load, everything) for load in loads]
    else:
        parts = [(_whole_window(c, scrapes, load_s), scrapes) for c, scrapes in _windows(groups)]
        if (None, None) in groups:
            notes.append("no c<N> in a file's name and no manifest: one window of unknown concurrency")
    levels, chosen = _levels(parts, model, source, dropped, notes)
    config = [labels for scrapes in groups.values() for labels in config_labels(scrapes)]
    given = given_of_config(config, notes)
    odd = sum(scrapes.not_finite for scrapes in groups.values())
    if odd:
        dropped["samples that are not finite"] += odd
    return Sweep(
        source=source,
        format="prometheus",
        levels=levels,
        model=model or named or chosen,
        given=Given(model=chosen, sources=(("model", "model_name"),) if chosen else ()).over(given),
        inputs=tuple(inputs),
        dropped=tuple(sorted(dropped.items())),
        notes=tuple(dict.fromkeys(notes)),
    )


def _levels(
    parts: Sequence[tuple[Load, ScrapeSet]],
    model: str | None,
    source: str,
    dropped: Counter[str],
    notes: list[str],
) -> tuple[tuple[SweepLevel, ...], str | None]:
    served = sorted({name for _, scrapes in parts for name in scrapes.models()})
    chosen = model if model in served else (served[0] if len(served) == 1 else None)
    if model is not None and served and chosen is None:
        raise InputError(
            f"no model {model} in these scrapes", where=source, remedy=f"models here: {', '.join(served)}"
        )
    if len(served) > 1 and chosen is None:
        raise InputError(
            f"the scrapes hold {len(served)} models: {', '.join(served)}",
            where=source,
            remedy=f"choose one with --model {served[0]}",
        )
    if len(served) > 1:
        notes.append(f"counters of {chosen} only; the scrapes also have {len(served) - 1} other model(s)")
    windows: dict[tuple[int | None, str], list[SweepLevel]] = {}
    for load, scrapes in parts:
        window = window_of(scrapes.only_model(chosen) if chosen else scrapes, load)
        if window is None or not (window.totals or window.gauges):
            dropped["levels with fewer than two scrapes"] += 1
            notes.append(f"{load.name} is left out: it has fewer than two scrapes")
            continue
        key = (load.concurrency, load.name if load.concurrency is None else "")
        windows.setdefault(key, []).append(window.level(load.load_s))
    if not windows:
        raise InputError(
            "no level has two scrapes" + "".join(f"; {note}" for note in notes if " left out" in note),
            where=source,
            remedy="take a snapshot at the start and the end of each level, or give a manifest of the levels",
        )
    engines = max(level.engines or 1 for level_list in windows.values() for level in level_list)
    if engines > 1:
        notes.append(f"{engines} engines are added: every figure is that of the whole deployment")
    return order_levels(merge_levels(level_list) for level_list in windows.values()), chosen


def _windows(
    groups: Mapping[tuple[int | None, Path | None], ScrapeSet],
) -> list[tuple[int | None, ScrapeSet]]:
    """A window a folder for a load that was run again; one for a load whose two ends lie in two folders."""
    by_load: dict[int | None, list[ScrapeSet]] = {}
    for (concurrency, _), scrapes in groups.items():
        by_load.setdefault(concurrency, []).append(scrapes)
    windows = []
    for concurrency, parts in by_load.items():
        ends = [len(part.times(float("-inf"), float("inf"))) for part in parts]
        windows += [(concurrency, part) for part in (parts if min(ends) >= 2 else [_joined(parts)])]
    return windows


def _whole_window(concurrency: int | None, scrapes: ScrapeSet, load_s: float | None) -> Load:
    times = scrapes.times(float("-inf"), float("inf"))
    start, stop = (times[0], times[-1]) if times else (0.0, 0.0)
    return Load(concurrency, start, stop, load_s, "all" if concurrency is None else f"c{concurrency}")


def _joined(parts: Iterable[ScrapeSet]) -> ScrapeSet:
    joined = ScrapeSet()
    for part in parts:
        _add(joined, part)
    return joined


def _add(scrapes: ScrapeSet, more: ScrapeSet) -> None:
    scrapes.not_finite += more.not_finite
    for key, series in more.points.items():
        scrapes.points[key] |= series


def _add_snapshots(scrapes: ScrapeSet, path: Path, text: str, notes: list[str]) -> int:
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise InputError(
            "reading Prometheus snapshots needs the package prometheus-client",
            where=str(path),
            remedy=INSTALL,
        ) from error
    if not is_exposition(text):
        raise InputError(
            "no metric of vLLM in it", where=str(path), remedy="save the page /metrics of the vLLM server"
        )
    marks = list(SCRAPED_AT.finditer(text))
    if marks:
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        pages = [
            (epoch(mark[1], "scraped_at", str(path)), text[mark.end() : end])
            for mark, end in zip(marks, ends, strict=True)
        ]
    else:
        at = _time_in_name(path.stem)
        if at is None:
            at = path.stat().st_mtime
            notes.append("scrape times are the files' modification times: copying changes them")
        pages = [(at, text)]
    for at, page in pages:
        try:
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                        scrapes.add(sample.name, sample.labels, at, float(sample.value))
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(
                f"not Prometheus's text format ({error})",
                where=str(path),
                remedy="save the page /metrics again",
            ) from error
    return len(pages)


def _time_in_name(stem: str) -> float | None:
    if found := EPOCH_IN_NAME.search(stem):
        return float(f"{found[1]}.{found[2] or 0}")
    if found := DATE_IN_NAME.search(stem):
        year, month, day, hour, minute, second = (int(part) for part in found.groups())
        try:
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        except ValueError:
            return None
    return None


def _add_range(scrapes: ScrapeSet, path: Path, dropped: Counter[str]) -> int:
    answer = read_json(path)
    if not is_range_export(answer):
        raise InputError(
            "not an answer of Prometheus's query API",
            where=str(path),
            remedy="save the JSON of /api/v1/query_range",
        )
    if answer.get("status") != "success":
        raise InputError(
            f"Prometheus answered with an error: {answer.get('error', 'unknown')}",
            where=str(path),
            remedy="repeat the query; a range of 11,000 points a series is its limit",
        )
    data = answer.get("data")
    results = data.get("result") if isinstance(data, dict) else None
    if not isinstance(results, list):
        raise InputError("no result in it", where=str(path), remedy="save the JSON of /api/v1/query_range")
    used = 0
    for entry in results:
        labels = dict(entry.get("metric", {})) if isinstance(entry, Mapping) else {}
        name = labels.pop("__name__", None)
        if name is None:
            dropped["series without a name (a result of rate, sum or the like)"] += 1
        elif not name.startswith(PREFIX):
            dropped["series that are not vLLM's"] += 1
        elif "values" not in entry and "value" not in entry:
            dropped["series without plain values (native histograms)"] += 1
        else:
            _add_points(scrapes, name, labels, entry.get("values") or [entry["value"]], path)
            used += 1
    if not used:
        raise InputError(
            f"no raw series of vLLM among {len(results)} results",
            where=str(path),
            remedy='query {__name__=~"vllm:.+"} itself, not rate() or sum() of it',
        )
    return used


def _add_points(
    scrapes: ScrapeSet, name: str, labels: Mapping[str, str], points: Sequence[Any], path: Path
) -> None:
    for point in points:
        try:
            at, value = float(point[0]), float(point[1])
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(
                f"{name}: {point!r} is not [time, value]", where=str(path), remedy="save the answer again"
            ) from error
        scrapes.add(name, labels, at, value)
