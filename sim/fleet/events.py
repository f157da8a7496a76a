"""Callbacks on SimPy's queue, and the order of what happens at one tick.

SimPy time is whole ticks. At one tick, in this order:

    COMPLETE  steps that end: outputs are processed, seats and blocks become free
    REPLY     replies reach clients, which decide what they send next
    ARRIVAL   requests arrive at the fleet and are handed to engines
    BEGIN     engines take in what arrived and start their next steps

so a step that begins at a tick sees every seat, reply and arrival of that tick, as in vLLM's loop.
Within one kind, first scheduled goes first.

Two shortcuts change nothing: replies that need no delivery time follow in the COMPLETE itself, and a step
begins in the event at hand if no other is left at the tick (so an ARRIVAL hands over one request
at most, and last). Plain callbacks instead of SimPy processes: no generator is resumed for a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicast.sim.ticks import Tick
from simpy import Environment, Event
from simpy.events import EventPriority

COMPLETE = EventPriority(0)
REPLY = EventPriority(1)
ARRIVAL = EventPriority(2)
BEGIN = EventPriority(3)


class Clock(Environment):
    """SimPy's environment, its time in whole ticks."""

    @property
    def tick(self) -> Tick:
        """Now."""
        return self._now  # type: ignore[return-value]  # SimPy allows floats


class Call(Event):
    """Calls `callback(self)` after `delay` ticks; `about` is for the callback."""

    def __init__(
        self,
        clock: Clock,
        delay: Tick,
        priority: EventPriority,
        callback: Callable[[Call], None],
        about: Any = None,
    ) -> None:
        # Triggered from the start, as simpy.events.Timeout is; Event.__init__ would undo that.
        self.env = clock
        self.callbacks = [callback]
        self.about = about
        self._value = None
        self._ok = True
        clock.schedule(self, priority, delay)


class Repeating(Event):
    """An event that can be scheduled again and again, also while it is still on the queue.

    SimPy takes the callbacks from an event that it processes, so the callback's first act is to
    put them back: `event.callbacks = event.calls`.
    """

    def __init__(self, clock: Clock, callback: Callable[[Repeating], None]) -> None:
        self.env = clock
        self.calls = [callback]
        self.callbacks = self.calls
        self._value = None
        self._ok = True
