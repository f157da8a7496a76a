"""What one developer at work asks of a server, read from one's own sessions.

A *spell* is a stretch of a session without a gap of more than ten minutes between turns of its main agent;
stretches of less than five minutes say nothing about rates and are left out, and counted. Times are the
recorded arrivals; without them, the sum of gaps, as if every reply came at once, which makes rates too high.
Computed tokens are those that no earlier prompt of the session held, in whole blocks: what a cache that
never forgets leaves to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from replicast.sim.workload import Seconds, Session
from replicast.traces.reshape import nominal_times
from replicast.traces.stats import PrefixTree, Spread, spread

LONGEST_GAP_S = 600.0
SHORTEST_SPELL_S = 300.0


class _Row(NamedTuple):
    at_s: Seconds
    gap_s: Seconds
    is_main: bool
    agent: str
    prompt: int
    computed: int
    output: int


@dataclass(frozen=True, slots=True)
class DeveloperLoadStats:
    """Rates of one live session, one value a spell. `short_spells` were left out.

    `live_contexts` counts the main agent and the sub-agents that work at the same time, as a mean over
    the spell. `recorded` tells whether times are recorded or the sum of gaps.
    """

    spells: int
    short_spells: int
    recorded: bool
    block_size: int
    requests_per_hour: Spread
    prompt_tokens_per_s: Spread
    computed_tokens_per_s: Spread
    output_tokens_per_s: Spread
    live_contexts: Spread
    spell_s: Spread

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            name: value._asdict() if isinstance(value, Spread) else value
            for name, value in ((field, getattr(self, field)) for field in asdict(self))
        }


def load_per_developer(sessions: Sequence[Session], *, block_size: int = 16) -> DeveloperLoadStats:
    """Requests an hour, tokens a second and contexts of a live session, over all spells."""
    timed = [session for session in sessions if session.turns]
    recorded = bool(timed) and all(t.arrival_s is not None for s in timed for t in s.turns)
    rates: dict[str, list[float]] = {
        name: [] for name in ("requests", "prompt", "computed", "output", "live", "length")
    }
    short = 0
    for session in timed:
        for spell in _spells(_rows(session, recorded, block_size)):
            length_s = max(row.at_s for row in spell) - spell[0].at_s
            if length_s < SHORTEST_SPELL_S:
                short += 1
                continue
            rates["requests"].append(3600 * len(spell) / length_s)
            rates["prompt"].append(sum(row.prompt for row in spell) / length_s)
            rates["computed"].append(sum(row.computed for row in spell) / length_s)
            rates["output"].append(sum(row.output for row in spell) / length_s)
            rates["live"].append(_contexts(spell, length_s))
            rates["length"].append(length_s)
    return DeveloperLoadStats(
        spells=len(rates["length"]),
        short_spells=short,
        recorded=recorded,
        block_size=block_size,
        requests_per_hour=spread(rates["requests"]),
        prompt_tokens_per_s=spread(rates["prompt"]),
        computed_tokens_per_s=spread(rates["computed"]),
        output_tokens_per_s=spread(rates["output"]),
        live_contexts=spread(rates["live"]),
        spell_s=spread(rates["length"]),
    )


def _rows(session: Session, recorded: bool, block_size: int) -> list[_Row]:
    starts = nominal_times(session, 0.0)[0]
    main = session.turns[0].agent
    tree = PrefixTree()
    rows = []
    for turn, start in zip(session.turns, starts, strict=True):
        own = tree.insert(turn.prompt, 0)[1]
        at_s = turn.arrival_s if recorded and turn.arrival_s is not None else start
        rows.append(
            _Row(
                at_s,
                turn.delay_s if turn.depends_on else 0.0,
                turn.agent == main,
                turn.agent,
                turn.num_prompt_tokens,
                turn.num_prompt_tokens - own + own % block_size,
                turn.num_output_tokens,
            )
        )
    return sorted(rows, key=lambda row: row.at_s)


def _spells(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    spell: list[_Row] = []
    for row in rows:
        if spell and row.is_main and row.gap_s > LONGEST_GAP_S:
            yield spell
            spell = []
        spell.append(row)
    if spell:
        yield spell


def _contexts(spell: Sequence[_Row], length_s: Seconds) -> float:
    """The main agent all the time, each sub-agent from its first to its last request."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for row in spell:
        if not row.is_main:
            first.setdefault(row.agent, row.at_s)
            last[row.agent] = row.at_s
    return 1 + sum(last[agent] - first[agent] for agent in first) / length_s
