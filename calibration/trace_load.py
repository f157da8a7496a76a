"""What a trace of the same load tells of it: the latents that a fit would otherwise have to find.

New in a prompt is what no earlier prompt or reply of its session holds: with a cache that forgets nothing it
would be computed, and nothing else. Means of prompts and outputs, requests alive and tool time stay those of
each level: levels are cut at a deadline and meet other parts of sessions than the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from replicast.calibration.spread import LEAST_COUNTED
from replicast.sim.errors import InputError
from replicast.sim.workload import Session, join
from replicast.traces.stats import PrefixTree

LEAST_TOKENS = 1.0


def load_latents(sessions: Sequence[Session], where: str) -> dict[str, float]:
    """Values by the names of `model`'s load parameters; tokens, and sds of logarithms.

    `failed_sessions` is 0: sessions of the trace that failed are in the mean of `calls_per_session`. Raises
    `InputError` where too few requests follow others of their session.
    """
    known = [session for session in sessions if session.turns]
    new: list[int] = []
    firsts = PrefixTree()
    for owner, session in enumerate(known):
        seen = PrefixTree()
        for turn in session.turns:
            held, _ = seen.insert(turn.prompt, 0)
            seen.insert(join((*turn.prompt, *turn.output)), 0)
            new.append(turn.num_prompt_tokens - held)
        del new[-len(session.turns)]
        firsts.insert(session.turns[0].prompt, owner)
    if len(new) < LEAST_COUNTED:
        raise InputError(
            f"{len(new)} requests follow others of their session, too few to tell the load by",
            where=where,
            remedy=f"give a trace of {LEAST_COUNTED} such requests or more, or none: the load is then fitted",
        )
    shared = median(firsts.shared(session.turns[0].prompt) for session in known)
    first = fmean(session.turns[0].num_prompt_tokens for session in known)
    outputs = [turn.num_output_tokens for session in known for turn in session.turns]
    return {
        "computed_tokens": max(fmean(new), LEAST_TOKENS),
        "computed_slope": 0.0,
        "computed_spread": _log_sd(new),
        "first_tokens": max(first - shared, LEAST_TOKENS),
        "output_spread": _log_sd(outputs),
        "calls_per_session": fmean(len(session.turns) for session in known),
        "failed_sessions": 0.0,
        "shared_tokens": max(float(shared), LEAST_TOKENS),
    }


def _log_sd(tokens: Sequence[int]) -> float:
    return float(np.log(np.maximum(tokens, LEAST_TOKENS)).std())
