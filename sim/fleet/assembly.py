"""The pieces of one run, wired, and its course: what happens until when, and which part of it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.interface import Engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.clients import Clients, Follower, Shift
from replicast.sim.fleet.dispatch import Dispatcher
from replicast.sim.fleet.events import Clock
from replicast.sim.fleet.lifecycle import Lifecycle
from replicast.sim.fleet.operations import Operations
from replicast.sim.fleet.prefix_router import make_router
from replicast.sim.fleet.record_file import RecordWriter
from replicast.sim.fleet.recorder import Recorder
from replicast.sim.fleet.replica import Replica
from replicast.sim.fleet.result import BLOCKERS
from replicast.sim.fleet.source import Source
from replicast.sim.fleet.timeline import Totals
from replicast.sim.ticks import Tick, ticks

MakeEngine = Callable[[EngineConfig, StepTime], Engine]

GENERATIONS = 3
START_OF_RUN, END_OF_RUN = "start of the run", "end of the run"
FIRST_GENERATION = "as many sessions had finished as are live"
NO_SUCCESSOR = "a finished session found no successor"
_STARTS, _ROUTER = 0, 1  # random streams


class Mark(NamedTuple):
    """All replicas' integrals and counters at one tick."""

    tick: Tick
    totals: list[Totals]
    stats: list[EngineStats]

    def of(self, replica: int) -> tuple[Totals, EngineStats]:
        """Those of one replica: zeros before it was started."""
        if replica < len(self.totals):
            return self.totals[replica], self.stats[replica]
        return Totals(0, 0, 0.0, (0,) * len(BLOCKERS)), EngineStats()


class Course(NamedTuple):
    """How a run went: the measured part and the rules that chose its ends, and when all was over."""

    start: Mark
    end: Mark
    last_tick: Tick
    start_rule: str
    end_rule: str


class Assembly:
    """Everything that one run needs; `run` it once."""

    def __init__(
        self,
        source: Source,
        config: EngineConfig,
        step_time: StepTime,
        seed: int,
        progress: Callable[[int], None] | None,
        engines: MakeEngine,
        followers: Mapping[int, Follower] | None,
        writer: RecordWriter | None,
        shifts: Sequence[Shift] | None,
        operations: Operations | None,
    ) -> None:
        self.source = source
        self.config = config
        self._fleet = fleet = source.fleet
        self._has_shifts = shifts is not None
        self.recorder = Recorder(ticks(fleet.front_end.delivery_s), writer)
        self._clock = clock = Clock()
        self._router = router = make_router(fleet, config, _generator(seed, _ROUTER))
        self.dispatcher = dispatcher = Dispatcher(clock, config, fleet, router, self.recorder, progress)

        def make() -> Replica:
            return Replica(clock, config, engines(config, step_time), dispatcher.on_finished)

        self.replicas = [make() for _ in range(fleet.replicas)]
        dispatcher.replicas = self.replicas
        self.clients = Clients(
            clock, source, fleet, _generator(seed, _STARTS), dispatcher.send, self._session_ended, followers,
            shifts,
        )  # fmt: skip
        dispatcher.on_reply = self.clients.replied
        self.lifecycle: Lifecycle | None = None
        if operations is not None:
            self.lifecycle = life = Lifecycle(
                clock, operations, self.replicas, make, dispatcher, self._is_over
            )
            dispatcher.on_empty, dispatcher.is_over = life.drained, self._is_over
        self._start: Mark | None = None
        self._end: Mark | None = None
        self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN

    def run(self) -> Course:
        """Run; what is in flight at the end is recorded as unfinished."""
        first = self._mark(0)
        last = self._to_the_end()
        self.source.check_not_empty()
        self._forget_generations()
        start, end = self._start or first, self._end or last
        if start.tick >= end.tick:
            start, end = first, last
            self._start_rule, self._end_rule = START_OF_RUN, END_OF_RUN
        self.dispatcher.record_unfinished(last.tick)
        return Course(start, end, last.tick, self._start_rule, self._end_rule)

    def _is_over(self) -> bool:
        return self.clients.stopped or self.clients.exhausted

    def _session_ended(self, index: int, replaced: bool) -> None:
        self._router.session_ended(index)
        fleet = self._fleet
        if fleet.sessions is None:
            return
        if fleet.warmup_s is None and self.clients.num_finished == fleet.sessions:
            self._start, self._start_rule = self._mark(self._clock.tick), FIRST_GENERATION
        if not replaced and self._end is None and not self._has_shifts:
            self._end, self._end_rule = self._mark(self._clock.tick), NO_SUCCESSOR

    def _forget_generations(self) -> None:
        """Marks at the ends of sessions mean nothing where sessions are too few to replace each other."""
        live = self._fleet.sessions
        if live is not None and self.source.num_sessions >= GENERATIONS * live:
            return
        if self._start_rule == FIRST_GENERATION:
            self._start, self._start_rule = None, START_OF_RUN
        if self._end_rule == NO_SUCCESSOR:
            self._end, self._end_rule = None, END_OF_RUN

    def _mark(self, tick: Tick) -> Mark:
        for replica in self.replicas:
            replica.timeline.advance(tick)
        return Mark(
            tick,
            [replica.timeline.totals for replica in self.replicas],
            [replace(replica.engine.stats) for replica in self.replicas],
        )

    def _to_the_end(self) -> Mark:
        """Run to the end, and the state then."""
        fleet, clients, clock = self._fleet, self.clients, self._clock
        clients.start()
        if self.lifecycle is not None:
            self.lifecycle.start()
        if fleet.warmup_s:
            warm = ticks(fleet.warmup_s)
            clock.run_before(warm)
            if not clients.exhausted:
                self._start, self._start_rule = self._mark(warm), "given"
        if fleet.horizon_s is not None:
            horizon = ticks(fleet.horizon_s)
            clock.run_before(horizon)
            if not clients.exhausted:
                clients.stopped = True
                self._forget_generations()
                if self._end is None:
                    self._end, self._end_rule = self._mark(horizon), "horizon"
                cut = horizon + ticks(fleet.cooldown_s)
                clock.run_before(cut)
                return self._mark(cut if self.dispatcher.num_in_flight else max(horizon, clock.tick))
        clock.run_before()
        return self._mark(clock.tick)


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))
