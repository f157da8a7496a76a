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

import math
from collections.abc import Callable
from heapq import heappop, heappush

from replicast.sim.ticks import Tick
from simpy import Environment, Event
from simpy.events import EventPriority

COMPLETE = EventPriority(0)
REPLY = EventPriority(1)
ARRIVAL = EventPriority(2)
BEGIN = EventPriority(3)
CONTROL = EventPriority(4)

Callback = Callable[[], None]


class Clock(Environment):
    """SimPy's environment, its time in whole ticks. `tick` is now."""

    tick: Tick = 0

    def call_at(self, tick: Tick, priority: EventPriority, callback: Callback) -> None:
        """Call `callback` at `tick`, which is now or later."""
        heappush(self._queue, (tick, priority, next(self._eid), callback))  # type: ignore[misc]

    def run_before(self, tick: Tick | float = math.inf) -> None:
        """Process everything before `tick`."""
        queue = self._queue
        while queue and queue[0][0] < tick:
            now, _, _, event = queue[0]
            self._now = self.tick = now  # type: ignore[assignment]  # SimPy allows floats
            if isinstance(event, Event):
                self.step()
            else:
                heappop(queue)
                event()
