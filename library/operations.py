"""A day and a loss, simulated with the replicas that a plan found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from replicast.library.answers import PlanAnswer
from replicast.sim.errors import InputError
from replicast.sim.planning.day import ScalingRule, compare_day
from replicast.sim.planning.failure import DEFAULT_REPLICATIONS, simulate_failure
from replicast.sim.planning.parallel import Progress
from replicast.traces.day import OFFICE_DAY

Told = Callable[[Progress], None] | None


def day_shares(active: float | None, day: tuple[float, ...] | None) -> tuple[float, ...]:
    """Active share by hour; with a share given, that is the busiest hour's and the others follow."""
    shares = day or OFFICE_DAY
    return shares if active is None else tuple(active * share / max(shares) for share in shares)


def with_day(
    answer: PlanAnswer, rule: ScalingRule, shares: tuple[float, ...], days: int, progress: Told
) -> PlanAnswer:
    """The answer with a day; a plan without an answer has no fleet to compare."""
    row = answer.plan.answer
    if row is None:
        return _without(answer, "day")
    told = _told(progress, 2 * days)
    study = answer.context.scenario.study()
    return replace(answer, day=compare_day(study, row, rule, shares, answer.money, days=days, progress=told))


def with_failure(answer: PlanAnswer, replaced_after_s: float, progress: Told) -> PlanAnswer:
    """The answer with the loss of a replica, under the same condition."""
    if not 0 <= replaced_after_s < 1e9:
        raise InputError(f"a replica is replaced after {replaced_after_s:g} s", where="--start-up")
    if answer.plan.replicas is None:
        return _without(answer, "loss of a replica")
    lost = simulate_failure(
        answer.context.scenario.study(),
        answer.plan.replicas,
        replaced_after_s=replaced_after_s,
        replications=DEFAULT_REPLICATIONS,
        progress=_told(progress, 2),
    )
    return replace(answer, failure=lost)


def _without(answer: PlanAnswer, what: str) -> PlanAnswer:
    note = ("no-fleet", f"no {what} was simulated: the plan has no number of replicas to do it with")
    return replace(answer, notes=(*answer.notes, note))


def _told(progress: Told, of: int) -> Callable[[str], None] | None:
    if progress is None:
        return None
    tell, begun, done = progress, time.monotonic(), 0

    def told(what: str) -> None:
        nonlocal done
        done += 1
        tell(Progress(done, of, time.monotonic() - begun, what))

    return told
