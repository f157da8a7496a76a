"""`replicast calibrate` and `validate`: a sweep in, a profile out that other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from replicast.calibration.profile import load_profile
from replicast.cli import main

HEAD = (
    "concurrency,window_s,load_s,requests_finished,prompt_tokens,cached_tokens,generated_tokens,"
    "ttft_mean_s,queue_mean_s,prefill_mean_s,tpot_mean_ms,running_mean,running_peak,waiting_mean,waiting_peak,kv_usage_peak"
)
HEALTHY = (
    "1,200,150,20,800000,720000,4000,0.7,0.001,0.65,15,0.75,1,0,0,0.1",
    "2,200,150,34,1360000,1220000,6800,0.75,0.03,0.68,18,1.5,2,0.02,1,0.2",
    "4,200,150,60,2400000,2160000,12000,0.9,0.08,0.72,22,2.9,4,0.1,2,0.4",
)
BACKED_UP = (
    "2,700,600,30,3000000,300000,10000,150,120,30,270,10,12,36,40,0.6",
    "5,700,600,31,3000000,300000,10000,150,120,30,270,10,12,33,41,0.5",
    "10,700,600,30,3000000,300000,10000,150,120,30,270,10,12,30,39,0.5",
)
SERVER = ["--hardware", "H200", "--given", "model=qwen3-coder-30b", "--given", "tensor_parallel_size=1"]


def replicast(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def sweep(folder: Path, rows: tuple[str, ...], name: str = "sweep.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile learnt from the three healthy levels."""
    folder = tmp_path_factory.mktemp("calibrated")
    out = folder / "server.toml"
    done = replicast("calibrate", sweep(folder, HEALTHY), *SERVER, "--out", out)
    assert done.exit_code == 0, done.output
    assert "Held-out error" in done.stdout
    assert "Next: replicast plan" in done.stdout
    return out


def test_profile_is_calibrated_and_can_be_replayed(server: Path) -> None:
    profile = load_profile(server)
    assert profile.status == "calibrated"
    assert profile.ranges["concurrency"] == (1, 4)
    assert profile.tables["covariance"]["names"]
    shown = replicast("replay", "--profile", server, "--show-config")
    assert shown.exit_code == 0, shown.output


def test_validate(server: Path) -> None:
    done = replicast(
        "validate", server.parent / "sweep.csv", "--profile", server, "--levels", "2,99", "--json"
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert document["schema"] == "replicast/validate/1"
    assert {row["level"] for row in document["rows"]} == {2}
    assert {row["load"] for row in document["rows"]} == {"given", "concurrency"}
    for row in document["rows"]:
        assert row["error"] is None or row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert "Warning [validate]: level 99" in done.stderr
    assert replicast("validate", server.parent / "sweep.csv", "--profile", server).exit_code == 0


def test_check_with_a_profile(server: Path) -> None:
    done = replicast("check", server.parent / "sweep.csv", "--profile", server, "--json")
    assert done.exit_code == 0, done.output
    assert "model" in json.loads(done.stdout)["levels"][0]["checks"]


def test_refused_sweep_is_learned_from_only_by_force(tmp_path: Path) -> None:
    path, out = sweep(tmp_path, BACKED_UP), tmp_path / "server.toml"
    done = replicast("calibrate", path, *SERVER, "--no-loo", "--out", out)
    assert done.exit_code == 3, done.output
    assert "not usable" in done.stderr
    assert not out.exists()
    forced = replicast("calibrate", path, *SERVER, "--no-loo", "--force", "--json", "--out", out)
    assert forced.exit_code == 0, forced.output
    assert json.loads(forced.stdout)["schema"] == "replicast/calibrate/1"
    assert any("forced" in note for note in load_profile(out).notes)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["calibrate", "absent.duckdb"], "absent.duckdb", 1),
        (["calibrate", "sweep.csv", "--levels", "1", *SERVER], "2 are needed", 1),
        (["calibrate", "sweep.csv", "--levels", "77,78", *SERVER], "levels in it", 1),
        (["calibrate", "one.csv", *SERVER], "2 are needed", 1),
        (["calibrate", "sweep.csv"], "--hardware", 1),
        (["calibrate", "sweep.csv", "--hardware", "abacus"], "no facts about a GPU", 1),
        (["calibrate", "sweep.csv", "--hardware", "H200", "--model", "config.json"], "--parameters", 2),
        (["calibrate", "sweep.csv", "--levels", "0"], "--levels", 2),
        (["validate", "sweep.csv"], "--profile", 2),
        (["validate", "sweep.csv", "--profile", "nix"], "neither a shipped profile", 1),
        (["validate", "absent.csv", "--profile", "qwen3.8-27b-h200"], "absent.csv", 1),
    ],
)
def test_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(tmp_path, HEALTHY)
    sweep(tmp_path, HEALTHY[:1], "one.csv")
    more = ["--out", "out.toml"] if arguments[0] == "calibrate" else []
    done = replicast(*arguments, *more)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.count("Error: ") == 1, done.stderr
    assert said in done.stderr
    assert not Path("out.toml").exists()


def test_a_pool_that_is_fitted_holds_the_longest_request(tmp_path: Path, shared_dir: Path) -> None:
    """The profile boots, and predicts the sweep that it comes from."""
    sweep = shared_dir / "sweeps" / "qwen3-coder-480b.json"
    path = tmp_path / "server.toml"
    done = replicast("calibrate", sweep, "--hardware", "H200", "--no-loo", "--quiet", "--out", path)
    assert done.exit_code == 0, done.output
    assert "pool_scale" in done.stdout
    again = replicast("validate", sweep, "--profile", path, "--levels", "5", "--quiet")
    assert again.exit_code == 0, again.output
