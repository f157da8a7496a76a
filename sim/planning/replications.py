"""One replication: an hour of a fleet under resampled sessions, and the figures that planning keeps of it.

Latencies count every request that arrived in the hour. Where a fleet is so congested that requests had no
first token when the run ended, their latency counts as infinite rather than as missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from replicast.sim.fleet.operations import Operations
from replicast.sim.fleet.result import RunResult, binding
from replicast.sim.fleet.run import simulate
from replicast.sim.planning.changes import Variant
from replicast.sim.planning.load import Workload
from replicast.sim.planning.scenario import Scenario, Study
from replicast.sim.planning.slo import metric_values
from replicast.sim.planning.summary import tokens_in_window

_RUN = 22  # random stream


class Task(NamedTuple):
    """One run: which variant, how many replicas, which replication."""

    variant: Variant
    replicas: int
    replication: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one run; `slo_values_s` in the order of the SLOs."""

    replicas: int
    live_sessions: int
    requests: int
    unfinished: int
    rejected: int
    slo_values_s: tuple[float, ...]
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_mean_s: float
    front_end_mean_s: float
    input_wait_mean_s: float
    queue_mean_s: float
    prefill_mean_s: float
    queue_share: float
    tpot_p50_s: float
    hit_rate: float
    requests_per_hour: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    computed_tokens_per_s: float
    utilisation: float
    mean_running: float
    mean_waiting: float
    mean_kv_usage: float
    peak_kv_usage: float
    preemptions: int
    mean_context_tokens: float
    seats_blocked: float
    token_budget_blocked: float
    kv_blocks_blocked: float
    suggested_warmup_s: float


def run_seed(seed: int, replication: int) -> int:
    """Seed of starts and random routing of one replication."""
    return int(np.random.SeedSequence(seed, spawn_key=(_RUN, replication)).generate_state(1)[0])


def simulate_replication(
    study: Study, workload: Workload, replicas: int, replication: int, operations: Operations | None = None
) -> RunResult:
    """The run itself."""
    fleet = replace(study.fleet, replicas=replicas, sessions=workload.live)
    step_time = study.step_time
    if study.model_error is not None:
        step_time = study.model_error.draw(step_time, study.seed, replication)
    seed = run_seed(study.seed, replication)
    if study.pinned_hit_rate is None:
        return simulate(
            workload.sessions, study.engine, step_time, fleet, seed=seed, followers=workload.followers,
            operations=operations,
        )  # fmt: skip
    from replicast.sim.engine.pinned import pinned_engines

    engines = pinned_engines(study.pinned_hit_rate)
    return simulate(
        workload.sessions,
        study.engine,
        step_time,
        fleet,
        seed=seed,
        followers=workload.followers,
        engines=engines,
    )


def measure(result: RunResult, study: Study) -> Measured:
    """The figures of a run."""
    records, window = result.records, result.window
    length_s = window.end_s - window.start_s
    ttft = records.ttft_s
    served = records.measured & np.isfinite(ttft)
    rejected = int(records.measured.sum()) - len(metric_values("ttft", records))
    prompts, generated = tokens_in_window(result)
    bound = binding(result)
    busy = sum(replica.window_stats.busy_ticks for replica in result.replicas) * 1e-15
    waits = metric_values("ttft", records)
    paces = metric_values("tpot", records)
    running = sum(replica.mean_running for replica in result.replicas)
    prompt_tokens = float(records.prompt_tokens[served].sum())
    cached = float(records.cached_tokens[served].sum())
    hit_rate = cached / prompt_tokens if prompt_tokens else float("nan")
    total = float(ttft[served].sum())

    def mean(column: np.ndarray) -> float:
        return float(column[served].mean()) if served.any() else float("nan")

    def quantile(values: np.ndarray, q: float) -> float:
        return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else float("nan")

    return Measured(
        replicas=result.fleet.replicas,
        live_sessions=result.fleet.sessions or 0,
        requests=len(waits),
        unfinished=result.counts.unfinished,
        rejected=rejected,
        slo_values_s=tuple(slo.value_s(records) for slo in study.slos),
        ttft_p50_s=quantile(waits, 0.5),
        ttft_p90_s=quantile(waits, 0.9),
        ttft_mean_s=mean(ttft),
        front_end_mean_s=mean(records.front_end_s + records.delivery_s),
        input_wait_mean_s=mean(records.input_wait_s),
        queue_mean_s=mean(records.queue_s),
        prefill_mean_s=mean(records.prefill_s),
        queue_share=float(records.queue_s[served].sum()) / total if total > 0 else 0.0,
        tpot_p50_s=quantile(paces, 0.5),
        hit_rate=hit_rate,
        requests_per_hour=len(waits) / length_s * 3600,
        prompt_tokens_per_s=prompts / length_s,
        generated_tokens_per_s=generated / length_s,
        computed_tokens_per_s=prompts * (1 - hit_rate) / length_s,
        utilisation=min(busy / length_s / result.fleet.replicas, 1.0),
        mean_running=running,
        mean_waiting=sum(replica.mean_waiting for replica in result.replicas),
        mean_kv_usage=sum(replica.mean_kv_usage for replica in result.replicas) / len(result.replicas),
        peak_kv_usage=max(replica.peak_kv_usage for replica in result.replicas),
        preemptions=sum(replica.window_stats.num_preemptions for replica in result.replicas),
        mean_context_tokens=mean(records.prompt_tokens + records.output_tokens / 2),
        seats_blocked=bound.seats,
        token_budget_blocked=bound.token_budget,
        kv_blocks_blocked=bound.kv_blocks,
        suggested_warmup_s=result.suggested_warmup_s
        if result.suggested_warmup_s is not None
        else float("nan"),
    )


class Worker:
    """Runs tasks of one scenario; keeps the last studies and workloads, which tasks share."""

    _most_workloads = 24

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._studies: dict[Variant, Study] = {}
        self._workloads: dict[tuple[Variant, int], Workload] = {}

    def study(self, variant: Variant) -> Study:
        """The case of a variant."""
        if variant not in self._studies:
            if len(self._studies) > 40:
                self._studies.clear()
            self._studies[variant] = self._scenario.study(variant)
        return self._studies[variant]

    def run(self, task: Task) -> Measured:
        """One replication."""
        from replicast.sim.planning.changes import LOAD_NAMES

        study = self.study(task.variant)
        load = tuple(change for change in task.variant if change.name in LOAD_NAMES)
        key = (load, task.replication)
        if key not in self._workloads:
            while len(self._workloads) >= self._most_workloads:
                del self._workloads[next(iter(self._workloads))]
            self._workloads[key] = study.load.draw(task.replication)
        result = simulate_replication(study, self._workloads[key], task.replicas, task.replication)
        return measure(result, study)
