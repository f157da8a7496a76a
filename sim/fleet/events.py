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
from typing import Any, Final, cast

from replicast.sim.ticks import Tick
from simpy import Environment, Event

COMPLETE: Final = 0
REPLY: Final = 1
ARRIVAL: Final = 2
BEGIN: Final = 3
CONTROL: Final = 4

Callback = Callable[[], None]

# Compiled code looks up anew, each time, what is imported.
_push: Final = heappush
_pop: Final = heappop
_Event: Final = Event


class Clock:
    """Time in whole ticks on the queue of a SimPy environment. `tick` is now."""

    def __init__(self) -> None:
        self.tick: Tick = 0
        self._environment = Environment()
        self._queue = cast("list[tuple[Tick, int, int, Any]]", self._environment._queue)
        self._number: Callable[[], Any] = self._environment._eid.__next__

    @property
    def environment(self) -> Environment:
        """SimPy's own, at the present tick."""
        self._environment._now = self.tick
        return self._environment

    def call_at(self, tick: Tick, priority: int, callback: Callback) -> None:
        """Call `callback` at `tick`, which is now or later."""
        _push(self._queue, (tick, priority, self._number(), callback))

    def is_last(self) -> bool:
        """Whether nothing more is scheduled for this tick."""
        queue = self._queue
        return not queue or queue[0][0] > self.tick

    def run_before(self, end: Tick | None = None) -> None:
        """Process everything, or everything before `end`."""
        queue = self._queue
        while queue:
            head = queue[0]
            tick, event = head[0], head[3]
            if end is not None and tick >= end:
                return
            self.tick = tick
            if isinstance(event, _Event):
                self._environment.step()
            else:
                _pop(queue)
                event()
