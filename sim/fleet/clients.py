"""Clients: when each turn of each session is sent (`FleetConfig` has the loops).

A turn without dependencies is sent when its session starts, any other `delay_s` after the last reply that
it depends on; so sub-agents fork and join by `depends_on` alone. A rejected request counts as replied:
its session goes on, or is truncated (nothing more of it is sent). The human part of a delay is capped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig, capped_delay
from replicast.sim.fleet.events import ARRIVAL, Call, Clock, Repeating
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Seconds, Session, Turn

Send = Callable[[int, int], None]


class Follower(NamedTuple):
    """The session that the same developer begins `gap_s` after one has ended."""

    session_index: int
    gap_s: Seconds


@dataclass(slots=True)
class _Live:
    """A session under way.

    `missing[t]` replies are still to come before turn t is due; `dependents` are the turns that wait for
    a reply (turns that are sent by the clock wait for none).
    """

    missing: list[int]
    dependents: dict[int, list[int]]
    pending: int  # turns due or in flight
    truncated: bool = False


class Clients:
    """Calls `send(session_index, turn_index)` at each arrival, and is told of each reply.

    `on_session_end(replaced)` is called when a session has finished; `replaced` says whether another
    one has taken its place. With `followers` (closed loop) each developer has sessions of its own: the
    first `fleet.sessions` ones begin, any other after the one that it follows.
    """

    def __init__(
        self,
        clock: Clock,
        sessions: Sequence[Session],
        fleet: FleetConfig,
        rng: np.random.Generator,
        send: Send,
        on_session_end: Callable[[bool], None],
        followers: Mapping[int, Follower] | None = None,
    ) -> None:
        self._clock = clock
        self._sessions = sessions
        self._fleet = fleet
        self._rng = rng
        self._send = send
        self._on_session_end = on_session_end
        self._followers = followers
        self._live: dict[int, _Live] = {}
        self._next_session = 0
        self._arrivals: Iterator[tuple[Tick, int, int]] = iter(())
        self._next_arrival = (0, 0, 0)
        self._arrives = Repeating(clock, self._recorded)
        self._timed_turns: dict[int, int] = {}
        self._num_to_run = len(sessions)
        self.stopped = False  # nothing new is sent any more
        self.num_started = 0
        self.num_finished = 0
        self.num_truncated = 0
        self.num_capped_delays = 0

    @property
    def exhausted(self) -> bool:
        """All sessions of the trace have finished."""
        return self.num_finished == self._num_to_run

    def start(self) -> None:
        """Schedule the first sessions, or the recorded arrivals."""
        if self._fleet.loop == "closed":
            self._start_closed()
        else:
            arrivals = recorded_arrivals(self._sessions, every_turn=self._fleet.loop == "open")
            for _, session_index, _ in arrivals:
                self._timed_turns[session_index] = self._timed_turns.get(session_index, 0) + 1
            self._num_to_run = len(self._timed_turns)
            self._arrivals = iter(arrivals)
            self._await_arrival()

    def _start_closed(self) -> None:
        sessions, stagger_s = self._fleet.sessions, self._fleet.stagger_s
        assert sessions is not None
        assert stagger_s is not None
        live = min(sessions, len(self._sessions))
        starts = np.sort(self._rng.uniform(0.0, stagger_s, size=live))
        for start_s in starts - starts[0] if live else starts:
            Call(self._clock, ticks(float(start_s)), ARRIVAL, self._start_next)
        self._next_session = live
        self._first_sessions = iter(range(live))

    def _start_next(self, _: Call) -> None:
        self._start_session(next(self._first_sessions))

    def _start_session(self, index: int) -> None:
        turns = self._sessions[index].turns
        live = self._open_session(index)
        roots = [t for t, turn in enumerate(turns) if not turn.depends_on]
        live.pending = max(len(roots), 1)
        for t in roots:
            Call(self._clock, 0, ARRIVAL, self._due, (index, t))
        if not roots:
            Call(self._clock, 0, ARRIVAL, self._nothing_to_send, index)

    def _nothing_to_send(self, event: Call) -> None:
        self._ended(event.about)

    def _open_session(self, index: int) -> _Live:
        turns = self._sessions[index].turns
        live = self._live[index] = _Live([len(turn.depends_on) for turn in turns], {}, 0)
        by_clock = self._fleet.loop == "open"
        for t, turn in enumerate(turns):
            if turn.depends_on and not (by_clock and turn.arrival_s is not None):
                for before in turn.depends_on:
                    live.dependents.setdefault(before, []).append(t)
        self.num_started += 1
        return live

    def _await_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._next_arrival = arrival
            self._clock.schedule(self._arrives, ARRIVAL, arrival[0] - self._clock.tick)

    def _recorded(self, event: Repeating) -> None:
        event.callbacks = event.calls
        _, index, turn_index = self._next_arrival
        self._await_arrival()
        if self.stopped:
            return
        live = self._live.get(index)
        if live is None:
            self._open_session(index).pending = self._timed_turns.pop(index)
        self._send_or_drop(index, turn_index)

    def _due(self, event: Call) -> None:
        if not self.stopped:
            self._send_or_drop(*event.about)

    def _send_or_drop(self, index: int, turn_index: int) -> None:
        if self._live[index].truncated:
            self._ended(index)
        else:
            self._send(index, turn_index)

    def replied(self, index: int, turn_index: int, rejected: bool) -> None:
        """The reply to a turn has reached its client now."""
        live = self._live[index]
        if rejected and self._fleet.over_length == "truncate-session" and not live.truncated:
            live.truncated = True
            self.num_truncated += 1
        dependents = live.dependents.get(turn_index)
        if dependents and not live.truncated:
            turns = self._sessions[index].turns
            for t in dependents:
                live.missing[t] -= 1
                if not live.missing[t]:
                    live.pending += 1
                    Call(self._clock, ticks(self._delay(turns[t])), ARRIVAL, self._due, (index, t))
        self._ended(index)

    def _delay(self, turn: Turn) -> Seconds:
        delay_s, capped = capped_delay(turn, self._fleet.think_cap_s)
        self.num_capped_delays += capped
        return delay_s

    def _ended(self, index: int) -> None:
        live = self._live[index]
        live.pending -= 1
        if not live.pending:
            self._finish_session(index)

    def _finish_session(self, index: int) -> None:
        del self._live[index]
        self.num_finished += 1
        if self._followers is not None:
            self._follow(self._followers.get(index))
            return
        replaced = self._fleet.loop == "closed" and self._next_session < len(self._sessions)
        self._on_session_end(replaced)
        if replaced and not self.stopped:
            self._next_session += 1
            self._start_session(self._next_session - 1)

    def _follow(self, follower: Follower | None) -> None:
        self._on_session_end(follower is not None)
        if follower is not None and not self.stopped:
            Call(self._clock, ticks(follower.gap_s), ARRIVAL, self._begin_follower, follower.session_index)

    def _begin_follower(self, event: Call) -> None:
        if not self.stopped:
            self._start_session(event.about)


def recorded_arrivals(sessions: Sequence[Session], *, every_turn: bool) -> list[tuple[Tick, int, int]]:
    """(tick, session, turn) of what is sent by the clock, in order; the first arrival is tick 0.

    With `every_turn` all turns with a recorded arrival; else only those that start a session.
    """
    times: list[tuple[Seconds, int, int]] = []
    for index, session in enumerate(sessions):
        for t, turn in enumerate(session.turns):
            arrival_s = turn.arrival_s
            if not turn.depends_on and arrival_s is None:
                arrival_s = session.start_s
            if arrival_s is not None and (every_turn or not turn.depends_on):
                times.append((arrival_s, index, t))
    if any(arrival_s != arrival_s for arrival_s, _, _ in times):
        raise InputError("a recorded arrival is not a number")
    times.sort()
    first_s = times[0][0] if times else 0.0
    return [(ticks(arrival_s - first_s), index, t) for arrival_s, index, t in times]
