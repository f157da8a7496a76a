"""Sessions with other gaps, fewer sub-agents, or entered in their midst; and how long they last unloaded.

A gap belongs to tools or to a human. Where a trace does not tell the parts of a delay, the turn's
trigger does: what a user sent was thought about, all else are tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from replicast.sim.workload import Seconds, Session, Turn


def gap_parts(turn: Turn) -> tuple[Seconds, Seconds]:
    """Tool and human part of a turn's delay.

    >>> gap_parts(Turn("t", "a", (0,), 5.0, (), (), 1, 1, trigger="tool"))
    (5.0, 0.0)
    """
    if turn.tool_s is not None:
        return min(turn.tool_s, turn.delay_s), max(turn.delay_s - turn.tool_s, 0.0)
    if turn.think_s is not None:
        return max(turn.delay_s - turn.think_s, 0.0), min(turn.think_s, turn.delay_s)
    return (0.0, turn.delay_s) if turn.trigger in ("user", "unknown") else (turn.delay_s, 0.0)


def reshape_gaps(session: Session, tool: float, human: float, cap_s: Seconds | None) -> Session:
    """Gaps times `tool` and `human`, then cut to `cap_s`, the human part first."""
    turns = []
    for turn in session.turns:
        tool_s, think_s = gap_parts(turn)
        tool_s, think_s = tool_s * tool, think_s * human
        if cap_s is not None:
            tool_s = min(tool_s, cap_s)
            think_s = min(think_s, cap_s - tool_s)
        turns.append(turn._replace(delay_s=tool_s + think_s, tool_s=tool_s, think_s=think_s))
    return replace(session, turns=tuple(turns))


def nominal_times(
    session: Session, token_s: Seconds, gap_scale: float = 1.0
) -> tuple[list[Seconds], Seconds]:
    """Starts of turns and end of the session if an output token takes `token_s` and nothing else any."""
    starts: list[Seconds] = []
    ends: list[Seconds] = []
    for turn in session.turns:
        start = 0.0
        if turn.depends_on:
            start = max(ends[before] for before in turn.depends_on) + turn.delay_s * gap_scale
        starts.append(start)
        ends.append(start + turn.num_output_tokens * token_s)
    return starts, max(ends, default=0.0)


def cut_session(session: Session, starts: Sequence[Seconds], at_s: Seconds) -> Session:
    """What is left of a session at `at_s`: the turns that start later, at least the last one."""
    kept = [index for index, start in enumerate(starts) if start >= at_s]
    if len(kept) == len(session.turns):
        return session
    if not kept:
        kept = [max(range(len(starts)), key=lambda index: starts[index])]
    return replace(session, turns=_selected(session.turns, kept))


def end_before(session: Session, longest: int | None) -> Session:
    """The session without turns whose prompt has `longest` tokens or more, and all that wait for them."""
    if longest is None or all(turn.num_prompt_tokens < longest for turn in session.turns):
        return session
    lost: dict[int, None] = {}
    for index, turn in enumerate(session.turns):
        if turn.num_prompt_tokens >= longest or any(before in lost for before in turn.depends_on):
            lost[index] = None
    return replace(
        session, turns=_selected(session.turns, [i for i in range(len(session.turns)) if i not in lost])
    )


def keep_agents(session: Session, share: float, rng: np.random.Generator) -> Session:
    """The session with that share of its sub-agents; what waited for a dropped one waits for its cause."""
    if share >= 1 or not session.turns:
        return session
    main = session.turns[0].agent
    agents: dict[str, bool] = {main: True}
    for turn in session.turns:
        if turn.agent not in agents:
            agents[turn.agent] = bool(rng.random() < share)
    if all(agents.values()):
        return session
    return replace(
        session,
        turns=_selected(session.turns, [i for i, turn in enumerate(session.turns) if agents[turn.agent]]),
    )


def _selected(turns: Sequence[Turn], kept: Sequence[int]) -> tuple[Turn, ...]:
    """The turns at `kept`; dropped ones are replaced in `depends_on` by kept ones that they waited for."""
    place = {index: number for number, index in enumerate(kept)}
    through: dict[int, tuple[int, ...]] = {}
    out: list[Turn] = []
    for index in range(len(turns)):
        turn = turns[index]
        before: dict[int, None] = {}
        for other in turn.depends_on:
            if other in place:
                before[place[other]] = None
            else:
                before.update(dict.fromkeys(through[other]))
        if index in place:
            depends_on = tuple(sorted(before))
            out.append(turn if depends_on == turn.depends_on else turn._replace(depends_on=depends_on))
        else:
            through[index] = tuple(before)
    return tuple(out)
