"""One function over many inputs, in this process or in several: the same results in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from replicast.sim.planning.workers import obey_parent, process_pool, worker_killed

A = TypeVar("A")
B = TypeVar("B")


class Workers:
    """Runs functions of a module on inputs that can be pickled; without a pool, here."""

    def __init__(self, pool: ProcessPoolExecutor | None = None) -> None:
        self._pool = pool

    @property
    def elsewhere(self) -> bool:
        """Whether inputs are copied, so that what a function changes in them is lost."""
        return self._pool is not None

    def map(self, function: Callable[[A], B], inputs: Sequence[A]) -> list[B]:
        """Results in the order of `inputs`."""
        if self._pool is None:
            return [function(one) for one in inputs]
        try:
            return list(self._pool.map(function, inputs))
        except BrokenProcessPool as error:
            raise worker_killed() from error


HERE = Workers()


@contextmanager
def workers(jobs: int) -> Iterator[Workers]:
    """`jobs` processes, or this one."""
    if jobs < 2:
        yield HERE
        return
    pool = process_pool(jobs, obey_parent)
    try:
        yield Workers(pool)
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
