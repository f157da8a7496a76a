"""One run of a fleet: sessions in, records and counters out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine, EngineStats
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.checks import check_sessions
from replicast.sim.fleet.clients import Clients, Follower
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.dispatch import Dispatcher
from replicast.sim.fleet.events import Clock
from replicast.sim.fleet.prefix_router import make_router
from replicast.sim.fleet.records import Records
from replicast.sim.fleet.replica import Replica
from replicast.sim.fleet.result import (
    Binding,
    Counts,
    ReplicaResult,
    RunResult,
    RunWarning,
    Window,
    binding,
    run_warnings,
)
from replicast.sim.fleet.timeline import BLOCKERS, Totals
from replicast.sim.fleet.warmup import mser5
from replicast.sim.ticks import Tick, seconds, ticks
from replicast.sim.workload import Session

__all__ = [
    "Binding",
    "Counts",
    "ReplicaResult",
    "RunResult",
    "RunWarning",
    "Window",
    "binding",
    "simulate",
]

MakeEngine = Callable[[EngineConfig, StepTime], Engine]

GENERATIONS = 3
START_OF_RUN, END_OF_RUN = "start of the run", "end of the run"
_STARTS, _ROUTER = 0, 1  # random streams


def simulate(
    sessions: Sequence[Session],
    engine_config: EngineConfig,
    step_time: StepTime,
    fleet: FleetConfig,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    engines: MakeEngine = make_engine,
    followers: Mapping[int, Follower] | None = None,
) -> RunResult:
    """Run `sessions` on `fleet`. `progress` is told the number of finished requests after each step.

    `followers` gives each developer of a closed loop its own sequence of sessions (`clients.py`).
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="use 0 or more")
    fleet = fleet.resolved(sessions)
    check_sessions(sessions, engine_config, fleet)
    return _Run(sessions, engine_config, step_time, fleet, seed, progress, engines, followers).result()


class _Run:
    """The pieces of one run, wired."""

    def __init__(
        self,
        sessions: Sequence[Session],
        config: EngineConfig,
        step_time: StepTime,
        fleet: FleetConfig,
        seed: int,
        progress: Callable[[int], None] | None,
        engines: MakeEngine,
        followers: Mapping[int, Follower] | None,
    ) -> None:
        self._sessions = sessions
        self._config = config
        self._fleet = fleet
        self._seed = seed
        self._clock = clock = Clock()
        router = make_router(fleet, config, _generator(seed, _ROUTER))
        self._dispatcher = dispatcher = Dispatcher(clock, sessions, config, fleet, router, progress)
        self._replicas = [
            Replica(clock, config, engines(config, step_time), dispatcher.on_finished)
            for _ in range(fleet.replicas)
        ]
        dispatcher.replicas = self._replicas
        self._clients = Clients(
            clock, sessions, fleet, _generator(seed, _STARTS), dispatcher.send, self._session_ended, followers
        )
        dispatcher.on_reply = self._clients.replied
        enough = fleet.sessions is not None and len(sessions) >= GENERATIONS * fleet.sessions
        self._watches_end = enough
        self._watches_start = enough and fleet.warmup_s is None
        self._start: _Mark | None = None
        self._end: _Mark | None = None
        self._last: _Mark | None = None
        self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN

    def _session_ended(self, replaced: bool) -> None:
        if self._watches_start and self._clients.num_finished == self._fleet.sessions:
            self._start, self._start_rule = (
                self._mark(self._clock.tick),
                "as many sessions had finished as are live",
            )
        if self._watches_end and not replaced and self._end is None:
            self._end, self._end_rule = self._mark(self._clock.tick), "a finished session found no successor"

    def _warm(self) -> bool:
        live, stagger_s = self._fleet.sessions, self._fleet.stagger_s
        assert live is not None
        assert stagger_s is not None
        return self._clients.num_finished >= live and self._clock.tick >= ticks(stagger_s)

    def _mark(self, tick: Tick) -> _Mark:
        for replica in self._replicas:
            replica.timeline.advance(tick)
        return _Mark(
            tick,
            [replica.timeline.totals for replica in self._replicas],
            [copy(replica.engine.stats) for replica in self._replicas],
        )

    def _run_until(self, tick: Tick) -> None:
        """Process all events before `tick`."""
        clock = self._clock
        while clock.peek() < tick:
            clock.step()

    def _run(self) -> _Mark:
        """Run to the end, and the state then."""
        fleet, clients = self._fleet, self._clients
        clients.start()
        if fleet.warmup_s:
            warm = ticks(fleet.warmup_s)
            self._run_until(warm)
            if not clients.exhausted:
                self._start, self._start_rule = self._mark(warm), "given"
        if fleet.horizon_s is not None:
            horizon = ticks(fleet.horizon_s)
            self._run_until(horizon)
            if not clients.exhausted:
                clients.stopped = True
                if self._end is None:
                    self._end, self._end_rule = self._mark(horizon), "horizon"
                self._run_until(horizon + ticks(fleet.cooldown_s))
                cut = horizon + ticks(fleet.cooldown_s)
                return self._mark(cut if self._dispatcher.num_in_flight else max(horizon, self._clock.tick))
        self._clock.run()
        return self._mark(self._clock.tick)

    def result(self) -> RunResult:
        """Run, and put together what is known."""
        first = self._mark(0)
        last = self._run()
        start, end = self._start or first, self._end or last
        if start.tick >= end.tick:
            start, end = first, last
            self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN
        window = Window(seconds(start.tick), seconds(end.tick), self._start_rule, self._end_rule)
        self._dispatcher.record_unfinished()
        records = self._dispatcher.recorder.finish(self._sessions, (window.start_s, window.end_s))
        counts = self._counts()
        warmup_s = _suggested_warmup_s(records)
        return RunResult(
            fleet=self._fleet,
            engine=self._config,
            seed=self._seed,
            records=records,
            replicas=tuple(self._replica_result(i, start, end) for i in range(len(self._replicas))),
            counts=counts,
            window=window,
            suggested_warmup_s=warmup_s,
            duration_s=seconds(last.tick),
            warnings=run_warnings(self._fleet, self._config, counts, window, warmup_s),
        )

    def _counts(self) -> Counts:
        dispatcher, clients = self._dispatcher, self._clients
        counts = Counts(
            submitted=dispatcher.num_submitted,
            finished=dispatcher.num_finished,
            rejected=dispatcher.num_rejected,
            unfinished=dispatcher.num_in_flight,
            turns=sum(len(session.turns) for session in self._sessions),
            sessions=len(self._sessions),
            sessions_started=clients.num_started,
            sessions_finished=clients.num_finished,
            sessions_truncated=clients.num_truncated,
            capped_delays=clients.num_capped_delays,
            clipped_outputs=dispatcher.num_clipped_outputs,
            raised_outputs=dispatcher.num_raised_outputs,
        )
        assert counts.submitted == counts.finished + counts.rejected + counts.unfinished, "a request was lost"
        return counts

    def _replica_result(self, index: int, start: _Mark, end: _Mark) -> ReplicaResult:
        replica = self._replicas[index]
        stats, before, after = replica.engine.stats, start.totals[index], end.totals[index]
        span = max(end.tick - start.tick, 1)
        blocked = zip(BLOCKERS, before.blocked, after.blocked, strict=True)
        return ReplicaResult(
            stats=stats,
            window_stats=_difference(end.stats[index], start.stats[index]),
            mean_running=(after.running - before.running) / span,
            mean_waiting=(after.waiting - before.waiting) / span,
            mean_kv_usage=(after.kv_usage - before.kv_usage) / span,
            peak_running=replica.timeline.peak_running,
            peak_waiting=replica.timeline.peak_waiting,
            peak_kv_usage=stats.peak_used_blocks / self._config.num_usable_blocks,
            blocked_share={name: (b - a) / span for name, a, b in blocked},
            series=replica.timeline.series,
        )


class _Mark(NamedTuple):
    """All replicas' integrals and counters at one tick."""

    tick: Tick
    totals: list[Totals]
    stats: list[EngineStats]


def _difference(after: EngineStats, before: EngineStats) -> EngineStats:
    """What the counters grew by; the peak stays that of the run so far."""
    names = [f.name for f in fields(EngineStats) if f.name != "peak_used_blocks"]
    grown = {name: getattr(after, name) - getattr(before, name) for name in names}
    return EngineStats(**grown, peak_used_blocks=after.peak_used_blocks)


def _suggested_warmup_s(records: Records) -> float | None:
    rows = np.flatnonzero(records.finished)
    cut = mser5(records.ttft_s[rows])
    return None if cut is None else float(records.arrival_s[rows[cut]]) if cut else 0.0


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))
