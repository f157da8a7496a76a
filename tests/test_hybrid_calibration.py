"""A generated sweep of a hybrid server is learned with the caches that its model has."""

from __future__ import annotations

from pathlib import Path

import pytest
from replicast.calibration.calibrate import Calibration, calibrate
from replicast.calibration.growth import Endings
from replicast.calibration.harness import ServerModel, simulated_level
from replicast.calibration.model import point_at
from replicast.calibration.physics import FRONT_END
from replicast.calibration.pool import LONGEST, longest_request, scaled_pool
from replicast.calibration.profile import load_profile, write_profile
from replicast.calibration.scale import mean_observed
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.calibration.workload import LevelLoad
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.engine.step_time import StepTime

TRUTH = {"memory_fixed_s": 0.05, "compute_per_token_s": 1.6e-4}
GIVEN = Given(
    model="qwen3.8-27b", gpu="L40S", tensor_parallel_size=1, kv_pool_tokens=228_010, kv_cache_dtype="fp8",
    vllm_version="0.27.1", max_num_batched_tokens=8192, max_num_seqs=32, max_model_len=65_536,
)  # fmt: skip
LEVELS = (1, 3, 12)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    facts = server_facts(Sweep("made", "test", (), model="qwen3.8-27b", given=GIVEN))
    steps = {name: prior.value for name, prior in facts.priors.items()} | TRUTH
    server = ServerModel(facts.config, StepTime.from_seconds(**steps), FRONT_END)
    levels = [
        simulated_level(
            LevelLoad(
                concurrency=c, streams=c, prompt_tokens=32_000, output_tokens=300, computed_tokens=4_000,
                first_tokens=14_000, shared_tokens=6_000, tool_s=0.3, endings=Endings(20, 0.0), load_s=400.0,
                window_s=440.0, expected_requests=30 * c**0.5,
            ),
            server,
            seed=100 + c,
        )
        for c in LEVELS
    ]  # fmt: skip
    return Sweep("made", "test", tuple(levels), model="qwen3.8-27b", given=GIVEN)


@pytest.fixture(scope="module")
def calibration(sweep: Sweep) -> Calibration:
    return calibrate(sweep, loo=False, force=True)


def test_truth_is_found(calibration: Calibration) -> None:
    found = calibration.profile.step_time._asdict()
    assert found["memory_fixed_s"] == pytest.approx(TRUTH["memory_fixed_s"], rel=0.1)
    assert found["compute_per_token_s"] == pytest.approx(TRUTH["compute_per_token_s"], rel=0.25)


def test_computed_tokens_follow_from_the_cache(calibration: Calibration) -> None:
    """What was counted is computed in the simulation, too, where sessions do not evict each other."""
    point = point_at(calibration.fitted.params, calibration.fitted.x)
    for model in calibration.fitted.models[:2]:
        seen = mean_observed(model.simulate(point, (1, 2)))
        assert seen.computed_per_request == pytest.approx(model.lengths.computed, rel=0.25)


def test_the_profile_names_its_groups(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    write_profile(calibration.profile, path)
    engine = load_profile(path).engine_args()
    assert (engine.kv_groups, engine.block_size, engine.num_gpu_blocks) == ("full, 3 x mamba", 1568, 167)
    assert resolve(EngineArgs(), engine).config.kv_groups is not None
    assert longest_request(engine) > LONGEST
    assert scaled_pool(engine, 0.5, 50).num_gpu_blocks == 84
    assert scaled_pool(engine, 0.5, 100).num_gpu_blocks == 101
