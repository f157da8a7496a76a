"""A server's Prometheus counters, counted as vLLM counts them.

Who simulates a server tells this object each event; `snapshot` is what a scrape would see. The rules
are those of vLLM's stats (RULES: metrics): the whole prompt is counted when its first token appears,
TTFT then too; queue, prefill, decode, inference, e2e, TPOT and the token histograms at finish;
`iteration_tokens` once a step that gave output, with the computed prompt tokens of the requests whose
first token came in it and the tokens generated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from replicast.calibration.buckets import HISTOGRAM_EDGES, bucket_of
from replicast.calibration.generate import TOKEN_HISTOGRAMS, EngineState, HistogramState, edges_of

# Counters that a real server also exports and that nothing here moves.
STILL_COUNTERS = (
    "external_prefix_cache_queries_total", "external_prefix_cache_hits_total", "mm_cache_queries_total",
    "mm_cache_hits_total", "estimated_flops_per_gpu_total", "estimated_read_bytes_per_gpu_total",
    "estimated_write_bytes_per_gpu_total",
)  # fmt: skip


@dataclass(slots=True)
class _Observed:
    edges: tuple[float, ...]
    counts: list[float]
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bucket_of(value, self.edges)] += 1
        self.sum += value


@dataclass(slots=True)
class ServerCounters:
    """Everything counted since the server started."""

    max_model_len: int = 200_000
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
    )
    _histograms: dict[str, _Observed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*HISTOGRAM_EDGES, *TOKEN_HISTOGRAMS, "request_params_n"):
            edges = edges_of(name, self.max_model_len)
            self._histograms[name] = _Observed(edges, [0.0] * (len(edges) + 1))

    def observe(self, histogram: str, value: float) -> None:
        """One observation of the histogram named without `vllm:`."""
        self._histograms[histogram].add(value)

    def looked_up(self, num_tokens: int, hit_tokens: int) -> None:
        """A prefix look-up that the version counts."""
        self.prefix_queries += num_tokens
        self.prefix_hits += hit_tokens

    def first_token(self, *, prompt_tokens: int, cached_tokens: int, ttft_s: float) -> None:
        """A request's first token left the server."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.observe("time_to_first_token_seconds", ttft_s)

    def step(self, *, computed_tokens: int, generated_tokens: int, itl_s: Iterable[float] = ()) -> None:
        """A step with output: computed prompt tokens of new first tokens, tokens generated, gaps."""
        self.generation_tokens += generated_tokens
        self.observe("iteration_tokens_total", computed_tokens + generated_tokens)
        for gap_s in itl_s:
            self.observe("inter_token_latency_seconds", gap_s)

    def finish(
        self,
        *,
        reason: str,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        queue_s: float,
        prefill_s: float,
        decode_s: float,
        e2e_s: float,
        max_tokens: int = 16_000,
    ) -> None:
        """A request finished."""
        self.finished[reason] += 1
        tpot_s = decode_s / (output_tokens - 1) if output_tokens > 1 else 0.0
        for name, value in (
            ("e2e_request_latency_seconds", e2e_s),
            ("request_queue_time_seconds", queue_s),
            ("request_prefill_time_seconds", prefill_s),
            ("request_decode_time_seconds", decode_s),
            ("request_inference_time_seconds", prefill_s + decode_s),
            ("request_time_per_output_token_seconds", tpot_s),
            ("request_prompt_tokens", prompt_tokens),
            ("request_generation_tokens", output_tokens),
            ("request_prefill_kv_computed_tokens", prompt_tokens - cached_tokens),
            ("request_max_num_generation_tokens", output_tokens),
            ("request_params_max_tokens", max_tokens),
            ("request_params_n", 1),
        ):
            self.observe(name, value)

    def snapshot(self, *, running: int, waiting: int, kv_usage: float, deferred: int = 0) -> EngineState:
        """What a scrape sees now."""
        return EngineState(
            gauges={
                "num_requests_running": running,
                "num_requests_waiting": waiting,
                "num_requests_waiting_by_reason": {"capacity": waiting - deferred, "deferred": deferred},
                "engine_sleep_state": 0.0,
                "kv_cache_usage_perc": kv_usage,
            },
            counters={
                "prefix_cache_queries_total": self.prefix_queries,
                "prefix_cache_hits_total": self.prefix_hits,
                **dict.fromkeys(STILL_COUNTERS, 0.0),
                "num_preemptions_total": self.preemptions,
                "prompt_tokens_total": self.prompt_tokens,
                "prompt_tokens_by_source_total": {
                    "local_compute": self.prompt_tokens - self.cached_tokens,
                    "local_cache_hit": self.cached_tokens,
                    "external_kv_transfer": 0.0,
                },
                "prompt_tokens_cached_total": self.cached_tokens,
                "generation_tokens_total": self.generation_tokens,
                "request_success_total": {reason: float(n) for reason, n in self.finished.items()},
            },
            histograms={
                name: HistogramState(seen.sum, tuple(seen.counts)) for name, seen in self._histograms.items()
            },
        )
