"""Developers as live sessions: resampling keeps structure and content; figures of real sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.planning.changes import Change
from replicast.sim.workload import Segment, Session, Turn, num_tokens
from replicast.traces.day import OFFICE_DAY, busiest, read_day
from replicast.traces.developers import DeveloperLoad, Developers
from replicast.traces.load import load_trace
from replicast.traces.prefixes import TOOLS_STREAM, shared_streams, with_broken_prefix, with_tools_prefix
from replicast.traces.reshape import cut_session, end_before, keep_agents, nominal_times, reshape_gaps
from replicast.traces.spells import load_per_developer
from replicast.traces.stats import common_prefix


def session(name: str, turns: int, stream: int, *, shared: int = 100, gap_s: float = 10.0) -> Session:
    """A main agent whose prompts grow by 50 tokens of its own stream after `shared` tokens of stream 1."""
    made = []
    for t in range(turns):
        own = 50 * (t + 1)
        prompt = (Segment(1, 0, shared), Segment(stream, 0, own)) if shared else (Segment(stream, 0, own),)
        made.append(
            Turn(
                f"{name}#{t}",
                name,
                (t - 1,) if t else (),
                gap_s if t else 0.0,
                prompt,
                (Segment(stream, own, 20),),
                shared + own,
                20,
                trigger="user" if t % 2 else "tool",
            )
        )
    return Session(name, tuple(made))


def with_agent() -> Session:
    """Turn 0 of the main agent, two turns of a sub-agent, and turn 3 that joins."""

    def turn(n: int, agent: str, after: tuple[int, ...]) -> Turn:
        return Turn(f"t{n}", agent, after, 1.0, (Segment(9, 0, 10),), (), 10, 5, trigger="tool")

    return Session("s", (turn(0, "m", ()), turn(1, "a", (0,)), turn(2, "a", (1,)), turn(3, "m", (0, 2))))


def load(people: Developers, sessions: list[Session] | None = None, seed: int = 3) -> DeveloperLoad:
    pool = sessions or [session(f"s{i}", 4 + i, 10 + i) for i in range(5)]
    return DeveloperLoad(pool, people, token_s=0.01, horizon_s=500.0, seed=seed)


def test_live_sessions() -> None:
    assert Developers(120, 0.6).live_sessions == 72
    assert Developers(120, 0.5, sessions_each=1.5).live_sessions == 90
    assert Developers(1, 0.01).live_sessions == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"developers": 0},
        {"active_share": 0.0},
        {"active_share": 1.5},
        {"subagents": 2.0},
        {"broken_prefix": -1.0},
    ],
)
def test_impossible_developers(fields: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(Developers(10, 0.5), **fields)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(0, 30), st.integers(0, 5))
def test_developer_i_has_the_same_sessions_however_many_there_are(few: int, more: int, number: int) -> None:
    small = load(Developers(few, 1.0)).draw(number)
    large = load(Developers(few + more, 1.0)).draw(number)
    assert small.sessions[: small.live] == large.sessions[: small.live]
    for slot in range(small.live):
        ours, theirs = _chain(small, slot), _chain(large, slot)
        assert ours == theirs


def _chain(workload: object, slot: int) -> list[tuple[Session, float]]:
    out, at = [], slot
    while at in workload.followers:  # type: ignore[attr-defined]
        at, gap_s = workload.followers[at]  # type: ignore[attr-defined]
        out.append((workload.sessions[at], gap_s))  # type: ignore[attr-defined]
    return out


def test_sequences_outlast_the_horizon_at_the_greatest_speed() -> None:
    people = Developers(30, 1.0)
    drawn = load(people).draw(0)
    for slot in range(drawn.live):
        length_s = nominal_times(drawn.sessions[slot], 0.01)[1]
        length_s += sum(gap + nominal_times(s, 0.01)[1] for s, gap in _chain(drawn, slot))
        assert length_s + 100 >= 500  # the first is entered in its midst, up to a gap before its next turn


def test_resampling_adds_no_reuse_but_keeps_what_is_shared() -> None:
    drawn = load(Developers(40, 1.0)).draw(1)
    own: dict[int, str] = {}
    for s in drawn.sessions:
        for turn in s.turns:
            assert num_tokens(turn.prompt) == turn.num_prompt_tokens
            for segment in turn.prompt:
                if segment.stream != 1:
                    assert own.setdefault(segment.stream, s.session_id) == s.session_id
    assert len(own) == len({s.session_id for s in drawn.sessions})


def test_same_replication_same_workload_another_seed_another() -> None:
    people = Developers(10, 1.0)
    assert load(people).draw(2) == load(people).draw(2)
    assert load(people).draw(2) != load(people).draw(3)
    assert load(people).draw(2) != load(people, seed=4).draw(2)


def test_requests_per_hour_are_obtained() -> None:
    people = Developers(10, 1.0, requests_per_hour=90.0)
    assert load(people).requests_per_hour == pytest.approx(90, rel=1e-6)
    with pytest.raises(InputError, match="cannot ask"):
        load(replace(people, requests_per_hour=1e6)).draw(0)


def test_single_requests_need_a_rate() -> None:
    single = [session(f"s{i}", 1, 10 + i) for i in range(4)]
    with pytest.raises(InputError, match="no session structure"):
        load(Developers(5, 1.0), single)
    drawn = load(Developers(200, 1.0, requests_per_hour=60.0), single).draw(0)
    gaps = [gap for slot in range(200) for _, gap in _chain(drawn, slot)]
    assert float(np.mean(gaps)) == pytest.approx(60 - 0.2, rel=0.05)


def test_gaps_by_part_and_cap() -> None:
    shaped = reshape_gaps(session("s", 4, 10), tool=0.5, human=2.0, cap_s=15.0)
    assert [turn.delay_s for turn in shaped.turns] == [0.0, 15.0, 5.0, 15.0]
    assert [turn.tool_s for turn in shaped.turns] == [0.0, 0.0, 5.0, 0.0]


def test_dropping_sub_agents_keeps_the_order() -> None:
    kept = keep_agents(with_agent(), 0.0, np.random.default_rng(0))
    assert [turn.turn_id for turn in kept.turns] == ["t0", "t3"]
    assert [turn.depends_on for turn in kept.turns] == [(), (0,)]
    assert keep_agents(with_agent(), 1.0, np.random.default_rng(0)) == with_agent()


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 60))
def test_entering_a_session_keeps_later_turns_and_their_order(at_s: float) -> None:
    whole = with_agent()
    starts, _ = nominal_times(whole, 1.0)
    left = cut_session(whole, starts, at_s)
    assert left.turns
    assert [t.turn_id for t in left.turns] == [t.turn_id for t in whole.turns][-len(left.turns) :]
    assert all(before < i for i, turn in enumerate(left.turns) for before in turn.depends_on)


def test_a_session_ends_before_a_prompt_too_long() -> None:
    assert len(end_before(session("s", 6, 10), 300).turns) == 3
    assert end_before(session("s", 6, 10), 10_000).turns == session("s", 6, 10).turns


def test_common_tools_prefix() -> None:
    pool = [session(f"s{i}", 3, 10 + i) for i in range(3)]
    for tokens in (0, 60, 5000):
        shaped = with_tools_prefix(pool, tokens)
        a, b = shaped[0].turns[-1], shaped[1].turns[-1]
        assert common_prefix(a.prompt, b.prompt) == min(tokens, a.num_prompt_tokens, b.num_prompt_tokens)
        for s in shaped:
            for before, turn in zip(s.turns, s.turns[1:], strict=False):
                assert common_prefix(before.prompt, turn.prompt) == before.num_prompt_tokens
            assert all(num_tokens(t.prompt) == t.num_prompt_tokens for t in s.turns)
    assert TOOLS_STREAM in shared_streams(pool)[0]


def test_broken_prefixes_fit_nothing() -> None:
    shaped = with_broken_prefix([session(f"s{i}", 3, 10 + i) for i in range(3)], 1.0, 1)
    prompts = [turn.prompt for s in shaped for turn in s.turns]
    assert all(common_prefix(a, b) == 0 for i, a in enumerate(prompts) for b in prompts[:i])


def test_a_change_of_number_keeps_the_pool() -> None:
    base = load(Developers(10, 0.5))
    more = base.changed(Change("developers", "+50%"))
    assert more.developers == 15
    assert more.sessions is base.sessions
    assert base.changed(Change("output-tokens", "x2")).sessions[0].turns[0].num_output_tokens == 40


def test_day_curves(tmp_path: Path) -> None:
    assert len(OFFICE_DAY) == 24
    assert busiest(OFFICE_DAY) == (15, 0.6)
    path = tmp_path / "day.csv"
    path.write_text("hour,active_developers\n9,30\n10,60\n")
    assert busiest(read_day(path, 120)) == (10, 0.5)
    for text in (
        "a,b\n1,2\n",
        "hour,active_share\n24,0.5\n",
        "hour,active_share\n1,2\n",
        "hour,active_share\n1,x\n",
    ):
        path.write_text(text)
        with pytest.raises(InputError):
            read_day(path, 120)


def test_load_per_developer_by_hand() -> None:
    stats = load_per_developer([session("s", 41, 10, shared=0)], block_size=1)
    assert (stats.spells, stats.recorded) == (1, False)
    assert stats.requests_per_hour.p50 == pytest.approx(41 * 3600 / 400)
    assert stats.computed_tokens_per_s.p50 == pytest.approx(41 * 50 / 400)
    assert load_per_developer([session("s", 5, 10)]).short_spells == 1


def test_load_per_developer_of_recorded_sessions(shared_dir: Path) -> None:
    """The published figures of the whole corpus: 81 requests/h, 2.4K prompt and 68 computed tokens/s."""
    trace = load_trace([shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"])
    stats = load_per_developer(trace.sessions, block_size=trace.report.block_size or 64)
    assert stats.requests_per_hour.p50 == pytest.approx(81, rel=0.1)
    assert stats.prompt_tokens_per_s.p50 == pytest.approx(2400, rel=0.1)
    assert stats.computed_tokens_per_s.p50 == pytest.approx(68, rel=0.1)
    assert stats.computed_tokens_per_s.mean == pytest.approx(131, rel=0.15)
