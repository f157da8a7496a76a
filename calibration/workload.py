"""The load of a sweep level as latents, and sessions drawn from them.

A level holds some *streams* of requests alive: sessions, times the agents that each runs side by side. A
stream sends its next request when the last has been answered and its tools have run. What a request is:

    prompt    shared part (system prompt and tools, the same for all) + what the session has gathered.
              Prompts grow to the session's level as recorded sessions do (`growth`), fast at first.
    computed  the last tokens of a prompt are new; all before them repeat the stream's previous prompt.
              Whether the server still holds those is the simulation's outcome (eviction), not a latent.
              Tasks differ in how much is new (on one server by a third), so that a level of few sessions
              tells little of the next one.
    output    long-tailed.
    calls     until the task is done. Some sessions fail after a few; whatever ends, the next begins at once,
              with a prompt of which the cache holds the shared part.

Means are latents of the level, the spreads around them are those of 28 task windows and of recorded
sessions: log-normal. Draws come from generators keyed by (seed, level, session), so that two parameter values
meet the same sessions. Seeds come in pairs, 2n - 1 and 2n: where one has large sessions the other has small
ones (antithetic variates: Hammersley and Morton 1956), and a level of one session is hardly biased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.growth import Endings, grown_share
from replicast.sim.workload import Segment, Session, Turn

Floats = NDArray[np.float64]

OUTPUT_SPREAD = 1.2  # sd of log(output of a request)
COMPUTED_SPREAD = 1.0  # of a request
COMPUTED_OF_SESSION = 0.3  # task windows of one server and harness: 0.31, 9 degrees of freedom
PROMPT_SPREAD = 0.3  # of what a session's prompts hold beside the shared part
COMPACTED = 0.9  # of the window: agents shorten what is longer
SHARED_STREAM = 1
_WORKLOAD = 17  # random stream
_TURNS, _TOOLS = 1, 2  # random streams of a session: its turns are the same, however many it has


@dataclass(frozen=True, slots=True)
class LevelLoad:
    """What clients of one level offer; token figures are means per request.

    `streams` requests are alive at a time, each followed by `tool_s` of tools. `first_tokens` are computed
    by the first prompt of a session, `computed_tokens` by each later one. `expected_requests` sizes the
    workload; `harness.run_level` draws more where they do not last. `endings` tells when sessions end.
    Spreads are sds of logarithms.
    """

    concurrency: int
    streams: int
    prompt_tokens: float
    output_tokens: float
    computed_tokens: float
    first_tokens: float
    shared_tokens: float
    tool_s: float
    endings: Endings
    load_s: float
    window_s: float
    expected_requests: float
    output_spread: float = OUTPUT_SPREAD
    computed_spread: float = COMPUTED_SPREAD


@lru_cache(maxsize=64)  # trials of step times meet the same loads again
def draw_sessions(load: LevelLoad, seed: int, max_model_len: int) -> tuple[Session, ...]:
    """Sessions enough to keep all streams busy until the deadline."""
    turns_cap = math.ceil(1.5 * load.expected_requests / load.streams) + 4
    spares = math.ceil(1.5 * load.expected_requests / max(load.endings.mean_calls, 1.0)) + 2
    return tuple(
        _session(load, seed, index, turns_cap, max_model_len) for index in range(load.streams + spares)
    )


def _session(load: LevelLoad, seed: int, index: int, turns_cap: int, max_model_len: int) -> Session:
    def generator(*more: int) -> np.random.Generator:
        key = (_WORKLOAD, load.concurrency, index, *more)
        return np.random.default_rng(np.random.SeedSequence((seed + 1) // 2, spawn_key=key))

    side = 1.0 if seed % 2 else -1.0
    calls_z, level_z, computed_z, failed_z = (side * generator().standard_normal(4)).tolist()
    # The streams under way at t = 0 do not all start their session then, but their prompts do.
    turns = max(min(round(load.endings.drawn(calls_z, failed_z)), turns_cap), 1)
    output_z, new_z = side * generator(_TURNS).standard_normal((turns, 2)).T
    tools = load.tool_s * generator(_TOOLS).standard_exponential(turns)
    outputs = load.output_tokens * _long_tailed(load.output_spread, output_z)
    of_session = _long_tailed(COMPUTED_OF_SESSION, np.array(computed_z))
    computed = load.computed_tokens * of_session * _long_tailed(load.computed_spread, new_z)
    size = math.exp(PROMPT_SPREAD * level_z - PROMPT_SPREAD**2 / 2)
    first = load.shared_tokens + size * load.first_tokens
    level = load.shared_tokens + size * (load.prompt_tokens - load.shared_tokens)
    longest = round(COMPACTED * max_model_len)
    stream = SHARED_STREAM + 1 + 2 * index
    shared = min(round(load.shared_tokens), longest // 2)
    head = (Segment(SHARED_STREAM, 0, shared),) if shared else ()
    own: list[Segment] = []  # what the last prompt holds after the shared part
    held = shared
    written = 0
    made: list[Turn] = []
    for t in range(turns):
        prompt = min(max(round(first + grown_share(t) * (level - first)), shared + 16), longest)
        new = prompt - shared
        if t:
            new = min(max(round(float(computed[t])), prompt - held, 1), new)
        _keep(own, held - shared, prompt - new - shared)
        if own and own[-1].offset + own[-1].length == written:
            own[-1] = Segment(stream, own[-1].offset, own[-1].length + new)
        else:
            own.append(Segment(stream, written, new))
        written += new
        held = prompt
        output = min(max(round(float(outputs[t])), 2), max_model_len - prompt)
        made.append(
            Turn(
                turn_id=str(t),
                agent="main",
                depends_on=(t - 1,) if t else (),
                delay_s=float(tools[t]) if t else 0.0,
                tool_s=float(tools[t]) if t else 0.0,
                prompt=(*head, *own),
                output=(Segment(stream + 1, t * max_model_len, output),),
                num_prompt_tokens=prompt,
                num_output_tokens=output,
            )
        )
    return Session(session_id=f"c{load.concurrency}-{index}", turns=tuple(made))


def _long_tailed(spread: float, z: Floats) -> Floats:
    """Log-normal factors of mean 1."""
    return np.asarray(np.exp(spread * z - spread**2 / 2))


def _keep(own: list[Segment], total: int, tokens: int) -> None:
    """Cut `own`, which holds `total` tokens, to its first `tokens`."""
    while total > tokens:
        stream, offset, length = own.pop()
        total -= length
        if total < tokens:
            own.append(Segment(stream, offset, tokens - total))
            return
