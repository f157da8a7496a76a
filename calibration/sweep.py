"""The one shape that every measurement becomes: a `Sweep` of `SweepLevel`s.

A level is one load (so many sessions, or such a rate) over one window. It holds what was counted,
not what was computed from it: exact sums and counts, bucket counts, gauges over time. Means, rates
and bounds of quantiles are properties. What a source does not tell is None, never 0, and what a
reader had to compute from rounded figures is named in `derived`.

Populations differ (vLLM's metrics): `ttft` counts every request that got a first token; `queue`,
`prefill`, `decode`, `inference`, `e2e`, `tpot` and the per-request token counts are observed only
when a request finishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from replicast.calibration.buckets import Bounds, bin_values, quantile_bounds
from replicast.sim.errors import InputError
from replicast.traces.report import InputFile

if TYPE_CHECKING:
    import pandas as pd

HISTOGRAM_FIELDS = (
    "ttft", "queue", "prefill", "decode", "inference", "e2e", "tpot", "itl", "iteration_tokens",
    "prompt_per_request", "output_per_request", "computed_per_request",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Histogram:
    """What is known of one quantity in a window: sum, count, buckets, or only a mean.

    `counts` are per bucket (not cumulative), one more than `edges`. `given_mean` is used where no
    sum is known, `given_quantiles` where no buckets are.
    """

    sum: float | None = None
    count: float | None = None
    edges: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    given_mean: float | None = None
    given_quantiles: tuple[tuple[float, Bounds], ...] = ()

    @property
    def mean(self) -> float | None:
        """Sum over count, or the mean as the source gives it; None when nothing was observed."""
        if self.sum is not None and self.count is not None:
            return self.sum / self.count if self.count > 0 else None
        return self.given_mean

    def quantile(self, q: float) -> Bounds | None:
        """Bounds of the `q` quantile; None when neither buckets nor a figure are known."""
        if self.counts:
            return quantile_bounds(q, self.edges, self.counts)
        return next((bounds for at, bounds in self.given_quantiles if abs(at - q) < 1e-9), None)

    def plus(self, other: Histogram) -> Histogram:
        """Both populations together; what one of them lacks is unknown for both."""
        same_edges = bool(self.edges) and self.edges == other.edges
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)) if same_edges else ()
        return Histogram(
            sum=_plus(self.sum, other.sum),
            count=_plus(self.count, other.count),
            edges=self.edges if same_edges else (),
            counts=counts,
        )

    @staticmethod
    def of(values: Iterable[float], edges: Sequence[float], quantiles: Sequence[float] = ()) -> Histogram:
        """The histogram of values that are known one by one."""
        data = sorted(values)
        ranks = [(q, data[max(0, -(-int(q * 1e9) * len(data) // 10**9) - 1)]) for q in quantiles if data]
        return Histogram(
            sum=float(sum(data)),
            count=float(len(data)),
            edges=tuple(edges),
            counts=bin_values(data, edges),
            given_quantiles=tuple((q, Bounds(value, value)) for q, value in ranks),
        )


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge over a window; `times_s` (from its start) is empty where only mean and peak are known."""

    mean: float | None
    peak: float | None
    times_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()

    @staticmethod
    def over_time(times_s: Sequence[float], values: Sequence[float]) -> Gauge:
        """Mean over scrapes (as dashboards show it) and peak of a series."""
        mean = sum(values) / len(values) if values else None
        return Gauge(mean, max(values, default=None), tuple(times_s), tuple(values))


class ClientRequest(NamedTuple):
    """One request as a client or a span recorded it; a failed one has neither `ttft_s` nor `e2e_s`.

    `arrival_s` counts from the level's first arrival.
    """

    arrival_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None
    e2e_s: float | None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """Facts about the server that are told, never fitted; None is not told.

    `kv_pool_tokens` is the boot log's "GPU KV cache size"; `num_gpu_blocks` counts the null block,
    as `EngineConfig` does. `sources` names where each fact comes from.
    """

    model: str | None = None
    vllm_version: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    instance: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    kv_pool_tokens: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    gpu_memory_utilization: float | None = None
    num_speculative_tokens: int | None = None
    price_usd_per_hour: float | None = None
    sources: tuple[tuple[str, str], ...] = ()

    def over(self, other: Given) -> Given:
        """These facts, and those of `other` where nothing is told here."""
        told = {
            item.name: getattr(self, item.name)
            if getattr(self, item.name) is not None
            else getattr(other, item.name)
            for item in fields(self)
            if item.name != "sources"
        }
        sources = dict(other.sources) | dict(self.sources)
        return Given(**told, sources=tuple(sources.items()))

    def told(self) -> dict[str, object]:
        """The facts that are told, by name."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name != "sources" and getattr(self, item.name) is not None
        }


@dataclass(frozen=True, slots=True)
class SweepLevel:
    """One load over one window.

    `concurrency` is the number of sessions held live (None in open loop, where `request_rate` is
    asked for). `window_s` is what counters were read over, `load_s` how long load was offered:
    their difference is drain, which dilutes every rate and gauge mean.
    `given_*` are figures of sources that publish them instead of counts.
    """

    concurrency: int | None
    name: str = ""
    request_rate: float | None = None
    window_s: float | None = None
    load_s: float | None = None
    start_s: float | None = None  # seconds since the epoch
    stop_s: float | None = None
    requests_finished: float | None = None
    finished_by_reason: tuple[tuple[str, float], ...] = ()
    requests_failed: float | None = None
    requests_unfinished: float | None = None
    first_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    generated_tokens: float | None = None
    prompt_tokens_by_source: tuple[tuple[str, float], ...] = ()
    ttft: Histogram | None = None
    queue: Histogram | None = None
    prefill: Histogram | None = None
    decode: Histogram | None = None
    inference: Histogram | None = None
    e2e: Histogram | None = None
    tpot: Histogram | None = None
    itl: Histogram | None = None
    iteration_tokens: Histogram | None = None
    prompt_per_request: Histogram | None = None
    output_per_request: Histogram | None = None
    computed_per_request: Histogram | None = None
    running: Gauge | None = None
    waiting: Gauge | None = None
    kv_usage: Gauge | None = None
    waiting_by_reason: tuple[tuple[str, Gauge], ...] = ()
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    given_prompt_tokens_per_s: float | None = None
    given_output_tokens_per_s: float | None = None
    given_requests_per_s: float | None = None
    given_hit_rate: float | None = None
    scrapes: int | None = None
    scrapes_failed: int | None = None
    resets: int | None = None
    reset_times_s: tuple[float, ...] = ()
    largest_gap_s: float | None = None
    sessions: int = 1
    engines: int | None = None
    requests: tuple[ClientRequest, ...] = ()
    repeats: tuple[SweepLevel, ...] = ()
    derived: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens over the whole window, cached ones included."""
        return _rate(self.prompt_tokens, self.window_s, self.given_prompt_tokens_per_s)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Generated tokens over the whole window."""
        return _rate(self.generated_tokens, self.window_s, self.given_output_tokens_per_s)

    @property
    def requests_per_s(self) -> float | None:
        """Finished requests over the whole window."""
        return _rate(self.requests_finished, self.window_s, self.given_requests_per_s)

    @property
    def computed_tokens(self) -> float | None:
        """Prompt tokens that were not cached."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float | None:
        """Cached share of prompt tokens. Not hits/queries: 0.25 counts queries at every retry."""
        if self.prompt_tokens and self.cached_tokens is not None:
            return self.cached_tokens / self.prompt_tokens
        return self.given_hit_rate

    @property
    def dilution(self) -> float | None:
        """Window over load: what a rate of the window must be multiplied by to be one of the load."""
        return self.window_s / self.load_s if self.window_s and self.load_s else None

    @property
    def unusable(self) -> str | None:
        """Why nothing can be learned from this level; None when something can."""
        counts = (self.first_tokens, self.requests_finished, self.generated_tokens, self.output_tokens_per_s)
        known = [count for count in counts if count is not None]
        if known and max(known) <= 0:
            return "no request got a token"
        if not known and self.ttft is None and self.tpot is None:
            return "neither a count nor a latency is known"
        return None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Levels of one server under one kind of load, and where they come from."""

    source: str
    format: str
    levels: tuple[SweepLevel, ...]
    model: str | None = None
    given: Given = field(default_factory=Given)
    task_input_tokens: float | None = None
    task_output_tokens: float | None = None
    inputs: tuple[InputFile, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def instance(self) -> str | None:
        """The instance type, where told."""
        return self.given.instance

    @property
    def price_usd_per_hour(self) -> float | None:
        """Price of the whole server an hour, where told."""
        return self.given.price_usd_per_hour

    def level(self, concurrency: int) -> SweepLevel | None:
        """The level of `concurrency` sessions, if there is one."""
        return next((level for level in self.levels if level.concurrency == concurrency), None)

    def usable_levels(self, at_least: int = 1) -> tuple[SweepLevel, ...]:
        """Levels something can be learned from; fewer than `at_least` is an `InputError`."""
        usable = tuple(level for level in self.levels if level.unusable is None)
        if len(usable) < at_least:
            left_out = [f"{level.name}: {level.unusable}" for level in self.levels if level.unusable]
            why = f" ({'; '.join(left_out)})" if left_out else ""
            raise InputError(
                f"{len(usable)} usable level{'s' * (len(usable) != 1)} of {len(self.levels)}, "
                f"and {at_least} are needed{why}",
                where=self.source,
                remedy="run the sweep at more concurrencies (1, 2, 5, 10, 20 say), or give more files",
            )
        return usable

    def summary(self) -> str:
        """One line: what was read, and what was not."""
        loads = ",".join(_load_name(level) for level in self.levels)
        dropped = f"; dropped {', '.join(f'{n} {why}' for why, n in self.dropped)}" if self.dropped else ""
        return f"{self.source}: {self.format}, {self.model or 'model not named'}, levels {loads}{dropped}"

    def to_frame(self) -> pd.DataFrame:
        """One row a level: counts, rates, means and bounds of quantiles, units in the names."""
        import pandas as pd

        return pd.DataFrame([_row(level) for level in self.levels])


def _load_name(level: SweepLevel) -> str:
    if level.concurrency is not None:
        return str(level.concurrency)
    return f"{level.request_rate:.3g}/s" if level.request_rate is not None else level.name or "?"


_SCALARS = (
    "concurrency", "name", "request_rate", "window_s", "load_s", "requests_finished", "requests_failed",
    "first_tokens", "prompt_tokens", "cached_tokens", "generated_tokens", "prompt_tokens_per_s",
    "output_tokens_per_s", "hit_rate", "preemptions", "scrapes", "scrapes_failed", "resets",
)  # fmt: skip


def _row(level: SweepLevel) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(level, name) for name in _SCALARS}
    for name in HISTOGRAM_FIELDS:
        histogram: Histogram | None = getattr(level, name)
        unit = "" if name.endswith(("_tokens", "_per_request")) else "_s"
        row[f"{name}_mean{unit}"] = histogram.mean if histogram else None
        for q in (50, 90):
            bounds = histogram.quantile(q / 100) if histogram else None
            row[f"{name}_p{q}_low{unit}"], row[f"{name}_p{q}_high{unit}"] = bounds or (None, None)
    for name in ("running", "waiting", "kv_usage"):
        gauge: Gauge | None = getattr(level, name)
        row[f"{name}_mean"] = gauge.mean if gauge else None
        row[f"{name}_peak"] = gauge.peak if gauge else None
    return row


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _rate(count: float | None, window_s: float | None, given: float | None) -> float | None:
    if given is not None:
        return given
    return count / window_s if count is not None and window_s else None
