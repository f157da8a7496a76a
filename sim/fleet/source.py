"""Where sessions come from: a whole trace, or an iterator that is read as they are needed.

A whole trace is checked before the run begins. Of an iterator no session is kept but by the clients while
it lives, so its length does not matter; each is checked when it is taken, and a bad one ends the run. What
is settled before the run (loop, stagger) it settles by its first sessions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from replicast.sim.config import EngineConfig
from replicast.sim.errors import InputError
from replicast.sim.fleet.checks import SessionCheck
from replicast.sim.fleet.config import SESSIONS_PER_REPLICA, FleetConfig
from replicast.sim.workload import Seconds, Session

Arrivals = list[tuple[Seconds, int]]
Taken = tuple[int, Session]  # a session and its place among all, from 0


class Source:
    """Hands out sessions one by one and counts them; `fleet` is resolved."""

    def __init__(self, sessions: Iterable[Session], fleet: FleetConfig, config: EngineConfig) -> None:
        self.is_whole = isinstance(sessions, Sequence)
        self.whole: Sequence[Session] = sessions if isinstance(sessions, Sequence) else ()
        self._iterator: Iterator[Session] = iter(sessions)
        first = self.whole
        if not self.is_whole:
            number = fleet.sessions or SESSIONS_PER_REPLICA * max(fleet.replicas, 1)
            first = list(islice(self._iterator, number))
            self._iterator = chain(first, self._iterator)
        self.fleet = fleet.resolved(first)
        self._check = SessionCheck(config, self.fleet)
        self.num_taken = self._turns_taken = 0
        if self.is_whole:
            self.check_not_empty()
            for session in self.whole:
                self._check(session)

    def check_not_empty(self) -> None:
        """Raise where there was nothing to run."""
        if not (self.num_turns if self.is_whole else self._turns_taken):
            raise InputError("the trace holds no turns", remedy="give a trace with at least one request")

    def take(self) -> Taken | None:
        """The next session, if there is one."""
        session = next(self._iterator, None)
        if session is None:
            return None
        if not self.is_whole:
            self._check(session)
        self.num_taken += 1
        self._turns_taken += len(session.turns)
        return self.num_taken - 1, session

    def at(self, index: int) -> Taken:
        """A session by its place in a whole trace."""
        return index, self.whole[index]

    @property
    def num_sessions(self) -> int:
        """Sessions of a trace; of an iterator, those taken."""
        return len(self.whole) if self.is_whole else self.num_taken

    @property
    def num_turns(self) -> int:
        """Their turns."""
        return sum(len(session.turns) for session in self.whole) if self.is_whole else self._turns_taken

    def by_arrival(self, *, every_turn: bool) -> Iterator[tuple[int, Session, Arrivals]]:
        """Sessions of which something is sent by the clock, first arrivals in order.

        A trace is sorted; an iterator must be in this order.
        """
        if self.is_whole:
            timed = []
            for place, session in enumerate(self.whole):
                arrivals = arrivals_of(session, every_turn=every_turn)
                if arrivals:
                    timed.append((arrivals[0][0], place, arrivals))
            timed.sort()
            for _, place, arrivals in timed:
                yield place, self.whole[place], arrivals
            return
        before_s = -math.inf
        while (taken := self.take()) is not None:
            place, session = taken
            arrivals = arrivals_of(session, every_turn=every_turn)
            if not arrivals:
                continue
            if arrivals[0][0] < before_s:
                raise InputError(
                    f"session {session.session_id} starts before the session in front of it",
                    where=session.source,
                    remedy="give the sessions in the order of their starts",
                )
            before_s = arrivals[0][0]
            yield place, session, arrivals


def arrivals_of(session: Session, *, every_turn: bool) -> Arrivals:
    """(seconds, turn) of what is sent by the clock, in order.

    With `every_turn` all turns with a recorded arrival; else only those that start the session.
    """
    arrivals: Arrivals = []
    for t, turn in enumerate(session.turns):
        arrival_s = turn.arrival_s
        if not turn.depends_on:
            if arrival_s is None:
                arrival_s = session.start_s
            if arrival_s is None:
                raise InputError(f"session {session.session_id} has no recorded start", where=session.source)
        elif not every_turn or arrival_s is None:
            continue
        if arrival_s != arrival_s:
            raise InputError("a recorded arrival is not a number", where=session.source)
        arrivals.append((arrival_s, t))
    if len(arrivals) > 1:
        arrivals.sort()
    return arrivals
