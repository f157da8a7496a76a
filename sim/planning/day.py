"""A day of 24 hours: a fixed fleet against one that scales with the load.

Both serve the same developers on the same days. What is paid counts replicas from the moment they are
started, in whole boxes, spares included. An hour misses an SLO on a day if its figure over the turns asked in
that hour is at or above the limit. Figures by hour are over the turns of all days.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from replicast.sim.errors import InputError
from replicast.sim.fleet.operations import Autoscaling, Lifetime, Operations, ScaleMetric
from replicast.sim.fleet.result import RunResult
from replicast.sim.fleet.run import simulate
from replicast.sim.planning.cost import boxes
from replicast.sim.planning.load import DayWorkload
from replicast.sim.planning.replications import run_seed
from replicast.sim.planning.rows import Money, PlanRow
from replicast.sim.planning.scenario import COOLDOWN_S, Study
from replicast.sim.planning.slo import SLO
from replicast.sim.planning.turn_waits import Waits, holds, late_share, slo_value_s, turn_waits

DEFAULT_DAYS = 3
HOURS = 24
_HOUR_S = 3600.0
WAITING_UP, WAITING_DOWN = 1.0, 0.25
DOWN_OF_UP = 0.8


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """What was asked of the autoscaler; None is taken from the plan (`resolved`)."""

    metric: ScaleMetric = "requests"
    up: float | None = None
    down: float | None = None
    min_replicas: int = 1
    max_replicas: int | None = None
    every_s: float = 60.0
    hold_s: float = 600.0
    start_up_s: float = 300.0

    def resolved(self, row: PlanRow) -> Autoscaling:
        """Thresholds from the planned busiest hour, in which each replica had that many requests.

        At most as many replicas as the plan has, which are enough for that hour.
        """
        up = self.up
        if up is None:
            up = _planned(self.metric, row)
        down = self.down
        if down is None:
            down = WAITING_DOWN if self.metric == "waiting" and self.up is None else DOWN_OF_UP * up
        most = self.max_replicas or max(row.replicas, self.min_replicas)
        return Autoscaling(
            self.metric, up, down, self.min_replicas, most, self.every_s, self.hold_s, self.start_up_s
        )


def _planned(metric: ScaleMetric, row: PlanRow) -> float:
    if metric == "waiting":
        return WAITING_UP
    if metric == "requests":
        per_replica = [(run.mean_running + run.mean_waiting) / run.replicas for run in row.runs]
    else:
        per_replica = [run.mean_kv_usage for run in row.runs]
    return float(f"{max(float(np.mean(per_replica)), 0.01):.3g}")


@dataclass(frozen=True, slots=True)
class DayHour:
    """One hour over all days; `usd` and counts are a day's mean, `replicas` the mean paid without spares.

    `live_sessions` are asked for after the first quarter. `missed_days`: days on which an SLO was missed.
    """

    hour: int
    live_sessions: int
    requests: float
    replicas: float
    usd: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    slo_values_s: tuple[float | None, ...]
    late_share: float
    missed_days: int


@dataclass(frozen=True, slots=True)
class DayFleet:
    """One fleet over the days; all but `most_replicas` is a day's mean."""

    name: str
    hours: tuple[DayHour, ...]
    replica_hours: float
    usd_per_day: float | None
    hours_missed: float
    late_share: float
    replicas_started: float
    most_replicas: int
    requests: float


@dataclass(frozen=True, slots=True)
class DayComparison:
    """The fixed fleet of the plan, and the one that scales."""

    replicas: int
    fixed: DayFleet
    scaled: DayFleet
    autoscaling: Autoscaling
    days: int
    shares: tuple[float, ...]
    slos: tuple[SLO, ...]


def compare_day(
    study: Study,
    row: PlanRow,
    rule: ScalingRule,
    shares: Sequence[float],
    money: Money,
    *,
    days: int = DEFAULT_DAYS,
    progress: Callable[[str], None] | None = None,
) -> DayComparison:
    """Simulate `days` days with the replicas of `row` and with `rule`."""
    if days < 1:
        raise InputError(f"{days} days", where="--days", remedy="Use 1 or more.")
    if len(shares) != HOURS:
        raise InputError(f"a day of {len(shares)} hours", remedy="Give an active share for each of 24.")
    scaling = rule.resolved(row)
    fixed: list[_Day] = []
    scaled: list[_Day] = []
    for number in range(days):
        workload = study.load.draw_day(number, shares)
        for operations, runs in ((None, fixed), (Operations(scaling), scaled)):
            replicas = row.replicas if operations is None else _at_first(scaling, row, shares)
            result = run_day(study, workload, replicas, number, operations)
            runs.append(_Day(result, study.slos, _lifetimes(result)))
            if progress is not None:
                progress(f"day {number + 1} of {days}, {'autoscaled' if operations else 'fixed'}")
    return DayComparison(
        row.replicas,
        _fleet("fixed", fixed, workload.live, study.slos, money),
        _fleet("autoscaled", scaled, workload.live, study.slos, money),
        scaling,
        days,
        tuple(shares),
        study.slos,
    )


def _at_first(scaling: Autoscaling, row: PlanRow, shares: Sequence[float]) -> int:
    """Replicas at midnight: what the load of that hour asks for in proportion."""
    wanted = math.ceil(row.replicas * shares[0] / max(shares))
    return min(max(wanted, scaling.min_replicas), scaling.max_replicas)


def run_day(
    study: Study, workload: DayWorkload, replicas: int, number: int, operations: Operations | None
) -> RunResult:
    """One day from midnight to midnight."""
    fleet = replace(
        study.fleet, replicas=replicas, sessions=None, warmup_s=0.0, horizon_s=HOURS * _HOUR_S,
        cooldown_s=max(study.fleet.cooldown_s, COOLDOWN_S),
    )  # fmt: skip
    step_time = study.step_time
    if study.model_error is not None:
        step_time = study.model_error.draw(step_time, study.seed, number)
    return simulate(
        workload.sessions, study.engine, step_time, fleet, seed=run_seed(study.seed, number),
        followers=workload.followers, shifts=workload.shifts, operations=operations,
    )  # fmt: skip


class _Day:
    """What is kept of one day's run."""

    def __init__(self, result: RunResult, slos: Sequence[SLO], lifetimes: Sequence[Lifetime]) -> None:
        self.lifetimes = lifetimes
        self.ttft = turn_waits("ttft", result.records)
        self.waits = [turn_waits(slo.metric, result.records) for slo in slos]


def _lifetimes(result: RunResult) -> tuple[Lifetime, ...]:
    """Those of a fixed fleet are the whole day."""
    end_s = HOURS * _HOUR_S
    return result.lifetimes or tuple(
        Lifetime(0.0, 0.0, end_s, end_s, "live") for _ in range(result.fleet.replicas)
    )


def _fleet(
    name: str, days: Sequence[_Day], live: Sequence[int], slos: Sequence[SLO], money: Money
) -> DayFleet:
    hours = tuple(_hour(hour, days, live[hour], slos, money) for hour in range(HOURS))
    whole = [_values(days, i, 0, HOURS) for i in range(len(slos))]
    paid = [paid_steps(day.lifetimes, 0.0, HOURS * _HOUR_S) for day in days]
    usd = None if money.usd_per_hour is None else sum(hour.usd or 0.0 for hour in hours)
    return DayFleet(
        name=name,
        hours=hours,
        replica_hours=sum(hour.replicas for hour in hours),
        usd_per_day=usd,
        hours_missed=sum(hour.missed_days for hour in hours) / len(days),
        late_share=late_share(slos, whole),
        replicas_started=sum(life.start_s > 0 for day in days for life in day.lifetimes) / len(days),
        most_replicas=max(count for steps in paid for count, _ in steps),
        requests=sum(hour.requests for hour in hours),
    )


def _hour(hour: int, days: Sequence[_Day], live: int, slos: Sequence[SLO], money: Money) -> DayHour:
    start_s, end_s = hour * _HOUR_S, (hour + 1) * _HOUR_S
    waits = np.concatenate([day.ttft.between(start_s, end_s) for day in days])
    missed = 0
    for day in days:
        figures = [_figure(slo, wait, start_s, end_s) for slo, wait in zip(slos, day.waits, strict=True)]
        missed += not holds(slos, figures)
    pooled = [_values(days, i, hour, hour + 1) for i in range(len(slos))]
    steps = [step for day in days for step in paid_steps(day.lifetimes, start_s, end_s)]
    price = money.usd_per_hour
    box_hours = sum(boxes(count + money.spare, money.box) * hours for count, hours in steps) / len(days)
    return DayHour(
        hour=hour,
        live_sessions=live,
        requests=len(waits) / len(days),
        replicas=sum(count * hours for count, hours in steps) / len(days),
        usd=None if price is None else box_hours * money.box * price,
        ttft_p50_s=_quantile(waits, 0.5),
        ttft_p90_s=_quantile(waits, 0.9),
        slo_values_s=tuple(slo_value_s(slo, values) for slo, values in zip(slos, pooled, strict=True)),
        late_share=late_share(slos, pooled),
        missed_days=missed,
    )


def _figure(slo: SLO, waits: Waits, start_s: float, end_s: float) -> float | None:
    return slo_value_s(slo, waits.between(start_s, end_s))


def _values(days: Sequence[_Day], slo: int, first: int, last: int) -> np.ndarray:
    return np.concatenate([day.waits[slo].between(first * _HOUR_S, last * _HOUR_S) for day in days])


def _quantile(values: np.ndarray, q: float) -> float | None:
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else None


def paid_steps(lifetimes: Sequence[Lifetime], start_s: float, end_s: float) -> list[tuple[int, float]]:
    """(replicas paid, hours) of each stretch between two moments in which their number stays."""
    moments = {start_s, end_s}
    for life in lifetimes:
        moments |= {t for t in (life.start_s, life.end_s) if start_s < t < end_s}
    ordered = sorted(moments)
    return [
        (sum(life.start_s <= a and life.end_s >= b for life in lifetimes), (b - a) / _HOUR_S)
        for a, b in pairwise(ordered)
    ]
