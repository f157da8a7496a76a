"""kv-cache-tester traces: the same canonical lines as the reference conversion, and its pitfalls."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from replicast.sim.errors import InputError
from replicast.sim.workload import Turn
from replicast.traces import convert, load_trace


def row(t: float, blocks: int, **more: Any) -> dict[str, Any]:
    return {
        "t": t, "type": "n", "model": "m", "in": blocks * 64 + 5, "out": 9,
        "hash_ids": [*range(1, blocks + 1)],
        "input_types": ["tool_result"], "stop": "tool_use", "api_time": 2.0, "think_time": 3.0, **more,
    }  # fmt: skip


def agent(t: float, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": f"agent_{t:g}", "subagent_type": "Explore",
            "duration_ms": 5000, "status": "completed", "requests": rows, **more}  # fmt: skip


def trace(requests: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"id": "t", "block_size": 64, "hash_id_scope": "local", "requests": requests, **more}


def load(tmp_path: Path, document: dict[str, Any], **options: Any) -> tuple[Turn, ...]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    return load_trace([path], **options).sessions[0].turns


def test_raw_files_become_the_reference_lines(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "traces/kv-cache-tester"
    out = tmp_path / "out.jsonl"
    report = convert([folder / "raw"], out)
    assert (report.rows_read, report.rows_emitted) == (1219, 1219)
    wanted: dict[str, list[Any]] = {}
    for line in gzip.decompress((folder / "sessions.canonical.jsonl.gz").read_bytes()).splitlines()[1:]:
        item = json.loads(line)
        wanted.setdefault((item.get("session") or item["session_end"]).split("/")[0], []).append(item)
    found: dict[str, list[Any]] = {}
    for line in out.read_bytes().splitlines()[1:]:
        item = json.loads(line)
        found.setdefault((item.get("session") or item["session_end"]).split("/")[0], []).append(item)
    assert len(found) == 19
    for name, items in found.items():
        assert items == wanted[name]


def test_the_523_sessions_load(shared_dir: Path) -> None:
    loaded = load_trace([shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"])
    assert len(loaded.sessions) == 523
    assert loaded.report.rows_emitted == loaded.report.rows_read == 35_607
    assert loaded.report.flags["output_raised_to_1"] == 22
    assert not loaded.open_loop
    assert all(session.start_s is None for session in loaded.sessions)


def test_subagents_fork_and_join_unless_async(tmp_path: Path) -> None:
    inner = [row(0.0, 4), row(4.0, 5)]
    requests = [row(0.0, 2), agent(3.0, inner), agent(3.5, inner, status="async_launched"), row(20.0, 3)]
    turns = load(tmp_path, trace(requests))
    assert [turn.agent for turn in turns] == [
        "t",
        "t/agent_3",
        "t/agent_3",
        "t/agent_3.5",
        "t/agent_3.5",
        "t",
    ]
    assert [turn.depends_on for turn in turns] == [(), (0,), (1,), (0,), (3,), (0, 2)]
    assert turns[1].trigger == "spawn"


@pytest.mark.parametrize(("inner_t", "arrival_s"), [(0.0, 30.0), (30.0, 30.0), (31.0, 31.0)])
def test_subagent_times_are_relative_or_absolute(tmp_path: Path, inner_t: float, arrival_s: float) -> None:
    turns = load(tmp_path, trace([row(0.0, 2), agent(30.0, [row(inner_t, 4)])]))
    assert turns[1].arrival_s == arrival_s


def test_rounded_stamps_are_refined_within_their_second(tmp_path: Path) -> None:
    turns = load(tmp_path, trace([row(0.0, 2), row(5.0, 3, api_time=2.0), row(11.0, 4, think_time=3.75)]))
    assert [turn.arrival_s for turn in turns] == [0.0, 5.0, 10.75]


def test_gaps_are_think_time_or_left_by_the_stamps(tmp_path: Path) -> None:
    rows = [row(0.0, 2), row(9.0, 3), row(20.0, 4, think_time=-1.0)]
    del rows[1]["think_time"]
    assert [turn.delay_s for turn in load(tmp_path, trace(rows))] == [3.0, 7.0, 0.0]


def test_one_trace_a_line_and_pretty_printed(tmp_path: Path) -> None:
    first, second = trace([row(0.0, 2)]), trace([row(0.0, 2)], id="u")
    lines = tmp_path / "two.jsonl.gz"
    lines.write_bytes(gzip.compress(f"{json.dumps(first)}\n{json.dumps(second)}\n".encode()))
    assert [session.session_id for session in load_trace([lines]).sessions] == ["t", "u"]
    pretty = tmp_path / "pretty.json"
    pretty.write_text(json.dumps(first, indent=2))
    assert load_trace([pretty]).report.format == "weka"


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(0.0, 2, out=-1), "out"),
        (row(0.0, 2, **{"in": -64}), "in"),
        (row(0.0, 2, **{"in": 10**8}), "in"),
        (row(0.0, 2, **{"in": 640}), "10 blocks"),
        (row(0.0, 2, hash_ids="1"), "hash_ids"),
        (row(0.0, 2) | {"t": "0"}, "t"),
        (row(0.0, 2, api_time=-3), "api_time"),
        ({"type": "subagent", "t": 1, "requests": []}, "agent_id"),
    ],
)
def test_bad_requests_are_named_or_counted(tmp_path: Path, bad: dict[str, Any], words: str) -> None:
    document = trace([row(0.0, 2), bad])
    with pytest.raises(InputError, match=words) as caught:
        load(tmp_path, document)
    assert "requests[1]" in str(caught.value)
    assert len(load(tmp_path, document, skip_bad_rows=True)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"id": "t", "block_size": 64, "requests": [{"t": 0, "in', "broken JSON"),
        ('{"id": "t", "block_size": 64, "requests": []}', "no request"),
        ('{"id": "t", "block_size": 64, "requests": 5}', "requests"),
        ('{"block_size": 64, "requests": []}', "id and block_size"),
    ],
)
def test_useless_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        load_trace([path])
    assert str(path) in str(caught.value)


def test_the_same_trace_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(trace([row(0.0, 2)])))
    with pytest.raises(InputError, match="'t' was there before"):
        load_trace([tmp_path])
