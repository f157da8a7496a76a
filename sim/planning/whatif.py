"""What changes if something is changed: the same developers, hours and draws in both arms.

Each replication runs once as it is and once changed, with the same sessions, starts and gaps. The difference
of an hour is taken before anything is averaged, and its interval is Student's t over these differences: what
both arms share cancels. Where the interval holds zero, there is no clear change.

A request that got no answer while the run lasted counts with the length of the run: a difference exists then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicast.sim.errors import InputError
from replicast.sim.planning.changes import PINNED, Change, Variant, label
from replicast.sim.planning.cost import cost, fleet_usd_per_hour
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.plan import Judge
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.replications import Measured, Task
from replicast.sim.planning.rows import Money
from replicast.sim.planning.search import smallest
from replicast.sim.planning.slo import SLO
from replicast.sim.planning.stopping import average

ALPHA = 0.05
DEFAULT_REPLICATIONS = 10
_MOST_REPLICAS = 10_000


class Difference(NamedTuple):
    """One figure before and after; `kind` says how it is written: time, share, rate or dollars."""

    name: str
    kind: str
    before: float | None
    after: float | None
    difference: Estimate

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference leaves zero out."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant beside the case as it is. Replicas needed are None where no count meets (or not asked)."""

    variant: Variant
    replicas: int
    pinned_hit_rate: float | None
    differences: tuple[Difference, ...]
    replicas_needed: int | None
    runs: tuple[Measured, ...]

    @property
    def name(self) -> str:
        """The changes, as they were written."""
        return label(self.variant)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer. `searched` tells whether replicas needed were asked for."""

    slos: tuple[SLO, ...]
    replicas: int
    replications: int
    replicas_needed: int | None
    searched: bool
    arms: tuple[Arm, ...]
    base_runs: tuple[Measured, ...]
    money: Money
    most_replicas: int
    replications_run: int

    @property
    def exit_code(self) -> int:
        """0: there is an answer, whatever it is."""
        return 0


# name, kind, figure of one run
_FIGURES: tuple[tuple[str, str, Callable[[Measured], float]], ...] = (
    ("hit rate", "share", lambda run: run.hit_rate),
    ("TTFT p50", "time", lambda run: run.ttft_p50_s),
    ("TTFT p90", "time", lambda run: run.ttft_p90_s),
    ("queue share", "share", lambda run: run.queue_share),
    ("TPOT p50", "time", lambda run: run.tpot_p50_s),
    ("utilisation", "share", lambda run: run.utilisation),
    ("requests/h", "rate", lambda run: run.requests_per_hour),
    ("computed tok/s", "rate", lambda run: run.computed_tokens_per_s),
)


def paired(before: Sequence[float], after: Sequence[float], alpha: float = ALPHA) -> Estimate:
    """Mean difference of pairs and its interval; a pair with an unknown side is left out.

    >>> paired([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    Estimate(value=1.0, low=1.0, high=1.0, n=3)
    """
    return average([b - a for a, b in zip(before, after, strict=True)], alpha)


def differences(
    before: Sequence[Measured], after: Sequence[Measured], slos: Sequence[SLO], money: Money, longest_s: float
) -> tuple[Difference, ...]:
    """All figures of two arms whose runs are pairs."""
    rows = [
        _difference(name, kind, [f(run) for run in before], [f(run) for run in after], longest_s)
        for name, kind, f in _FIGURES
    ]
    shown = {"ttft:p50", "ttft:p90", "tpot:p50"}
    for i, slo in enumerate(slos):
        if slo.name not in shown:
            old, new = ([run.slo_values_s[i] for run in runs] for runs in (before, after))
            rows.append(_difference(slo.name, "time", old, new, longest_s))
    if money.usd_per_hour is not None:
        old, new = ([_usd_per_task(run, money) for run in runs] for runs in (before, after))
        rows.append(_difference("$/task", "dollars", old, new, longest_s))
        old, new = ([_usd_per_hour(run.replicas, money) for run in runs] for runs in (before, after))
        if old != new:
            rows.append(_difference("$/h", "dollars", old, new, longest_s))
    return tuple(rows)


def _difference(
    name: str, kind: str, before: Sequence[float], after: Sequence[float], longest_s: float
) -> Difference:
    if kind == "time":
        before, after = ([min(value, longest_s) for value in values] for values in (before, after))
    old, new = average(before, ALPHA).value, average(after, ALPHA).value
    return Difference(name, kind, old, new, paired(before, after))


def _usd_per_hour(replicas: int, money: Money) -> float:
    assert money.usd_per_hour is not None
    return fleet_usd_per_hour(replicas + money.spare, money.usd_per_hour, money.box)


def _usd_per_task(run: Measured, money: Money) -> float:
    price = cost(
        _usd_per_hour(run.replicas, money), run.prompt_tokens_per_s, run.generated_tokens_per_s, money.task
    )
    return math.nan if price.blended_usd_per_task is None else price.blended_usd_per_task


def make_whatif(
    runner: Runner,
    replicas: int,
    variants: Sequence[Variant],
    money: Money,
    *,
    replications: int = DEFAULT_REPLICATIONS,
    search: bool = True,
    most_replicas: int | None = None,
) -> WhatIf:
    """Each variant against the case as it is, with `replicas`; and the replicas that each needs."""
    if not variants or not all(variants):
        raise InputError("nothing is changed", remedy="Use --set name=value or --vary name=a,b,c.")
    if replications < 2:
        raise InputError("a difference needs 2 replications or more", where="--replications")
    if replicas < 1:
        raise InputError(f"{replicas} replicas", where="--replicas", remedy="Use 1 or more.")
    study = runner.scenario.study()
    money = money.for_sessions(study.load.sessions)
    for variant in variants:
        runner.scenario.study(variant)  # wrong values fail before anything runs
    fleet = study.fleet
    longest_s = (fleet.horizon_s or 0.0) + fleet.cooldown_s
    most = most_replicas or min(4 * max(replicas, study.load.live_sessions), _MOST_REPLICAS)

    counsel = Judge(runner, money, max(replications, 4)) if search else None
    numbers = range(replications)
    base = runner.run_all([Task((), replicas, number) for number in numbers])
    needed = _needed(counsel, (), replicas, most)
    arms = []
    for variant in variants:
        count = _replicas(variant, replicas)
        runs = runner.run_all([Task(variant, count, number) for number in numbers])
        rows = differences(base, runs, runner.scenario.slos, money, longest_s)
        pinned = next((change.number() for change in variant if change.name == PINNED), None)
        after = _needed(counsel, variant, needed or count, most)
        arms.append(Arm(variant, count, pinned, rows, after, tuple(runs)))
    return WhatIf(
        runner.scenario.slos,
        replicas,
        replications,
        needed,
        search,
        tuple(arms),
        tuple(base),
        money,
        most,
        runner.num_run,
    )


def _needed(counsel: Judge | None, variant: Variant, guess: int, most: int) -> int | None:
    """The smallest count that clearly meets the SLOs."""
    if counsel is None:
        return None
    plain = tuple(change for change in variant if change.name != "replicas")
    live = counsel.runner.scenario.study(plain).load.live_sessions
    return smallest(lambda count: counsel.row(count, plain).verdict == "meets", guess, min(most, live))


def _replicas(variant: Variant, replicas: int) -> int:
    for change in variant:
        if change.name == "replicas":
            count = change.number(replicas)
            if count < 1 or count != round(count):
                raise change.bad("must be a whole number of 1 or more")
            return round(count)
    return replicas


def variants_of(sets: Sequence[Change], vary: Sequence[Change]) -> list[Variant]:
    """All `--set` together as one arm; with `--vary`, one arm a value on top of them."""
    names = [change.name for change in sets]
    if vary and vary[0].name in names:
        raise InputError(f"{vary[0].name} is both set and varied", where="--vary")
    if vary:
        return [(*sets, change) for change in vary]
    return [tuple(sets)] if sets else []
