"""The command line on small made-up sessions: what it prints, that it repeats, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from replicast.calibration.profile import load_profile
from replicast.calibration.readers.detect import FORMATS as SWEEPS_DETECTED
from replicast.cli import main
from replicast.commands.options import FORMATS, SWEEP_FORMATS
from replicast.sim.config import FIELDS, EngineConfig
from replicast.traces.canonical_io import write_canonical
from replicast.traces.detect import FORMATS as DETECTED
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS
from syrupy.assertion import SnapshotAssertion

PROFILE = ["--profile", "qwen3.8-27b-l40s"]


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine short sessions."""
    spec = replace(PRESETS["fresh"], turns_scale=0.1, prompt_scale=0.5, output_scale=0.1, human_gap_scale=0.1)
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl.gz"
    write_canonical(generate(spec, 9, 1), path)
    return path


@pytest.fixture(scope="module")
def document(trace: Path) -> dict[str, Any]:
    done = replicast("replay", trace, *PROFILE, "--replicas", "1,2", "--sessions", "3", "--json")
    assert done.exit_code == 0, done.output
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def shape(value: Any) -> Any:
    """Types in place of values; of a list its first element."""
    if isinstance(value, dict):
        if set(value) == {"value", "low", "high", "n"}:
            return "estimate"
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def test_document_shape(document: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    shown = shape(document)
    engine = shown["config"].pop("engine")
    assert list(engine) == [field.name for field in fields(EngineConfig)]
    assert shown == snapshot


def test_document_figures(document: dict[str, Any], trace: Path) -> None:
    assert document["schema"] == "replicast/replay/1"
    assert [row["replicas"] for row in document["rows"]] == [1, 2]
    timing = document["timing"]
    assert timing["simulated_requests"] == sum(row["requests_finished"] for row in document["rows"])
    assert timing["wall_s"] >= timing["import_s"] + timing["load_s"] + timing["simulate_s"] > 0
    for row in document["rows"]:
        for name, figure in row.items():
            if isinstance(figure, dict) and figure.get("low") is not None:
                assert figure["low"] <= figure["value"] <= figure["high"], name
        parts = ("front_end_mean_s", "input_wait_mean_s", "queue_mean_s", "prefill_mean_s")
        assert sum(row[part]["value"] for part in parts) == pytest.approx(row["ttft_mean_s"]["value"])
        processed = row["prompt_tokens_per_s"]["value"] + row["generated_tokens_per_s"]["value"]
        per_1m = row["usd_per_hour"]["value"] / 3600 / processed * 1e6
        assert row["usd_per_1m_processed_tokens"]["value"] == pytest.approx(per_1m)
        assert row["usd_per_developer_hour"]["value"] == pytest.approx(row["usd_per_hour"]["value"] / 3)


def test_never_nan_but_null(trace: Path) -> None:
    done = replicast("replay", trace, *PROFILE, "--horizon", "0.000001", "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout, parse_constant=pytest.fail)["rows"][0]
    assert row["ttft_p50_s"] == {"value": None, "low": None, "high": None, "n": 0}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_same_seed_same_bytes(trace: Path, document: dict[str, Any], tmp_path: Path, jobs: str) -> None:
    arguments = ["--replicas", "1,2", "--sessions", "3", "--json", "--jobs", jobs]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        done = replicast("replay", trace, *PROFILE, *arguments, "--out", folder)
        again = json.loads(done.stdout)
        assert again.pop("timing")
        assert again == {key: value for key, value in document.items() if key != "timing"}
    names = {path.name for path in folders[0].iterdir()}
    assert {"requests.csv", "replay.svg", "replay.png", "replay.txt", "replay.json"} <= names
    for name in sorted(names - {"replay.json"}):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_records_hold_every_request_of_every_run(trace: Path, tmp_path: Path) -> None:
    import pandas as pd

    done = replicast("replay", trace, *PROFILE, "--replicas", "2,1", "--sessions", "3", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    frame = pd.read_csv(tmp_path / "requests.csv")
    rows = json.loads((tmp_path / "replay.json").read_text())["rows"]
    for row in rows:
        of = frame[frame["replicas"] == row["replicas"]]
        assert len(of) == row["requests_submitted"]
        parts = of[["front_end_s", "input_wait_s", "queue_s", "prefill_s", "delivery_s"]].sum(axis=1)
        assert (parts - of["ttft_s"]).abs().max() < 1e-6
    pytest.importorskip("pyarrow")
    assert len(pd.read_parquet(tmp_path / "requests.parquet")) == len(frame)


def test_text(trace: Path, snapshot: SnapshotAssertion) -> None:
    done = replicast("replay", trace, *PROFILE, "--replicas", "1,2", "--sessions", "3", "--price", "10.49")
    assert done.exit_code == 0, done.output
    # Figures change with profiles and engine; the words and columns are the interface.
    words = [line for line in done.stdout.splitlines() if line.startswith((" replicas", "Ranges", "Next"))]
    assert words == snapshot
    assert done.stderr.startswith("Warning [config]: ")


def test_every_engine_field_is_a_flag_that_wins(trace: Path) -> None:
    flags = ["--block-size", "32", "--num-gpu-blocks", "9000", "--max-num-batched-tokens", "4096"]
    done = replicast("replay", *PROFILE, *flags, "--no-async-scheduling", "--show-config", "--json")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)["values"]
    assert values["block_size"] == {"value": 32, "origin": "flag"}
    assert values["num_gpu_blocks"]["value"] == 9000
    assert values["async_scheduling"] == {"value": False, "origin": "flag"}
    assert values["max_num_seqs"]["origin"] != "flag"
    text = replicast("replay", "--help").stdout
    for field in FIELDS:
        assert f"--{field.name.replace('_', '-')}" in text


def test_variables_stand_below_flags() -> None:
    environment = {"REPLICAST_REPLAY_SEED": "11", "REPLICAST_REPLAY_BLOCK_SIZE": "64"}
    arguments = ["replay", *PROFILE, "--num-gpu-blocks", "9000", "--show-config", "--json"]
    done = CliRunner(env=environment).invoke(main, arguments)
    values = json.loads(done.stdout)["values"]
    assert values["seed"] == {"value": 11, "origin": "variable"}
    assert values["block_size"] == {"value": 64, "origin": "variable"}
    assert values["num_gpu_blocks"]["origin"] == "flag"


def test_formats_are_those_of_the_readers() -> None:
    assert FORMATS == DETECTED
    assert SWEEP_FORMATS == SWEEPS_DETECTED


def test_trace_commands(trace: Path, tmp_path: Path) -> None:
    shown = replicast("trace", "show", trace)
    assert shown.exit_code == 0, shown.output
    assert "rows read" in shown.stdout
    assert "hit_rate_within" in shown.stdout
    converted = tmp_path / "again.jsonl"
    assert replicast("trace", "convert", trace, "-o", converted).exit_code == 0
    one, other = (
        json.loads(replicast("trace", "show", path, "--json").stdout) for path in (trace, converted)
    )
    assert one["stats"] == other["stats"]
    asks = replicast("trace", "developers", trace)
    assert asks.exit_code == 0, asks.output
    assert "requests_per_hour" in asks.stdout
    load = json.loads(replicast("trace", "developers", trace, "--json").stdout)["load"]
    assert load["requests_per_hour"]["n"] == load["spells"]
    made = replicast("trace", "synth", "--sessions", "9", "--human-gap-scale", "2")
    assert made.exit_code == 0, made.output
    assert "asked for" in made.stdout


def test_demo_is_the_whole_tour(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = replicast("demo", "--out", out)
    assert done.exit_code == 0, done.output
    assert "Not usable: 3 of 3 levels fail" in done.stdout
    assert load_profile(out / "server.toml").status == "calibrated"
    assert "replicas  measured  TTFT p50" in done.stdout
    assert done.stdout.splitlines()[-1].strip().startswith("replicast replay ~/.claude/projects")
    assert (out / "replay.png").stat().st_size > 0


def test_a_closed_pipe_is_no_traceback(trace: Path) -> None:
    program = [sys.executable, "-m", "replicast.cli", "replay", "--help"]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert "Traceback" not in child.stderr.read()
    child.stderr.close()
    child.wait()


def test_any_terminal_and_any_file_name(trace: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.jsonl.gz"
    try:
        Path(os.fsdecode(odd)).write_bytes(trace.read_bytes())
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    arguments = [odd, *PROFILE, "--replicas", "1,2", "--sessions", "3"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    for more in (["--out", str(tmp_path / "out")], ["--json"]):
        command = [sys.executable, "-m", "replicast.cli", "replay", *arguments, *more]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"][0]["rows"]


def every_command(command: click.Command, context: click.Context, path: list[str]) -> Iterator[list[str]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below, context, [*path, name])


def test_help_opens_with_a_sentence_and_an_example() -> None:
    """The example is a command that exists: the one that is asked about, or one below it."""
    for path in every_command(main, click.Context(main), []):
        text = CliRunner().invoke(main, [*path, "--help"], prog_name="replicast").stdout
        assert text.split("\n\n")[1].strip()[0].isupper(), f"{path}: no sentence"
        example = next(line.split() for line in text.splitlines()[2:] if line.startswith("  replicast "))
        assert example[1 : len(path) + 1] == path
        command: click.Command | None = main
        for word in example[1:]:
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word)
                assert command is not None, f"{path}: {word} is no command"
