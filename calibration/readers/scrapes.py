"""Scrapes held in memory -> levels: increases with restarts, and the manifest that says what was run when.

Prometheus snapshots and range exports come here; the collector's database does the same in SQL.
A manifest is JSON, `{"model": …, "levels": [{"concurrency": 1, "start": …, "stop": …, "load_s": …}]}`;
times are seconds since the epoch or ISO 8601 (with an offset, or UTC).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from replicast.calibration.readers.counters import (
    CONFIG_GAUGE,
    GAUGES,
    HISTOGRAMS,
    SUFFIXES,
    CounterWindow,
    Labels,
    engine_of,
    is_counter,
    plain_name,
    sub_label,
)
from replicast.calibration.readers.text import number, whole
from replicast.sim.errors import InputError

# Samples that are there from a server's start to its end.
FROM_START = (
    "prompt_tokens_total", "generation_tokens_total", "num_requests_running", "num_requests_waiting",
    *(f"{name}{suffix}" for name in HISTOGRAMS.values() for suffix in SUFFIXES),
)  # fmt: skip
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
LEVEL_IN_NAME = re.compile(r"(?:^|[_.\-])c(?P<concurrency>[0-9]+)(?=$|[_.\-])")


@dataclass(slots=True)
class ScrapeSet:
    """Samples by time: `points[series][time] = value`, times in seconds since the epoch."""

    points: dict[SeriesKey, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    not_finite: int = 0

    def add(self, metric: str, labels: Labels, at_s: float, value: float) -> None:
        """Keep one sample; NaN and infinity are counted and left out."""
        if value != value or value in (float("inf"), float("-inf")):
            self.not_finite += 1
            return
        self.points[(metric, tuple(sorted(labels.items())))][at_s] = value

    def times(self, start_s: float, stop_s: float) -> list[float]:
        """All scrape times in the window."""
        found = {at: None for series in self.points.values() for at in series if start_s <= at <= stop_s}
        return sorted(found)

    def cut_off(self) -> list[float]:
        """Times of pages that lack series which all others have: the end is missing.

        Judged by what vLLM exposes from its start on. Where many lack them, pages are of several kinds.
        """
        seen: dict[float, Counter[str]] = {}
        for (metric, _), series in self.points.items():
            for at in series:
                seen.setdefault(at, Counter())[metric] += 1
        whole = Counter[str]()
        for found in seen.values():
            whole |= Counter({name: n for name, n in found.items() if plain_name(name) in FROM_START})
        lacking = [at for at, found in seen.items() if any(found[name] < n for name, n in whole.items())]
        return sorted(lacking) if 2 * len(lacking) < len(seen) or len(seen) == 2 else []

    def without(self, times: Collection[float]) -> None:
        """Take scrapes out."""
        for series in self.points.values():
            for at in times:
                series.pop(at, None)

    def models(self) -> list[str]:
        """Served models, in order of name."""
        return sorted({value for _, labels in self.points for name, value in labels if name == "model_name"})

    def only_model(self, model: str) -> ScrapeSet:
        """The series of one model, and those without a model label."""
        kept = ScrapeSet(not_finite=self.not_finite)
        for (metric, labels), series in self.points.items():
            if dict(labels).get("model_name", model) == model:
                kept.points[(metric, labels)] = series
        return kept


class Load(NamedTuple):
    """One level of a manifest."""

    concurrency: int | None
    start_s: float
    stop_s: float
    load_s: float | None
    name: str


def window_of(scrapes: ScrapeSet, load: Load) -> CounterWindow | None:
    """The window's increases and gauges; None when it has fewer than two scrapes."""
    times = scrapes.times(load.start_s, load.stop_s)
    if len(times) < 2:
        return None
    window = CounterWindow(load.name, load.concurrency, times[0], times[-1], scrapes=len(times))
    gaps = [b - a for a, b in pairwise(times)]
    window.largest_gap_s = max(gaps)
    inside = {
        key: {at: value for at, value in sorted(series.items()) if load.start_s <= at <= load.stop_s}
        for key, series in sorted(scrapes.points.items())
    }
    falls = _falls(inside)
    engines: dict[str, None] = {}
    for (metric, pairs), series in inside.items():
        labels, name = dict(pairs), plain_name(metric)
        key = (name, sub_label(labels))
        if name in GAUGES:
            window.gauges.setdefault(key, []).extend((at, engine_of(labels), v) for at, v in series.items())
        elif is_counter(name) and series:
            engine = engine_of(labels)
            engines[engine] = None
            rise = _increase(series, times[0], falls.get(engine, ()))
            window.totals[key] = window.totals.get(key, 0.0) + rise
    window.engines = tuple(engines)
    window.reset_times_s = tuple(sorted({at for fall in falls.values() for at in fall}))
    if window.reset_times_s:
        window.notes.append(
            f"counters fell {len(window.reset_times_s)} time(s): the server restarted; "
            "what it counted between the last scrape and the restart is lost"
        )
    if not window.totals:
        window.notes.append("no counter in this window")
    return window


def _falls(inside: Mapping[SeriesKey, Mapping[float, float]]) -> dict[str, tuple[float, ...]]:
    falls: dict[str, dict[float, None]] = {}
    for (metric, pairs), series in inside.items():
        if not is_counter(plain_name(metric)):
            continue
        before = None
        for at, value in series.items():
            if before is not None and value < before:
                falls.setdefault(engine_of(dict(pairs)), {})[at] = None
            before = value
    return {engine: tuple(sorted(times)) for engine, times in falls.items()}


def _increase(series: Mapping[float, float], first_s: float, falls: Sequence[float]) -> float:
    """Last less first value in each life of the server; from 0 after a restart or a late birth."""
    total, base, last, before_at = 0.0, 0.0, None, 0.0
    for at, value in series.items():
        if last is None:
            base = value if at == first_s else 0.0
        elif any(before_at < fall <= at for fall in falls):
            total, base = total + (last - base), 0.0
        last, before_at = value, at
    return total if last is None else total + (last - base)


def config_labels(scrapes: ScrapeSet) -> list[dict[str, str]]:
    """Label sets of `vllm:cache_config_info`."""
    return [dict(pairs) for metric, pairs in sorted(scrapes.points) if plain_name(metric) == CONFIG_GAUGE]


def is_manifest(value: object) -> bool:
    """Whether a JSON value says which level ran when."""
    levels = value.get("levels") if isinstance(value, dict) else None
    return isinstance(levels, list) and bool(levels) and isinstance(levels[0], dict) and "start" in levels[0]


def read_manifest(value: Mapping[str, Any], where: str) -> tuple[str | None, list[Load]]:
    """Model and levels of a manifest."""
    loads = []
    for n, level in enumerate(value["levels"], start=1):
        place = f"{where}: level {n}"
        if not isinstance(level, dict):
            raise InputError("not an object", where=place, remedy="give concurrency, start and stop")
        start, stop = epoch(level.get("start"), "start", place), epoch(level.get("stop"), "stop", place)
        if stop <= start:
            raise InputError("stop is not after start", where=place, remedy="correct the manifest")
        concurrency = whole(level.get("concurrency"), "concurrency", place, least=1)
        name = str(level.get("name") or f"c{concurrency}")
        loads.append(Load(concurrency, start, stop, number(level.get("load_s"), "load_s", place), name))
    model = value.get("model")
    return (str(model) if model else None), loads


def epoch(value: object, name: str, where: str) -> float:
    """Seconds since the epoch of a number or an ISO 8601 time; without an offset it is UTC."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        text = str(value).strip()
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return float(text)
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(
            f"{name} is {value!r}, not a time",
            where=where,
            remedy="write 2026-07-26T10:00:00Z or epoch seconds",
        ) from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def concurrency_in_name(path: Path) -> int | None:
    """N of a `c<N>` in the file's name, or in its folder's."""
    for name in (path.name, path.parent.name):
        if found := LEVEL_IN_NAME.search(name):
            return int(found["concurrency"])
    return None
