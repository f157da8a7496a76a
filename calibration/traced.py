"""Levels that ran the sessions of a trace: these are replayed, and no latent of the load is left to fit.

Prompts, outputs, new tokens, sub-agents, tools and sessions that end early are then the trace's own. Which
sessions a level met is chance: each realisation takes them in another order, and what a regression on lengths
says of the difference is taken off, as everywhere (`noise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.workload import LevelLoad
from replicast.sim.workload import Session
from replicast.traces.prefixes import rename_session, shared_streams, with_tools_prefix
from replicast.traces.reshape import gap_parts

MOST_SESSIONS = 300  # of a trace; more would tell nothing of a level
MATCHES = 4  # of lengths, of the plain model
_CHOICE, _ORDER = 31, 37  # random streams


@dataclass(frozen=True, slots=True)
class TraceSessions:
    """Sessions of the load. Where their identities hold within a session only (not `shares`), the first
    `LevelLoad.shared_tokens` of every prompt are taken for the same."""

    sessions: tuple[Session, ...]
    shares: bool
    shared: frozenset[int]  # streams that several sessions name
    top: int  # the largest stream

    @classmethod
    def of(cls, sessions: Sequence[Session], *, shares: bool) -> TraceSessions:
        """Of a trace with many sessions some, chosen at random; in a sweep nobody types."""
        known = [session for session in sessions if session.turns]
        if len(known) > MOST_SESSIONS:
            rng = np.random.default_rng(np.random.SeedSequence(1, spawn_key=(_CHOICE,)))
            chosen = np.sort(rng.permutation(len(known))[:MOST_SESSIONS])
            known = [known[i] for i in chosen.tolist()]
        shared, top = shared_streams(known)
        return cls(tuple(_unattended(session) for session in known), shares, shared, top)

    def draw(self, load: LevelLoad, seed: int, max_model_len: int) -> tuple[Session, ...]:
        """Sessions enough for a level, in random order; none twice until all were there, and then as another
        session of the same shape. `max_model_len` ends sessions in the fleet."""
        calls = sum(len(session.turns) for session in self.sessions) / len(self.sessions)
        count = load.streams + math.ceil(1.5 * load.expected_requests / calls) + 2
        key = (_ORDER, load.concurrency)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        drawn: list[Session] = []
        again = 0
        while len(drawn) < count:
            for i in rng.permutation(len(self.sessions))[: count - len(drawn)].tolist():
                session = self.sessions[i]
                if again:
                    shift = again * (self.top + 1)
                    session = rename_session(session, self.shared, shift, f"~{again}")
                drawn.append(session)
            again += 1
        if self.shares or load.shared_tokens < 1:
            return tuple(drawn)
        return tuple(with_tools_prefix(drawn, round(load.shared_tokens)))


def _unattended(session: Session) -> Session:
    """Without the gaps of humans; what is not known to be one is a tool's."""
    turns = []
    for turn in session.turns:
        if turn.trigger != "unknown" or turn.think_s is not None:
            tool_s, _ = gap_parts(turn)
            turn = turn._replace(delay_s=tool_s, tool_s=tool_s, think_s=0.0)
        turns.append(turn)
    return replace(session, turns=tuple(turns))


class TracedModel(LevelModel):
    """A measured level, simulated with the sessions of a trace: lengths come out as they do."""

    replays = True

    def __init__(self, *args: Any, sessions: TraceSessions, **options: Any) -> None:
        super().__init__(*args, **options)
        self.draw = sessions.draw
        self._plain = LevelModel(*args, **options)
        source = self.lengths.source
        self.tells_prompt = source == "counted" or (source == "kv" and self.facts.pool_is_given)

    def load(self, point: Point) -> LevelLoad:
        """As many sessions as the level had; what they ask stands in the trace."""
        return replace(super().load(point), streams=self.concurrency)

    def match(self, point: Point, seeds: Sequence[int]) -> None:
        """Nothing: lengths are the trace's."""

    def by_lengths(self, point: Point, seeds: Sequence[int]) -> LevelModel:
        """The level simulated by its lengths, as where there is no trace; matched at `point`."""
        for _ in range(MATCHES):
            self._plain.match(point, seeds)
        return self._plain
