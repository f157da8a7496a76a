"""Pools of worker processes, of which none outlives the command that it works for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from replicast.sim.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


def obey_parent() -> None:
    """Leave Ctrl-C to the parent, die by SIGTERM at once, and end when the parent has ended.

    A pool's own pipes do not tell that the parent was killed: sister processes hold them open.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def process_pool(jobs: int, start: Callable[..., None], *given: object) -> ProcessPoolExecutor:
    """`jobs` processes that begin with `start(*given)`, in which `obey_parent` is called.

    A forked worker sees what is given without a copy; elsewhere it is pickled once a worker.
    """
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return ProcessPoolExecutor(jobs, context, initializer=start, initargs=given)


def worker_killed() -> InputError:
    """What to say of a `BrokenProcessPool`."""
    return InputError(
        "a worker process was killed, most likely for lack of memory", remedy="Use fewer --jobs."
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
