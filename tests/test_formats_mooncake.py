"""Mooncake rows: global ids, stamps on a grid, and the dialect with sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replicast.sim.errors import InputError
from replicast.traces import LoadedTrace, load_trace


def row(
    timestamp: float | None = 0, length: int = 700, ids: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    item = {"timestamp": timestamp, "input_length": length, "output_length": 5, "hash_ids": ids, **more}
    return {key: value for key, value in item.items() if value is not None}


def load(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> LoadedTrace:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_trace([path], **options)


def test_the_conversation_trace(shared_dir: Path) -> None:
    path = shared_dir / "traces/mooncake/conversation_trace.jsonl"
    loaded = load_trace([path])
    assert loaded.open_loop
    assert len(loaded.sessions) == loaded.report.rows_read == 12_031
    assert loaded.report.block_size == 512
    assert any("spread" in note for note in loaded.report.notes)
    recorded = [json.loads(line)["timestamp"] / 1000 for line in path.read_text().splitlines()]
    moved = [
        (session.start_s or 0.0) - stamp for session, stamp in zip(loaded.sessions, recorded, strict=True)
    ]
    assert 0 <= min(moved) < 0.01
    assert 2.99 < max(moved) < 3
    kept = load_trace([path], jitter=False)
    assert [session.start_s for session in kept.sessions] == recorded
    again, other = load_trace([path]), load_trace([path], seed=1)
    assert again.sessions == loaded.sessions
    assert other.sessions != loaded.sessions
    shared = {session.turns[0].prompt[0] for session in loaded.sessions}
    assert len(shared) < len(loaded.sessions) / 2  # block 0 is everybody's


def test_equal_ids_are_equal_content(tmp_path: Path) -> None:
    rows = [row(0, 700, [0, 1]), row(10, 700, [0, 1]), row(25, 700, [0, 2])]
    one, two, three = (session.turns[0] for session in load(tmp_path, rows).sessions)
    assert one.prompt == two.prompt
    assert one.prompt[0].length == 700
    assert [segment.length for segment in three.prompt] == [512, 188]
    assert one.output != two.output


def test_stamps_without_a_grid_stay(tmp_path: Path) -> None:
    loaded = load(tmp_path, [row(stamp, 700, [0, 1]) for stamp in (0, 0, 1234, 4567, 9000)])
    assert [session.start_s for session in loaded.sessions] == [0.0, 0.0, 1.234, 4.567, 9.0]
    assert not loaded.report.notes


def test_rows_with_sessions_run_closed(tmp_path: Path) -> None:
    rows = [
        row(0, 1024, [0, 1], session_id="x"),
        row(None, 1536, [0, 1, 2], session_id="x", delay=1500),
        row(100, 512, [0], session_id=7),
    ]
    loaded = load(tmp_path, rows)
    first, second = loaded.sessions[0].turns
    assert not loaded.open_loop
    assert second.depends_on == (0,)
    assert second.delay_s == 1.5
    assert first.output[0].stream == second.prompt[0].stream


def test_block_size_and_dropped_tails_are_recognised(tmp_path: Path) -> None:
    assert load(tmp_path, [row(0, 40, [0, 1, 2]), row(1, 32, [0, 1])]).report.block_size == 16
    dropped = load(tmp_path, [row(0, 40, [0, 1]), row(1, 47, [0, 1]), row(2, 32, [0, 1])])
    assert dropped.report.block_size == 16


def test_epoch_stamps_start_at_zero(tmp_path: Path) -> None:
    loaded = load(tmp_path, [row(1.7e12, 700, [0, 1]), row(1.7e12 + 500, 700, [0, 1])])
    assert [session.start_s for session in loaded.sessions] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"timestamp": 5, "inp', "broken JSON"),
        (json.dumps(row(5, -700, [0])), "input_length"),
        (json.dumps(row(5, 10**8, [0])), "input_length"),
        (json.dumps(row(5, 700, [0, 1], output_length=-2)), "output_length"),
        (json.dumps(row(5, 700, [0, 1, 2])), "2 blocks"),
        (json.dumps(row(5, 700, [0, -1])), "hash_ids"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5}', "broken JSON"),
        ('{"timestamp": "5", "input_length": 5, "output_length": 5}', "timestamp"),
        ('{"timestamp": 1e300, "input_length": 5, "output_length": 5}', "timestamp"),
        ('{"timestamp": 5, "text_input": "hello", "output_length": 5}', "input_length"),
    ],
)
def test_bad_rows_are_named_or_counted(tmp_path: Path, bad: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(row(0, 700, [0, 1])), bad, json.dumps(row(9, 700, [0, 1]))]))
    with pytest.raises(InputError, match=words) as caught:
        load_trace([path])
    assert caught.value.where == f"{path}:2"
    report = load_trace([path], skip_bad_rows=True).report
    assert (report.rows_read, report.rows_emitted, report.dropped.total()) == (3, 2, 1)
    assert (report.inputs[0].rows, report.inputs[0].dropped) == (3, 1)
