"""Counters of one window -> a `SweepLevel`, whatever database they come from.

Rules:
* A counter's increase over a window is its last less its first value. Where any counter of an engine falls,
  the server has restarted: every counter of that engine counts from 0 at that scrape.
* A series that first appears after the first scrape was born at 0 (labels appear at first use).
* Engines (data-parallel ranks, replicas behind one scrape) are added: the level is that of the whole
  deployment. Running and waiting add up; KV usage is their mean, its peak that of the fullest engine.
* Load ends where the server falls idle for good; the harness that writes these databases drains for 120 s,
  so where that fits its round figure is taken (`load_seconds`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from replicast.calibration.buckets import differences
from replicast.calibration.sweep import HISTOGRAM_FIELDS, Gauge, Given, Histogram, SweepLevel

PREFIX = "vllm:"
DRAIN_S = 120.0
LOAD_STEP_S = 300.0
USUAL_LOADS_S = (300.0, 600.0)
CLOSE_S = 30.0  # a session may end, or a last reply take, so much before or after the load's end
IDLE_TAIL_S = 5.0

# vLLM's histogram behind each field of a level.
HISTOGRAMS: Mapping[str, str] = {
    "ttft": "time_to_first_token_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "inference": "request_inference_time_seconds",
    "e2e": "e2e_request_latency_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "itl": "inter_token_latency_seconds",
    "iteration_tokens": "iteration_tokens_total",
    "prompt_per_request": "request_prompt_tokens",
    "output_per_request": "request_generation_tokens",
    "computed_per_request": "request_prefill_kv_computed_tokens",
}
# Names of earlier versions.
RENAMED: Mapping[str, str] = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries_total": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total": "prefix_cache_hits_total",
}
RENAMED_HISTOGRAMS: Mapping[str, str] = {"time_per_output_token_seconds": "inter_token_latency_seconds"}
GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
)
CONFIG_GAUGE = "cache_config_info"
SUB_LABELS = ("le", "finished_reason", "reason", "source")
SUFFIXES = ("_bucket", "_sum", "_count")

Labels = Mapping[str, str]
Total = dict[tuple[str, str], float]


def plain_name(metric: str) -> str:
    """The sample name without `vllm:`, in the current version's words."""
    name = metric.removeprefix(PREFIX)
    for suffix in SUFFIXES:
        base = name.removesuffix(suffix)
        if base != name and base in RENAMED_HISTOGRAMS:
            return RENAMED_HISTOGRAMS[base] + suffix
    return RENAMED.get(name, name)


def is_counter(name: str) -> bool:
    """Whether samples of this (plain) name only ever rise while the server lives."""
    return name.endswith(("_total", *SUFFIXES))


def sub_label(labels: Labels) -> str:
    """The label that splits a metric: the bucket edge, a reason, a source; empty for most."""
    return next((labels[name] for name in SUB_LABELS if name in labels), "")


def engine_of(labels: Labels) -> str:
    """What tells one engine's series from another's."""
    return "/".join(labels[name] for name in ("instance", "pod", "engine") if name in labels)


@dataclass(slots=True)
class CounterWindow:
    """All that was scraped in one window. Times are seconds since the epoch."""

    name: str
    concurrency: int | None
    start_s: float
    stop_s: float
    totals: Total = field(default_factory=dict)
    gauges: dict[tuple[str, str], list[tuple[float, str, float]]] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    scrapes: int = 0
    scrapes_failed: int = 0
    reset_times_s: tuple[float, ...] = ()
    largest_gap_s: float | None = None
    interval_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def level(self, load_s: float | None = None) -> SweepLevel:
        """The window as a level."""
        notes = list(self.notes)
        window_s = self.stop_s - self.start_s
        load = load_s if load_s is not None else self._load_seconds(window_s, notes)
        histograms: dict[str, Any] = {
            name: histogram_of(self.totals, metric, notes) for name, metric in HISTOGRAMS.items()
        }
        finished = self._split("request_success_total")
        by_source = self._split("prompt_tokens_by_source_total")
        e2e = histograms["e2e"]
        ttft = histograms["ttft"]
        finished_total = sum(n for _, n in finished) if finished else (e2e.count if e2e else None)
        return SweepLevel(
            concurrency=self.concurrency,
            name=self.name,
            window_s=window_s,
            load_s=load,
            start_s=self.start_s,
            stop_s=self.stop_s,
            requests_finished=finished_total,
            finished_by_reason=finished,
            first_tokens=ttft.count if ttft else None,
            prompt_tokens=self._one("prompt_tokens_total"),
            cached_tokens=self._cached(by_source),
            generated_tokens=self._one("generation_tokens_total"),
            prompt_tokens_by_source=by_source,
            running=self._gauge("num_requests_running"),
            waiting=self._gauge("num_requests_waiting"),
            kv_usage=self._gauge("kv_cache_usage_perc"),
            waiting_by_reason=tuple(
                (sub, gauge)
                for metric, sub in sorted(self.gauges)
                if metric == "num_requests_waiting_by_reason"
                and (gauge := self._gauge(metric, sub)) is not None
            ),
            preemptions=self._one("num_preemptions_total"),
            prefix_queries=self._one("prefix_cache_queries_total"),
            prefix_hits=self._one("prefix_cache_hits_total"),
            scrapes=self.scrapes,
            scrapes_failed=self.scrapes_failed,
            resets=len(self.reset_times_s),
            reset_times_s=tuple(t - self.start_s for t in self.reset_times_s),
            largest_gap_s=self.largest_gap_s,
            engines=len(self.engines) or None,
            derived=("load_s",) if load_s is None and load is not None else (),
            notes=tuple(notes),
            **histograms,
        )

    def _load_seconds(self, window_s: float, notes: list[str]) -> float | None:
        """How long load was offered: until the server fell idle for good, or what the harness does."""
        by_rule = load_seconds(window_s)
        running, waiting = self._gauge("num_requests_running"), self._gauge("num_requests_waiting")
        if running is None:
            return by_rule
        queued = dict(zip(waiting.times_s, waiting.values, strict=True)) if waiting else {}
        busy = [
            at for at, n in zip(running.times_s, running.values, strict=True) if n + queued.get(at, 0.0) > 0
        ]
        if not busy:
            return by_rule
        if by_rule is not None and abs(busy[-1] - by_rule) <= CLOSE_S:
            return by_rule
        if by_rule in USUAL_LOADS_S and busy[-1] > by_rule:
            notes.append(f"still busy {busy[-1] - by_rule:.0f} s into the drain")
            return by_rule
        return busy[-1] if window_s - busy[-1] >= IDLE_TAIL_S else window_s

    def _one(self, metric: str) -> float | None:
        return self.totals.get((metric, ""))

    def _split(self, metric: str) -> tuple[tuple[str, float], ...]:
        return tuple((sub, n) for (name, sub), n in sorted(self.totals.items()) if name == metric)

    def _cached(self, by_source: tuple[tuple[str, float], ...]) -> float | None:
        cached = self._one("prompt_tokens_cached_total")
        if cached is not None or not by_source:
            return cached
        return sum(n for source, n in by_source if source != "local_compute")

    def _gauge(self, metric: str, sub: str = "") -> Gauge | None:
        samples = self.gauges.get((metric, sub))
        if not samples:
            return None
        by_time: dict[float, list[float]] = defaultdict(list)
        for at, _, value in samples:
            by_time[at].append(value)
        times = sorted(by_time)
        if metric == "kv_cache_usage_perc":
            values = [sum(by_time[t]) / len(by_time[t]) for t in times]
            gauge = Gauge.over_time([t - self.start_s for t in times], values)
            return replace(gauge, peak=max(value for _, _, value in samples))
        return Gauge.over_time([t - self.start_s for t in times], [sum(by_time[t]) for t in times])


def load_seconds(window_s: float | None) -> float | None:
    """How long load was offered, from a window that ends 120 s later, or None where it does not fit.

    The harness scrapes from 2 s before the load to the end of the drain: a 720 s session has a window
    of 718 or 719 s and 600 s of load, one of 420 s has 300. Loads are multiples of five minutes. Windows of
    whole minutes are somebody's own, without a drain that would be known.

    >>> [load_seconds(window_s) for window_s in (719.0, 418.7, 1481.0, 45.0, 600.0)]
    [600.0, 300.0, None, None, None]
    """
    if window_s is None:
        return None
    load = round((window_s - DRAIN_S) / LOAD_STEP_S) * LOAD_STEP_S
    return load if load > 0 and -4.0 <= window_s - DRAIN_S - load < 0 else None


def histogram_of(totals: Total, metric: str, notes: list[str]) -> Histogram | None:
    """The histogram of `metric`, or None when it was not scraped."""
    total, count = totals.get((f"{metric}_sum", "")), totals.get((f"{metric}_count", ""))
    edges_of = {float(sub): n for (name, sub), n in totals.items() if name == f"{metric}_bucket"}
    ordered = sorted(edges_of)
    edges = tuple(edge for edge in ordered if math.isfinite(edge))
    cumulative = [edges_of[edge] for edge in ordered]
    if total is None and count is None and not edges:
        return None
    if edges and math.isfinite(ordered[-1]):
        # Without +Inf the last bucket is what the count has beyond the last edge.
        cumulative.append(max(cumulative[-1], count if count is not None else cumulative[-1]))
    if count is None and edges:
        count = cumulative[-1]
    counts = differences(cumulative) if edges else ()
    if any(n < -1e-6 for n in counts):
        notes.append(f"bucket counts of {metric} contradict each other and are left out")
        edges, counts = (), ()
    return Histogram(sum=total, count=count, edges=edges, counts=counts)


def merge_levels(parts: list[SweepLevel]) -> SweepLevel:
    """Several windows of one load as one level: counts and windows add, gauges follow each other.

    The time between the windows is left out. The parts stay readable as `repeats`.
    """
    if len(parts) == 1:
        return parts[0]
    merged = parts[0]
    for part in parts[1:]:
        merged = _merge_two(merged, part)
    notes = [note for part in parts for note in part.notes]
    notes.append(f"{len(parts)} windows of this load are added; the time between them is left out")
    return replace(
        merged,
        sessions=len(parts),
        repeats=tuple(parts),
        notes=tuple(dict.fromkeys(notes)),
    )


_ADDED = (
    "window_s", "load_s", "requests_finished", "requests_failed", "first_tokens", "prompt_tokens",
    "cached_tokens", "generated_tokens", "preemptions", "prefix_queries", "prefix_hits", "scrapes",
    "scrapes_failed", "resets",
)  # fmt: skip


def _merge_two(a: SweepLevel, b: SweepLevel) -> SweepLevel:
    added: dict[str, Any] = {}
    for name in _ADDED:
        x, y = getattr(a, name), getattr(b, name)
        added[name] = None if x is None or y is None else x + y
    offset = a.window_s or 0.0
    histograms: dict[str, Any] = {
        name: x.plus(y)
        if (x := getattr(a, name)) is not None and (y := getattr(b, name)) is not None
        else None
        for name in HISTOGRAM_FIELDS
    }
    gauges: dict[str, Any] = {
        name: _join(getattr(a, name), getattr(b, name), offset) for name in ("running", "waiting", "kv_usage")
    }
    gaps = [gap for gap in (a.largest_gap_s, b.largest_gap_s) if gap is not None]
    return replace(
        a,
        stop_s=b.stop_s,
        finished_by_reason=_add_split(a.finished_by_reason, b.finished_by_reason),
        prompt_tokens_by_source=_add_split(a.prompt_tokens_by_source, b.prompt_tokens_by_source),
        waiting_by_reason=_join_split(a.waiting_by_reason, b.waiting_by_reason, offset),
        reset_times_s=(*a.reset_times_s, *(t + offset for t in b.reset_times_s)),
        largest_gap_s=max(gaps, default=None),
        derived=tuple(dict.fromkeys((*a.derived, *b.derived))),
        **added,
        **histograms,
        **gauges,
    )


def _join(a: Gauge | None, b: Gauge | None, offset: float) -> Gauge | None:
    if a is None or b is None:
        return None
    joined = Gauge.over_time((*a.times_s, *(t + offset for t in b.times_s)), (*a.values, *b.values))
    peaks = [peak for peak in (a.peak, b.peak) if peak is not None]
    return replace(joined, peak=max(peaks, default=None))


def _join_split(
    a: tuple[tuple[str, Gauge], ...], b: tuple[tuple[str, Gauge], ...], offset: float
) -> tuple[tuple[str, Gauge], ...]:
    left, right = dict(a), dict(b)
    joined = ((name, _join(left[name], right[name], offset)) for name in left if name in right)
    return tuple((name, gauge) for name, gauge in joined if gauge is not None)


def _add_split(
    a: tuple[tuple[str, float], ...], b: tuple[tuple[str, float], ...]
) -> tuple[tuple[str, float], ...]:
    both: dict[str, float] = dict(a)
    for name, n in b:
        both[name] = both.get(name, 0.0) + n
    return tuple(sorted(both.items()))


def order_levels(levels: Iterable[SweepLevel]) -> tuple[SweepLevel, ...]:
    """By concurrency, then by rate, then by time; and a note on windows that look merged or cut."""
    ordered = sorted(
        levels,
        key=lambda level: (
            level.concurrency if level.concurrency is not None else math.inf,
            level.request_rate if level.request_rate is not None else math.inf,
            level.start_s or 0.0,
        ),
    )
    windows = [level.window_s / level.sessions for level in ordered if level.window_s]
    usual = median(windows) if windows else None
    return tuple(_note_window(level, usual) for level in ordered)


def _note_window(level: SweepLevel, usual_s: float | None) -> SweepLevel:
    if not usual_s or not level.window_s or level.window_s == level.load_s:
        return level  # ends with its requests, not with a clock
    window_s = level.window_s / level.sessions
    if 0.5 * usual_s <= window_s <= 1.5 * usual_s:
        return level
    what = "longer" if window_s > usual_s else "shorter"
    why = "perhaps two runs merged" if window_s > usual_s else "perhaps cut off"
    note = f"its window of {window_s:.0f} s is much {what} than the usual {usual_s:.0f} s: {why}"
    return replace(level, notes=(*level.notes, note))


def given_of_config(labels: Iterable[Labels], notes: list[str]) -> Given:
    """Facts in the labels of `vllm:cache_config_info`; contradicting ones are noted and left out."""
    seen: dict[str, list[str]] = defaultdict(list)
    for one in labels:
        for name, value in one.items():
            if value not in seen[name]:
                seen[name].append(value)
    facts: dict[str, str] = {}
    for name in (
        "block_size",
        "num_gpu_blocks",
        "enable_prefix_caching",
        "cache_dtype",
        "gpu_memory_utilization",
    ):
        if len(seen[name]) > 1:
            notes.append(
                f"the server's {name} changed within the file ({', '.join(seen[name])}): "
                "levels of different servers; the fact is left open"
            )
        elif seen[name] and seen[name][0] not in ("", "None"):
            facts[name] = seen[name][0]
    given = Given(
        block_size=_whole(facts.get("block_size")),
        num_gpu_blocks=_whole(facts.get("num_gpu_blocks")),
        enable_prefix_caching={"True": True, "False": False}.get(facts.get("enable_prefix_caching", "")),
        kv_cache_dtype=facts.get("cache_dtype"),
        gpu_memory_utilization=_number(facts.get("gpu_memory_utilization")),
    )
    return replace(given, sources=tuple((name, PREFIX + CONFIG_GAUGE) for name in given.told()))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
