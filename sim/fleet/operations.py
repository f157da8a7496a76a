"""Replicas that come and go: an autoscaler, and losses (`lifecycle.py` carries them out).

A replica is
  starting  paid, takes no requests for `start_up_s` (scheduling, weights, compilation)
  live      takes requests; its prefix cache is empty at first
  draining  takes no new requests, finishes those it has, and is gone when it has none
  gone      not paid any more
  lost      gone at once: the requests on it fail, and their clients send them again after `retry_s`, which
            counts as a new request; replies that have left it arrive

The autoscaler looks every `every_s` at the mean over live replicas and over that time of its metric. Above
`up` it starts as many as would bring the load down to `up`, at most doubling what there is. Where one replica
fewer would have kept the load below `down` at each look for `hold_s`, the one with the fewest requests is
drained (of equals the newest). Replicas that are starting count as there; while one starts nobody is drained.

Metrics: `requests` (running and waiting), `waiting`, `kv-usage` (0 to 1), each a mean per live replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, get_args

from replicast.sim.errors import InputError
from replicast.sim.fleet.config import LONGEST_S
from replicast.sim.workload import Seconds

ScaleMetric = Literal["requests", "waiting", "kv-usage"]
State = Literal["starting", "live", "draining", "gone", "lost"]


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """When replicas are added and taken away; see the module."""

    metric: ScaleMetric
    up: float
    down: float
    min_replicas: int = 1
    max_replicas: int = 64
    every_s: Seconds = 60.0
    hold_s: Seconds = 600.0
    start_up_s: Seconds = 300.0

    def __post_init__(self) -> None:
        if self.metric not in get_args(ScaleMetric):
            raise InputError(
                f"metric {self.metric!r} is unknown", remedy=f"Use one of {', '.join(get_args(ScaleMetric))}."
            )
        if not 0 <= self.down <= self.up < math.inf or self.up == 0:
            raise InputError(
                f"scaling up above {self.up:g} and down below {self.down:g}",
                remedy="The upper threshold must be above 0, the lower one not above it.",
            )
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise InputError(
                f"{self.min_replicas} to {self.max_replicas} replicas", remedy="Use 1 or more, in order."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not 0 <= value <= LONGEST_S:
                raise InputError(f"{field.name} is {value}", remedy=f"Use 0 to {LONGEST_S:.0e} s.")
        if self.every_s < 1:
            raise InputError(f"every_s is {self.every_s:g}", remedy="Look at most once a second.")


@dataclass(frozen=True, slots=True)
class Loss:
    """The busiest live replica is lost at `at_s`; another one, cold, takes requests `replaced_after_s` later.

    None: it is not replaced.
    """

    at_s: Seconds
    replaced_after_s: Seconds | None = None

    def __post_init__(self) -> None:
        for value in (self.at_s, self.replaced_after_s or 0.0):
            if not 0 <= value <= LONGEST_S:
                raise InputError(f"a loss has the time {value:g} s", remedy=f"Use 0 to {LONGEST_S:.0e} s.")


@dataclass(frozen=True, slots=True)
class Operations:
    """All that happens to the replicas of one run; the default is nothing."""

    autoscaling: Autoscaling | None = None
    losses: tuple[Loss, ...] = ()
    retry_s: Seconds = 1.0


class Lifetime(NamedTuple):
    """One replica: paid from `start_s` to `end_s`, taking requests from `live_s` to `leave_s`.

    Times are cut at the end of the run; `live_s` is None where it never was live.
    """

    start_s: Seconds
    live_s: Seconds | None
    leave_s: Seconds
    end_s: Seconds
    state: State


def paid_hours(lifetimes: tuple[Lifetime, ...], start_s: Seconds, end_s: Seconds) -> float:
    """Replica-hours paid between two moments."""
    return sum(max(min(life.end_s, end_s) - max(life.start_s, start_s), 0.0) for life in lifetimes) / 3600
