"""Plain callbacks on SimPy's queue, and the order of what happens at one tick.

SimPy time is whole ticks. At one tick, in this order:

    COMPLETE  steps that end: outputs are processed, seats and blocks become free
    REPLY     replies reach clients, which decide what they send next
    ARRIVAL   requests arrive at the fleet and are handed to engines
    BEGIN     engines take in what arrived and start their next steps
    CONTROL   replicas come and go

so a step that begins at a tick sees every seat, reply and arrival of that tick, as in vLLM's loop.
Within one kind, first scheduled goes first.

Two shortcuts change nothing: replies that need no delivery time follow in the COMPLETE itself, and a step
begins in the event at hand if no other is left at the tick (so an ARRIVAL hands over one request
at most, and last).

A million requests are a few million events, so the queue holds callables as they are: no event object, no
list of callbacks, no generator to resume. SimPy's own events and processes may stand between them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

from replicast.sim.ticks import Tick
from simpy import Environment, Event

COMPLETE: Final = 0
REPLY: Final = 1
ARRIVAL: Final = 2
BEGIN: Final = 3
CONTROL: Final = 4

Callback = Callable[[], None]


class Clock:
    """Time in whole ticks on the queue of a SimPy environment. `tick` is now."""

    def __init__(self) -> None:
        self.tick: Tick = 0
        self.environment = Environment()
        self._queue: list[Any] = self.environment._queue
        self._numbers: Any = self.environment._eid

    def call_at(self, tick: Tick, priority: int, callback: Callback) -> None:
        """Call `callback` at `tick`, which is now or later."""
        heappush(self._queue, (tick, priority, next(self._numbers), callback))

    def is_last(self) -> bool:
        """Whether nothing more is scheduled for this tick."""
        queue = self._queue
        return not queue or queue[0][0] > self.tick

    def run_before(self, end: Tick | None = None) -> None:
        """Process everything, or everything before `end`."""
        queue, environment = self._queue, self.environment
        while queue and (end is None or queue[0][0] < end):
            event = queue[0][3]
            if isinstance(event, Event):
                self.tick = queue[0][0]
                environment.step()
            else:
                self.tick = environment._now = heappop(queue)[0]
                event()
