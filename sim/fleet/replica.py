"""One replica: an engine driven by the fleet's clock.

It wakes the engine at `engine.next_tick`, which a submit may move to an earlier tick: the later wake-up
then finds another `next_tick` (or none) and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from replicast.sim.config import EngineConfig
from replicast.sim.engine.interface import Engine
from replicast.sim.fleet.events import BEGIN, COMPLETE, Clock
from replicast.sim.fleet.timeline import Timeline
from replicast.sim.request import Request
from replicast.sim.ticks import Tick


class Replica:
    """`on_finished` gets the requests of one step that finished, in output order."""

    def __init__(
        self,
        clock: Clock,
        config: EngineConfig,
        engine: Engine,
        on_finished: Callable[[list[Request]], None],
    ) -> None:
        self.engine = engine
        self.timeline = Timeline(config)
        self._clock = clock
        self._on_finished = on_finished
        self._armed: Tick | None = None
        self._begins = False
        self.lost = False
        self._wake = self._complete  # bound once, not at each event

    def submit(self, request: Request) -> None:
        """Hand `request` to the engine now: the last thing that an ARRIVAL does."""
        if self.lost:
            return
        now = self._clock.tick
        engine = self.engine
        engine.submit(request, now)
        tick = engine.next_tick
        if tick is None:
            self._begin_after_arrivals(now)
            return
        if tick != self._armed:
            self._armed = tick
            self._clock.call_at(tick, COMPLETE, self._wake)
        self.timeline.look_at_queue(now, engine.num_waiting)

    def _complete(self) -> None:
        now = self._clock.tick
        engine = self.engine
        if engine.next_tick != now or self.lost:
            return
        self._armed = None
        finished = engine.complete(now)
        if finished:
            self._on_finished(finished)
        self._begin_after_arrivals(now)

    def _begin_after_arrivals(self, now: Tick) -> None:
        """Begin once nothing more can happen at this tick: at once, if nothing more is scheduled for it."""
        if self._begins:
            return
        if self._clock.is_last():
            self._begin(now)
        else:
            self._begins = True
            self._clock.call_at(now, BEGIN, self._begin_last)

    def _begin_last(self) -> None:
        self._begins = False
        if not self.lost:
            self._begin(self._clock.tick)

    def lose(self) -> None:
        """The replica is gone now, with all that it holds."""
        self.lost = True
        self.timeline.end(self._clock.tick)

    def _begin(self, now: Tick) -> None:
        engine = self.engine
        engine.begin(now)
        tick = engine.next_tick
        if tick is not None and tick != self._armed:
            self._armed = tick
            self._clock.call_at(tick, COMPLETE, self._wake)
        self.timeline.look(now, engine, begun=True)
