"""vLLM's histogram edges, and what bucket counts can say.

Edges are those of `vllm/v1/metrics/loggers.py` (0.24 to 0.33; older names map to the same edges).
A bucket counts the values in (lower edge, edge]; the last one, beyond the last edge, has no upper
bound. A quantile of a histogram is therefore an interval, never a number: `quantile_bounds` gives
the bucket that holds it. Prometheus's interpolation inside a bucket is a guess and is not made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isfinite
from typing import NamedTuple

TTFT_EDGES_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_EDGES_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_EDGES_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_EDGES = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)  # fmt: skip
N_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_edges(max_model_len: int = 200_000) -> tuple[float, ...]:
    """Edges of the token-count histograms: 1, 2, 5, 10, ... up to `max_model_len`."""
    series = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return tuple(float(edge) for edge in series if edge <= max_model_len)


HISTOGRAM_EDGES: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": TTFT_EDGES_S,
    "inter_token_latency_seconds": TPOT_EDGES_S,
    "request_time_per_output_token_seconds": TPOT_EDGES_S,
    "e2e_request_latency_seconds": REQUEST_EDGES_S,
    "request_queue_time_seconds": REQUEST_EDGES_S,
    "request_inference_time_seconds": REQUEST_EDGES_S,
    "request_prefill_time_seconds": REQUEST_EDGES_S,
    "request_decode_time_seconds": REQUEST_EDGES_S,
    "iteration_tokens_total": ITERATION_EDGES,
}


class Bounds(NamedTuple):
    """An interval that holds a value: low < value <= high, `high` None when nothing bounds it."""

    low: float
    high: float | None


def differences(cumulative: Sequence[float]) -> tuple[float, ...]:
    """Counts of each bucket from counts cumulative in `le`."""
    return tuple(here - before for here, before in zip(cumulative, (0.0, *cumulative[:-1]), strict=True))


def bucket_of(value: float, edges: Sequence[float]) -> int:
    """Index of the bucket that counts `value`; `len(edges)` beyond the last edge."""
    return bisect_left(edges, value)


def bin_values(values: Iterable[float], edges: Sequence[float]) -> tuple[float, ...]:
    """Counts of `values` in each bucket of `edges`, the one beyond the last edge included."""
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[bucket_of(value, edges)] += 1
    return tuple(float(count) for count in counts)


def quantile_bounds(q: float, edges: Sequence[float], counts: Sequence[float]) -> Bounds | None:
    """The bucket that holds the `q` quantile (the smallest value with rank >= q x n).

    >>> quantile_bounds(0.5, (1.0, 2.0), (3, 5, 2))
    Bounds(low=1.0, high=2.0)
    """
    total = sum(counts)
    if total <= 0:
        return None
    # The rank is a whole number of observations; a hair is taken off so that 0.9 x 10 stays 9.
    rank = max(1, ceil(q * total - 1e-9))
    seen = 0.0
    for index, count in enumerate(counts):
        seen += count
        if seen >= rank:
            return bucket_bounds(index, edges)
    return bucket_bounds(len(edges), edges)


def bucket_bounds(index: int, edges: Sequence[float]) -> Bounds:
    """Edges of one bucket; the first starts at 0."""
    low = edges[index - 1] if index else 0.0
    return Bounds(low, edges[index] if index < len(edges) else None)


def bounds_of_edge(edge: float | None, edges: Sequence[float]) -> Bounds:
    """Bounds of a quantile that was reported as the upper edge of its bucket.

    None stands for the bucket beyond the last edge. An edge that is not among `edges` (another
    version) still bounds from above, and nothing bounds from below.
    """
    if edge is None or not isfinite(edge):
        return Bounds(edges[-1], None)
    for index, known in enumerate(edges):
        if abs(edge - known) <= 1e-9 * max(1.0, known):
            return bucket_bounds(index, edges)
    return Bounds(0.0, edge)
