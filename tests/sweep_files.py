"""Made-up histories of a server's counters, to be written in any form and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from replicast.calibration.buckets import REQUEST_EDGES_S, TTFT_EDGES_S, bin_values
from replicast.calibration.generate import CollectorSession, Scrape, write_collector_db
from replicast.calibration.server_counters import ServerCounters
from replicast.calibration.sweep import SweepLevel

CONFIG = {"block_size": "16", "num_gpu_blocks": "2001", "enable_prefix_caching": "True", "cache_dtype": "fp8"}
T0 = 1_785_000_000.0


def some_load(counters: ServerCounters, rng: np.random.Generator) -> dict[str, float]:
    """One request's whole life, counted; what it was."""
    prompt, output = int(rng.integers(100, 50_000)), int(rng.integers(2, 900))
    cached = int(prompt * rng.random())
    queue, prefill, decode = (float(x) for x in rng.exponential((0.4, 2.0, 12.0)))
    counters.looked_up(prompt, cached)
    counters.first_token(prompt_tokens=prompt, cached_tokens=cached, ttft_s=queue + prefill + 0.03)
    counters.step(computed_tokens=prompt - cached, generated_tokens=1)
    counters.step(
        computed_tokens=0, generated_tokens=output - 1, itl_s=[decode / (output - 1)] * (output - 1)
    )
    counters.finish(
        reason="stop", prompt_tokens=prompt, cached_tokens=cached, output_tokens=output, queue_s=queue,
        prefill_s=prefill, decode_s=decode, e2e_s=queue + prefill + decode + 0.03,
    )  # fmt: skip
    return {
        "prompt": prompt,
        "cached": cached,
        "output": output,
        "queue": queue,
        "ttft": queue + prefill + 0.03,
    }


def session(
    concurrency: int,
    counters: ServerCounters,
    rng: np.random.Generator,
    *,
    start_s: float,
    scrapes: int = 12,
    gap_s: float = 1.0,
    name: str | None = None,
) -> tuple[CollectorSession, list[dict[str, float]]]:
    """A collector session over some load, and the requests that it saw."""
    taken = [Scrape(start_s, (counters.snapshot(running=0, waiting=0, kv_usage=0.0),))]
    requests = []
    for n in range(1, scrapes):
        requests += [some_load(counters, rng) for _ in range(int(rng.integers(0, 3)))]
        state = counters.snapshot(running=concurrency, waiting=n % 2, kv_usage=n / 100)
        taken.append(Scrape(start_s + n * gap_s, (state,)))
    return CollectorSession(concurrency, tuple(taken), name=name), requests


def two_levels(seed: int = 1) -> tuple[list[CollectorSession], list[list[dict[str, float]]]]:
    counters, rng = ServerCounters(), np.random.default_rng(seed)
    for _ in range(5):
        some_load(counters, rng)  # before the sweep: must not count
    first, seen_first = session(1, counters, rng, start_s=T0)
    second, seen_second = session(5, counters, rng, start_s=T0 + 100)
    return [first, second], [seen_first, seen_second]


def assert_counts(level: SweepLevel, requests: list[dict[str, float]]) -> None:
    """The level holds exactly what the requests were."""
    assert level.requests_finished == level.first_tokens == len(requests)
    assert level.prompt_tokens == sum(r["prompt"] for r in requests)
    assert level.cached_tokens == sum(r["cached"] for r in requests)
    assert level.generated_tokens == sum(r["output"] for r in requests)
    assert level.ttft is not None
    assert level.queue is not None
    assert level.iteration_tokens is not None
    assert level.computed_per_request is not None
    assert level.ttft.sum == pytest.approx(sum(r["ttft"] for r in requests))
    assert level.ttft.counts == bin_values([r["ttft"] for r in requests], TTFT_EDGES_S)
    assert level.ttft.edges == TTFT_EDGES_S
    assert level.queue.counts == bin_values([r["queue"] for r in requests], REQUEST_EDGES_S)
    computed = sum(r["prompt"] - r["cached"] for r in requests)
    assert level.iteration_tokens.sum == computed + level.generated_tokens
    assert level.computed_tokens == level.computed_per_request.sum == computed
    assert dict(level.prompt_tokens_by_source)["local_compute"] == computed


def write(path: Path, sessions: list[CollectorSession], **more: object) -> Path:
    write_collector_db(path, sessions, model="m", model_name="org/M", config=CONFIG, **more)  # type: ignore[arg-type]
    return path
