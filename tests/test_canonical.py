"""The canonical trace: lossless both ways, fast, and clear about what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.traces import convert, load_trace, read_canonical, write_canonical
from replicast.traces.canonical import (
    BlockPrefix,
    CanonicalTrace,
    CountPrefix,
    Header,
    SessionEnd,
    TraceRequest,
    TraceSession,
)

HEADER = {"canon": 1, "time_unit": "s", "block_size": 16, "block_scope": "session_tree"}
SESSION = {"session": "a", "kind": "root"}


def request(turn: int = 0, **changes: Any) -> dict[str, Any]:
    """A sound request of session a, with `changes`."""
    prefix = {"base": "a#0", "keep": 2, "add": []} if turn else {"base": None, "keep": 0, "add": [[1, 2]]}
    row = {"id": f"a#{turn}", "session": "a", "turn": turn, "prompt_tokens": 33, "output_tokens": 4}
    return {**row, "prefix": prefix, **changes}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


names = st.text(max_size=8)
counts = st.integers(0, 10_000_000)
spans = st.floats(0, 1e9)
moments = st.floats(-1e12, 1e12)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(names.map(lambda name: f"x-{name}"), json_values, max_size=3)
runs = st.lists(st.tuples(counts, counts), max_size=3)
prefixes = st.builds(BlockPrefix, st.none() | names, counts, runs, unknown) | st.builds(
    CountPrefix, st.none() | names, counts, st.sampled_from(["prompt_growth", "cache_read", None]), unknown
)
requests = st.builds(
    TraceRequest,
    id=names,
    session=names,
    turn=counts,
    prompt_tokens=st.integers(1, 10_000_000),
    output_tokens=counts,
    wait_for=st.none() | st.lists(names, max_size=2),
    arrival_s=st.none() | moments,
    delay_s=st.none() | spans,
    trigger=st.none() | names,
    stream=st.none() | st.booleans(),
    priority=st.none() | st.integers(-5, 5),
    prefix=st.none() | prefixes,
    obs=st.none() | unknown,
    flags=st.none() | st.lists(names, max_size=2),
    extra=unknown,
)
sessions = st.builds(
    TraceSession,
    session=names,
    kind=st.sampled_from(["root", "subagent", None]),
    parent=st.none() | names,
    spawn_s=st.none() | moments,
    shared_prefix=st.none() | unknown,
    models=st.none() | st.lists(names, max_size=2),
    extra=unknown,
)
headers = st.builds(
    Header,
    source=st.none() | unknown,
    t0=st.none() | names,
    block_size=st.none() | st.integers(1, 1024),
    block_scope=st.sampled_from(["global", "session_tree", "none", None]),
    partial_block=st.sampled_from(["dropped", "own_id", None]),
    extra=unknown,
)
lines = st.lists(sessions | requests | st.builds(SessionEnd, names, unknown), max_size=5)
traces = st.builds(CanonicalTrace, headers, lines)


@given(trace=traces, suffix=st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_reading_what_was_written_gives_it_back(
    trace: CanonicalTrace, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"trace{suffix}"
    write_canonical(trace, path)
    first = path.read_bytes()
    again = read_canonical(path)
    assert again == trace
    write_canonical(again, path)
    assert path.read_bytes() == first


def test_nulls_defaults_and_unknown_keys_survive(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"canon": 1, "t0": None, "zebra": {"b": 1, "a": 2}},
        {"session": "a"},
        {"session": "b", "kind": "root", "parent": None, "why": [1]},
        request(delay_s=None, wait_for=None, trigger="unknown", z=1, a=2),
        {"id": "b#0", "session": "b", "turn": 0, "prompt_tokens": 5, "output_tokens": 0,
         "prefix": {"keep_tokens": 0, "why": "x"}},
        {"session_end": "a", "ext": {"totals": None}},
    ]  # fmt: skip
    source = written(tmp_path / "in.jsonl", *rows)
    write_canonical(read_canonical(source), tmp_path / "out.jsonl")
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert out == rows
    assert list(out[0])[-2:] == ["t0", "zebra"]
    assert list(out[3])[-4:] == ["delay_s", "wait_for", "z", "a"] or list(out[3])[-2:] == ["z", "a"]


def test_real_file_is_line_equal(shared_dir: Path, tmp_path: Path) -> None:
    source = shared_dir / "traces/kv-cache-tester/sessions.canonical.jsonl.gz"
    out = tmp_path / "out.jsonl.gz"
    write_canonical(read_canonical(source), out)
    for before, after in zip(
        gzip.decompress(source.read_bytes()).splitlines(),
        gzip.decompress(out.read_bytes()).splitlines(),
        strict=True,
    ):
        assert json.loads(after) == json.loads(before)


@pytest.mark.parametrize("name", ["kv-cache-tester/raw", "mooncake/conversation_trace.jsonl", "claude-code"])
def test_a_conversion_loads_like_its_source(shared_dir: Path, tmp_path: Path, name: str) -> None:
    source, out = shared_dir / "traces" / name, tmp_path / "out.jsonl.gz"
    report = convert([source], out)
    direct, converted = load_trace([source]), load_trace([out])
    assert report.rows_emitted == direct.report.rows_emitted
    assert converted.open_loop == direct.open_loop
    assert [(s.session_id, s.start_s, s.turns) for s in converted.sessions] == [
        (s.session_id, s.start_s, s.turns) for s in direct.sessions
    ]


BAD_ROWS: dict[str, tuple[list[Any], int, str]] = {
    "broken JSON": ([SESSION, '{"id": "a#'], 3, "broken JSON"),
    "not a number": ([SESSION, json.dumps(request(delay_s=float("nan")))], 3, "broken JSON"),
    "infinite": ([SESSION, json.dumps(request(delay_s=1)).replace(": 1}", ": 1e999}")], 3, "range"),
    "text for a number": ([SESSION, request(prompt_tokens="33")], 3, "prompt_tokens"),
    "negative prompt": ([SESSION, request(prompt_tokens=-5)], 3, "prompt_tokens"),
    "negative output": ([SESSION, request(output_tokens=-1)], 3, "output_tokens"),
    "negative delay": ([SESSION, request(delay_s=-1)], 3, "delay_s"),
    "absurd prompt": ([SESSION, request(prompt_tokens=10**9)], 3, "prompt_tokens"),
    "integer without end": ([SESSION, request(prompt_tokens=10**40)], 3, "prompt_tokens"),
    "deep nesting": ([SESSION, '{"id":' + "[" * 100_000 + "]" * 100_000 + "}"], 3, "nested too deep"),
    "unknown parent": ([{"session": "a", "parent": "q"}, request()], 2, "'q'"),
    "cycle of parents": ([{"session": "a", "parent": "a"}, request()], 2, "ancestor"),
    "unknown session": ([request()], 2, "unknown session"),
    "unknown base": ([SESSION, request(prefix={"base": "q", "keep": 0, "add": [[1, 2]]})], 3, "'q'"),
    "unknown wait_for": ([SESSION, request(wait_for=["q"])], 3, "'q'"),
    "cycle": ([SESSION, request(wait_for=["a#1"]), request(1, wait_for=["a#0"])], 3, "cycle"),
    "waits for itself": ([SESSION, request(wait_for=["a#0"])], 3, "cycle"),
    "duplicate id": ([SESSION, request(), request()], 4, "'a#0'"),
    "duplicate session": ([SESSION, SESSION, request()], 3, "'a'"),
    "turns with a gap": ([SESSION, request(), request(2)], 4, "turn 2"),
    "too few ids": ([SESSION, request(prompt_tokens=100)], 3, "6 blocks"),
    "keeps more than there is": (
        [SESSION, request(prefix={"base": None, "keep": 2, "add": []})], 3, "keep 2",
    ),
    "keeps more tokens than there are": (
        [SESSION, request(prefix={"base": None, "keep_tokens": 34})], 3, "keep_tokens 34",
    ),
    "empty prefix": ([SESSION, request(prefix={})], 3, "prefix"),
    "backward run": ([SESSION, request(prefix={"base": None, "keep": 0, "add": [[1, -2]]})], 3, "run of ids"),
    "odd shared prefix": ([{**SESSION, "shared_prefix": {"group": 1}}, request()], 2, "shared_prefix"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_ROWS))
def test_bad_rows_are_named_or_counted(name: str, tmp_path: Path) -> None:
    rows, line, words = BAD_ROWS[name]
    good = [{"session": "good"}, request(id="good", session="good")]
    path = written(tmp_path / "bad.jsonl", HEADER, *rows, *good)
    with pytest.raises(InputError) as caught:
        load_trace([path])
    assert caught.value.where == f"{path}:{line}"
    assert words in str(caught.value)
    assert "--skip-bad-rows" in str(caught.value)
    report = load_trace([path], skip_bad_rows=True).report
    assert report.dropped
    assert report.rows_read == report.rows_emitted + report.dropped.total()
    assert report.inputs[0].rows == report.rows_read
    assert report.inputs[0].dropped == report.dropped.total()
    out = tmp_path / "out.jsonl"
    assert convert([path], out, skip_bad_rows=True).rows_emitted == report.rows_emitted
    assert len(load_trace([out]).sessions) >= 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"\x00\x01\xff" * 99, "not recognised"),
        (b"a,b,c\n1,2,3\n", "not recognised"),
        (b"[1, 2]", "not recognised"),
        (json.dumps(HEADER).encode(), "no request"),
        (json.dumps(request()).encode(), "header"),
        (b'{"canon": 2}', "version 2"),
        (b'{"canon": 1, "time_unit": "ms"}', "time_unit"),
        (b'{"canon": 1, "blo', "header"),
    ],
)
def test_useless_files_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load_trace([path])
    assert str(path) in str(caught.value)


def test_truncated_gzip_is_refused_or_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    rows = [HEADER, SESSION, request(), *(request(turn) for turn in range(1, 500))]
    for turn, row in enumerate(rows[3:], 1):
        row["prefix"] = {"base": f"a#{turn - 1}", "keep": 2, "add": []}
    whole = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated"):
        load_trace([path])
    loaded = load_trace([path], skip_bad_rows=True)
    assert 10 < len(loaded.sessions[0].turns) < 500
    assert loaded.report.dropped["gzip stream broken off"] == 1


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("nothing")
    for path, words in ((tmp_path / "folder", "no transcripts"), (tmp_path / "absent", "cannot be read")):
        with pytest.raises(InputError, match=words):
            load_trace([path])
    with pytest.raises(InputError, match="no trace given"):
        load_trace([])
    with pytest.raises(InputError, match="unknown format"):
        load_trace([tmp_path], format="parquet")
    good = written(tmp_path / "good.jsonl", HEADER, SESSION, request())
    with pytest.raises(InputError, match="cannot be written"):
        convert([good], good / "below-a-file.jsonl")
    assert load_trace([good, good]).report.notes


def test_the_documented_example_loads(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[1] / "docs/trace-format.md").read_text()
    example = tmp_path / "example.jsonl"
    example.write_text(text.split("```json\n")[1].split("```")[0])
    turns = load_trace([example]).sessions[0].turns
    assert [turn.depends_on for turn in turns] == [(), (0,), (0, 1)]
    assert turns[0].prompt[0] == turns[2].prompt[0]
