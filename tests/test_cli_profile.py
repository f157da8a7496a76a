"""`replicast profile`: listed, shown, estimated from physics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from replicast.calibration.profile import load_profile
from replicast.cli import main
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.errors import InputError

SERVER = ["--model", "qwen3-coder-30b", "--hardware", "H100"]


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_shown_profile_is_a_start_for_ones_own(tmp_path: Path) -> None:
    assert "qwen3.6-35b-h200" in replicast("profile", "list").stdout
    mine = tmp_path / "mine.toml"
    mine.write_text(replicast("profile", "show", "qwen3.6-35b-h200").stdout)
    assert replicast("profile", "show", mine).exit_code == 0


def test_estimate_is_a_profile_that_starts(tmp_path: Path) -> None:
    out = tmp_path / "guess.toml"
    done = replicast("profile", "estimate", *SERVER, "--price", "4", "--out", out)
    assert done.exit_code == 0, done.output
    profile = load_profile(out)
    assert profile.status == "uncalibrated"
    assert profile.price_usd_per_hour == 4
    config = resolve(EngineArgs(), profile.engine_args()).config
    assert config.max_model_len <= config.num_usable_blocks * config.block_size
    assert replicast("profile", "estimate", *SERVER, "--price", "4").stdout == out.read_text()


def test_estimate_from_a_config_file(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128, "num_key_value_heads": 4}
        )
    )
    told = ["--hardware", "H200", "--parameters", "30.5e9", "--active", "3.3e9"]
    done = replicast("profile", "estimate", "--model", config, *told)
    assert done.exit_code == 0, done.output
    assert 'status = "uncalibrated"' in done.stdout


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0"])
def test_estimate_of_a_hybrid_model_takes_what_its_pool_holds(version: str, tmp_path: Path) -> None:
    out = tmp_path / "guess.toml"
    server = ["--model", "qwen3.8-27b", "--hardware", "L40S", "--vllm-version", version]
    done = replicast("profile", "estimate", *server, "--out", out)
    assert done.exit_code == 0, done.output
    profile = load_profile(out)
    longest = profile.engine.max_model_len
    assert longest is not None
    assert "max_model_len is set" in profile.notes[-1]
    with pytest.raises(InputError, match="does not start"):
        resolve(EngineArgs(max_model_len=longest + 1568), profile.engine_args())


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--model", "nobody", "--hardware", "H100"], "no facts about a model", 2),
        (["--model", "qwen3-14b", "--hardware", "abacus"], "no facts about a GPU", 1),
        (["--model", "kimi-k3", "--hardware", "H100"], "does not fit", 1),
        ([*SERVER, "--max-num-seqs", "0"], "max_num_seqs", 1),
        ([*SERVER, "--tensor-parallel-size", "1000000"], "16 H", 1),
        ([*SERVER, "--max-model-len", "500000"], "KV cache", 1),
        ([*SERVER, "--vllm-version", "banana"], "banana", 1),
        (["--model", "config.json", "--hardware", "H100"], "--parameters", 2),
        (["--model", "config.json", "--hardware", "H100", "--parameters", "1e9"], "config.json", 1),
        (["--hardware", "H100"], "--model", 2),
    ],
)
def test_bad_estimates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text("{}")
    done = replicast("profile", "estimate", *arguments, "--out", "out.toml")
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1
    assert said in done.stderr
    assert not Path("out.toml").exists()
