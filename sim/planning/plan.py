"""How many replicas meet the SLOs: every count looked at is judged, the smallest that meets is the answer.

A count is judged by replications (`replications.py`) until its verdict is clear (`stopping.py`). Counts are
found by doubling and bisection from the bound by hand (`search.py`), and both neighbours of the answer are
judged, because a plan without them is a guess with a number on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicast.sim.errors import InputError
from replicast.sim.planning.bounds import HandBound, hand_bound
from replicast.sim.planning.changes import Change, Variant
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.quantiles import required_n
from replicast.sim.planning.replications import Task
from replicast.sim.planning.rows import Money, PlanRow, summarise_runs, with_costs
from replicast.sim.planning.search import largest, smallest
from replicast.sim.planning.slo import SLO
from replicast.sim.planning.stopping import Rule, judge, stopping_rule, together, typical

DEFAULT_REPLICATIONS = 20
LEAST_REPLICATIONS = 3
_MOST_REPLICAS = 10_000
_PRECISION = 50  # of the largest number of developers: one part in so many


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `replicas` is None where no count clearly meets; rows are in order of count."""

    slos: tuple[SLO, ...]
    rule: Rule
    replicas: int | None
    rows: tuple[PlanRow, ...]
    bound: HandBound
    money: Money
    most_replicas: int
    replications_run: int
    warnings: tuple[tuple[str, str], ...]

    @property
    def answer(self) -> PlanRow | None:
        """The row of the answer."""
        return next((row for row in self.rows if row.replicas == self.replicas), None)

    @property
    def exit_code(self) -> int:
        """0: some count meets; 3: none does; 4: none clearly does, but some may."""
        if self.replicas is not None:
            return 0
        return 4 if any(row.verdict == "inconclusive" for row in self.rows) else 3


@dataclass(frozen=True, slots=True)
class MostDevelopers:
    """The most developers that `replicas` carry, to within `step`; rows in order of developers."""

    slos: tuple[SLO, ...]
    rule: Rule
    replicas: int
    developers: int
    step: int
    rows: tuple[PlanRow, ...]
    replications_run: int

    @property
    def exit_code(self) -> int:
        """0: some developers are carried; 3: not even the fewest; 4: that is not clear."""
        if self.developers:
            return 0
        return 4 if any(row.verdict == "inconclusive" for row in self.rows) else 3


class Judge:
    """Judges counts of one variant; asks for as many replications as a clear verdict takes."""

    def __init__(self, runner: Runner, money: Money, replications: int, *, early: bool = True) -> None:
        if replications < LEAST_REPLICATIONS:
            raise InputError(
                f"{replications} replications have no interval worth the name",
                where="--replications",
                remedy=f"Use {LEAST_REPLICATIONS} or more.",
            )
        self.runner = runner
        self.money = money
        slos = runner.scenario.slos
        if not slos:
            raise InputError("no SLO given", remedy='Give one or more, such as --slo "ttft:p90<10s".')
        self.rule = stopping_rule(replications, 0.05 / len(slos), early=early)
        self.rows: dict[tuple[Variant, int], PlanRow] = {}

    def row(self, replicas: int, variant: Variant = ()) -> PlanRow:
        """The verdict on `replicas`, and all figures."""
        key = (variant, replicas)
        if key not in self.rows:
            self.rows[key] = self._judged(replicas, variant)
        return self.rows[key]

    def _judged(self, replicas: int, variant: Variant) -> PlanRow:
        slos = self.runner.scenario.slos
        for n in self.rule.looks:
            runs = self.runner.run_all([Task(variant, replicas, number) for number in range(n)])
            alpha = self.rule.alpha(n)
            values = [typical([run.slo_values_s[i] for run in runs], alpha) for i in range(len(slos))]
            verdicts = [judge(value, slo.limit_s) for value, slo in zip(values, slos, strict=True)]
            if together(verdicts) != "inconclusive":
                break
        study = self.runner.scenario.study(variant)
        row = summarise_runs(runs, study.slos, values, verdicts, alpha, self.rule.most)
        return with_costs(row, study.load.developers, self.money)


def make_plan(
    runner: Runner,
    money: Money,
    *,
    replications: int = DEFAULT_REPLICATIONS,
    counts: Sequence[int] | None = None,
    most_replicas: int | None = None,
    early: bool = True,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> Plan:
    """The smallest count that meets all SLOs; with `counts` only those are judged."""
    scenario = runner.scenario
    study = scenario.study()
    money = money.for_sessions(study.load.sessions)
    bound = hand_bound(
        study.load.sessions, study.load.live_sessions, study.engine, study.step_time, study.fleet.front_end
    )
    counsel = Judge(runner, money, replications, early=early)
    most = min(study.load.live_sessions, _MOST_REPLICAS) if most_replicas is None else most_replicas
    if most < 1:
        raise InputError(f"at most {most} replicas", where="--max-replicas", remedy="Use 1 or more.")
    if counts is None:
        answer = smallest(_meets(counsel), max(1, min(bound.replicas, most)), most)
        if answer is not None and answer < most:
            counsel.row(answer + 1)
    else:
        answer = next((k for k in sorted(counts) if counsel.row(k).verdict == "meets"), None)
        for count in counts:
            counsel.row(count)
    rows = tuple(row for _, row in sorted(counsel.rows.items(), key=lambda item: item[0][1]))
    warnings = [*_row_warnings(rows, study.fleet.warmup_s, runner), *extrapolated(rows, answer, ranges or {})]
    return Plan(
        scenario.slos, counsel.rule, answer, rows, bound, money, most, runner.num_run, tuple(warnings)
    )


def _meets(counsel: Judge) -> Callable[[int], bool]:
    return lambda count: counsel.row(count).verdict == "meets"


def most_developers(
    runner: Runner,
    replicas: int,
    money: Money,
    *,
    replications: int = DEFAULT_REPLICATIONS,
    most: int = 1_000_000,
) -> MostDevelopers:
    """The largest number of developers whose SLOs `replicas` meet, to one part in fifty."""
    study = runner.scenario.study()
    money = money.for_sessions(study.load.sessions)
    bound = hand_bound(
        study.load.sessions, study.load.live_sessions, study.engine, study.step_time, study.fleet.front_end
    )
    per_session = study.load.developers / study.load.live_sessions
    guess = max(1.0, 0.5 * replicas * min(bound.sessions_per_replica, 1e6) * per_session)
    step = max(1, math.ceil(guess / _PRECISION), math.ceil(per_session))
    counsel = Judge(runner, money, replications)

    def row(steps: int) -> PlanRow:
        return counsel.row(replicas, (Change("developers", str(steps * step)),))

    found = largest(lambda steps: row(steps).verdict == "meets", max(1, int(guess / step)), most // step)
    rows = sorted(counsel.rows.values(), key=lambda r: r.developers)
    return MostDevelopers(
        runner.scenario.slos, counsel.rule, replicas, found * step, step, tuple(rows), runner.num_run
    )


def _row_warnings(rows: Sequence[PlanRow], warmup_s: float | None, runner: Runner) -> list[tuple[str, str]]:
    """What a reader must know before he trusts the numbers."""
    found = []
    rejected = sum(row.rejected for row in rows)
    if rejected:
        found.append(("over-length", f"{rejected:,} requests over all runs were longer than max_model_len"))
    if any(row.ttft_p90_s.value and row.ttft_p90_s.value >= 1e5 for row in rows):
        counts = ", ".join(str(r.replicas) for r in rows if (r.ttft_p90_s.value or 0) >= 1e5)
        found.append(
            (
                "congested",
                f"with {counts} replicas more than a tenth of requests got no answer within the run",
            )
        )
    if runner.scenario.model_error is None:
        found.append(
            ("model-error", "ranges hold the sampling error only: the profile states no error of its own")
        )
    for slo in runner.scenario.slos:
        few = [row.replicas for row in rows if not _enough(slo, row)]
        if few:
            found.append(
                ("few-samples", f"an hour holds too few requests for {slo.name} with {few} replicas")
            )
    return found


def _enough(slo: SLO, row: PlanRow) -> bool:
    return slo.quantile is None or (row.requests_per_hour.value or 0) >= required_n(slo.quantile)


def extrapolated(
    rows: Sequence[PlanRow], answer: int | None, ranges: dict[str, tuple[float, float]]
) -> list[tuple[str, str]]:
    """Where the answer and its neighbours leave what the profile was taken from."""
    near = [row for row in rows if answer is None or abs(row.replicas - answer) <= 1]
    seen = {
        "concurrency": lambda row: row.live_sessions / row.replicas,
        "context_tokens": lambda row: row.mean_context_tokens.value,
        "prompt_tokens": lambda row: row.mean_context_tokens.value,
        "hit_rate": lambda row: row.hit_rate.value,
        "requests_running": lambda row: (row.mean_running.value or 0.0) / row.replicas,
        "kv_cache_usage": lambda row: row.kv_usage_peak.value,
    }
    found = []
    for name, (low, high) in sorted(ranges.items()):
        if name not in seen:
            continue
        for row in near:
            value = seen[name](row)
            if value is not None and not low <= value <= high:
                found.append(
                    (
                        "extrapolated",
                        f"{name} is {_short(value)} with {row.replicas} "
                        f"replica{'s' if row.replicas > 1 else ''}; the profile saw {_short(low)} "
                        f"to {_short(high)}",
                    )
                )
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
