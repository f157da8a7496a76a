"""A synchronous stage alone: its coefficients come back, and what it cannot tell is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from replicast.calibration.learned import learned_of
from replicast.calibration.perrequest import ROW_S, request_priors
from replicast.calibration.profile import StepSeconds, load_profile
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.replay import replay_requests
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import ClientRequest, Given, Sweep
from replicast.calibration.synchronous import MOST_ROWS, _spread, learn
from replicast.cli import main
from replicast.library.functions import model_error_of
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

FRONT_END = FrontEnd(0.002, 2e-7)
STEPS = StepSeconds(0.0258, 7e-8, ROW_S, 7e-3, 9.5e-5, 3.8e-9)
GIVEN = Given(
    model="codellama-34b", gpu="H100", tensor_parallel_size=1, vllm_version="0.11.0", kv_pool_tokens=40_592,
    max_model_len=8192, max_num_batched_tokens=4096,
)  # fmt: skip
SERVER = [
    f"--given={fact}"
    for fact in (
        "model=codellama-34b", "gpu=H100", "vllm_version=0.11.0", "kv_pool_tokens=40592",
        "max_model_len=8192", "max_num_batched_tokens=4096",
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's file of twelve requests, one after the other."""
    facts = server_facts(Sweep("lone", "test", (), model=GIVEN.model, given=GIVEN))
    asked = [ClientRequest(30.0 * i, 150 + 600 * i, 40, None, None) for i in range(12)]
    told = replay_requests(asked, facts.config, STEPS, FRONT_END)
    path = tmp_path_factory.mktemp("stage") / "requests.csv"
    rows = ["concurrency,arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s"]
    rows += [
        f"1,{r.arrival_s},{r.prompt_tokens},{r.output_tokens},{ttft:.5f},{e2e:.5f}"
        for r, ttft, e2e in zip(asked, told.ttft_s, told.e2e_s, strict=True)
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_synchronous_stage_makes_a_profile(stage: Path, tmp_path: Path) -> None:
    out = tmp_path / "server.toml"
    done = CliRunner().invoke(main, ["calibrate", str(stage), *SERVER, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "12 lone requests" in done.stdout
    assert "what a further sequence costs is from physics" in " ".join(done.stdout.split())
    profile = load_profile(out)
    assert profile.step_time.memory_fixed_s == pytest.approx(STEPS.memory_fixed_s, rel=0.03)
    assert profile.step_time.compute_per_token_s == pytest.approx(STEPS.compute_per_token_s, rel=0.1)
    assert profile.ranges["concurrency"] == (1.0, 1.0)
    assert model_error_of(profile, profile.to_step_time()) is not None
    assert len(learned_of(profile).params) == 5


def test_held_out_rows_are_met(stage: Path) -> None:
    found = learn(read_sweep(stage), given=GIVEN)
    assert found.passes
    document = found.to_document()
    assert {row["metric"] for row in document["held_out"]} == {"ttft", "tpot"}
    assert max(row["median_absolute"] for row in document["held_out"]) < 0.05
    facts = server_facts(read_sweep(stage), GIVEN)
    for row in document["parameters"]:
        assert row["low"] <= row["value"] <= row["high"]
        assert math.log(row["high"] / row["value"]) <= 1.96 * request_priors(facts)[row["name"]].spread + 1e-9


def test_prompts_from_the_cache_are_refused(stage: Path) -> None:
    lines = stage.read_text().splitlines()
    cached = stage.parent / "cached.csv"
    cached.write_text("\n".join([lines[0] + ",cached_tokens", *(f"{line},100" for line in lines[1:])]) + "\n")
    with pytest.raises(InputError, match=r"3% of the prompt tokens .* came from the cache"):
        learn(read_sweep(cached), given=GIVEN)


def test_of_many_rows_all_lengths_are_kept() -> None:
    rows = [ClientRequest(2.0 * i, 100 + i % 1000, 50, 0.1, 1.0) for i in range(50_000)]
    chosen = _spread(rows)
    assert len(chosen) == MOST_ROWS
    lengths = sorted(r.prompt_tokens or 0 for r in chosen)
    assert (lengths[0], lengths[-1]) == (100, 1099)
    assert [r.arrival_s for r in chosen] == sorted(r.arrival_s or 0.0 for r in chosen)


def test_the_order_of_rows_does_not_matter(stage: Path, tmp_path: Path) -> None:
    head, *rows = stage.read_text().splitlines()
    turned = tmp_path / "requests.csv"
    turned.write_text("\n".join([head, *reversed(rows)]) + "\n")
    learnt = [learn(read_sweep(path), given=GIVEN, loo=False).profile.step_time for path in (stage, turned)]
    assert learnt[0] == learnt[1]


@pytest.mark.parametrize(
    ("column", "value", "says"), [(2, "900", "900 to 900 tokens"), (3, "1", "no second token")]
)
def test_requests_that_cannot_tell_a_server_are_refused(
    column: int, value: str, says: str, stage: Path, tmp_path: Path
) -> None:
    head, *rows = [line.split(",") for line in stage.read_text().splitlines()]
    alike = [[*row[:column], value, *row[column + 1 :]] for row in rows]
    path = tmp_path / "requests.csv"
    path.write_text("\n".join(",".join(row) for row in [head, *alike]) + "\n")
    with pytest.raises(InputError, match=says):
        learn(read_sweep(path), given=GIVEN)
