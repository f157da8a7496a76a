"""One run of a fleet: sessions in, records and counters out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine, EngineStats
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.clients import Clients, Follower, Shift
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.dispatch import Dispatcher
from replicast.sim.fleet.events import Clock
from replicast.sim.fleet.operations import Lifecycle, Operations
from replicast.sim.fleet.prefix_router import make_router
from replicast.sim.fleet.record_file import RecordFile, RecordWriter
from replicast.sim.fleet.records import Recorder, Records, in_order_of_arrival
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
from replicast.sim.fleet.source import Source
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
FIRST_GENERATION = "as many sessions had finished as are live"
NO_SUCCESSOR = "a finished session found no successor"
_STARTS, _ROUTER = 0, 1  # random streams


def simulate(
    sessions: Iterable[Session],
    engine_config: EngineConfig,
    step_time: StepTime,
    fleet: FleetConfig,
    *,
    seed: int,
    progress: Callable[[int], None] | None = None,
    engines: MakeEngine = make_engine,
    followers: Mapping[int, Follower] | None = None,
    shifts: Sequence[Shift] | None = None,
    operations: Operations | None = None,
    record_file: Path | None = None,
) -> RunResult:
    """Run `sessions` on `fleet`. `progress` is told the number of finished requests after each step.

    `sessions` may be an iterator, of which only live sessions are held (`source.py`). `followers` gives
    each developer of a closed loop its own sequence of sessions (`clients.py`); they need a whole trace.
    `shifts` says when these developers come and leave, `operations` when replicas do (`operations.py`).
    With `record_file` records are written there in batches, and those of the result read from it.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="use 0 or more")
    source = Source(sessions, fleet, engine_config)
    assert followers is None or source.is_whole, "followers are named by their place in a trace"
    writer = RecordWriter(record_file) if record_file is not None else None
    try:
        with _calm_collector():
            run = _Run(
                source,
                engine_config,
                step_time,
                seed,
                progress,
                engines,
                followers,
                writer,
                shifts,
                operations,
            )
            return run.result(record_file)
    except BaseException:
        if writer is not None:
            writer.discard()
        raise


@contextmanager
def _calm_collector() -> Iterator[None]:
    """What was there before the run, a whole trace at times, is not the run's garbage: no walk over it."""
    others = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not others:
            gc.unfreeze()


class _Run:
    """The pieces of one run, wired."""

    def __init__(
        self,
        source: Source,
        config: EngineConfig,
        step_time: StepTime,
        seed: int,
        progress: Callable[[int], None] | None,
        engines: MakeEngine,
        followers: Mapping[int, Follower] | None,
        writer: RecordWriter | None,
        shifts: Sequence[Shift] | None,
        operations: Operations | None,
    ) -> None:
        self._source = source
        self._config = config
        self._fleet = fleet = source.fleet
        self._seed = seed
        self._has_shifts = shifts is not None
        self._writer = writer
        self._recorder = Recorder(writer.write if writer is not None else None)
        self._clock = clock = Clock()
        self._router = router = make_router(fleet, config, _generator(seed, _ROUTER))
        self._dispatcher = dispatcher = Dispatcher(clock, config, fleet, router, self._recorder, progress)

        def make() -> Replica:
            return Replica(clock, config, engines(config, step_time), dispatcher.on_finished)

        self._replicas = [make() for _ in range(fleet.replicas)]
        dispatcher.replicas = self._replicas
        self._clients = Clients(
            clock, source, fleet, _generator(seed, _STARTS), dispatcher.send, self._session_ended, followers,
            shifts,
        )  # fmt: skip
        dispatcher.on_reply = self._clients.replied
        self._lifecycle: Lifecycle | None = None
        if operations is not None:
            self._lifecycle = life = Lifecycle(
                clock, operations, self._replicas, make, dispatcher, self._is_over
            )
            dispatcher.on_empty, dispatcher.is_over = life.drained, self._is_over
            dispatcher.turn_of = self._clients.turn
        self._start: _Mark | None = None
        self._end: _Mark | None = None
        self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN

    def _is_over(self) -> bool:
        return self._clients.stopped or self._clients.exhausted

    def _session_ended(self, index: int, replaced: bool) -> None:
        self._router.session_ended(index)
        fleet = self._fleet
        if fleet.sessions is None:
            return
        if fleet.warmup_s is None and self._clients.num_finished == fleet.sessions:
            self._start, self._start_rule = self._mark(self._clock.tick), FIRST_GENERATION
        if not replaced and self._end is None and not self._has_shifts:
            self._end, self._end_rule = self._mark(self._clock.tick), NO_SUCCESSOR

    def _forget_generations(self) -> None:
        """Marks at the ends of sessions mean nothing where sessions are too few to replace each other."""
        live = self._fleet.sessions
        if live is not None and self._source.num_sessions >= GENERATIONS * live:
            return
        if self._start_rule == FIRST_GENERATION:
            self._start, self._start_rule = None, START_OF_RUN
        if self._end_rule == NO_SUCCESSOR:
            self._end, self._end_rule = None, END_OF_RUN

    def _mark(self, tick: Tick) -> _Mark:
        for replica in self._replicas:
            replica.timeline.advance(tick)
        return _Mark(
            tick,
            [replica.timeline.totals for replica in self._replicas],
            [copy(replica.engine.stats) for replica in self._replicas],
        )

    def _run(self) -> _Mark:
        """Run to the end, and the state then."""
        fleet, clients, clock = self._fleet, self._clients, self._clock
        clients.start()
        if self._lifecycle is not None:
            self._lifecycle.start()
        if fleet.warmup_s:
            warm = ticks(fleet.warmup_s)
            clock.run_before(warm)
            if not clients.exhausted:
                self._start, self._start_rule = self._mark(warm), "given"
        if fleet.horizon_s is not None:
            horizon = ticks(fleet.horizon_s)
            clock.run_before(horizon)
            if not clients.exhausted:
                clients.stopped = True
                self._forget_generations()
                if self._end is None:
                    self._end, self._end_rule = self._mark(horizon), "horizon"
                cut = horizon + ticks(fleet.cooldown_s)
                clock.run_before(cut)
                return self._mark(cut if self._dispatcher.num_in_flight else max(horizon, clock.tick))
        clock.run_before()
        return self._mark(clock.tick)

    def result(self, record_file: Path | None) -> RunResult:
        """Run, and put together what is known."""
        first = self._mark(0)
        last = self._run()
        self._source.check_not_empty()
        self._forget_generations()
        start, end = self._start or first, self._end or last
        if start.tick >= end.tick:
            start, end = first, last
            self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN
        window = Window(seconds(start.tick), seconds(end.tick), self._start_rule, self._end_rule)
        self._dispatcher.record_unfinished(last.tick)
        counts = self._counts()
        records = self._records(record_file, (window.start_s, window.end_s))
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
            lifetimes=self._lifecycle.lifetimes(last.tick) if self._lifecycle is not None else (),
        )

    def _records(self, record_file: Path | None, window: tuple[float, float]) -> Records:
        number = self._dispatcher.num_submitted
        if self._writer is None or record_file is None:
            columns = in_order_of_arrival(self._recorder.rows())
            return Records(self._source.whole, columns, number, window)
        self._recorder.flush()
        self._writer.close()
        return Records(self._source.whole, RecordFile(record_file), number, window)

    def _counts(self) -> Counts:
        dispatcher, clients = self._dispatcher, self._clients
        counts = Counts(
            submitted=dispatcher.num_submitted,
            finished=dispatcher.num_finished,
            rejected=dispatcher.num_rejected,
            unfinished=dispatcher.num_in_flight,
            turns=self._source.num_turns,
            sessions=self._source.num_sessions,
            sessions_started=clients.num_started,
            sessions_finished=clients.num_finished,
            sessions_truncated=clients.num_truncated,
            capped_delays=clients.num_capped_delays,
            clipped_outputs=dispatcher.num_clipped_outputs,
            raised_outputs=dispatcher.num_raised_outputs,
            aborted=dispatcher.num_aborted,
        )
        ended = counts.finished + counts.rejected + counts.unfinished + counts.aborted
        assert counts.submitted == ended, "a request was lost"
        return counts

    def _replica_result(self, index: int, start: _Mark, end: _Mark) -> ReplicaResult:
        replica = self._replicas[index]
        stats = replica.engine.stats
        before, stats_before = start.of(index)
        after, stats_after = end.of(index)
        span = max(end.tick - start.tick, 1)
        blocked = zip(BLOCKERS, before.blocked, after.blocked, strict=True)
        return ReplicaResult(
            stats=stats,
            window_stats=_difference(stats_after, stats_before),
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

    def of(self, replica: int) -> tuple[Totals, EngineStats]:
        """Those of one replica: zeros before it was started."""
        if replica < len(self.totals):
            return self.totals[replica], self.stats[replica]
        return Totals(0, 0, 0.0, (0,) * len(BLOCKERS)), EngineStats()


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
