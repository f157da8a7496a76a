"""One run of a fleet: sessions in, records and counters out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.records import Records
from replicast.sim.fleet.timeline import Blocker, SeriesPoint
from replicast.sim.workload import Session


class Window(NamedTuple):
    """The measured part of the run, and the rule that chose each end."""

    start_s: float
    end_s: float
    start_rule: str
    end_rule: str


class RunWarning(NamedTuple):
    """A short code and one sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Counts:
    """What was asked and what came of it, over the whole run.

    Always submitted = finished + rejected + unfinished. `turns` is all the trace holds; those never sent
    (horizon, truncated sessions) are `turns - submitted`.
    """

    submitted: int
    finished: int
    rejected: int
    unfinished: int
    turns: int
    sessions: int
    sessions_started: int
    sessions_finished: int
    sessions_truncated: int
    capped_delays: int
    clipped_outputs: int
    raised_outputs: int


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """One replica: vLLM's counters (whole run, and window), and time-weighted means of the window."""

    stats: EngineStats
    window_stats: EngineStats
    mean_running: float
    mean_waiting: float
    mean_kv_usage: float
    peak_running: int
    peak_waiting: int
    peak_kv_usage: float
    blocked_share: dict[Blocker, float]
    series: tuple[SeriesPoint, ...]


class Binding(NamedTuple):
    """Share of the window in which each limit blocked the head of the queue, and the one that binds."""

    binds: Blocker | None
    seats: float
    token_budget: float
    kv_blocks: float


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """All that one run says. `fleet` has its loop and live sessions resolved."""

    fleet: FleetConfig
    engine: EngineConfig
    seed: int
    records: Records
    replicas: tuple[ReplicaResult, ...]
    counts: Counts
    window: Window
    duration_s: float
    warnings: tuple[RunWarning, ...]


def binding(result: RunResult) -> Binding:
    """What binds: the limit that blocks the head of the queue longest, if any does for 5 % of the window."""
    raise NotImplementedError


def simulate(
    sessions: Sequence[Session],
    engine_config: EngineConfig,
    step_time: StepTime,
    fleet: FleetConfig,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> RunResult:
    """Run `sessions` on `fleet`; `progress` is told the number of finished requests now and then."""
    raise NotImplementedError
