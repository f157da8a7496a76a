"""The same sessions through several replica counts, one after the other or in parallel processes.

Runs share nothing but their input, so that their number and order change no byte of any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.result import RunResult
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Session

Progress = Callable[[int, int], None]  # runs done, requests finished of the run under way


class Study(NamedTuple):
    """All that the runs have in common."""

    sessions: Sequence[Session]
    engine: EngineConfig
    step_time: StepTime
    fleet: FleetConfig
    seed: int


def replay(
    study: Study, replica_counts: Sequence[int], *, jobs: int = 1, progress: Progress | None = None
) -> Iterator[RunResult]:
    """One result a replica count, in the order given."""
    if jobs > 1 and len(replica_counts) > 1:
        yield from _parallel(study, replica_counts, min(jobs, len(replica_counts)), progress)
        return
    for done, replicas in enumerate(replica_counts):
        yield _run(study, replicas, partial(progress, done) if progress else None)


def _run(study: Study, replicas: int, progress: Callable[[int], None] | None = None) -> RunResult:
    fleet = replace(study.fleet, replicas=replicas)
    return simulate(study.sessions, study.engine, study.step_time, fleet, seed=study.seed, progress=progress)


_study: Study | None = None  # of a worker process


def _start_worker(study: Study) -> None:
    from replicast.sim.planning.workers import obey_parent

    global _study
    _study = study
    obey_parent()


def _work(replicas: int) -> RunResult:
    """One run in a worker; the sessions stay here, the parent has them."""
    assert _study is not None, "a worker has its study"
    result = _run(_study, replicas)
    return replace(result, records=replace(result.records, sessions=()))


def _parallel(
    study: Study, replica_counts: Sequence[int], jobs: int, progress: Progress | None
) -> Iterator[RunResult]:
    import multiprocessing
    from concurrent.futures.process import BrokenProcessPool

    from replicast.sim.planning.workers import process_pool, worker_killed

    strangers = multiprocessing.active_children()
    executor = process_pool(jobs, _start_worker, study)
    try:
        futures = [executor.submit(_work, replicas) for replicas in replica_counts]
        for done, future in enumerate(futures, start=1):
            result = future.result()
            if progress:
                progress(done, 0)
            yield replace(result, records=replace(result.records, sessions=study.sessions))
    except BrokenProcessPool as error:
        raise worker_killed() from error
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in strangers:
                process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)
