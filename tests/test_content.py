"""Content: what is the same in two prompts is named the same, and nothing else is."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.workload import Content, Segment, Session, Turn, cut, num_tokens
from replicast.traces import load_trace, read_canonical
from replicast.traces.canonical import BlockPrefix, TraceRequest
from replicast.traces.content import head
from replicast.traces.formats.weka import common_ids

HEADER = {"canon": 1, "block_size": 16, "block_scope": "session_tree"}


def common_tokens(one: Content, two: Content) -> int:
    """Leading tokens that both name the same."""
    total = 0
    for (stream, offset, length), (other_stream, other_offset, other_length) in zip(one, two, strict=False):
        if (stream, offset) != (other_stream, other_offset):
            break
        total += min(length, other_length)
        if length != other_length:
            break
    return total


def load(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[Session, ...]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_trace([path], **options).sessions


def blocks(
    session: str, turn: int, prompt: int, add: list[list[int]], keep: int = 0, **more: Any
) -> dict[str, Any]:
    base = f"{session}#{turn - 1}" if keep else None
    return {
        "id": f"{session}#{turn}", "session": session, "turn": turn,
        "prompt_tokens": prompt, "output_tokens": 10,
        "prefix": {"base": base, "keep": keep, "add": add}, **more,
    }  # fmt: skip


def counts(
    session: str, turn: int, prompt: int, keep: int = 0, how: str = "prompt_growth", **more: Any
) -> dict[str, Any]:
    return {
        "id": f"{session}#{turn}", "session": session, "turn": turn,
        "prompt_tokens": prompt, "output_tokens": 10,
        "prefix": {"base": None, "keep_tokens": keep, "how": how}, **more,
    }  # fmt: skip


def check(turns: tuple[Turn, ...]) -> None:
    for turn in turns:
        assert num_tokens(turn.prompt) == turn.num_prompt_tokens
        assert num_tokens(turn.output) == turn.num_output_tokens >= 1
        assert all(dependency < index for index, turn in enumerate(turns) for dependency in turn.depends_on)


def test_a_growing_session_is_one_segment_and_repeats_its_reply(tmp_path: Path) -> None:
    rows = [HEADER, {"session": "a"}, blocks("a", 0, 40, [[1, 2]]), blocks("a", 1, 75, [[3, 2]], 2)]
    first, second = load(tmp_path, rows)[0].turns
    assert [len(first.prompt), len(second.prompt)] == [1, 2]  # the tail of the last prompt is private
    assert first.prompt == cut(second.prompt, 0, 40)
    assert first.output == cut(second.prompt, 40, 50)
    alone = load(tmp_path, rows, reply_reuse=False)[0].turns
    assert alone[0].prompt == cut(alone[1].prompt, 0, 40)
    assert alone[0].output != cut(alone[1].prompt, 40, 50)


def test_reasoning_and_short_growth_limit_the_reused_reply(tmp_path: Path) -> None:
    rows = [
        HEADER,
        {"session": "a"},
        blocks("a", 0, 40, [[1, 2]], reasoning_tokens=7),
        blocks("a", 1, 64, [[3, 2]], 2),
    ]
    first, second = load(tmp_path, rows)[0].turns
    assert common_tokens(first.output, cut(second.prompt, 40, 64)) == 3
    rows[-1] = blocks("a", 1, 42, [], 2)
    first, second = load(tmp_path, rows)[0].turns
    assert common_tokens(first.output, cut(second.prompt, 40, 42)) == 2
    check((first, second))


def test_sessions_of_a_group_share_whole_blocks_only(tmp_path: Path) -> None:
    shared = {"group": "g", "tokens": 40}
    rows = [HEADER]
    for name, start in (("a", 1), ("b", 100)):
        rows.append({"session": name, "shared_prefix": shared})
        rows.append(blocks(name, 0, 64, [[start, 4]]))
        rows.append(blocks(name, 1, 80, [[start + 4, 1]], 4))
    one, two = load(tmp_path, rows)
    for mine in one.turns:
        assert common_tokens(mine.prompt, two.turns[1].prompt) == 32
    apart = load(tmp_path, rows, share_prefixes=False)
    assert common_tokens(apart[0].turns[0].prompt, apart[1].turns[0].prompt) == 0


def test_ids_of_one_tree_decide_against_the_group(tmp_path: Path) -> None:
    shared = {"group": "g", "tokens": 64}
    rows = [HEADER, {"session": "a"}, blocks("a", 0, 16, [[1, 1]])]
    for name, start in (("a/x", 10), ("a/y", 10), ("a/z", 20)):
        rows.append({"session": name, "parent": "a", "shared_prefix": shared})
        rows.append(blocks(name, 0, 64, [[start, 4]], wait_for=["a#0"]))
    _, x, y, z = load(tmp_path, rows)[0].turns
    assert x.prompt == y.prompt
    assert common_tokens(x.prompt, z.prompt) == 0


def test_own_ids_of_partial_blocks_match_whole_prompts(tmp_path: Path) -> None:
    header = {**HEADER, "block_scope": "global", "partial_block": "own_id"}
    rows = [header]
    for name, add in (("a", [[1, 3]]), ("b", [[1, 3]]), ("c", [[1, 2], [9, 1]])):
        rows += [{"session": name}, blocks(name, 0, 40, add)]
    a, b, c = (session.turns[0] for session in load(tmp_path, rows))
    assert a.prompt == b.prompt
    assert common_tokens(a.prompt, c.prompt) == 32
    check((a,))


def test_counts_grow_in_one_segment_and_share_first_turns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"canon": 1}]
    for name in ("a", "b"):
        rows.append({"session": name, "shared_prefix": {"group": "g", "tokens": 100}})
        rows += [
            counts(name, 0, 150, 100, "shared_prefix"),
            counts(name, 1, 220, 150),
            counts(name, 2, 300, 220),
        ]
        rows += [counts(name, 3, 130, 110, "cache_read"), counts(name, 4, 50, 0, "none")]
    one, two = (session.turns for session in load(tmp_path, rows))
    assert [len(turn.prompt) for turn in one] == [2, 2, 2, 3, 1]
    assert common_tokens(one[0].prompt, two[0].prompt) == 100
    assert common_tokens(one[3].prompt, one[2].prompt) == 110
    assert common_tokens(one[4].prompt, one[3].prompt) == 0
    assert one[0].output == cut(one[1].prompt, 150, 160)
    check(one)


def test_forms_mix_and_missing_prefixes_grow(tmp_path: Path) -> None:
    rows = [HEADER, {"session": "a"}, blocks("a", 0, 40, [[1, 2]]), counts("a", 1, 60, 40)]
    rows.append({"id": "a#2", "session": "a", "turn": 2, "prompt_tokens": 70, "output_tokens": 0})
    turns = load(tmp_path, rows)[0].turns
    assert [common_tokens(one.prompt, two.prompt) for one, two in pairwise(turns)] == [40, 60]
    assert turns[0].output == cut(turns[1].prompt, 40, 50)
    check(turns)


def test_delays_and_dependencies(tmp_path: Path) -> None:
    def timed(turn: int, **more: Any) -> dict[str, Any]:
        return {**counts("a", turn, 50, 0, "none"), **more}

    rows = [
        {"canon": 1}, {"session": "a"},
        timed(0, arrival_s=100.0, obs={"e2e_s": 4.0}),
        timed(1, delay_s=3.0),
        timed(2, tool_s=1.0, think_s=1.5, wait_for=["a#0", "a#1"]),
        timed(3, wait_for=["a#0"], arrival_s=110.0),
        timed(4, wait_for=[], arrival_s=150.0),
        timed(5),
        {"session": "a/s", "parent": "a", "spawn_after": "a#3"},
        {**counts("a/s", 0, 9, 0, "none"), "delay_s": 0.5},
    ]  # fmt: skip
    turns = load(tmp_path, rows)[0].turns
    assert [turn.depends_on for turn in turns] == [(), (0,), (0, 1), (0,), (), (4,), (3,)]
    assert [turn.delay_s for turn in turns] == [0.0, 3.0, 2.5, 6.0, 50.0, 0.0, 0.5]


def test_other_models_leave_their_time_and_dependencies(tmp_path: Path) -> None:
    rows = [
        {"canon": 1}, {"session": "a"},
        counts("a", 0, 50, model="big", delay_s=0.0, obs={"e2e_s": 1.0}),
        counts("a", 1, 50, 50, model="small", delay_s=2.0, obs={"e2e_s": 3.0}),
        counts("a", 2, 50, 50, model="small", delay_s=4.0),
        counts("a", 3, 60, 50, model="big", delay_s=5.0),
    ]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    loaded = load_trace([path], models="^big")
    first, last = loaded.sessions[0].turns
    assert last.depends_on == (0,)
    assert last.delay_s == 14.0
    assert common_tokens(first.prompt, last.prompt) == 50
    assert loaded.report.dropped == {"model not served": 2}
    with pytest.raises(InputError, match="4 model not served"):
        load_trace([path], models="^other")


@given(factor=st.floats(0.05, 20.0), sizes=st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_scaling_tokens_keeps_prefixes(
    factor: float, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    prompt, rows = 0, [{"canon": 1}, {"session": "a", "shared_prefix": {"group": "g", "tokens": 90}}]
    for turn, size in enumerate(sizes):
        rows.append(counts("a", turn, prompt + size, prompt))
        prompt += size
    turns = load(tmp_path_factory.getbasetemp(), rows, token_scale=factor)[0].turns
    check(turns)
    for one, two in pairwise(turns):
        if one.num_prompt_tokens > 1:  # one token at least is sent, even of nothing
            assert common_tokens(one.prompt, two.prompt) == one.num_prompt_tokens


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), length=st.integers(0, 120))
def test_head_is_a_cut(sizes: list[int], length: int) -> None:
    content = tuple(Segment(stream, 3, size) for stream, size in enumerate(sizes))
    length = min(length, sum(sizes))
    assert head(content, length) == cut(content, 0, length)


def test_hits_on_segments_equal_hits_on_ids(shared_dir: Path) -> None:
    path = shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"
    sessions = load_trace([path]).sessions[::20]
    wanted = {turn.turn_id for session in sessions for turn in session.turns}
    ids: dict[str, list[int]] = {}
    for line in read_canonical(path).lines:
        if isinstance(line, TraceRequest) and line.id in wanted:
            assert isinstance(line.prefix, BlockPrefix)
            kept = ids[line.prefix.base][: line.prefix.keep] if line.prefix.base else []
            ids[line.id] = kept + [first + i for first, n in line.prefix.add for i in range(n)]
    compared = 0
    for session in sessions:
        turns = session.turns
        check(turns)
        for index, turn in enumerate(turns):
            for other in (*turns[max(0, index - 1) : index], turns[index // 2]):
                mine, theirs = ids[turn.turn_id], ids[other.turn_id]
                assert common_tokens(turn.prompt, other.prompt) // 64 == common_ids(mine, theirs)
                compared += 1
    assert compared > 2000
