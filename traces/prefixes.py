"""Sessions whose prompts share more or less than was recorded: mechanisms of the hit rate.

Prompts keep their lengths; only what their tokens are called changes, and so who may reuse whose blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from replicast.sim.workload import Content, Segment, Session, cut, join

TOOLS_STREAM = 0  # traces mint their streams from 1 on


def shared_streams(sessions: Sequence[Session]) -> tuple[frozenset[int], int]:
    """Streams that more than one session names (that of common tools always), and the largest stream."""
    owner: dict[int, int] = {}
    shared: dict[int, None] = {TOOLS_STREAM: None}
    for index, session in enumerate(sessions):
        for turn in session.turns:
            for content in (turn.prompt, turn.output):
                for segment in content:
                    if owner.setdefault(segment[0], index) != index:
                        shared[segment[0]] = None
    return frozenset(shared), max(owner, default=0)


def renamed(content: Content, keep: frozenset[int], shift: int) -> Content:
    """Content whose streams are moved up by `shift`, but for those in `keep`."""
    return tuple(s if s[0] in keep or s[0] < 0 else Segment(s[0] + shift, s[1], s[2]) for s in content)


def rename_session(session: Session, keep: frozenset[int], shift: int, suffix: str) -> Session:
    """A second session of the same shape with content of its own."""
    turns = tuple(
        turn._replace(prompt=renamed(turn.prompt, keep, shift), output=renamed(turn.output, keep, shift))
        for turn in session.turns
    )
    return replace(session, session_id=session.session_id + suffix, turns=turns)


def with_tools_prefix(sessions: Sequence[Session], tokens: int) -> list[Session]:
    """The first `tokens` of every prompt are the same for all sessions, nothing else is shared."""
    top = shared_streams(sessions)[1]
    common = frozenset((TOOLS_STREAM,))
    out = []
    for number, session in enumerate(sessions, start=1):
        shift = number * (top + 1)
        turns = []
        for turn in session.turns:
            length = min(tokens, turn.num_prompt_tokens)
            tail = renamed(cut(turn.prompt, length, turn.num_prompt_tokens), common, shift)
            prompt = join((Segment(TOOLS_STREAM, 0, length), *tail))
            turns.append(turn._replace(prompt=prompt, output=renamed(turn.output, common, shift)))
        out.append(replace(session, turns=tuple(turns)))
    return out


def with_broken_prefix(sessions: Sequence[Session], share: float, seed: int) -> list[Session]:
    """That share of prompts begins with a token of its own, so that nothing cached fits them."""
    own = shared_streams(sessions)[1]
    out = []
    for index, session in enumerate(sessions):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(13, index)))
        turns = []
        for turn, draw in zip(session.turns, rng.random(len(session.turns)).tolist(), strict=True):
            if draw < share:
                own += 1
                rest = cut(turn.prompt, 1, turn.num_prompt_tokens)
                turn = turn._replace(prompt=(Segment(own, 0, 1), *rest))
            turns.append(turn)
        out.append(replace(session, turns=tuple(turns)))
    return out


def with_outputs(sessions: Sequence[Session], factor: float) -> list[Session]:
    """Replies `factor` times as long; prompts stay, so what is added is never sent again."""
    out = []
    for session in sessions:
        turns = []
        for turn in session.turns:
            tokens = max(1, round(turn.num_output_tokens * factor))
            turns.append(turn._replace(num_output_tokens=tokens, output=cut(turn.output, 0, tokens)))
        out.append(replace(session, turns=tuple(turns)))
    return out
