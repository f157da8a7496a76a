"""Ctrl-C and SIGTERM end a run between two steps.

A handler that raises within an operation of compiled code (of large integers, say) is taken there for a
lack of memory, and mypyc's runtime aborts the process: nothing is cleaned up. So a run notes the signal,
and the handler it was meant for is called where Python is left and entered anyway.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_between_steps(progress: Progress | None) -> Iterator[Progress | None]:
    """What to call after each step in place of `progress`."""
    if threading.current_thread() is not threading.main_thread():
        yield progress
        return
    handlers = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    noted: list[int] = []

    def after_step(finished: int) -> None:
        if noted:
            number = noted.pop()
            handlers[signal.Signals(number)](number, None)
        if progress is not None:
            progress(finished)

    for number in handlers:
        signal.signal(number, lambda number, frame: noted.append(number))
    try:
        yield after_step
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for last in noted:
        signal.raise_signal(last)
