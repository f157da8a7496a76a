"""`run_all`: independent runs, one after the other, on several cores, or on somebody's cluster.

    local   this process, or `jobs` processes (concurrent.futures)
    dask    an existing Dask cluster, through joblib
    ray     an existing Ray cluster, through joblib

Results come back in the order of the tasks and depend on nothing but the task, so the backend changes no
byte of an answer. With a journal each result is written down as it comes, one line of JSON: an
interrupted run that starts again with the same question takes over what it finds there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, get_args

from replicast.sim.errors import InputError
from replicast.sim.planning.changes import label
from replicast.sim.planning.replications import Measured, Task, Worker
from replicast.sim.planning.scenario import Scenario
from replicast.sim.planning.workers import obey_parent, process_pool, worker_killed

Backend = Literal["local", "dask", "ray"]


class Progress(NamedTuple):
    """How far the runs are; `of` is the number asked for so far, more may follow."""

    done: int
    of: int
    elapsed_s: float
    what: str


class Scale(NamedTuple):
    """Where runs take place."""

    jobs: int = 1
    backend: Backend = "local"
    scheduler: str | None = None  # address of the Dask scheduler or Ray head; None: as their clients find it


_worker: Worker | None = None
_remote: dict[str, Worker] = {}


def _start(scenario: Scenario) -> None:
    global _worker
    obey_parent()
    _worker = Worker(scenario)


def _run(task: Task) -> Measured:
    assert _worker is not None, "a worker has its scenario"
    return _worker.run(task)


def _run_remote(payload: bytes, name: str, task: Task) -> Measured:
    """One run on a cluster: the scenario comes along, and is unpacked once a process."""
    if name not in _remote:
        _remote.clear()
        _remote[name] = Worker(pickle.loads(payload))
    return _remote[name].run(task)


class Runner:
    """Runs tasks of one scenario and remembers their results. Use it as a context."""

    def __init__(
        self,
        scenario: Scenario,
        scale: Scale = Scale(),  # noqa: B008  (immutable)
        *,
        journal: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        if scale.jobs < 1:
            raise InputError(f"{scale.jobs} jobs", where="--jobs", remedy="Use 1 or more.")
        if scale.backend not in get_args(Backend):
            raise InputError(f"backend {scale.backend!r} is unknown", remedy="Use local, dask or ray.")
        self.scenario = scenario
        self._scale = scale
        self._progress = progress
        self._results: dict[Task, Measured] = {}
        self._local: Worker | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._payload: tuple[bytes, str] | None = None
        self._asked = self.num_run = self.num_taken_over = 0
        self._started = time.monotonic()
        self._journal = _Journal(journal, scenario) if journal is not None else None

    def __enter__(self) -> Runner:
        if self._journal is not None:
            self._results.update(self._journal.results)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            if kind is not None:
                for process in list((self._pool._processes or {}).values()):
                    process.terminate()
            self._pool.shutdown(cancel_futures=True)

    def run_all(self, tasks: Sequence[Task]) -> list[Measured]:
        """One result a task, in their order; those known already are not run again."""
        missing = [task for task in dict.fromkeys(tasks) if task not in self._results]
        if self._journal is not None:
            self.num_taken_over += sum(self._journal.takes(task) for task in dict.fromkeys(tasks))
        self._asked += len(missing)
        for task, result in zip(missing, self._results_of(missing), strict=True):
            self._results[task] = result
            self.num_run += 1
            if self._journal is not None:
                self._journal.add(task, result)
            if self._progress is not None:
                what = f"{task.replicas} replicas, {label(task.variant)}"
                self._progress(Progress(self.num_run, self._asked, time.monotonic() - self._started, what))
        return [self._results[task] for task in tasks]

    def _results_of(self, tasks: Sequence[Task]) -> Iterator[Measured]:
        if not tasks:
            return iter(())
        if self._scale.backend != "local":
            return self._on_cluster(tasks)
        if self._scale.jobs == 1:
            if self._local is None:
                self._local = Worker(self.scenario)
            return map(self._local.run, tasks)
        return self._in_processes(tasks)

    def _in_processes(self, tasks: Sequence[Task]) -> Iterator[Measured]:
        if self._pool is None:
            self._pool = process_pool(self._scale.jobs, _start, self.scenario)
        try:
            yield from self._pool.map(_run, tasks)
        except BrokenProcessPool as error:
            raise worker_killed() from error

    def _on_cluster(self, tasks: Sequence[Task]) -> Iterator[Measured]:
        backend = self._scale.backend
        try:
            import joblib  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise InputError(
                f"--backend {backend} needs joblib and {backend}", remedy="pip install 'replicast[scale]'"
            ) from error
        if self._payload is None:
            payload = pickle.dumps(self.scenario)
            self._payload = payload, hashlib.sha256(payload).hexdigest()
        with contextlib.ExitStack() as stack:
            options = _connect(backend, self._scale.scheduler, stack)
            stack.enter_context(joblib.parallel_config(backend=backend, n_jobs=-1, **options))
            calls = (joblib.delayed(_run_remote)(*self._payload, task) for task in tasks)
            yield from joblib.Parallel()(calls)


def _connect(backend: str, scheduler: str | None, stack: contextlib.ExitStack) -> dict[str, Any]:
    """A client of the cluster; what joblib must be told of it."""
    try:
        if backend == "dask":
            from distributed import Client  # type: ignore[import-not-found,unused-ignore]

            connect: Any = Client
            stack.enter_context(connect(scheduler) if scheduler else connect())
            return {}
        import ray  # type: ignore[import-not-found,unused-ignore]
        from ray.util.joblib import register_ray  # type: ignore[import-not-found,unused-ignore]

        if not ray.is_initialized():
            ray.init(address=scheduler, log_to_driver=False)
        register: Any = register_ray
        register()
    except ImportError as error:
        raise InputError(
            f"--backend {backend} needs {backend}", remedy="pip install 'replicast[scale]'"
        ) from error
    except (OSError, ConnectionError) as error:
        raise InputError(f"the {backend} cluster cannot be reached: {error}", where=scheduler) from error
    return {}


class _Journal:
    """Results on disk, as far as they belong to the same question."""

    def __init__(self, path: Path, scenario: Scenario) -> None:
        self._path = path
        self._name = hashlib.sha256(pickle.dumps(scenario, protocol=5)).hexdigest()
        self.results: dict[Task, Measured] = {}
        self._torn = False
        if path.exists():
            self._read()
        self._old = set(self.results)

    def takes(self, task: Task) -> bool:
        """Whether the result of `task` was found on disk; said once a task."""
        if task in self._old:
            self._old.discard(task)
            return True
        return False

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        self._torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                if row["of"] != self._name:
                    continue
                values = {f.name: _figure(row["measured"][f.name]) for f in fields(Measured)}
                variant = tuple(_change(change) for change in row["variant"])
                self.results[Task(variant, row["replicas"], row["replication"])] = Measured(**values)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # cut off when the run was interrupted, or damaged since: it is run again

    def add(self, task: Task, result: Measured) -> None:
        """Append one result."""
        row = {
            "of": self._name,
            "variant": [list(change) for change in task.variant],
            "replicas": task.replicas,
            "replication": task.replication,
            "measured": asdict(result),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as out:
            out.write(("\n" if self._torn else "") + json.dumps(row) + "\n")
        self._torn = False


def _figure(value: Any) -> Any:
    """A number of a finished run, or a row of them; anything else is a `TypeError`."""
    if isinstance(value, list):
        return tuple(_figure(one) for one in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no figure")
    return value


def _change(pair: list[str]) -> Any:
    from replicast.sim.planning.changes import Change

    return Change(*pair)
