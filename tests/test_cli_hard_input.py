"""Damaged sweeps, model descriptions and results: one message, no traceback, no rest of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from replicast.calibration.check import check_sweep
from replicast.calibration.profile import SHIPPED
from replicast.calibration.readers.detect import read_sweep
from replicast.cli import main
from replicast.sim.report.check import answer

LEVEL: dict[str, Any] = {
    "concurrency": 1, "window_seconds": 719.0, "output_tokens_per_second": 115.0, "ttft_ms_mean": 1900.0,
    "prompt_tokens_per_second": 10431.0, "tpot_ms_mean": 5.1, "queue_ms_mean": 0.0, "prefill_ms_mean": 1700.0,
    "kv_cache_usage": {"peak": 0.06, "mean": 0.03}, "requests_running": {"peak": 1.0, "mean": 0.78},
    "requests_waiting": {"peak": 0.0, "mean": 0.0},
}  # fmt: skip
CONFIG = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
ESTIMATE = ["profile", "estimate", "--hardware", "H100"]


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refused(done: Result, code: int, *words: str) -> None:
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stderr.count("Error:") == 1
    assert all(word in done.stderr for word in words), done.stderr


def summary(path: Path, levels: int = 1, **more: Any) -> Path:
    made = [{**LEVEL, "concurrency": c} for c in range(1, levels + 1)]
    path.write_text(
        json.dumps({"model": "qwen3.6-35b", "instance_type": "p5en.48xlarge", "levels": made, **more})
    )
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"levels": [{"concurrency": ' + "9" * 5000 + "}]}", "a number is too long"),
        ('{"levels": [{"concurrency": ' + "9" * 400 + "}]}", "not a finite number"),
    ],
)
def test_json_that_python_cannot_hold(text: str, words: str, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(text)
    refused(replicast("check", sweep, "--format", "performance-summary"), 1, words)
    if words != "not a finite number":
        refused(replicast("check", sweep), 1, words)


def test_model_of_a_sweep_must_be_text(tmp_path: Path) -> None:
    refused(replicast("check", summary(tmp_path / "s.json", model=5)), 1, "model is 5, not text")


def test_more_sessions_than_anybody_has(tmp_path: Path) -> None:
    sweep = tmp_path / "s.json"
    sweep.write_text(json.dumps({"model": "qwen3.6-35b", "levels": [{**LEVEL, "concurrency": 10**12}]}))
    profile = ["--profile", "qwen3.6-35b-h200-tp1"]
    refused(replicast("validate", sweep, *profile), 1, "1,000,000,000,000 sessions")


def test_load_longer_than_every_window(tmp_path: Path) -> None:
    sweep = summary(tmp_path / "s.json")
    refused(replicast("check", sweep, "--load-seconds", "100000"), 2, "--load-seconds", "719")
    assert replicast("check", sweep, "--load-seconds", "719").exit_code == 0


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "boot.log"
    empty.write_text("not a log of a server\n")
    sweep = summary(tmp_path / "s.json")
    refused(replicast("check", sweep, "--given", empty), 1, "no fact of a server in it")
    empty.write_text("max_num_seqs: 64\n")
    assert replicast("check", sweep, "--given", empty).exit_code == 0
    gone = replicast("validate", sweep, "--profile", tmp_path / "gone.toml")
    refused(gone, 1, "gone.toml")
    assert "Errno" not in gone.stderr


def test_held_out_errors_need_other_levels(tmp_path: Path) -> None:
    sweep = summary(tmp_path / "s.json", levels=2)
    done = replicast("validate", sweep, "--profile", "qwen3.6-35b-h200", "--loo")
    refused(done, 1, "2 usable levels", "fewer than 3")


def test_digits_of_a_prediction_are_those_of_its_interval(tmp_path: Path) -> None:
    done = replicast("validate", summary(tmp_path / "s.json"), "--profile", "qwen3.6-35b-h200-tp1")
    assert done.exit_code == 0, done.output
    assert "e+" not in done.stdout
    assert "e-" not in done.stdout


def test_one_level_fails_in_the_singular(tmp_path: Path) -> None:
    level = {**LEVEL, "output_tokens_per_second": 0.0, "prompt_tokens_per_second": 0.0}
    sweep = tmp_path / "s.json"
    sweep.write_text(json.dumps({"model": "qwen3.6-35b", "levels": [level]}))
    result = check_sweep(read_sweep(sweep))
    assert answer(result) == "Not usable: 1 of 1 level fails. Do not calibrate on this sweep."


@pytest.mark.parametrize(
    "config",
    [[], {**CONFIG, "num_attention_heads": 0}, {**CONFIG, "num_hidden_layers": -2}, {"text_config": [1]},
     {**CONFIG, "layer_types": 5}, {**CONFIG, "num_experts": "many"}, {"hidden_size": 1},
     {**CONFIG, "layer_types": "full_attention"}, {**CONFIG, "layer_types": 32 * ["linear_attention"]},
     {**CONFIG, "layer_types": ["full_attention"]}, {**CONFIG, "num_key_value_heads": 10**400},
     {**CONFIG, "num_experts": 8, "num_experts_per_tok": 9}, {**CONFIG, "head_dim": "128"},
     {**CONFIG, "hidden_size": 31}, {**CONFIG, "full_attention_interval": 4, "linear_key_head_dim": -1}],
)  # fmt: skip
def test_no_model_in_a_config(config: object, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    refused(replicast(*ESTIMATE, "--model", path, "--parameters", "7e9"), 1, "not a model's config.json")
    path.write_text("[" * 100_000)
    refused(replicast(*ESTIMATE, "--model", path, "--parameters", "7e9"), 1, "cannot be read as JSON")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--model", "qwen3-coder-30b", "--parameters", "5e9"], 2),
        (["--model", "qwen3-coder-30b", "--kv-cache-dtype", "foo"], 2),
        (["--model", "qwen3-coder-30b", "--kv-cache-tokens", "5"], 1),
    ],
)
def test_estimate_takes_nothing_that_it_does_not_use(arguments: list[str], code: int, tmp_path: Path) -> None:
    refused(replicast(*ESTIMATE, *arguments), code)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    more = replicast(*ESTIMATE, "--model", config, "--parameters", "7e9", "--active", "9e9")
    refused(more, 2, "--active is above --parameters")


def test_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    done = replicast(*ESTIMATE, "--model", "qwen3-coder-30b", "--out", taken)
    refused(done, 1, "is a folder")
    assert list(tmp_path.rglob("*")) == [taken]


@pytest.mark.parametrize(
    ("table", "place", "says"),
    [
        ("[levels]\nc1 = 5\n", "[levels]", "levels.c1 must be a table"),
        ("[covariance]\nnames = 5\n", "[covariance]", "covariance.names must be a list"),
        (
            "[covariance]\nnames = ['memory_fixed_s']\nlog_matrix = [[-1.0]]\n",
            "[covariance]",
            "no covariance",
        ),
        ("[covariance]\nnames = ['moon']\nlog_matrix = [[1.0]]\n", "[covariance]", "has moon, which neither"),
        ("[covariance]\nnames = ['memory_fixed_s']\nlog_matrix = []\n", "[covariance]", "must have 1 rows"),
        ("[load]\noutput_spread = nan\n", "[load]", "must be a finite number"),
        ("[load]\nfirst_tokens = -3\n", "[load]", "must be above 0"),
        ("[intervals]\nx = { value = 1.0, low = 2.0, high = 0.5 }\n", "[intervals]", "is 1 outside 2 to 0.5"),
    ],
)
def test_learned_tables_that_are_damaged(table: str, place: str, says: str, tmp_path: Path) -> None:
    text = (SHIPPED / "qwen3.6-35b-h200-tp1.toml").read_text()
    profile = tmp_path / "server.toml"
    profile.write_text(text[: text.index(f"\n{place[:-1]}")] + "\n" + table)
    sweep = summary(tmp_path / "s.json")
    refused(replicast("validate", sweep, "--profile", profile), 1, says)


def test_no_command_writes_over_its_inputs(tmp_path: Path) -> None:
    sweep = summary(tmp_path / "s.json")
    notes, other = tmp_path / "notes.md", tmp_path / "mine.txt"
    notes.write_text("# Mine\n")
    other.write_text("hello\n")
    whole = sweep.read_bytes()
    told = ("calibrate", sweep, "--hardware", "H200", "--no-loo", "--quiet", "--out")
    refused(replicast(*told, sweep), 1, "is an input of this command")
    refused(replicast(*told, other), 1, "is no such file as would be written")
    refused(replicast("check", sweep, "--log", sweep), 1, "is an input of this command")
    refused(replicast("check", sweep, "--log", other), 1, "is no such file as would be written")
    assert sweep.read_bytes() == whole
    assert other.read_text() == "hello\n"
    assert replicast("check", sweep, "--log", notes).exit_code in (0, 3)
    assert notes.read_text().startswith("# Mine\n")
    trace = tmp_path / "t.jsonl"
    trace.write_text("")
    refused(replicast("trace", "convert", trace, "--out", trace), 1, "is an input of this command")


@pytest.mark.parametrize(
    "damage",
    [lambda d: d.update(rows=5), lambda d: d.update(rows=[None]), lambda d: d["rows"][0].pop("replicas")],
)
def test_compare_of_a_damaged_result(damage: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    whole: dict[str, Any] = {"schema": "replicast/plan/1", "seed": 7, "inputs": [], "rows": [{"replicas": 1}]}
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(whole))
    damage(whole)
    bad.write_text(json.dumps(whole))
    refused(replicast("compare", good, bad), 1, "bad.json", "as they were written with --json")


def test_counter_below_zero(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    from replicast.calibration.generate import CollectorSession, EngineState, Scrape, write_collector_db

    path = tmp_path / "sweep.duckdb"
    scrapes = [
        Scrape(1e9 + t, (EngineState({"prompt_tokens_total": 10.0 * t, "generation_tokens_total": 1.0 * t}),))
        for t in range(5)
    ]
    write_collector_db(path, [CollectorSession(1, tuple(scrapes))], model="m")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE metric_samples SET value = -value")
    refused(replicast("check", path), 1, "never below 0")


def test_kv_usage_in_percent_is_refused(tmp_path: Path) -> None:
    usage = {"kv_cache_usage": {"peak": 34.0, "mean": 11.0}}
    sweep = summary(tmp_path / "s.json")
    document = json.loads(sweep.read_text())
    document["levels"] = [{**document["levels"][0], **usage}]
    sweep.write_text(json.dumps(document))
    refused(replicast("check", sweep), 1, "beyond 1")


@pytest.mark.parametrize(
    ("columns", "row", "says"),
    [
        ("window_s,load_s", "600,900", "load of 900 s in a window of 600 s"),
        ("window_s,ttft_p50_s,ttft_p90_s", "600,9,1", "ttft p50 is 9, above p90 of 1"),
        ("ttft_p50_low_s,ttft_p50_high_s", "0.9,0.2", "ttft p50 is between 0.9 and 0.2"),
        ("ttft_mean_s,ttft_p50_s", "0.7,9", "ttft p50 is 9, which a mean of 0.7 does not allow"),
    ],
)
def test_figures_that_contradict_each_other(columns: str, row: str, says: str, tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    table.write_text(f"concurrency,output_tokens_per_s,{columns}\n1,20,{row}\n")
    refused(replicast("check", table), 1, says)
