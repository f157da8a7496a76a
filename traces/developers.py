"""N developers as sessions that are live at one time.

    developers x active share of the hour x sessions each = live sessions

Each live session is a sequence of sessions resampled from a trace, recorded or synthetic. The first one is
found in its midst: drawn in proportion to its length, entered at a uniform moment, as somebody who looks
in at a random time finds it. Others follow, each after one of the trace's own human gaps.

Content keeps its identity: what several sessions of the trace share (tools, system prompt) stays shared,
while a session drawn twice gets a second copy of its own content. So resampling adds no reuse.

All of these are assumptions and each can be changed: `Developers` holds them, `docs/plan.md` tells their
sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from replicast.sim.errors import InputError
from replicast.sim.fleet.clients import Follower, Shift
from replicast.sim.planning.changes import Change
from replicast.sim.planning.load import DayWorkload, Workload
from replicast.sim.workload import Seconds, Session
from replicast.traces.prefixes import (
    rename_session,
    shared_streams,
    with_broken_prefix,
    with_outputs,
    with_tools_prefix,
)
from replicast.traces.reshape import cut_session, end_before, keep_agents, nominal_times, reshape_gaps

_CHAINS, _SUBAGENTS, _DAYS = 11, 12, 13  # random streams
_MOST_FOLLOWERS = 10_000
_COMING_S = 900.0
_Chain = tuple[Session, list[tuple[Session, Seconds]]]


@dataclass(frozen=True, slots=True)
class Developers:
    """Who works, and how.

    `active_share`: developers with a live session in the hour planned for. `sessions_each`: live sessions
    of an active developer. `subagents`: share of the trace's sub-agents that is kept. The scales multiply
    gaps; then no gap, of a human or a tool, is longer than `longest_gap_s`: who stays away longer is not at
    work. `requests_per_hour`, where given, scales all gaps so that a live session asks so often while
    nobody queues. `tools_prefix` and `broken_prefix` change what prompts share (`prefixes.py`),
    `output_scale` the length of replies.
    """

    developers: int
    active_share: float
    sessions_each: float = 1.0
    subagents: float = 1.0
    tool_gap_scale: float = 1.0
    human_gap_scale: float = 1.0
    longest_gap_s: Seconds = 600.0
    requests_per_hour: float | None = None
    tools_prefix: int | None = None
    broken_prefix: float = 0.0
    output_scale: float = 1.0

    def __post_init__(self) -> None:
        _between("developers", self.developers, 1, 10_000_000)
        _between("active share", self.active_share, 0, 1, above=True)
        _between("sessions each", self.sessions_each, 0, 1000, above=True)
        _between("subagents", self.subagents, 0, 1)
        _between("tool gap scale", self.tool_gap_scale, 0, 1000)
        _between("human gap scale", self.human_gap_scale, 0, 1000)
        _between("longest gap", self.longest_gap_s, 0, 1e9)
        _between("tools prefix", self.tools_prefix or 0, 0, 1e9)
        _between("broken prefix", self.broken_prefix, 0, 1)
        _between("output scale", self.output_scale, 0, 1000, above=True)
        if self.requests_per_hour is not None:
            _between("requests per hour", self.requests_per_hour, 0, 1e6, above=True)

    @property
    def live_sessions(self) -> int:
        """Sessions live at one time, at least one."""
        return max(1, round(self.developers * self.active_share * self.sessions_each))


def _between(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    if not low <= value <= high or (above and value == low):
        bound = f"above {low:g}" if above else f"{low:g} or more"
        raise InputError(f"{name} is {value:g}, must be {bound} and at most {high:g}")


class DeveloperLoad:
    """Workloads of `developers` whose work looks like `sessions`; a `LoadModel`.

    `token_s` is the least time an output token can take: sequences of sessions are made long enough to
    last `horizon_s` even at that speed. Sessions end before the first prompt of `longest` tokens or more, as
    a developer starts afresh there; `left_out` counts the turns that this costs.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        people: Developers,
        *,
        token_s: Seconds,
        horizon_s: Seconds,
        seed: int,
        longest: int | None = None,
    ) -> None:
        if not any(session.turns for session in sessions):
            raise InputError("the trace holds no turns", remedy="Give a trace with at least one request.")
        usable = [short for session in sessions if (short := end_before(session, longest)).turns]
        if not usable:
            raise InputError(
                f"every prompt reaches max_model_len ({longest:,} tokens)", remedy="Raise --max-model-len."
            )
        self.left_out = sum(len(s.turns) for s in sessions) - sum(len(s.turns) for s in usable)
        if all(len(session.turns) == 1 for session in usable) and people.requests_per_hour is None:
            raise InputError(
                "the trace has no session structure: who waits for which reply is not recorded",
                remedy="Give sessions (transcripts, or `replicast trace synth`), or the requests per hour of "
                "a live session; `replicast replay` takes such traces at their recorded arrivals.",
            )
        self.people = people
        self._whole = tuple(sessions)
        self._recorded = tuple(usable)
        self._longest = longest
        self._token_s = token_s
        self._horizon_s = horizon_s
        self._seed = seed

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions that are resampled, reshaped as `people` says."""
        people = self.people
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(_SUBAGENTS,)))
        tool, human, cap_s = people.tool_gap_scale, people.human_gap_scale, people.longest_gap_s
        shaped = [keep_agents(session, people.subagents, rng) for session in self._recorded]
        shaped = [reshape_gaps(session, tool, human, cap_s) for session in shaped]
        if people.output_scale != 1:
            shaped = with_outputs(shaped, people.output_scale)
        if people.tools_prefix is not None:
            shaped = with_tools_prefix(shaped, people.tools_prefix)
        if people.broken_prefix:
            shaped = with_broken_prefix(shaped, people.broken_prefix, self._seed)
        if people.requests_per_hour is not None:
            shaped = _at_rate(shaped, people, self._token_s)
        return tuple(shaped)

    @property
    def live_sessions(self) -> int:
        """Sessions live at one time."""
        return self.people.live_sessions

    @property
    def developers(self) -> int:
        """Developers, idle ones included."""
        return self.people.developers

    @cached_property
    def requests_per_hour(self) -> float:
        """Requests of a live session in an hour in which nobody queues."""
        return 3600 * sum(len(session.turns) for session in self.sessions) / sum(self._times[1])

    def changed(self, change: Change) -> DeveloperLoad:
        """The load after one change; what does not depend on it is kept."""
        people = self.people
        name = change.name
        if name == "developers":
            people = replace(people, developers=round(change.number(people.developers)))
        elif name == "active":
            people = replace(people, active_share=change.number(people.active_share))
        elif name == "sessions-each":
            people = replace(people, sessions_each=change.number(people.sessions_each))
        elif name == "subagents":
            people = replace(people, subagents=change.number(people.subagents))
        elif name == "tool-gap":
            people = replace(people, tool_gap_scale=change.number(people.tool_gap_scale))
        elif name == "human-gap":
            people = replace(people, human_gap_scale=change.number(people.human_gap_scale))
        elif name == "requests-per-hour":
            people = replace(people, requests_per_hour=change.number(people.requests_per_hour))
        elif name == "tools-prefix":
            people = replace(people, tools_prefix=round(change.number()))
        elif name == "broken-prefix":
            people = replace(people, broken_prefix=change.number())
        else:
            assert name == "output-tokens", name
            people = replace(people, output_scale=change.number(people.output_scale))
        other = self._with(people, self._longest)
        if name in ("developers", "active", "sessions-each"):
            for kept in ("sessions", "_times", "_shared", "_copied"):
                other.__dict__[kept] = getattr(self, kept)
        return other

    def below(self, longest: int) -> DeveloperLoad:
        """The load where prompts of `longest` tokens or more are not taken."""
        return self._with(self.people, longest)

    def _with(self, people: Developers, longest: int | None) -> DeveloperLoad:
        return DeveloperLoad(
            self._whole, people, token_s=self._token_s, horizon_s=self._horizon_s, seed=self._seed,
            longest=longest,
        )  # fmt: skip

    def draw(self, replication: int) -> Workload:
        """Sessions of one replication; developer i always has the same."""
        copies: Counter[int] = Counter()
        chains = []
        for slot in range(self.live_sessions):
            key = np.random.SeedSequence(self._seed, spawn_key=(_CHAINS, replication, slot))
            chains.append(self._chain(np.random.default_rng(key), self._horizon_s, copies))
        sessions, followers = _laid_out(chains)
        return Workload(sessions, self.live_sessions, followers)

    def draw_day(self, replication: int, day: Sequence[float]) -> DayWorkload:
        """Sessions of a whole day: developers come and leave so that each hour has its active share.

        Somebody whom an hour has more than the one before comes within its first quarter, and whom it has
        fewer leaves within it: the developers with the highest numbers, so the same come again. Each time
        is entered in the midst of a session. Whoever is there at midnight comes in the first quarter.
        """
        people, copies = self.people, Counter[int]()
        live = [round(people.developers * share * people.sessions_each) for share in day]
        if not any(live):
            live[day.index(max(day))] = 1  # as a plan of the busiest hour has at least one
        chains, shifts = [], []
        for first, slot, last in _spans(live):
            key = np.random.SeedSequence(self._seed, spawn_key=(_DAYS, replication, slot, first))
            rng = np.random.default_rng(key)
            start_s = 3600.0 * first + rng.random() * _COMING_S
            end_s = 3600.0 * last + (rng.random() * _COMING_S if last < len(live) else 0.0)
            chains.append(self._chain(rng, end_s - start_s, copies))
            shifts.append(Shift(start_s, end_s))
        sessions, followers = _laid_out(chains)
        return DayWorkload(sessions, followers, tuple(shifts), tuple(live))

    def _chain(self, rng: np.random.Generator, length_s: Seconds, copies: Counter[int]) -> _Chain:
        """One developer's sessions for `length_s`, entered in the midst of the first."""
        times, lengths, weights, gaps = self._times
        index = int(np.searchsorted(weights, rng.random(), side="right"))
        at_s = rng.random() * lengths[index]
        head = cut_session(self._copy(index, copies), times[index], at_s)
        left_s = length_s - (lengths[index] - at_s)
        tail: list[tuple[Session, float]] = []
        while left_s > 0 and len(tail) < _MOST_FOLLOWERS:
            index = int(rng.integers(len(self.sessions)))
            gap_s = float(gaps[rng.integers(len(gaps))])
            tail.append((self._copy(index, copies), gap_s))
            left_s -= gap_s + lengths[index]
        return head, tail

    @cached_property
    def _times(self) -> tuple[list[list[Seconds]], list[Seconds], np.ndarray, list[Seconds]]:
        """Starts of turns and length of each session while nobody queues, cumulated weights, human gaps."""
        times, lengths = [], []
        for session in self.sessions:
            starts, end = nominal_times(session, self._token_s)
            times.append(starts)
            lengths.append(max(end, 1e-3))
        weights = np.cumsum(lengths)
        gaps = [
            turn.delay_s
            for session in self.sessions
            for turn in session.turns
            if turn.depends_on and turn.trigger == "user"
        ]
        if all(len(session.turns) == 1 for session in self.sessions):
            rate = self.people.requests_per_hour
            assert rate is not None
            mean_s = max(3600 / rate - float(np.mean(lengths)), 0.0)
            gaps = (-mean_s * np.log1p(-(np.arange(997) + 0.5) / 997)).tolist()  # exponential
        return times, lengths, weights / weights[-1], gaps or [0.0]

    @cached_property
    def _shared(self) -> tuple[frozenset[int], int]:
        return shared_streams(self.sessions)

    @cached_property
    def _copied(self) -> dict[tuple[int, int], Session]:
        return {}

    def _copy(self, index: int, copies: Counter[int]) -> Session:
        """The session, with content of its own from the second time on."""
        number = copies[index]
        copies[index] += 1
        if not number:
            return self.sessions[index]
        made = self._copied.get((index, number))
        if made is None:
            shared, top = self._shared
            made = rename_session(self.sessions[index], shared, number * (top + 1), f"~{number}")
            self._copied[index, number] = made
        return made

    def __getstate__(self) -> dict[str, object]:
        made = ("sessions", "requests_per_hour", "_times", "_shared", "_copied")  # again at the other end
        return {name: value for name, value in self.__dict__.items() if name not in made}


def _at_rate(sessions: Sequence[Session], people: Developers, token_s: Seconds) -> list[Session]:
    """All gaps scaled so that a live session asks `requests_per_hour` times an hour while nobody queues."""
    rate = people.requests_per_hour
    assert rate is not None
    if all(len(session.turns) == 1 for session in sessions):
        return list(sessions)
    requests = sum(len(session.turns) for session in sessions)
    wanted_s = 3600 * requests / rate

    def total_s(scale: float) -> float:
        return sum(nominal_times(session, token_s, scale)[1] for session in sessions)

    if total_s(0.0) >= wanted_s:
        most = 3600 * requests / total_s(0.0)
        raise InputError(
            f"a live session cannot ask {rate:g} times an hour: without any gap it asks {most:.0f} times",
            remedy="Give fewer requests per hour, or more sessions each.",
        )
    low, high = 0.0, 1.0
    while total_s(high) < wanted_s:
        high *= 2
        if high > 1e9:
            raise InputError("the trace has no gaps to stretch", remedy="Leave the requests per hour out.")
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if total_s(middle) < wanted_s else (low, middle)
    return [reshape_gaps(session, high, high, None) for session in sessions]


def _laid_out(chains: Sequence[_Chain]) -> tuple[tuple[Session, ...], dict[int, Follower]]:
    """First sessions first, and who follows whom."""
    sessions = [head for head, _ in chains]
    followers: dict[int, Follower] = {}
    for slot, (_, tail) in enumerate(chains):
        before = slot
        for session, gap_s in tail:
            followers[before] = Follower(len(sessions), gap_s)
            before = len(sessions)
            sessions.append(session)
    return tuple(sessions), followers


def _spans(live: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first hour, slot, hour after the last) of each time that somebody is at work, in order of coming."""
    spans = []
    for slot in range(max(live)):
        hours = [hour for hour, number in enumerate(live) if number > slot]
        first = hours[0]
        for hour, following in zip(hours, [*hours[1:], -1], strict=True):
            if following != hour + 1:
                spans.append((first, slot, hour + 1))
                first = following
    return sorted(spans)
