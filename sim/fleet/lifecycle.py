"""Replicas come and go while a run goes on, by the rules of `operations.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, get_args

from replicast.sim.fleet.events import CONTROL, Clock
from replicast.sim.fleet.operations import Autoscaling, Lifetime, Loss, Operations, ScaleMetric, State
from replicast.sim.fleet.replica import Replica
from replicast.sim.ticks import Tick, seconds, ticks
from replicast.sim.workload import Seconds


class Members(Protocol):
    """Whom a lifecycle tells (the dispatcher)."""

    def joined(self, replica: int) -> None:
        """`replica` takes requests from now on."""

    def left(self, replica: int) -> None:
        """`replica` gets no more requests."""

    def lost(self, replica: int, retry: Tick) -> None:
        """Everything on `replica` has failed; clients send it again after `retry`."""

    def outstanding(self, replica: int) -> int:
        """Requests on `replica`, those on their way to it included."""


@dataclass(slots=True, eq=False)
class _Life:
    state: State
    start: Tick
    live: Tick | None = None
    leave: Tick | None = None
    end: Tick | None = None
    before: tuple[int, int, float] = (0, 0, 0.0)  # integrals at the last look
    since: Tick = 0


class Lifecycle:
    """Carries `operations` out; `replicas` grows by each replica that becomes live, none is ever removed."""

    def __init__(
        self,
        clock: Clock,
        operations: Operations,
        replicas: list[Replica],
        make: Callable[[], Replica],
        members: Members,
        over: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._operations = operations
        self._replicas = replicas
        self._make = make
        self._members = members
        self._over = over
        self._lives = [_Life("live", 0, 0) for _ in replicas]
        self._starting: list[_Life] = []
        self._calm_since: Tick | None = None

    def start(self) -> None:
        """Schedule losses and the first look."""
        for loss in self._operations.losses:
            self._clock.call_at(ticks(loss.at_s), CONTROL, partial(self._lose, loss))
        if self._operations.autoscaling is not None:
            self._look_later(self._operations.autoscaling)

    def lifetimes(self, end: Tick) -> tuple[Lifetime, ...]:
        """What became of each replica until `end`: by number, then those that never were live."""

        def until(tick: Tick | None) -> Seconds:
            return seconds(end if tick is None else min(tick, end))

        return tuple(
            Lifetime(
                seconds(life.start),
                None if life.live is None else seconds(life.live),
                until(life.leave),
                until(life.end),
                life.state,
            )
            for life in (*self._lives, *self._starting)
        )

    def drained(self, replica: int) -> None:
        """`replica` has answered its last request."""
        life = self._lives[replica]
        if life.state == "draining" and life.end is None:
            life.state, life.end = "gone", self._clock.tick

    def _in(self, state: State) -> list[int]:
        return [i for i, life in enumerate(self._lives) if life.state == state]

    # Coming and going

    def _start(self, start_up_s: Seconds) -> None:
        life = _Life("starting", self._clock.tick)
        self._starting.append(life)
        self._clock.call_at(self._clock.tick + ticks(start_up_s), CONTROL, partial(self._ready, life))

    def _ready(self, life: _Life) -> None:
        self._starting.remove(life)
        self._lives.append(life)
        self._replicas.append(self._make())
        life.state, life.live, life.since = "live", self._clock.tick, self._clock.tick
        self._members.joined(len(self._lives) - 1)

    def _drain(self, replica: int) -> None:
        life = self._lives[replica]
        life.state, life.leave = "draining", self._clock.tick
        self._members.left(replica)
        if not self._members.outstanding(replica):
            self.drained(replica)

    def _lose(self, loss: Loss) -> None:
        live = self._in("live")
        if not live:
            return
        replica = max(live, key=lambda i: (self._members.outstanding(i), -i))
        life = self._lives[replica]
        life.state, life.leave, life.end = "lost", self._clock.tick, self._clock.tick
        self._members.left(replica)
        self._replicas[replica].lose()
        self._members.lost(replica, ticks(self._operations.retry_s))
        if loss.replaced_after_s is not None:
            self._start(loss.replaced_after_s)

    # The autoscaler

    def _look_later(self, rule: Autoscaling) -> None:
        self._clock.call_at(self._clock.tick + ticks(rule.every_s), CONTROL, partial(self._look, rule))

    def _look(self, rule: Autoscaling) -> None:
        if self._over():
            return
        live, starting = self._in("live"), self._starting
        value = sum(self._seen(i, rule.metric) for i in live) / len(live) if live else math.inf
        if not live or value > rule.up:
            self._calm_since = None
            most = 2 * max(len(live), 1)
            wanted = min(math.ceil(len(live) * value / rule.up), most) if live else 1
            for _ in range(min(wanted, rule.max_replicas) - len(live) - len(starting)):
                self._start(rule.start_up_s)
        elif len(live) > rule.min_replicas and value * len(live) / (len(live) - 1) < rule.down:
            now = self._clock.tick
            if self._calm_since is None:
                self._calm_since = now
            if now - self._calm_since >= ticks(rule.hold_s) and not starting:
                self._calm_since = now
                self._drain(min(live, key=lambda i: (self._members.outstanding(i), -i)))
        else:
            self._calm_since = None
        self._look_later(rule)

    def _seen(self, replica: int, metric: ScaleMetric) -> float:
        """The metric's mean since the last look at this replica."""
        timeline, life, now = self._replicas[replica].timeline, self._lives[replica], self._clock.tick
        timeline.advance(now)
        totals = timeline.totals
        integrals = (totals.running + totals.waiting, totals.waiting, totals.kv_usage)
        place = get_args(ScaleMetric).index(metric)
        mean = (integrals[place] - life.before[place]) / max(now - life.since, 1)
        life.before, life.since = integrals, now
        return mean
