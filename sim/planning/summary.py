"""From one run to one row of the replay table: what developers waited, what the servers did, what it cost.

Latencies are of the requests that arrived in the measured window and got a first token, with ranges
that count requests of one session as alike (`quantiles.py`). Rates are tokens inside the window over
its length: a prompt counts at its first token, as vLLM's counter does, generated tokens evenly over
their decode. Shares of TTFT are ratios of sums. Peaks are the highest of any replica. One live
session of a closed loop counts as one developer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from replicast.sim.fleet.result import RunResult, binding
from replicast.sim.planning.cost import Task, cost, fleet_usd_per_hour, usd_per_developer_hour
from replicast.sim.planning.quantiles import NOTHING, Estimate, mean, quantile, ratio, required_n


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One replica count. `Estimate`s are measured; costs are None without a price."""

    replicas: int
    live_sessions: int | None
    requests_submitted: int
    requests_finished: int
    requests_unfinished: int
    requests_rejected: int
    requests_measured: int
    duration_s: float
    window_start_s: float
    window_end_s: float
    window_start_rule: str
    window_end_rule: str
    ttft_p50_s: Estimate
    ttft_p90_s: Estimate
    ttft_p99_s: Estimate
    ttft_mean_s: Estimate
    front_end_mean_s: Estimate
    input_wait_mean_s: Estimate
    queue_mean_s: Estimate
    prefill_mean_s: Estimate
    input_wait_share: Estimate
    queue_share: Estimate
    prefill_share: Estimate
    tpot_p50_s: Estimate
    tpot_p90_s: Estimate
    e2e_p50_s: Estimate
    prompt_tokens_per_s: Estimate
    generated_tokens_per_s: Estimate
    prefill_decode_ratio: Estimate
    hit_rate: Estimate
    mean_running: float
    mean_waiting: float
    mean_kv_usage: float
    running_peak: int
    waiting_peak: int
    kv_usage_peak: float
    preemptions: int
    binds: str | None
    blocked_share: dict[str, float]
    usd_per_hour: float | None
    usd_per_task: float | None
    usd_per_task_split: float | None
    usd_per_1m_processed_tokens: float | None
    usd_per_1m_prompt_tokens_split: float | None
    usd_per_1m_generated_tokens_split: float | None
    usd_per_developer_hour: float | None


def summarise(result: RunResult, price_usd_per_hour: float | None, task: Task | None) -> ReplayRow:
    """The row of one run; the price is of one replica."""
    records, window, counts = result.records, result.window, result.counts
    length = window.end_s - window.start_s
    ttft = records.ttft_s
    served = records.measured & np.isfinite(ttft)
    decoded = records.measured & records.finished & (records.output_tokens > 1)
    finished = records.measured & records.finished
    by = records.session_index
    prompts, generated = tokens_in_window(result)

    def share(part: np.ndarray) -> Estimate:
        return ratio(part[served], ttft[served], by[served])

    def average(part: np.ndarray) -> Estimate:
        return mean(part[served], by[served])

    def rate(tokens: float) -> Estimate:
        return Estimate(tokens / length, None, None, int(served.sum())) if length > 0 else NOTHING

    enough = int(served.sum()) >= required_n(0.99)
    fleet_price = None
    money = None
    if price_usd_per_hour is not None:
        fleet_price = fleet_usd_per_hour(result.fleet.replicas, price_usd_per_hour)
        per_s = (prompts / length, generated / length) if length > 0 else (0.0, 0.0)
        money = cost(fleet_price, *per_s, task)
    live = result.fleet.sessions
    bound = binding(result)
    return ReplayRow(
        replicas=result.fleet.replicas,
        live_sessions=live,
        requests_submitted=counts.submitted,
        requests_finished=counts.finished,
        requests_unfinished=counts.unfinished,
        requests_rejected=counts.rejected,
        requests_measured=int(served.sum()),
        duration_s=result.duration_s,
        window_start_s=window.start_s,
        window_end_s=window.end_s,
        window_start_rule=window.start_rule,
        window_end_rule=window.end_rule,
        ttft_p50_s=quantile(ttft[served], 0.5, by[served]),
        ttft_p90_s=quantile(ttft[served], 0.9, by[served]),
        ttft_p99_s=quantile(ttft[served], 0.99, by[served]) if enough else NOTHING,
        ttft_mean_s=average(ttft),
        front_end_mean_s=average(records.front_end_s + records.delivery_s),
        input_wait_mean_s=average(records.input_wait_s),
        queue_mean_s=average(records.queue_s),
        prefill_mean_s=average(records.prefill_s),
        input_wait_share=share(records.input_wait_s),
        queue_share=share(records.queue_s),
        prefill_share=share(records.prefill_s),
        tpot_p50_s=quantile(records.tpot_s[decoded], 0.5, by[decoded]),
        tpot_p90_s=quantile(records.tpot_s[decoded], 0.9, by[decoded]),
        e2e_p50_s=quantile(records.e2e_s[finished], 0.5, by[finished]),
        prompt_tokens_per_s=rate(prompts),
        generated_tokens_per_s=rate(generated),
        prefill_decode_ratio=Estimate(prompts / generated, None, None, int(served.sum()))
        if generated
        else NOTHING,
        hit_rate=ratio(records.cached_tokens[served], records.prompt_tokens[served], by[served]),
        mean_running=sum(replica.mean_running for replica in result.replicas),
        mean_waiting=sum(replica.mean_waiting for replica in result.replicas),
        mean_kv_usage=sum(replica.mean_kv_usage for replica in result.replicas) / len(result.replicas),
        running_peak=max(replica.peak_running for replica in result.replicas),
        waiting_peak=max(replica.peak_waiting for replica in result.replicas),
        kv_usage_peak=max(replica.peak_kv_usage for replica in result.replicas),
        preemptions=sum(replica.window_stats.num_preemptions for replica in result.replicas),
        binds=bound.binds,
        blocked_share={
            "seats": bound.seats,
            "token_budget": bound.token_budget,
            "kv_blocks": bound.kv_blocks,
        },
        usd_per_hour=fleet_price,
        usd_per_task=money.blended_usd_per_task if money else None,
        usd_per_task_split=money.split_usd_per_task if money else None,
        usd_per_1m_processed_tokens=money.blended_usd_per_1m_tokens if money else None,
        usd_per_1m_prompt_tokens_split=money.split_usd_per_1m_prompt_tokens if money else None,
        usd_per_1m_generated_tokens_split=money.split_usd_per_1m_output_tokens if money else None,
        usd_per_developer_hour=usd_per_developer_hour(fleet_price, live)
        if fleet_price is not None and live
        else None,
    )


def tokens_in_window(result: RunResult) -> tuple[float, float]:
    """Prompt and generated tokens inside the window."""
    records, (start, end) = result.records, (result.window.start_s, result.window.end_s)
    first = records.arrival_s + records.ttft_s - records.delivery_s
    inside = (first >= start) & (first <= end)
    prompts = float(records.prompt_tokens[inside].sum())
    last = np.where(np.isfinite(records.decode_s), first + records.decode_s, result.duration_s)
    overlap = np.minimum(last, end) - np.maximum(first, start)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(last > first, np.clip(overlap, 0, None) / (last - first), inside)
    part = np.where(np.isfinite(first), part, 0.0)
    return prompts, float((records.output_tokens * part).sum())
