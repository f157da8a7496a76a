"""Claude Code transcripts: every way in which lines are not requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replicast.sim.errors import InputError
from replicast.sim.workload import Content, Session, Turn
from replicast.traces import LoadedTrace, load_trace

OPUS = "claude-opus-4-6"


def common_tokens(one: Content, two: Content) -> int:
    """Leading tokens that both name the same."""
    total = 0
    for mine, other in zip(one, two, strict=False):
        if mine[:2] != other[:2]:
            break
        total += min(mine.length, other.length)
        if mine.length != other.length:
            break
    return total


def stamp(second: float) -> str:
    minutes, rest = divmod(second, 60)
    return f"2026-01-01T00:{int(minutes):02}:{rest:06.3f}Z"


def user(second: float, *, tool: bool = False, **more: Any) -> dict[str, Any]:
    content: Any = [{"type": "tool_result", "tool_use_id": "u"}] if tool else "please"
    return {
        "type": "user",
        "timestamp": stamp(second),
        "sessionId": "s",
        "message": {"content": content},
        **more,
    }


def reply(second: float, name: str, prompt: int, output: int = 50, *, cached: int = 0, model: str = OPUS,
          stop: str | None = "tool_use", content: Any = None, **more: Any) -> dict[str, Any]:  # fmt: skip
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": output}
    message = {"id": name, "model": model, "stop_reason": stop, "usage": usage, "content": content or []}
    return {"type": "assistant", "timestamp": stamp(second), "sessionId": "s", "message": message, **more}


def transcripts(folder: Path, **files: list[dict[str, Any]]) -> LoadedTrace:
    for name, lines in files.items():
        path = folder / f"{name.replace('__', '/').replace('_', '-')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(map(json.dumps, lines)))
    return load_trace([folder])


def one(loaded: LoadedTrace) -> tuple[Turn, ...]:
    assert len(loaded.sessions) == 1
    assert loaded.report.rows_read == loaded.report.rows_emitted + loaded.report.dropped.total()
    return loaded.sessions[0].turns


def test_the_recorded_folder(shared_dir: Path) -> None:
    loaded = load_trace([shared_dir / "traces/claude-code"])
    report = loaded.report
    assert (report.rows_read, report.rows_emitted) == (1163, 575)
    assert report.dropped == {"further line of a message": 588}
    assert report.estimated_outputs == 186
    sessions: dict[str, Session] = {session.session_id: session for session in loaded.sessions}
    assert len(sessions) == 8
    assert {turn.agent for turn in sessions["session-6205b5e9"].turns} == {"session-6205b5e9/6c52bf6"}
    turns = sessions["session-60fc7b99"].turns
    compact = next(turn for turn in turns if turn.agent.endswith("0b5ed0a"))
    before = turns[compact.depends_on[0]]
    assert common_tokens(before.prompt, compact.prompt) == before.num_prompt_tokens
    joined = next(turn for turn in turns if turn.trigger == "join")
    assert len(joined.depends_on) == 2
    starts = [session.turns[0].prompt[0] for session in loaded.sessions]
    assert len({segment.stream for segment in starts}) < len(starts)  # tools and system text are shared


def test_lines_of_one_message_are_one_request(tmp_path: Path) -> None:
    lines = [user(0), reply(2, "m", 900, 9), user(3, tool=True), reply(4, "m", 900, 70), reply(8, "n", 1000)]
    first, second = one(transcripts(tmp_path, s=lines))
    assert (first.num_prompt_tokens, first.num_output_tokens) == (900, 70)
    assert second.delay_s == 0.0  # the tool ended while the message still streamed
    assert second.trigger == "tool"


def test_unsorted_stamps_are_sorted(tmp_path: Path) -> None:
    lines = [user(10, tool=True), reply(12, "n", 1000), user(0), reply(4, "m", 900)]
    assert [turn.delay_s for turn in one(transcripts(tmp_path, s=lines))] == [0.0, 6.0]


def test_tool_and_human_gaps_apart(tmp_path: Path) -> None:
    lines = [user(0), reply(2, "m", 900), user(5, tool=True), user(30), user(31, isMeta=True),
             reply(33, "n", 1000), user(40, tool=True), reply(41, "o", 1100),
             reply(50, "p", 1200)]  # fmt: skip
    turns = one(transcripts(tmp_path, s=lines))
    assert [turn.trigger for turn in turns] == ["user", "user", "tool", "auto"]
    assert [(turn.tool_s, turn.think_s) for turn in turns[1:3]] == [(3.0, 25.0), (7.0, None)]
    assert [turn.delay_s for turn in turns] == [0.0, 28.0, 7.0, 0.0]


def test_placeholder_outputs_are_estimated_and_flagged(tmp_path: Path) -> None:
    text = [{"type": "text", "text": "x" * 400}]
    lines = [user(0), reply(1, "m", 900, 9, stop=None, content=text), reply(2, "n", 900, 9, content=text)]
    loaded = transcripts(tmp_path, s=lines)
    assert [turn.num_output_tokens for turn in one(loaded)] == [100, 9]
    assert loaded.report.estimated_outputs == loaded.report.flags["output_estimated"] == 1


def test_lines_that_are_no_requests_are_counted(tmp_path: Path) -> None:
    lines = [
        {"type": "summary", "summary": "x", "leafUuid": "y"},
        user(0),
        reply(1, "a", 900, model="<synthetic>"),
        reply(2, "b", 900, isApiErrorMessage=True),
        reply(3, "c", 0),
        {"type": "assistant", "timestamp": stamp(4), "sessionId": "s", "message": {"id": "d"}},
        reply(5, "m", 900, uuid="1"),
        reply(5, "m", 900, uuid="1"),
    ]
    loaded = transcripts(tmp_path, s=lines)
    assert len(one(loaded)) == 1
    assert loaded.report.dropped == {
        "synthetic message": 1, "API error": 1, "empty prompt": 1, "no usage": 1, "line twice in a file": 1,
    }  # fmt: skip
    assert loaded.report.notes == ["lines without a request: 1 summary"]


def test_growth_shrink_and_model_switch(tmp_path: Path) -> None:
    lines = [user(0), reply(1, "a", 20_000, cached=15_000), reply(3, "b", 30_000), reply(5, "c", 25_000),
             reply(7, "d", 10_000, cached=4_000), reply(9, "e", 30_000, model="haiku", cached=9_000),
             reply(11, "f", 12_000)]  # fmt: skip
    loaded = transcripts(tmp_path, s=lines)
    a, b, c, d, e, f = one(loaded)
    shared = [
        common_tokens(*pair) for pair in ((a.prompt, b.prompt), (b.prompt, c.prompt), (c.prompt, d.prompt))
    ]
    assert shared == [20_000, 25_000, 4_000]
    assert common_tokens(d.prompt, e.prompt) == 0
    assert common_tokens(d.prompt, f.prompt) == 10_000  # back to the model of before
    assert loaded.report.flags["model_switch"] == 1


def test_first_turns_share_what_was_cached_unless_the_start_is_missing(tmp_path: Path) -> None:
    loaded = transcripts(
        tmp_path,
        s=[user(0), reply(1, "a", 20_000, cached=15_000)],
        t=[user(2, sessionId="t"), reply(3, "b", 21_000)],
        v=[user(4, sessionId="v"), reply(5, "c", 150_000, cached=120_000)],
    )
    a, b, c = (session.turns[0] for session in loaded.sessions)
    assert common_tokens(a.prompt, b.prompt) == 15_000  # cold, but the same text
    assert common_tokens(a.prompt, c.prompt) == 0
    assert loaded.report.flags["continuation"] == 1


def test_resumed_and_forked_sessions_count_copies_once(tmp_path: Path) -> None:
    old = [user(0), reply(1, "a", 900), user(5, tool=True), reply(6, "b", 1000)]
    new = [*old, user(60), reply(61, "c", 1100)]
    loaded = transcripts(tmp_path, s=old, t=[{**line, "sessionId": "t"} for line in new])
    first, second = loaded.sessions
    assert [turn.num_prompt_tokens for turn in first.turns + second.turns] == [900, 1000, 1100]
    assert loaded.report.dropped == {"copied by resume or fork": 2}
    assert common_tokens(first.turns[1].prompt, second.turns[0].prompt) == 1000


def test_side_chains_that_replay_the_parent_are_dropped(tmp_path: Path) -> None:
    side = {"isSidechain": True, "agentId": "x"}
    lines = [user(0), reply(1, "a", 900), user(2, **side), reply(3, "a", 900, requestId="other", **side),
             reply(4, "b", 950, **side), user(9, tool=True), reply(10, "c", 1000)]  # fmt: skip
    loaded = transcripts(tmp_path, s=lines)
    assert [turn.agent for turn in one(loaded)] == ["s", "s/x", "s"]
    assert loaded.report.dropped == {"replayed in a side chain": 1}


def test_subagents_fork_and_join_and_compaction_repeats_the_context(tmp_path: Path) -> None:
    side = {"isSidechain": True, "agentId": "x"}
    calls = [{"type": "tool_use", "id": "u", "input": {"subagent_type": "Explore"}}]
    loaded = transcripts(
        tmp_path,
        s=[user(0), reply(1, "a", 50_000, content=calls),
           user(20, tool=True, toolUseResult={"agentId": "x"}), reply(21, "b", 60_000),
           user(70, isCompactSummary=True), reply(72, "d", 9_000, cached=5_000)],
        s__subagents__agent_x=[user(2, **side), reply(3, "e", 8_000, **side), user(8, tool=True, **side),
                               reply(9, "f", 9_000, **side)],
        s__subagents__agent_acompact_9=[user(50, **side | {"agentId": "9"}),
                                        reply(65, "g", 61_000, **side | {"agentId": "9"})],
    )  # fmt: skip
    turns = one(loaded)
    assert [turn.agent for turn in turns] == ["s", "s/x", "s/x", "s", "s/9", "s"]
    assert [turn.depends_on for turn in turns] == [(), (0,), (1,), (0, 2), (3,), (3, 4)]
    assert [turn.trigger for turn in turns] == ["user", "spawn", "tool", "join", "auto", "auto"]
    assert [turn.delay_s for turn in turns] == [0.0, 1.0, 5.0, 11.0, 29.0, 5.0]
    assert common_tokens(turns[3].prompt, turns[4].prompt) == 60_000
    assert common_tokens(turns[3].prompt, turns[5].prompt) == 5_000


def test_a_subagent_without_its_main_transcript(tmp_path: Path) -> None:
    side = {"isSidechain": True, "agentId": "x"}
    loaded = transcripts(tmp_path, s__subagents__agent_x=[user(2, **side), reply(3, "e", 8_000, **side)])
    assert loaded.sessions[0].session_id == "s"
    assert one(loaded)[0].agent == "s/x"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"type": "assis', "broken JSON"),
        (json.dumps(reply(5, "n", 900, -3)), "output_tokens"),
        (json.dumps(reply(5, "n", 10**8)), "input_tokens"),
        (json.dumps(reply(5, "n", 18_000_000, cached=9_000_000)), "18000000 tokens"),
        (json.dumps({**reply(5, "n", 900), "timestamp": "yesterday"}), "timestamp"),
        (json.dumps({**reply(5, "n", 900), "message": "hi"}), "object"),
        ('{"type": "assistant", "data": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path: Path, bad: str, words: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([json.dumps(user(0)), json.dumps(reply(1, "m", 900)), bad]))
    with pytest.raises(InputError, match=words) as caught:
        load_trace([path])
    assert caught.value.where == f"{path}:3"
    report = load_trace([path], skip_bad_rows=True).report
    assert (report.rows_read, report.rows_emitted, report.dropped.total()) == (2, 1, 1)


def test_transcripts_without_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no request"):
        transcripts(tmp_path, s=[user(0)])
