"""One replica lost in the busiest hour: what developers wait before, until it is over, and after.

The busiest replica goes twenty minutes into the measured hour. What was on it is sent again by its clients;
its sessions move to the others and find nothing of theirs cached there. A cold replacement comes after the
start-up time, at once where a spare is paid. Turns of all replications are put together by the time since the
loss.

Recovered: the first moment after the loss from which every SLO holds in three bins of two minutes in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from replicast.sim.fleet.operations import Loss, Operations
from replicast.sim.planning.replications import simulate_replication
from replicast.sim.planning.scenario import Study
from replicast.sim.planning.slo import SLO
from replicast.sim.planning.turn_waits import Waits, holds, late_share, slo_value_s, turn_waits

LOST_AFTER_S = 1200.0
BIN_S = 120.0
DEFAULT_REPLICATIONS = 6
_GOOD_BINS = 3
_LEAST_DURING_S = 600.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Turns asked in a part of the hour; times are seconds since the loss, `requests` a mean."""

    name: str
    start_s: float
    end_s: float
    requests: float
    slo_values_s: tuple[float | None, ...]
    late_share: float


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One replica count. `recovery_s` is None if the hour ended before."""

    replicas: int
    phases: tuple[Phase, ...]
    bins: tuple[Phase, ...]
    recovery_s: float | None
    retried: float

    @property
    def before(self) -> Phase:
        """Until the loss."""
        return self.phases[0]

    @property
    def during(self) -> Phase:
        """From the loss until it is over."""
        return self.phases[1]


@dataclass(frozen=True, slots=True)
class Failure:
    """The planned count, and one replica more."""

    rows: tuple[FailureRow, ...]
    replaced_after_s: float
    replications: int
    slos: tuple[SLO, ...]


def simulate_failure(
    study: Study,
    replicas: int,
    *,
    replaced_after_s: float,
    replications: int = DEFAULT_REPLICATIONS,
    progress: Callable[[str], None] | None = None,
) -> Failure:
    """Lose one of `replicas`, and one of `replicas` + 1, in the same hours."""
    rows = []
    for count in (replicas, replicas + 1):
        rows.append(_row(study, count, replaced_after_s, replications))
        if progress is not None:
            progress(f"one of {count} replicas lost")
    return Failure(tuple(rows), replaced_after_s, replications, study.slos)


def _row(study: Study, replicas: int, replaced_after_s: float, replications: int) -> FailureRow:
    fleet = study.fleet
    assert fleet.warmup_s is not None
    assert fleet.horizon_s is not None
    at_s = fleet.warmup_s + LOST_AFTER_S
    operations = Operations(losses=(Loss(at_s, replaced_after_s),))
    runs: list[list[Waits]] = []
    retried = 0
    for number in range(replications):
        workload = study.load.draw(number)
        result = simulate_replication(study, workload, replicas, number, operations)
        retried += result.counts.aborted
        runs.append([turn_waits(slo.metric, result.records) for slo in study.slos])
    slos, first, last = study.slos, -LOST_AFTER_S, fleet.horizon_s - at_s

    def phase(name: str, start_s: float, end_s: float) -> Phase:
        values = [
            np.concatenate([waits[i].between(at_s + start_s, at_s + end_s) for waits in runs])
            for i in range(len(slos))
        ]
        figures = tuple(slo_value_s(slo, v) for slo, v in zip(slos, values, strict=True))
        asked = max(len(v) for v in values) / replications
        return Phase(name, start_s, end_s, asked, figures, late_share(slos, values))

    edges = np.arange(first, last + 1e-6, BIN_S).tolist()
    bins = tuple(phase("bin", a, b) for a, b in pairwise(edges))
    recovery_s = _recovery_s(slos, [b for b in bins if b.start_s >= 0])
    over_s = last if recovery_s is None else recovery_s
    over_s = min(max(over_s, replaced_after_s, _LEAST_DURING_S), last)
    phases = [phase("before", first, 0.0), phase("during", 0.0, over_s)]
    if over_s < last:
        phases.append(phase("after", over_s, last))
    return FailureRow(replicas, tuple(phases), bins, recovery_s, retried / replications)


def _recovery_s(slos: Sequence[SLO], bins: Sequence[Phase]) -> float | None:
    good = [holds(slos, b.slo_values_s) for b in bins]
    for i in range(len(bins) - _GOOD_BINS + 1):
        if all(good[i : i + _GOOD_BINS]):
            return bins[i].start_s
    return None
