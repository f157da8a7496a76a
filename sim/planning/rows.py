"""One row of a plan: all runs of a replica count as estimates of the typical hour, and what it costs.

A box of `box` replicas is paid whole; `spare` replicas are paid and idle. $/task and $/1M tokens are those
of the planned use, not of full use: tokens that the developers ask for, over what the fleet costs meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from replicast.sim.errors import InputError
from replicast.sim.planning.cost import Task as TaskTokens
from replicast.sim.planning.cost import boxes, cost, fleet_usd_per_hour, mean_session, usd_per_developer_hour
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.replications import Measured
from replicast.sim.planning.slo import SLO
from replicast.sim.planning.stopping import Verdict, average, together, typical
from replicast.sim.workload import Session

BINDS_FROM = 0.05


@dataclass(frozen=True, slots=True)
class Money:
    """Prices and packing; `usd_per_hour` is of one replica, None: not known."""

    usd_per_hour: float | None = None
    box: int = 1
    spare: int = 0
    task: TaskTokens | None = None  # None: the mean session of the trace

    def __post_init__(self) -> None:
        if self.box < 1:
            raise InputError(f"a box of {self.box} replicas", where="--box", remedy="Use 1 or more.")
        if self.spare < 0:
            raise InputError(f"{self.spare} spare replicas", where="--spare", remedy="Use 0 or more.")

    def for_sessions(self, sessions: Sequence[Session]) -> Money:
        """The same with a task known: that of the flag, else the mean of `sessions`."""
        return self if self.task is not None else replace(self, task=mean_session(sessions))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One replica count. Estimates are of the typical hour, with the interval of the last look.

    `share_met` is the share of hours in which every SLO held. `replicas` serve; `paid_replicas` counts spares
    and what whole boxes bring along.
    """

    replicas: int
    developers: int
    live_sessions: int
    paid_replicas: int
    boxes: int
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    replications: int
    skipped: int
    slo_values_s: tuple[Estimate, ...]
    share_met: float
    ttft_p50_s: Estimate
    ttft_p90_s: Estimate
    ttft_mean_s: Estimate
    tpot_p50_s: Estimate
    queue_share: Estimate
    hit_rate: Estimate
    front_end_mean_s: Estimate
    input_wait_mean_s: Estimate
    queue_mean_s: Estimate
    prefill_mean_s: Estimate
    utilisation: Estimate
    requests_per_hour: Estimate
    prompt_tokens_per_s: Estimate
    computed_tokens_per_s: Estimate
    generated_tokens_per_s: Estimate
    kv_usage_peak: Estimate
    mean_running: Estimate
    mean_context_tokens: Estimate
    preemptions: Estimate
    rejected: int
    unfinished: int
    binds: str | None
    usd_per_hour: float | None
    usd_per_developer_hour: float | None
    usd_per_task: float | None
    usd_per_1m_tokens: float | None
    runs: tuple[Measured, ...]


def summarise_runs(
    runs: Sequence[Measured],
    slos: Sequence[SLO],
    values: Sequence[Estimate],
    verdicts: Sequence[Verdict],
    alpha: float,
    most: int,
) -> PlanRow:
    """One row of all runs of a count; costs are still to come."""

    def usual(name: str) -> Estimate:
        return typical([getattr(run, name) for run in runs], alpha)

    def mean(name: str) -> Estimate:
        return average([getattr(run, name) for run in runs], alpha)

    met = sum(
        all(value < slo.limit_s for value, slo in zip(run.slo_values_s, slos, strict=True)) for run in runs
    )
    return PlanRow(
        replicas=runs[0].replicas,
        developers=0,
        live_sessions=runs[0].live_sessions,
        paid_replicas=0,
        boxes=0,
        verdict=together(verdicts),
        verdicts=tuple(verdicts),
        replications=len(runs),
        skipped=most - len(runs),
        slo_values_s=tuple(values),
        share_met=met / len(runs),
        ttft_p50_s=usual("ttft_p50_s"),
        ttft_p90_s=usual("ttft_p90_s"),
        ttft_mean_s=usual("ttft_mean_s"),
        tpot_p50_s=usual("tpot_p50_s"),
        queue_share=mean("queue_share"),
        hit_rate=mean("hit_rate"),
        front_end_mean_s=mean("front_end_mean_s"),
        input_wait_mean_s=mean("input_wait_mean_s"),
        queue_mean_s=mean("queue_mean_s"),
        prefill_mean_s=mean("prefill_mean_s"),
        utilisation=mean("utilisation"),
        requests_per_hour=mean("requests_per_hour"),
        prompt_tokens_per_s=mean("prompt_tokens_per_s"),
        computed_tokens_per_s=mean("computed_tokens_per_s"),
        generated_tokens_per_s=mean("generated_tokens_per_s"),
        kv_usage_peak=mean("peak_kv_usage"),
        mean_running=mean("mean_running"),
        mean_context_tokens=mean("mean_context_tokens"),
        preemptions=mean("preemptions"),
        rejected=sum(run.rejected for run in runs),
        unfinished=sum(run.unfinished for run in runs),
        binds=_binds(runs),
        usd_per_hour=None,
        usd_per_developer_hour=None,
        usd_per_task=None,
        usd_per_1m_tokens=None,
        runs=tuple(runs),
    )


def _binds(runs: Sequence[Measured]) -> str | None:
    """What blocked the head of the queue longest, if all did for 5 % of the time."""
    shares = {
        name: sum(getattr(run, f"{name}_blocked") for run in runs) / len(runs)
        for name in ("seats", "token_budget", "kv_blocks")
    }
    if sum(shares.values()) < BINDS_FROM:
        return None
    return max(shares, key=lambda name: shares[name])


def with_costs(row: PlanRow, developers: int, money: Money) -> PlanRow:
    """The row with what it costs."""
    wanted = row.replicas + money.spare
    whole = boxes(wanted, money.box)
    row = replace(row, developers=developers, paid_replicas=whole * money.box, boxes=whole)
    if money.usd_per_hour is None:
        return row
    usd_per_hour = fleet_usd_per_hour(wanted, money.usd_per_hour, money.box)
    price = cost(
        usd_per_hour,
        row.prompt_tokens_per_s.value or 0.0,
        row.generated_tokens_per_s.value or 0.0,
        money.task,
    )
    return replace(
        row,
        usd_per_hour=usd_per_hour,
        usd_per_developer_hour=usd_per_developer_hour(usd_per_hour, developers),
        usd_per_task=price.blended_usd_per_task,
        usd_per_1m_tokens=price.blended_usd_per_1m_tokens,
    )
