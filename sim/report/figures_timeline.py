"""One replica over time: running, waiting, KV cache, and the tokens it computes meanwhile, which tells why.

Running, waiting and KV usage are exact means of the run's bins. Computed tokens come from the records: a
prompt's uncached tokens spread over its prefill, output tokens over the decode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from replicast.sim.errors import InputError
from replicast.sim.fleet.result import RunResult
from replicast.sim.report.figures import BLUE, GREEN, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_BINS = 240


def timeline_figure(
    result: RunResult, replica: int | None = None, window_s: tuple[float, float] | None = None
) -> Figure:
    """Three panels over `window_s` (the measured hour if None) of `replica` (the busiest if None)."""
    from matplotlib.figure import Figure

    if replica is None:
        waiting = [r.mean_waiting + r.mean_kv_usage for r in result.replicas]
        replica = waiting.index(max(waiting))
    if not 0 <= replica < len(result.replicas):
        raise InputError(f"replica {replica} does not exist: there are {len(result.replicas)}")
    start, end = window_s or (result.window.start_s, result.window.end_s)
    if not start < end:
        raise InputError(f"the window {start:g} to {end:g} s holds nothing")
    points = [p for p in result.replicas[replica].series if start < p.end_s <= end]
    minutes = [(p.end_s - start) / 60 for p in points]
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    requests, cache, tokens = figure.subplots(3, 1, sharex=True)
    requests.step(minutes, [p.running for p in points], color=BLUE, label="running", where="pre")
    requests.step(minutes, [p.waiting for p in points], color=ORANGE, label="waiting", where="pre")
    requests.set_ylabel("requests")
    requests.legend(frameon=False, ncols=2, loc="upper right")
    cache.step(minutes, [100 * p.kv_usage for p in points], color=GREEN, where="pre")
    cache.set_ylim(0, 100)
    cache.set_ylabel("KV held, %")
    edges = np.linspace(start, end, _BINS + 1)
    prefill, decode = computed_tokens(result, replica, edges)
    at = (edges[1:] - start) / 60
    tokens.stackplot(at, prefill, decode, colors=[BLUE, ORANGE], labels=["prefill", "decode"], linewidth=0)
    tokens.set_ylabel("computed tokens/s")
    tokens.legend(frameon=False, ncols=2, loc="upper right")
    tokens.set_xlabel(f"minutes after {start / 60:.0f} min of the run")
    for axes in (requests, cache, tokens):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, (end - start) / 60)
        axes.set_ylim(bottom=0)
    figure.suptitle(f"Replica {replica + 1} of {len(result.replicas)}, one hour")
    return figure


def computed_tokens(result: RunResult, replica: int, edges: Floats) -> tuple[Floats, Floats]:
    """Prefilled and decoded tokens a second in each bin."""
    records = result.records
    ours = (records.replica == replica) & np.isfinite(records.ttft_s)
    first = (records.arrival_s + records.ttft_s - records.delivery_s)[ours]
    prefill_s, decode_s = records.prefill_s[ours], np.nan_to_num(records.decode_s[ours])
    new = (records.prompt_tokens - records.cached_tokens)[ours]
    return (
        _spread(first - prefill_s, first, new, edges),
        _spread(first, first + decode_s, np.maximum(records.output_tokens[ours] - 1, 0), edges),
    )


def _spread(start: Floats, end: Floats, amount: NDArray[np.int64], edges: Floats) -> Floats:
    """Amounts a second in each bin, each spread evenly over its span."""
    span = np.maximum(end - start, 1e-9)
    done = np.zeros(len(edges))
    for at, edge in enumerate(edges):
        done[at] = float((amount * np.clip((edge - start) / span, 0.0, 1.0)).sum())
    return np.diff(done) / np.diff(edges)
