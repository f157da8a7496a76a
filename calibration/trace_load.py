"""What a trace of the same load tells of it: the latents that a fit would otherwise have to find.

A fit replays the trace's own sessions (`traced`). A prediction of another level draws sessions by latents,
and these are what is read off the trace here. New in a prompt is what no earlier prompt or reply of its
session holds: with a cache that forgets nothing it would be computed, and nothing else. A context is a chain
of requests, the main agent's or a sub-agent's: `workload` keeps as many alive as a level had.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from replicast.calibration.growth import learn_endings
from replicast.calibration.lengths import SHARED_TOKENS
from replicast.calibration.server import ServerFacts
from replicast.calibration.spread import LEAST_COUNTED
from replicast.calibration.traced import TraceSessions
from replicast.calibration.workload import COMPUTED_OF_SESSION
from replicast.sim.errors import InputError
from replicast.sim.report.trace import import_lines
from replicast.sim.workload import Session, join
from replicast.traces.load import LoadedTrace
from replicast.traces.report import InputFile
from replicast.traces.stats import PrefixTree

LEAST_TOKENS, LEAST_SPREAD = 1.0, 0.1
ONE_SD = (0.1587, 0.8413)  # shares one sd around the median of a normal law
COMPUTED = ("computed_tokens", "computed_slope")  # what counters tell of every level


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """Latents by the names of `model`'s load parameters, the sessions themselves, their source, and what was
    left out there."""

    latents: Mapping[str, float]
    sessions: TraceSessions
    source: str
    notes: tuple[str, ...] = ()
    inputs: tuple[InputFile, ...] = ()

    @classmethod
    def of(cls, sessions: Sequence[Session], source: str) -> TraceLoad:
        """Raises `InputError` where too few requests follow others of their session."""
        latents = load_latents(sessions, source)
        return cls(latents, TraceSessions.of(sessions, shares="shared_tokens" in latents), source)


def trace_load(trace: LoadedTrace) -> TraceLoad:
    """What a loaded trace tells; raises `InputError` where it is too short."""
    names = [Path(item.path).name for item in trace.report.inputs]
    source = names[0] if len(names) == 1 else f"{len(names)} files"
    return replace(
        TraceLoad.of(trace.sessions, source),
        notes=tuple(line.strip() for line in import_lines(trace.report)),
        inputs=tuple(trace.report.inputs),
    )


def load_latents(sessions: Sequence[Session], where: str) -> dict[str, float]:
    """Values by the names of `model`'s load parameters; tokens, and sds of logarithms.

    `computed_slope` is 0: the trace knows no load. `shared_tokens` is missing where sessions share nothing:
    formats whose identities hold within a session cannot show it. Raises `InputError` where too few requests
    follow others of their session.
    """
    known = [session for session in sessions if session.turns]
    new: list[int] = []
    firsts: list[int] = []  # of sessions
    opened: list[int] = []  # new tokens of a sub-agent's first prompt
    calls: list[int] = []
    across = PrefixTree()
    for owner, session in enumerate(known):
        seen = PrefixTree()
        contexts: Counter[str] = Counter()
        for turn in session.turns:
            held, _ = seen.insert(turn.prompt, 0)
            seen.insert(join((*turn.prompt, *turn.output)), 0)
            if turn.agent in contexts:
                new.append(turn.num_prompt_tokens - held)
            else:
                (opened if contexts else firsts).append(turn.num_prompt_tokens - held)
            contexts[turn.agent] += 1
        calls += contexts.values()
        across.insert(session.turns[0].prompt, owner)
    if len(new) < LEAST_COUNTED:
        raise InputError(
            f"{len(new)} requests follow others of their context, too few to tell the load by",
            where=where,
            remedy=f"give a trace of {LEAST_COUNTED} such requests or more, or none: the load is then fitted",
        )
    shared = float(median(across.shared(session.turns[0].prompt) for session in known))
    first = fmean(firsts)
    own = first - shared if shared else max(first - SHARED_TOKENS, 0.3 * first)
    own = (own * len(firsts) + sum(opened)) / (len(firsts) + len(opened))
    outputs = [turn.num_output_tokens for session in known for turn in session.turns]
    spread = _log_sd(new)
    endings = learn_endings(calls)
    found = {
        "computed_tokens": max(fmean(new), LEAST_TOKENS),
        "computed_slope": 0.0,
        "computed_spread": math.sqrt(max(spread**2 - COMPUTED_OF_SESSION**2, LEAST_SPREAD**2)),
        "first_tokens": max(own, LEAST_TOKENS),
        "output_spread": max(_log_sd(outputs), LEAST_SPREAD),
        "calls_per_session": endings.calls,
        "failed_sessions": endings.failed,
    }
    return found | ({"shared_tokens": shared} if shared else {})


def with_trace(facts: ServerFacts, trace: TraceLoad, *, counted: bool) -> ServerFacts:
    """The latents that a trace tells as facts; what every level has `counted` is known better.

    Raises `InputError` where no session of the trace can begin on this server.
    """
    longest = facts.config.max_model_len
    sessions = trace.sessions.sessions
    if all(session.turns[0].num_prompt_tokens >= longest for session in sessions):
        raise InputError(
            f"every session of the trace begins with {longest:,} tokens (max_model_len) or more",
            where=trace.source,
            remedy="Tell the server's max_model_len (--given), or give a trace of this load.",
        )
    ended = sum(any(turn.num_prompt_tokens >= longest for turn in session.turns) for session in sessions)
    load = {name: value for name, value in trace.latents.items() if not (counted and name in COMPUTED)}
    replayed = f"levels replay the sessions of {trace.source}, which tells {', '.join(load)}"
    notes = [replayed, *trace.notes]
    if ended:
        notes.append(
            f"{ended} of {len(sessions)} sessions replayed reach max_model_len ({longest:,}) and end there"
        )
    return replace(facts, load=load, load_source=trace.source, notes=(*facts.notes, *notes))


def _log_sd(tokens: Sequence[int]) -> float:
    """Of the middle two thirds: what is nothing new, or a whole prompt, is no matter of spread."""
    low, high = (float(q) for q in np.quantile(np.log(np.maximum(tokens, LEAST_TOKENS)), ONE_SD))
    return (high - low) / 2
