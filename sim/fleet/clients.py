"""Clients: when each turn of each session is sent (`FleetConfig` has the loops).

A turn without dependencies is sent when its session starts, any other `delay_s` after the last reply that
it depends on; so sub-agents fork and join by `depends_on` alone. A rejected request counts as replied:
its session goes on, or is truncated (nothing more of it is sent). The human part of a delay is capped.
Only live sessions are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.delays import capped_delay
from replicast.sim.fleet.events import ARRIVAL, Clock
from replicast.sim.fleet.flight import LiveSession
from replicast.sim.fleet.source import Arrivals, Source, Taken
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Seconds, Session

Send = Callable[[LiveSession, int], None]


class Follower(NamedTuple):
    """The session that the same developer begins `gap_s` after one has ended."""

    session_index: int
    gap_s: Seconds


class Shift(NamedTuple):
    """When a developer comes and leaves: the first session starts, and nothing more is sent."""

    start_s: Seconds
    end_s: Seconds


class Clients:
    """Calls `send(live, turn_index)` at each arrival, and is told of each reply.

    `on_session_end(session_index, replaced)` is called when a session has finished; `replaced` says whether
    another one has taken its place. With `followers` (closed loop) each developer has sessions of its own:
    the first `fleet.sessions` ones begin, any other after the one that it follows. With `shifts`, one for
    each of those first ones, they begin when their developers come; who leaves sends nothing more.
    """

    def __init__(
        self,
        clock: Clock,
        source: Source,
        fleet: FleetConfig,
        rng: np.random.Generator,
        send: Send,
        on_session_end: Callable[[int, bool], None],
        followers: Mapping[int, Follower] | None = None,
        shifts: Sequence[Shift] | None = None,
    ) -> None:
        self._clock = clock
        self._source = source
        self._fleet = fleet
        self._rng = rng
        self._send = send
        self._on_session_end = on_session_end
        self._followers = followers
        self._shifts = shifts
        self._num_live = 0
        self._by_arrival: Iterator[tuple[int, Session, Arrivals]] = iter(())
        self._coming: tuple[int, Session, Arrivals] | None = None  # the next recorded session
        self._first_s: Seconds | None = None  # tick 0 of recorded arrivals
        self._num_coming = 0  # sessions with a start scheduled
        self._no_more = False  # none is left to be scheduled
        self.stopped = False  # nothing new is sent any more
        self.num_started = 0
        self.num_finished = 0
        self.num_truncated = 0
        self.num_capped_delays = 0

    @property
    def exhausted(self) -> bool:
        """All sessions of the trace have finished."""
        return self._no_more and not self._num_live and not self._num_coming

    def start(self) -> None:
        """Schedule the first sessions, or the recorded arrivals."""
        if self._fleet.loop == "closed":
            self._start_closed()
        else:
            self._by_arrival = self._source.by_arrival(every_turn=self._fleet.loop == "open")
            self._await_session()

    # Closed loop: a session starts when another has ended

    def _start_closed(self) -> None:
        live, stagger_s = self._fleet.sessions, self._fleet.stagger_s
        assert live is not None
        assert stagger_s is not None
        if self._shifts is not None:
            for shift in self._shifts:
                taken = self._take()
                assert taken is not None, "each shift has a session"
                self._start_at(ticks(shift.start_s), *taken, ticks(shift.end_s))
            self._no_more = True
            return
        first = [taken for _ in range(live) if (taken := self._take()) is not None]
        starts = np.sort(self._rng.uniform(0.0, stagger_s, size=len(first)))
        for start_s, (place, session) in zip(starts - starts[:1], first, strict=True):
            self._start_at(ticks(float(start_s)), place, session)
        if self._followers is not None:
            self._no_more = True  # but for those who follow, and they are scheduled at once

    def _take(self) -> Taken | None:
        taken = self._source.take()
        if taken is None:
            self._no_more = True
        return taken

    def _start_at(self, tick: Tick, place: int, session: Session, end: Tick | None = None) -> None:
        if end is not None and tick >= end:
            return
        self._num_coming += 1
        self._clock.call_at(tick, ARRIVAL, partial(self._start_coming, place, session, end))

    def _start_coming(self, place: int, session: Session, end: Tick | None) -> None:
        self._num_coming -= 1
        if not self.stopped:
            self._start_session(place, session, end)

    def _start_session(self, place: int, session: Session, end: Tick | None = None) -> None:
        live = self._open_session(place, session)
        live.end = end
        roots = [t for t, turn in enumerate(live.turns) if not turn.depends_on]
        live.pending = max(len(roots), 1)
        now = self._clock.tick
        for t in roots:
            self._clock.call_at(now, ARRIVAL, partial(self._due, live, t))
        if not roots:
            self._clock.call_at(now, ARRIVAL, partial(self._ended, live))

    def _open_session(self, place: int, session: Session) -> LiveSession:
        turns = session.turns
        missing = [len(turn.depends_on) for turn in turns]
        dependents: dict[int, list[int]] = {}
        if any(missing):
            by_clock = self._fleet.loop == "open"
            for t, turn in enumerate(turns):
                if not (by_clock and turn.arrival_s is not None):
                    for before in turn.depends_on:
                        dependents.setdefault(before, []).append(t)
        self.num_started += 1
        self._num_live += 1
        return LiveSession(place, turns, missing, dependents)

    # Recorded arrivals

    def _await_session(self) -> None:
        self._coming = coming = next(self._by_arrival, None)
        if coming is None:
            self._no_more = True
        else:
            tick = self._tick_of(coming[2][0][0])
            self._clock.call_at(tick, ARRIVAL, self._session_arrives)

    def _session_arrives(self) -> None:
        """Schedule its arrivals and the next session, then send: an ARRIVAL hands over last."""
        if self.stopped:
            return
        assert self._coming is not None, "a session was to arrive"
        place, session, arrivals = self._coming
        live = self._open_session(place, session)
        live.pending = len(arrivals)
        for arrival_s, t in arrivals[1:]:
            self._clock.call_at(self._tick_of(arrival_s), ARRIVAL, partial(self._due, live, t))
        self._await_session()
        self._send(live, arrivals[0][1])

    def _tick_of(self, arrival_s: Seconds) -> Tick:
        if self._first_s is None:
            self._first_s = arrival_s
        return ticks(arrival_s - self._first_s)

    # Turns

    def _due(self, live: LiveSession, t: int) -> None:
        if self.stopped:
            return
        if live.truncated or (live.end is not None and self._clock.tick >= live.end):
            self._ended(live)
        else:
            self._send(live, t)

    def replied(self, live: LiveSession, turn_index: int, rejected: bool) -> None:
        """The reply to a turn has reached its client now."""
        if rejected and self._fleet.over_length == "truncate-session" and not live.truncated:
            live.truncated = True
            self.num_truncated += 1
        dependents = live.dependents.get(turn_index)
        if dependents and not live.truncated:
            missing = live.missing
            for t in dependents:
                missing[t] -= 1
                if not missing[t]:
                    live.pending += 1
                    delay_s, capped = capped_delay(live.turns[t], self._fleet.think_cap_s)
                    self.num_capped_delays += capped
                    tick = self._clock.tick + ticks(delay_s)
                    self._clock.call_at(tick, ARRIVAL, partial(self._due, live, t))
        self._ended(live)

    def _ended(self, live: LiveSession) -> None:
        """One turn fewer is due or in flight."""
        live.pending -= 1
        if not live.pending:
            self._finish_session(live)

    def _finish_session(self, live: LiveSession) -> None:
        self._num_live -= 1
        self.num_finished += 1
        if self._followers is not None:
            self._follow(live.index, self._followers.get(live.index), live.end)
            return
        following = None if self.stopped or self._fleet.loop != "closed" else self._take()
        self._on_session_end(live.index, following is not None)
        if following is not None:
            self._start_session(*following)

    def _follow(self, index: int, follower: Follower | None, end: Tick | None) -> None:
        self._on_session_end(index, follower is not None)
        if follower is not None and not self.stopped:
            tick = self._clock.tick + ticks(follower.gap_s)
            self._start_at(tick, *self._source.at(follower.session_index), end)
