"""Why a prefix cache hits rarely: four causes, each simulated on sessions of the level's own lengths.

The cache is a pool of tokens in least-recently-used order; a session's context is evicted from its tail, as
vLLM evicts blocks. Sessions take turns in random order; each turn repeats the session's last prompt and adds
to it. Simulated on that:

* `eviction`: the pool as given. Hits fall where live contexts pass it, to the shared prefix.
* `no sharing`: sessions share nothing (different repositories). Only each session's first prompt is cold.
* `broken prefix`: the harness changes the prompt behind its system part every turn. Hits stay at that part.
* `coarse states`: a hybrid model keeps its state only where a chunk ends, and caches up to there.

It is a sketch in tokens, enough to tell causes apart; `replicast replay` simulates blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple

import numpy as np

Cause = Literal["eviction", "no sharing", "broken prefix", "coarse states"]
CAUSES: tuple[Cause, ...] = ("eviction", "no sharing", "broken prefix", "coarse states")
# System prompt and tools of public agent harnesses, in tokens.
SHARED_TOKENS = 15_000.0
_STREAM = 1010


class CacheLoad(NamedTuple):
    """Sessions that share a cache; tokens are means per request."""

    sessions: int
    turns: int
    prompt_tokens: float
    new_tokens: float
    pool_tokens: float | None
    state_tokens: float


def hit_rate(cause: Cause | None, load: CacheLoad, seed: int, *, in_turn: bool = False) -> float:
    """Cached share of prompt tokens if `cause` were at work; None is a healthy cache without limit.

    Sessions take turns at random, or `in_turn` one after the other, as a long queue makes them.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAM, load.sessions)))
    pool = load.pool_tokens if cause == "eviction" else None
    shared = min(SHARED_TOKENS, 0.5 * load.prompt_tokens)
    held: OrderedDict[int, float] = OrderedDict()  # cached tokens of each session, least recently used first
    turn = [0] * load.sessions
    prompts = hits = 0.0
    for step in range(load.sessions * load.turns):
        session = step % load.sessions if in_turn else int(rng.integers(load.sessions))
        prompt = _prompt(load, shared, turn[session])
        common = shared if cause != "no sharing" and prompts else 0.0
        hit = min(max(held.get(session, 0.0), common), prompt - load.new_tokens)
        if cause == "broken prefix":
            hit = min(hit, shared)
        elif cause == "coarse states":
            hit = hit // load.state_tokens * load.state_tokens
        prompts += prompt
        hits += max(hit, 0.0)
        turn[session] += 1
        held[session] = prompt
        held.move_to_end(session)
        if pool is not None:
            _evict(held, max(pool - shared, 0.0), shared)
    return hits / prompts if prompts else 0.0


def _prompt(load: CacheLoad, shared: float, turn: int) -> float:
    """It grows by what is new, around the level's mean."""
    return max(load.prompt_tokens + load.new_tokens * (turn - (load.turns - 1) / 2.0), 1.1 * shared)


def _evict(held: OrderedDict[int, float], room: float, shared: float) -> None:
    """Cut contexts, least recently used first, from their tails, until all fit beside the shared prefix."""
    own = sum(max(tokens - shared, 0.0) for tokens in held.values())
    for session in list(held):
        if own <= room:
            return
        cut = min(own - room, max(held[session] - shared, 0.0))
        held[session] -= cut
        own -= cut
