"""What a trace asks for: lengths, reuse with an infinite cache, gaps, sub-agents.

Reuse is counted over *prompts*, never over replies or over what a recorded server hit: the hit
of a request is the longest prefix of its prompt that an earlier prompt held, in whole blocks.
"Within" looks at prompts of the same session (main agent and sub-agents), "across" at all
prompts of the trace. Sessions are taken in order of their recorded start, turns in their order.

Each turn of an agent after its first has one cause, by what it keeps of the agent's previous
prompt (previous P tokens, now C, common prefix K):

- `growth`       K >= 0.95 P, appended to
- `deep_edit`    0.5 P <= K < 0.95 P
- `re_prefill`   K < 0.5 P and C >= 0.5 P: the prompt keeps its size, its start changed
- `shrink`       K < 0.5 P and C < 0.5 P: compaction, or another context
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from replicast.sim.workload import Content, Session, Turn

KEPT_WHOLE = 0.95
KEPT_HALF = 0.5
LONG_GAP_S = 300.0  # a hosted cache's usual time to live


class Spread(NamedTuple):
    """Quantiles of one quantity; None where there is nothing to count."""

    n: int
    mean: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Cause(NamedTuple):
    """Requests of one cause and the tokens they must compute with an infinite cache."""

    requests: int
    uncached_tokens: int


@dataclass(frozen=True, slots=True)
class TraceStats:
    """The figures of one trace. `block_size` is the granularity of every uncached or hit figure."""

    block_size: int
    sessions: int
    requests: int
    turns_per_session: Spread  # main agent only
    prompt_tokens: Spread
    output_tokens: Spread
    uncached_tokens: Spread  # per request, within the session
    input_output_ratio: float | None
    uncached_input_output_ratio: float | None
    hit_rate_within: float | None
    hit_rate_across: float | None
    session_hit_rate: Spread  # one value a session, within it
    tool_gap_s: Spread
    human_gap_s: Spread
    human_gap_over_300s: float | None
    human_turn_share: float | None  # of tool and human turns
    re_prefill_share: float | None  # of turns after an agent's first
    causes: dict[str, Cause]
    first_prompt_tokens: Spread  # of main agents
    shared_prefix_tokens: Spread  # of a first prompt, with some other session's first prompt
    subagent_requests: int
    subagents: int
    sessions_with_subagents: int
    subagents_per_session: Spread  # where there are any
    subagents_per_launch: Spread
    subagent_turns: Spread

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: spreads and causes as objects, unknown as None."""
        plain = asdict(self)
        for key, value in plain.items():
            if isinstance(value, Spread):
                plain[key] = value._asdict()
        plain["causes"] = {name: cause._asdict() for name, cause in self.causes.items()}
        return plain


class _Node:
    """A run of tokens below its parent; children are keyed by the token that follows."""

    __slots__ = ("children", "length", "owner", "visits")

    def __init__(self, length: int, owner: int, children: dict[tuple[int, int], _Node]) -> None:
        self.length = length
        self.owner = owner
        self.visits = 0
        self.children = children


class PrefixTree:
    """Every prefix seen so far. One owner's prompts must come one after the other."""

    def __init__(self) -> None:
        self._root: dict[tuple[int, int], _Node] = {}

    def insert(self, content: Content, owner: int) -> tuple[int, int]:
        """Add a prompt; tokens of it that an earlier prompt held: any owner's, the same owner's."""
        seen = own = 0
        children = self._root
        ours = True
        for stream, offset, length in content:
            while length:
                node = children.get((stream, offset))
                if node is None:  # so has no child either: nothing further is counted
                    node = children[stream, offset] = _Node(length, owner, {})
                else:
                    if node.length > length:  # this prompt leaves the run in its midst: split it
                        rest = _Node(node.length - length, node.owner, node.children)
                        rest.visits = node.visits
                        node.length, node.children = length, {(stream, offset + length): rest}
                    seen += node.length
                    ours = ours and node.owner == owner
                    own += node.length if ours else 0
                node.owner = owner
                node.visits += 1
                children = node.children
                offset += node.length
                length -= node.length
        return seen, own

    def shared(self, content: Content) -> int:
        """Tokens of an inserted prompt that at least one other inserted prompt holds."""
        tokens = 0
        children = self._root
        for stream, offset, length in content:
            while length:
                node = children[stream, offset]
                if node.visits < 2:
                    return tokens
                tokens += node.length
                children = node.children
                offset += node.length
                length -= node.length
        return tokens


def common_prefix(a: Content, b: Content) -> int:
    """Leading tokens that both name alike.

    >>> common_prefix(((1, 0, 5), (2, 0, 3)), ((1, 0, 8),))
    5
    """
    tokens = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine[:2] != theirs[:2]:
            break
        tokens += min(mine[2], theirs[2])
        if mine[2] != theirs[2]:
            break
    return tokens


def cause_of(previous: Turn | None, turn: Turn) -> str:
    """Why `turn` computes what it computes; see the rules at the head of this file."""
    if previous is None:
        return "first"
    kept = common_prefix(previous.prompt, turn.prompt)
    if kept >= KEPT_WHOLE * previous.num_prompt_tokens:
        return "growth"
    if kept >= KEPT_HALF * previous.num_prompt_tokens:
        return "deep_edit"
    return "re_prefill" if turn.num_prompt_tokens >= KEPT_HALF * previous.num_prompt_tokens else "shrink"


def describe(sessions: Sequence[Session], *, block_size: int = 16) -> TraceStats:
    """Statistics of `sessions`; `block_size` should be the trace's own where it has one."""
    prompts: list[int] = []
    outputs: list[int] = []
    uncached: list[int] = []
    session_hits: list[float] = []
    turns: list[int] = []
    first_prompts: list[int] = []
    tool_gaps: list[float] = []
    human_gaps: list[float] = []
    sub_turns: list[int] = []
    sub_counts: list[int] = []
    launches: list[int] = []
    hit_within = hit_across = 0
    cause_requests: Counter[str] = Counter()
    cause_tokens: Counter[str] = Counter()
    tree, first_tree = PrefixTree(), PrefixTree()

    started = sorted(sessions, key=lambda s: 0.0 if s.start_s is None else s.start_s)
    for owner, session in enumerate(started):
        if not session.turns:
            continue
        main = session.turns[0].agent
        last: dict[str, Turn] = {}
        agent_turns: Counter[str] = Counter()
        spawned: Counter[tuple[int, ...]] = Counter()
        session_hit = session_prompt = 0
        for turn in session.turns:
            seen, own = tree.insert(turn.prompt, owner)
            hit = own - own % block_size
            session_hit += hit
            session_prompt += turn.num_prompt_tokens
            hit_across += seen - seen % block_size
            prompts.append(turn.num_prompt_tokens)
            outputs.append(turn.num_output_tokens)
            uncached.append(turn.num_prompt_tokens - hit)
            previous = last.get(turn.agent)
            cause = cause_of(previous, turn)
            cause_requests[cause] += 1
            cause_tokens[cause] += uncached[-1]
            if previous is None and turn.agent != main:
                spawned[turn.depends_on] += 1
            if turn.depends_on and turn.trigger == "tool":
                tool_gaps.append(turn.delay_s)
            elif turn.depends_on and turn.trigger == "user":
                human_gaps.append(turn.delay_s)
            last[turn.agent] = turn
            agent_turns[turn.agent] += 1
        hit_within += session_hit
        if session_prompt:
            session_hits.append(session_hit / session_prompt)
        first_tree.insert(session.turns[0].prompt, owner)
        first_prompts.append(session.turns[0].num_prompt_tokens)
        turns.append(agent_turns.pop(main))
        sub_turns += agent_turns.values()
        if agent_turns:
            sub_counts.append(len(agent_turns))
            launches += spawned.values()

    later = len(prompts) - cause_requests["first"]
    return TraceStats(
        block_size=block_size,
        sessions=len(sessions),
        requests=len(prompts),
        turns_per_session=spread(turns),
        prompt_tokens=spread(prompts),
        output_tokens=spread(outputs),
        uncached_tokens=spread(uncached),
        input_output_ratio=_ratio(sum(prompts), sum(outputs)),
        uncached_input_output_ratio=_ratio(sum(uncached), sum(outputs)),
        hit_rate_within=_ratio(hit_within, sum(prompts)),
        hit_rate_across=_ratio(hit_across, sum(prompts)),
        session_hit_rate=spread(session_hits),
        tool_gap_s=spread(tool_gaps),
        human_gap_s=spread(human_gaps),
        human_gap_over_300s=_ratio(sum(gap > LONG_GAP_S for gap in human_gaps), len(human_gaps)),
        human_turn_share=_ratio(len(human_gaps), len(human_gaps) + len(tool_gaps)),
        re_prefill_share=_ratio(cause_requests["re_prefill"], later),
        causes={
            name: Cause(cause_requests[name], cause_tokens[name])
            for name in ("first", "growth", "re_prefill", "deep_edit", "shrink")
        },
        first_prompt_tokens=spread(first_prompts),
        shared_prefix_tokens=spread(
            first_tree.shared(session.turns[0].prompt) for session in started if session.turns
        ),
        subagent_requests=sum(sub_turns),
        subagents=len(sub_turns),
        sessions_with_subagents=len(sub_counts),
        subagents_per_session=spread(sub_counts),
        subagents_per_launch=spread(launches),
        subagent_turns=spread(sub_turns),
    )


def spread(values: Iterable[float]) -> Spread:
    """Quantiles of `values`, linear between neighbours."""
    array = np.fromiter(values, dtype=float)
    if not array.size:
        return Spread(0)
    p10, p50, p90, p99 = (float(q) for q in np.quantile(array, (0.1, 0.5, 0.9, 0.99)))
    return Spread(array.size, float(array.mean()), p10, p50, p90, p99, float(array.max()))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
