"""Bad input: one clear message, exit code 1 or 2, no traceback, nothing half-written."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from replicast.cli import main

PROFILE = ["--profile", "qwen3.8-27b-l40s"]


def row(turn: int, **changes: object) -> dict[str, object]:
    base = {
        "id": f"a#{turn}",
        "session": "a",
        "turn": turn,
        "prompt_tokens": 1000 + turn,
        "output_tokens": 10,
    }
    return base | changes


def trace(folder: Path, *rows: dict[str, object] | str) -> Path:
    head = [{"canon": 1}, {"session": "a", "kind": "root"}]
    lines = [*map(json.dumps, head), *(r if isinstance(r, str) else json.dumps(r) for r in rows)]
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def fails(*arguments: str | Path, code: int = 1) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((row(0), '{"id": '), "trace.jsonl"),
        ((row(0), row(1, output_tokens=-4)), "trace.jsonl"),
        ((row(0), row(1, prompt_tokens=10**12)), "trace.jsonl"),
        ((row(0), row(1, id="a#0")), "a#0"),
        ((row(0), row(1, wait_for=["nobody"])), "nobody"),
        ((row(0, wait_for=["a#1"]), row(1)), "trace.jsonl"),
    ],
    ids=["broken", "negative", "absurd", "duplicate", "unknown", "cycle"],
)
def test_bad_rows(tmp_path: Path, rows: tuple[dict[str, object] | str, ...], said: str) -> None:
    path = trace(tmp_path, *rows)
    out = tmp_path / "out"
    assert said in fails("replay", path, *PROFILE, "--out", out)
    assert not out.exists()
    assert "trace.jsonl" in fails("trace", "convert", path, "-o", out / "x.jsonl")
    assert not out.exists()


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path: Path) -> None:
    path = trace(tmp_path, row(0), row(1, output_tokens=-4))
    done = CliRunner().invoke(main, ["replay", str(path), *PROFILE, "--skip-bad-rows"])
    assert done.exit_code == 0, done.output
    assert "Warning [dropped-rows]: 1 of " in done.stderr


def test_files_that_hold_no_trace(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"canon": 1}\n' * 999)[:-20])
    junk = tmp_path / "junk.jsonl"
    junk.write_bytes(bytes(range(256)) * 9)
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (empty, cut, junk, folder, tmp_path / "absent.jsonl"):
        assert path.name in fails("replay", path, *PROFILE)


def test_output_folder_is_checked_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "below"):
        message = fails("replay", tmp_path / "absent.jsonl", *PROFILE, "--out", out)
        assert "cannot write here" in message
        assert "absent" not in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--replicas", "0"],
        ["--replicas", "2,many"],
        ["--replicas", "1000000000"],
        ["--sessions", "0"],
        ["--price", "nan"],
        ["--price", "-1"],
        ["--token-scale", "inf"],
        ["--task-tokens", "5"],
        ["--router", "magic"],
        ["--seed", "-1"],
        ["--models", "("],
        ["--horizon", "0"],
        ["--open-loop", "--loop", "closed"],
        ["--open-loop", "--sessions", "5"],
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    fails("replay", trace(tmp_path, row(0)), *PROFILE, *arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "nix"], "qwen3.6-35b-h200"),
        ([*PROFILE, "--vllm-version", "banana"], "banana"),
        ([*PROFILE, "--max-model-len", "1000000"], "KV cache"),
        ([*PROFILE, "--max-num-batched-tokens", "8", "--max-num-seqs", "9"], "max_num_seqs"),
        ([*PROFILE, "--max-model-len", "500"], "every request is longer"),
        ([*PROFILE, "--open-loop"], "recorded start"),
    ],
)
def test_what_cannot_run(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in fails("replay", trace(tmp_path, row(0)), *arguments)


ENDLESS = (
    "import time\nimport replicast.sim.planning.replay as replay\n"
    "def simulate(*_, **__):\n    print('runs', flush=True)\n    time.sleep(60)\n"
    "replay.simulate = simulate\nfrom replicast.cli import main\nmain()"
)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=["ctrl-c", "term", "kill"],
)
def test_stopped_without_traceback_or_workers_left(
    tmp_path: Path, jobs: str, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "out"
    more = ["--jobs", jobs, "--replicas", "1,2", "--out", str(out)]
    program = [sys.executable, "-c", ENDLESS, "replay", str(trace(tmp_path, row(0))), *PROFILE, *more]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored in the background, and inherited
    child = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    assert child.stdout is not None
    assert child.stdout.read(4) == "runs"
    child.send_signal(number)
    _, stderr = child.communicate(timeout=30)  # ends when nobody, no worker either, can write any more
    assert "Traceback" not in stderr
    assert child.returncode == code, stderr
    assert not out.exists()


def test_links_in_a_circle_and_named_pipes(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert "cannot be read" in fails("replay", tmp_path / "one", *PROFILE)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "named pipe" in fails("trace", "show", tmp_path / "pipe.jsonl")


@pytest.mark.parametrize("option", ["--horizon", "--warmup", "--cooldown", "--stagger", "--think-cap"])
def test_times_beyond_all_measure(tmp_path: Path, option: str) -> None:
    said = fails("replay", trace(tmp_path, row(0)), *PROFILE, option, "1e300")
    assert "0 to 1e+09 s" in said


@pytest.mark.parametrize("option", [("--replicas", "9" * 5000), ("--task-tokens", "9" * 5000 + ":1")])
def test_numbers_too_long_to_convert(tmp_path: Path, option: tuple[str, str]) -> None:
    fails("replay", trace(tmp_path, row(0)), *PROFILE, *option, code=2)


def test_damaged_gzip_names_its_line(tmp_path: Path) -> None:
    whole = trace(tmp_path, *(row(turn) for turn in range(500))).read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(whole, compresslevel=0)[:20_000])
    line = whole[:19_990].count(b"\n")
    said = fails("replay", path, *PROFILE)
    assert any(f"cut.jsonl.gz:{near}:" in said for near in range(line - 60, line + 3)), said


def test_a_folder_already_given_as_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = trace(folder, row(0))
    done = CliRunner().invoke(main, ["trace", "show", str(path), str(folder)])
    assert done.exit_code == 0, done.output
    assert "given twice" in done.output


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    source, pipe, link = trace(tmp_path, row(0)), tmp_path / "pipe", tmp_path / "link.jsonl"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        done = CliRunner().invoke(main, ["trace", "convert", str(source), "-o", str(pipe)])
        assert done.exit_code == 0, done.output
        assert os.read(held, 1 << 16).startswith(b'{"canon":1')
    finally:
        os.close(held)
    assert pipe.is_fifo()
    link.symlink_to(tmp_path / "target.jsonl")
    assert CliRunner().invoke(main, ["trace", "convert", str(source), "-o", str(link)]).exit_code == 0
    assert link.is_symlink()
    assert (tmp_path / "target.jsonl").is_file()


def test_a_folder_where_a_file_should_be_written(tmp_path: Path) -> None:
    (tmp_path / "out" / "requests.csv").mkdir(parents=True)
    done = CliRunner().invoke(
        main, ["replay", str(trace(tmp_path, row(0))), *PROFILE, "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert "requests.csv: cannot be written: Is a directory" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["requests.csv"]


@pytest.mark.parametrize("line", [{"session": "b", "parent": "a"}, row(0, id="b#0")])
def test_sessions_of_another_file(tmp_path: Path, line: dict[str, object]) -> None:
    first, second = trace(tmp_path, row(0)), tmp_path / "second.jsonl"
    second.write_text(f'{{"canon": 1}}\n{json.dumps(line)}\n')
    assert "second.jsonl:2: " in fails("trace", "show", first, second)


def test_a_long_chain_of_sub_agents(tmp_path: Path) -> None:
    rows: list[dict[str, object] | str] = [row(0)]
    for level in range(1, 10_001):
        parent = f"a/{level - 1}" if level > 1 else "a"
        rows.append({"session": f"a/{level}", "parent": parent, "spawn_after": "a#0"})
        rows.append(row(0, id=f"{level}", session=f"a/{level}"))
    started = time.process_time()
    done = CliRunner().invoke(
        main, ["trace", "convert", str(trace(tmp_path, *rows)), "-o", str(tmp_path / "x")]
    )
    assert done.exit_code == 0, done.output
    assert time.process_time() - started < 8  # a walk to the root from each took 17


def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    path, out = tmp_path / "m\udcff.jsonl", tmp_path / "o\udcff"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n')
    done = CliRunner().invoke(main, ["replay", str(path), *PROFILE, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "m\\udcff:1" in (out / "requests.csv").read_text()
    done = CliRunner().invoke(main, ["trace", "convert", str(path), "-o", str(out / "x.jsonl")])
    assert done.exit_code == 0, done.output
