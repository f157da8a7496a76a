"""What a replication asks of the fleet, as planning sees it; `traces/developers.py` makes it.

A load model gives the same workload for the same replication number, whatever the fleet: common random
numbers, so that replica counts and what-ifs differ by the fleet alone. Developer number i has the same
sessions however many developers there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from replicast.sim.fleet.clients import Follower, Shift
from replicast.sim.planning.changes import Change
from replicast.sim.workload import Session


class Workload(NamedTuple):
    """Sessions of one replication: the first `live` ones begin, `followers` says what comes after which."""

    sessions: tuple[Session, ...]
    live: int
    followers: Mapping[int, Follower]


class DayWorkload(NamedTuple):
    """Sessions of a day: the first of each shift in order, `live` the sessions live in each hour."""

    sessions: tuple[Session, ...]
    followers: Mapping[int, Follower]
    shifts: tuple[Shift, ...]
    live: tuple[int, ...]


class LoadModel(Protocol):
    """Where workloads come from."""

    @property
    def live_sessions(self) -> int:
        """Sessions live at one time."""

    @property
    def developers(self) -> int:
        """Developers they belong to, idle ones included."""

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions that are resampled."""

    def draw(self, replication: int) -> Workload:
        """The workload of one replication; same number, same workload."""

    def draw_day(self, replication: int, day: Sequence[float]) -> DayWorkload:
        """The workload of a day with these active shares by hour."""

    @property
    def left_out(self) -> int:
        """Turns of the sessions that no server takes: their prompts are too long."""

    def changed(self, change: Change) -> LoadModel:
        """The load after one change of `changes.LOAD_NAMES`."""

    def below(self, longest: int) -> LoadModel:
        """The load where prompts of `longest` tokens or more are not taken: sessions end there."""
