"""One run of a fleet: sessions in, records and counters out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.compiled import module
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.interrupts import stopped_between_steps
from replicast.sim.fleet.operations import Operations
from replicast.sim.fleet.record_file import RecordFile, RecordWriter
from replicast.sim.fleet.records import Records, in_order_of_arrival
from replicast.sim.fleet.result import (
    BLOCKERS,
    Binding,
    Counts,
    ReplicaResult,
    RunResult,
    RunWarning,
    Window,
    binding,
    run_warnings,
)
from replicast.sim.fleet.warmup import mser5
from replicast.sim.ticks import seconds
from replicast.sim.workload import Session

if TYPE_CHECKING:  # they may come compiled
    from replicast.sim.fleet.assembly import Assembly, MakeEngine, Mark
    from replicast.sim.fleet.clients import Follower, Shift
    from replicast.sim.fleet.source import Source

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

module("fleet.assembly")  # once, with this file: a first run takes no longer than others


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
    if engines is make_engine:  # of a compiled fleet the compiled one, which takes its requests only
        engines = module("engine.factory").make_engine
    source: Source = module("fleet.source").Source(sessions, fleet, engine_config)
    assert followers is None or source.is_whole, "followers are named by their place in a trace"
    writer = RecordWriter(record_file) if record_file is not None else None
    try:
        with _calm_collector(), stopped_between_steps(progress) as after_step:
            return _result(
                module("fleet.assembly").Assembly(
                    source,
                    engine_config,
                    step_time,
                    seed,
                    after_step,
                    engines,
                    followers,
                    writer,
                    shifts,
                    operations,
                ),
                seed,
                writer,
                record_file,
            )
    except BaseException:
        if writer is not None:
            writer.discard()
        raise


_OBJECTS_BETWEEN_WALKS = 100_000


@contextmanager
def _calm_collector() -> Iterator[None]:
    """A run makes no cycles that it drops before its end: nothing is to be found while it goes on."""
    threshold = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_WALKS, *threshold[1:])
    try:
        yield
    finally:
        gc.set_threshold(*threshold)


def _result(run: Assembly, seed: int, writer: RecordWriter | None, record_file: Path | None) -> RunResult:
    """Run, and put together what is known."""
    course = run.run()
    start, end, last = course.start, course.end, course.last_tick
    window = Window(seconds(start.tick), seconds(end.tick), course.start_rule, course.end_rule)
    counts = _counts(run)
    records = _records(run, writer, record_file, (window.start_s, window.end_s))
    warmup_s = _suggested_warmup_s(records)
    fleet = run.source.fleet
    return RunResult(
        fleet=fleet,
        engine=run.config,
        seed=seed,
        records=records,
        replicas=tuple(_replica_result(run, i, start, end) for i in range(len(run.replicas))),
        counts=counts,
        window=window,
        suggested_warmup_s=warmup_s,
        duration_s=seconds(last),
        warnings=run_warnings(fleet, run.config, counts, window, warmup_s),
        lifetimes=run.lifecycle.lifetimes(last) if run.lifecycle is not None else (),
    )


def _records(
    run: Assembly, writer: RecordWriter | None, record_file: Path | None, window: tuple[float, float]
) -> Records:
    number = run.dispatcher.num_submitted
    if writer is None or record_file is None:
        return Records(run.source.whole, in_order_of_arrival(run.recorder.rows()), number, window)
    run.recorder.flush()
    writer.close()
    return Records(run.source.whole, RecordFile(record_file), number, window)


def _counts(run: Assembly) -> Counts:
    dispatcher, clients = run.dispatcher, run.clients
    counts = Counts(
        submitted=dispatcher.num_submitted,
        finished=dispatcher.num_finished,
        rejected=dispatcher.num_rejected,
        unfinished=dispatcher.num_in_flight,
        turns=run.source.num_turns,
        sessions=run.source.num_sessions,
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


def _replica_result(run: Assembly, index: int, start: Mark, end: Mark) -> ReplicaResult:
    replica = run.replicas[index]
    stats = replica.engine.stats
    before, stats_before = start.of(index)
    after, stats_after = end.of(index)
    span = max(end.tick - start.tick, 1)
    blocked = zip(BLOCKERS, before.blocked, after.blocked, strict=True)
    return ReplicaResult(
        stats=_difference(stats, EngineStats()),
        window_stats=_difference(stats_after, stats_before),
        mean_running=(after.running - before.running) / span,
        mean_waiting=(after.waiting - before.waiting) / span,
        mean_kv_usage=(after.kv_usage - before.kv_usage) / span,
        peak_running=replica.timeline.peak_running,
        peak_waiting=replica.timeline.peak_waiting,
        peak_kv_usage=stats.peak_used_blocks / run.config.num_usable_blocks,
        blocked_share={name: (b - a) / span for name, a, b in blocked},
        marks=replica.timeline.marks,
    )


def _difference(after: EngineStats, before: EngineStats) -> EngineStats:
    """What the counters grew by, in the class of Python; the peak stays that of the run so far."""
    names = [f.name for f in fields(EngineStats) if f.name != "peak_used_blocks"]
    grown = {name: getattr(after, name) - getattr(before, name) for name in names}
    return EngineStats(**grown, peak_used_blocks=after.peak_used_blocks)


def _suggested_warmup_s(records: Records) -> float | None:
    rows = np.flatnonzero(records.finished)
    cut = mser5(records.ttft_s[rows])
    return None if cut is None else float(records.arrival_s[rows[cut]]) if cut else 0.0
