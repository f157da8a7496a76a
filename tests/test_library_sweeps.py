"""`check` and `calibrate` as functions: the same answers as the commands, from a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from replicast import calibrate, check
from replicast.calibration.profile import load_profile
from replicast.calibration.sample import made_levels, write_sweep_csv
from replicast.cli import main
from replicast.sim.errors import InputError


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "sweep.csv"
    profile = load_profile("qwen3.8-27b-h200")
    write_sweep_csv(made_levels(profile, (1, 2, 5), 8), profile, path)
    return path


def test_check_says_what_the_command_says(sweep: Path) -> None:
    answer = check(sweep)
    printed = CliRunner().invoke(main, ["check", str(sweep)])
    assert printed.exit_code == answer.exit_code
    assert printed.stdout.strip() == answer.text().strip()
    assert answer.document()["schema"] == "replicast/check/1"
    assert len(answer.to_frame()) == len(answer.result.findings)
    assert answer._repr_html_().startswith("<pre>")


def test_calibrate_gives_a_profile_that_can_be_read_again(sweep: Path, tmp_path: Path) -> None:
    answer = calibrate(str(sweep), hardware="H200", loo=False)
    answer.write(tmp_path / "profile.toml")
    assert load_profile(str(tmp_path / "profile.toml")).step_time == answer.profile.step_time
    frame = answer.to_frame()
    assert (frame["low"] <= frame["value"]).all()
    assert (frame["value"] <= frame["high"]).all()
    assert answer.text()


def test_what_a_trace_tells_is_given(sweep: Path, tmp_path: Path) -> None:
    trace = tmp_path / "made.jsonl.gz"
    made = CliRunner().invoke(
        main,
        ["trace", "synth", "--sessions", "6", "--preset", "fresh", "-o", str(trace)],
    )
    assert made.exit_code == 0, made.output
    answer = calibrate(sweep, trace=trace, hardware="H200", loo=False)
    assert answer.profile.tables["load_given"]["source"] == "made.jsonl.gz"
    assert "calls_per_session" not in set(answer.to_frame()["name"])


def test_a_sweep_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        check(tmp_path / "nowhere.json")
