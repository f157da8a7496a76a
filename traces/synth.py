"""Seeded synthetic sessions with known truth, in the canonical trace's count form.

A session starts fresh or continues a longer conversation. Each later turn of its main agent

1. repeats the previous prompt and adds a growth with a heavy tail; or, rarely,
2. re-prefills: the start of the prompt changed ~13K tokens in, its size did not; or
3. edits in its midst; or
4. compacts, when growth would pass the context window of the session.

The sessions come from `traces/synth_plan.py`. Every quantity of a turn is stratified over all
turns of the trace; the seed decides which turn gets which. Growth follows ranks as in the
recordings: the first turns of a fresh session and turns after a long reply grow more, and
sessions differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from replicast.sim.errors import InputError
from replicast.traces.canonical import (
    CanonicalTrace,
    CountPrefix,
    Header,
    How,
    Line,
    TraceRequest,
    TraceSession,
)
from replicast.traces.stats import TraceStats
from replicast.traces.synth_fit import PRESETS, Bools, Floats, SynthSpec
from replicast.traces.synth_plan import Plan, marked, plan_sessions, ranked, shuffled, strata
from scipy.special import ndtri

EARLY_TURNS = 6  # a fresh session reads files first
PACE_WEIGHT, REPLY_WEIGHT, EARLY_WEIGHT = 0.4, 0.4, 1.5  # in the rank of a turn's growth, noise 1
INDIFFERENT = ("tool_gap_scale", "human_gap_scale", "human_share", "prefix_groups", "subagent_fan_out")
BROKEN_BELOW = 0.45  # of the prompt: a re-prefill keeps less than half
EDITED_AT = (0.52, 0.75)  # of the prompt: a deep edit keeps more than half


class Row(NamedTuple):
    """One figure asked for against what the trace has; `error` is relative."""

    name: str
    asked: float
    obtained: float | None
    error: float | None


@dataclass(slots=True)
class _Draws:
    """One value for each turn of all main sessions, in their order."""

    growth: Floats
    output: Floats
    human: Bools  # a human writes before the turn
    gap_s: Floats
    broken: Bools
    edited: Bools
    break_at: Floats
    compacted_to: Floats
    edited_at: Floats


def generate(spec: SynthSpec, sessions: int, seed: int) -> CanonicalTrace:
    """A trace of `sessions` main sessions; same arguments, same trace."""
    _check(spec, sessions, seed)
    plans = plan_sessions(spec, sessions, seed)
    draws = _draw(spec, plans, seed)
    subagents = _Subagents(spec, sum(plan.subagents for plan in plans), np.random.default_rng([seed, 2]))
    launch_rng = np.random.default_rng([seed, 3])
    header = Header(
        source={"format": "synth", "sessions": sessions, "seed": seed, "spec": spec.knobs()},
        tokenizer="synthetic",
    )
    lines: list[Line] = []
    first = 0
    for number, plan in enumerate(plans):
        launches = _launches(spec, plan, launch_rng)
        lines += _main_session(f"synth_{number:04d}", plan, draws, first, launches, subagents)
        first += plan.turns
    return CanonicalTrace(header, lines, [f"synth line {number}" for number in range(2, len(lines) + 2)])


def compare(spec: SynthSpec, stats: TraceStats) -> list[Row]:
    """What the preset asks for against `stats`; figures that a changed knob moves are left out."""
    plain = stats.to_dict()
    rows = []
    for name, base in spec.targets.items():
        asked = _asked(spec, name, base)
        if asked is None:
            continue
        value = plain
        for part in name.split("."):
            value = value[part]
        obtained = None if value is None else float(value)  # type: ignore[arg-type]
        rows.append(Row(name, asked, obtained, None if obtained is None else obtained / asked - 1))
    return rows


def _asked(spec: SynthSpec, name: str, base: float) -> float | None:
    """The preset's figure under the knobs, None where they change it in no simple way."""
    field = name.split(".")[0]
    scale = {
        "turns_per_session": spec.turns_scale,
        "output_tokens": spec.output_scale,
        "tool_gap_s": spec.tool_gap_scale,
        "human_gap_s": spec.human_gap_scale,
    }
    if field in scale:
        return base * scale[field]
    if field == "human_gap_over_300s":
        return base if spec.human_gap_scale == 1 else None
    if field == "re_prefill_share":
        return spec.re_prefill_share
    own, preset = spec.knobs(), PRESETS[spec.name].knobs() if spec.name in PRESETS else spec.knobs()
    indifferent = {*INDIFFERENT, *(() if field.endswith("ratio") else ("output_scale",))}
    moved = any(own[name] != preset[name] for name in own if name not in indifferent)
    return None if moved else base


def _check(spec: SynthSpec, sessions: int, seed: int) -> None:
    if sessions < 1:
        raise InputError(f"sessions is {sessions}, must be 1 or more")
    if seed < 0:
        raise InputError(f"seed is {seed}, must be 0 or more")
    for name, value in spec.knobs().items():
        if name.endswith("_scale") and not 0.01 <= value <= 100:
            raise InputError(f"{name} is {value}, must lie between 0.01 and 100")
        if (name.endswith("_share") or "_share_" in name) and not 0 <= value <= 1:
            raise InputError(f"{name} is {value}, must lie between 0 and 1")
    for name in ("prefix_groups", "subagent_fan_out"):
        if getattr(spec, name) < 1:
            raise InputError(f"{name} is {getattr(spec, name)}, must be 1 or more")
    if spec.max_prompt_tokens < 1000:
        raise InputError(f"max_prompt_tokens is {spec.max_prompt_tokens}, must be 1000 or more")
    if spec.shared_prefix_tokens is not None and spec.shared_prefix_tokens < 0:
        raise InputError(f"shared_prefix_tokens is {spec.shared_prefix_tokens}, must be 0 or more")


def _draw(spec: SynthSpec, plans: list[Plan], seed: int) -> _Draws:
    rng = [np.random.default_rng([seed, 10 + purpose]) for purpose in range(9)]
    lengths = [plan.turns for plan in plans]
    n = sum(lengths)
    later = np.ones(n, dtype=bool)
    later[np.cumsum([0, *lengths[:-1]])] = False
    output = rng[0].permutation(strata(rng[0], n))
    pace = np.repeat([plan.pace for plan in plans], lengths)
    early = np.concatenate([(np.arange(plan.turns) <= EARLY_TURNS) & plan.fresh for plan in plans])
    score = PACE_WEIGHT * pace + REPLY_WEIGHT * np.roll(ndtri(output), 1) + EARLY_WEIGHT * early
    score += rng[2].standard_normal(n)
    human = rng[3].permutation(n) < round(spec.human_share * n)
    gap_s = np.empty(n)
    gap_s[human] = shuffled(rng[4], spec.human_gap_s, human.sum()) * spec.human_gap_scale
    gap_s[~human] = shuffled(rng[4], spec.tool_gap_s, n - human.sum()) * spec.tool_gap_scale
    return _Draws(
        growth=ranked(spec.growth.at(strata(rng[2], n)), score) * spec.growth_scale * spec.prompt_scale,
        output=spec.output.at(output) * spec.output_scale,
        human=human,
        gap_s=gap_s,
        broken=marked(rng[5], later, spec.re_prefill_share),
        edited=marked(rng[6], later, spec.deep_edit_share),
        break_at=shuffled(rng[7], spec.break_at, n) * spec.prompt_scale,
        compacted_to=shuffled(rng[8], spec.compacted_to, n),
        edited_at=rng[6].uniform(*EDITED_AT, n),
    )


def _next_prompt(plan: Plan, draws: _Draws, turn: int, prompt: int) -> tuple[int, int, How]:
    """Size of the prompt after `prompt`, the tokens it keeps of it, and how that is known."""
    grown = prompt + max(1, round(draws.growth[turn]))
    if grown > plan.window and prompt > plan.window // 2:
        compacted = max(plan.shared + 1, round(prompt * draws.compacted_to[turn]))
        return min(compacted, plan.window), min(plan.shared, prompt), "cache_read"
    grown = max(prompt, min(grown, plan.window))
    if draws.broken[turn]:
        return grown, round(min(draws.break_at[turn], BROKEN_BELOW * prompt)), "cache_read"
    if draws.edited[turn]:
        return grown, round(draws.edited_at[turn] * prompt), "cache_read"
    return grown, prompt, "prompt_growth"


def _main_session(
    name: str, plan: Plan, draws: _Draws, first: int, launches: dict[int, int], subagents: _Subagents
) -> Iterator[Line]:
    """Lines of a session and its sub-agents, each request after those it waits for."""
    shared = {"group": f"synth/{plan.group}", "tokens": plan.shared}
    yield TraceSession(session=name, kind="root", shared_prefix=shared)
    prompt, keep = plan.first, 0
    how: How = "shared_prefix"
    joined: list[str] = []
    for turn in range(plan.turns):
        at = first + turn
        if turn:
            prompt, keep, how = _next_prompt(plan, draws, at, prompt)
        human = bool(draws.human[at]) and not joined
        gap_s = round(float(draws.gap_s[at]), 3) if turn else 0.0
        request = TraceRequest(
            id=f"{name}#{turn}",
            session=name,
            turn=turn,
            wait_for=[f"{name}#{turn - 1}", *joined] if turn else [],
            delay_s=gap_s,
            tool_s=0.0 if human or not turn else gap_s,
            think_s=gap_s if human and turn else 0.0,
            trigger="join" if joined else "user" if human or not turn else "tool",
            prompt_tokens=prompt,
            output_tokens=max(1, round(draws.output[at])),
            prefix=CountPrefix(f"{name}#{turn - 1}" if turn else None, keep, how),
            flags=None if turn or plan.fresh else ["continuation"],
        )
        yield request
        joined = []
        for _ in range(launches.get(turn, 0)):
            session, requests = subagents.next(name, request.id, plan.group)
            yield session
            yield from requests
            joined.append(requests[-1].id)


def _launches(spec: SynthSpec, plan: Plan, rng: np.random.Generator) -> dict[int, int]:
    """Sub-agents that start after each turn; the last turn starts none, as nothing would wait."""
    places = max(1, plan.turns - 1)
    wanted = -(-plan.subagents // spec.subagent_fan_out)
    turns = np.sort(rng.permutation(places)[:wanted])
    launches: dict[int, int] = {}
    for number in range(plan.subagents):
        turn = int(turns[number // spec.subagent_fan_out % turns.size])
        launches[turn] = launches.get(turn, 0) + 1
    return launches


class _Subagents:
    """Hands out sub-agents one after the other; each grows from its first to its last prompt."""

    def __init__(self, spec: SynthSpec, count: int, rng: np.random.Generator) -> None:
        self._spec, self._rng, self._number = spec, rng, 0
        self._turns = shuffled(rng, spec.subagent_turns, count)
        self._task = shuffled(rng, spec.subagent_task, count) * spec.prompt_scale
        self._last = shuffled(rng, spec.subagent_last, count) * spec.prompt_scale
        shared = round(spec.subagent_shared_tokens * spec.prompt_scale)
        self._shared = min(shared, spec.max_prompt_tokens - 1)

    def next(self, parent: str, after: str, group: int) -> tuple[TraceSession, list[TraceRequest]]:
        """The session line of the next sub-agent and its requests."""
        number, spec, rng = self._number, self._spec, self._rng
        self._number += 1
        name, turns = f"{parent}/agent_{number:03d}", max(1, round(self._turns[number]))
        first = min(self._shared + max(1, round(self._task[number])), spec.max_prompt_tokens)
        steps = np.cumsum(np.concatenate([[0.0], rng.exponential(size=turns - 1)]))
        span = min(self._last[number], spec.max_prompt_tokens) - first
        prompts = [first + round(max(span, 0) * step / (steps[-1] or 1)) for step in steps]
        output = shuffled(rng, spec.output, turns) * spec.output_scale
        gaps = shuffled(rng, spec.subagent_gap_s, turns) * spec.tool_gap_scale
        session = TraceSession(
            session=name,
            kind="subagent",
            parent=parent,
            spawn_after=after,
            agent_type="Explore",
            shared_prefix={"group": f"synth/{group}/subagent", "tokens": self._shared},
        )
        requests = []
        for turn, prompt in enumerate(prompts):
            previous = f"{name}#{turn - 1}" if turn else None
            gap_s = round(float(gaps[turn]), 3) if turn else 0.0
            requests.append(
                TraceRequest(
                    id=f"{name}#{turn}",
                    session=name,
                    turn=turn,
                    wait_for=[previous or after],
                    delay_s=gap_s,
                    tool_s=gap_s,
                    think_s=0.0,
                    trigger="tool" if turn else "spawn",
                    prompt_tokens=prompt,
                    output_tokens=max(1, round(output[turn])),
                    prefix=CountPrefix(
                        previous,
                        prompts[turn - 1] if turn else 0,
                        "prompt_growth" if turn else "shared_prefix",
                    ),
                )
            )
        return session, requests
