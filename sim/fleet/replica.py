"""One replica: an engine driven by the fleet's clock.

It wakes the engine at `engine.next_tick`, which a submit may move to an earlier tick: the later wake-up
then finds another `next_tick` (or none) and does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.fleet.events import BEGIN, COMPLETE, Call, Clock
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

    def submit(self, request: Request) -> None:
        """Hand `request` to the engine now."""
        now = self._clock.tick
        engine = self.engine
        engine.submit(request, now)
        self.timeline.look(now, engine)
        if engine.next_tick is None:
            self._begin_after_arrivals()
        else:
            self._arm()

    def _arm(self) -> None:
        tick = self.engine.next_tick
        if tick is not None and tick != self._armed:
            self._armed = tick
            Call(self._clock, tick - self._clock.tick, COMPLETE, self._complete)

    def _complete(self, _: Call) -> None:
        now = self._clock.tick
        engine = self.engine
        if engine.next_tick != now:
            return
        self._armed = None
        finished = engine.complete(now)
        if finished:
            self._on_finished(finished)
        if self._clock.peek() > now:
            self._begin()
        else:
            self._begin_after_arrivals()

    def _begin_after_arrivals(self) -> None:
        if not self._begins:
            self._begins = True
            Call(self._clock, 0, BEGIN, self._begin)

    def _begin(self, _: Call | None = None) -> None:
        self._begins = False
        now = self._clock.tick
        self.engine.begin(now)
        self._arm()
        self.timeline.look(now, self.engine, begun=True)
