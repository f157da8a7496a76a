"""Calibration on a generated sweep: truth is known, and nothing beats the hardware."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from replicast.calibration.calibrate import Calibration, calibrate
from replicast.calibration.facts import GPUS, MODELS
from replicast.calibration.fit import fit
from replicast.calibration.growth import Endings
from replicast.calibration.harness import ServerModel, simulated_level
from replicast.calibration.physics import FRONT_END, check_peak
from replicast.calibration.predict import LARGEST, Residuals, correction
from replicast.calibration.profile import parse_profile, profile_text
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.calibration.uncertainty import without_level
from replicast.calibration.workload import LevelLoad
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError

TRUTH = {"memory_fixed_s": 0.011, "memory_per_seq_s": 6e-4, "compute_per_token_s": 9e-5}
GIVEN = Given(
    model="qwen3-coder-30b", gpu="H200", tensor_parallel_size=1, kv_pool_tokens=700_000,
    vllm_version="0.28.0", max_num_batched_tokens=8192, max_model_len=131_072,
)  # fmt: skip


def generated_sweep(concurrencies: tuple[int, ...] = (1, 2, 5, 10), load_s: float = 200.0) -> Sweep:
    """A sweep of a server with `TRUTH`, counted as a collector counts."""
    facts = server_facts(Sweep("generated", "test", (), model="qwen3-coder-30b", given=GIVEN))
    steps = {name: prior.value for name, prior in facts.priors.items()} | TRUTH
    server = ServerModel(facts.config, StepTime.from_seconds(**steps), FRONT_END)
    levels = []
    for c in concurrencies:
        load = LevelLoad(
            concurrency=c, streams=c, prompt_tokens=45_000, output_tokens=300, computed_tokens=6_000,
            first_tokens=10_000, shared_tokens=12_000, tool_s=0.3, endings=Endings(66, 0.0), load_s=load_s,
            window_s=load_s + 40, expected_requests=40 * c**0.5,
        )  # fmt: skip
        levels.append(simulated_level(load, server, seed=100 + c))
    return Sweep("generated", "test", tuple(levels), model="qwen3-coder-30b", given=GIVEN)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(generated_sweep(), date="2026-11-30")


def test_truth_is_found(calibration: Calibration) -> None:
    found = {interval.name: interval for interval in calibration.uncertainty.intervals}
    assert found["memory_fixed_s"].value == pytest.approx(TRUTH["memory_fixed_s"], rel=0.35)
    # What a prefilled token costs and what its context does are hardly told apart: their sum is known.
    truth = {name: prior.value for name, prior in calibration.facts.priors.items()} | TRUTH
    for name in ("memory_fixed_s", "memory_per_seq_s"):
        assert found[name].low < truth[name] < found[name].high, name
    fitted, known = (
        values["compute_per_token_s"] + 30_000 * values["compute_per_pair_s"]
        for values in ({it.name: it.value for it in found.values()}, truth)
    )
    assert fitted == pytest.approx(known, rel=0.3)
    # Counted cached tokens: computed tokens a request are given, not fitted.
    assert "computed_tokens" not in found


def test_held_out_levels_are_predicted(calibration: Calibration) -> None:
    assert calibration.held_out is not None
    given = [row for row in calibration.held_out.rows if row.load == "given" and row.error is not None]
    tpot = [abs(row.error or 0) for row in given if row.metric == "tpot_mean_s"]
    assert np.median(tpot) < 0.15
    inside = [row.inside for row in given]
    assert np.mean(inside) > 0.75


def test_without_a_level_the_others_are_explained_as_by_a_fit_of_their_own(calibration: Calibration) -> None:
    fitted = calibration.fitted
    for index in (0, 3):
        problem = fitted.problem.without(index)
        left = [model.level for i, model in enumerate(fitted.models) if i != index]
        settled = problem.cost(without_level(fitted, index))
        assert settled <= problem.cost(fitted.x)
        assert settled < problem.cost(fit(left, calibration.facts).x) + 1.0


def test_no_coefficient_beats_the_peak(calibration: Calibration) -> None:
    assert check_peak(calibration.profile.step_time, calibration.facts.priors) == []


def test_the_profile_can_be_read_again(calibration: Calibration) -> None:
    text = profile_text(calibration.profile)
    assert parse_profile(tomllib.loads(text), "test") == calibration.profile
    assert calibration.profile.status == "calibrated"
    assert calibration.profile.ranges["concurrency"] == (1, 10)
    json.dumps(calibration.to_document(), allow_nan=False)
    report = calibration.report_text()
    assert "memory_fixed_s" in report
    assert "Valid for" in report


def test_same_sweep_same_bytes(calibration: Calibration) -> None:
    """In two processes as in one."""
    again = calibrate(generated_sweep(), date="2026-11-30", jobs=2)
    assert profile_text(again.profile) == profile_text(calibration.profile)
    assert again.to_document() == calibration.to_document()


def test_one_level_is_refused() -> None:
    sweep = generated_sweep((1,), load_s=60)
    with pytest.raises(InputError, match="usable level"):
        calibrate(sweep)


def test_a_missing_gpu_is_asked_for() -> None:
    sweep = generated_sweep((1, 2), load_s=60)
    with pytest.raises(InputError, match="--hardware"):
        calibrate(replace(sweep, given=replace(GIVEN, gpu=None)))


def test_an_impossible_memory_is_named() -> None:
    facts = server_facts(generated_sweep((1,), load_s=30), replace(GIVEN, kv_pool_tokens=9_000_000))
    assert any("far from" in note for note in facts.notes)
    assert MODELS["qwen3-coder-30b"].kv_bytes * 700_000 < GPUS["H200"].memory_gib * 2**30


def test_corrections_fade_and_are_bounded() -> None:
    known = [Residuals(2, {"tpot_mean_s": 0.3}), Residuals(5, {"tpot_mean_s": 0.3})]
    near, far = correction(3, "tpot_mean_s", known), correction(300, "tpot_mean_s", known)
    assert 0 < far < near < 0.3
    assert correction(3, "ttft_mean_s", known) == 0
    assert abs(correction(2, "tpot_mean_s", [Residuals(2, {"tpot_mean_s": 9.0})])) <= LARGEST
