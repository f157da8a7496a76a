"""Profiles: read, written, refused; and the shipped ones against the sweeps and the hardware."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from replicast.calibration.calibrate import PASSES_TPOT
from replicast.calibration.learned import facts_of
from replicast.calibration.physics import check_peak, priors
from replicast.calibration.profile import (
    load_profile,
    parse_profile,
    profile_text,
    shipped_file,
    shipped_profiles,
    write_profile,
)
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.engine.step_time import StepLoad
from replicast.sim.errors import InputError
from replicast.sim.ticks import seconds

NAMES = ("qwen3.6-35b-h200-tp1", "qwen3.8-27b-h200-tp1", "qwen3.8-27b-l40s-tp1")
SWEEPS = {
    "qwen3.6-35b-h200-tp1": "qwen3.6-35b-h200-tp1",
    "qwen3.8-27b-h200-tp1": "qwen3.8-27b-h200-tp1",
    "qwen3.8-27b-l40s-tp1": "qwen3.8-27b-g6e",
}
HAND = """
schema = "replicast/profile/1"
name = "by-hand"
status = "provisional"
source = "typed in by hand"
date = "2026-11-30"
model = "Qwen3.8-27B (FP8)"
gpu = "L40S"
gpu_memory_gib = 44.4
tensor_parallel_size = 1
vllm_version = "0.27.1"
price_usd_per_hour = 3.004
notes = [
    "Not fitted.",
]

[engine]
hybrid_model = true
num_gpu_blocks = 167
block_size = 1568
max_model_len = 200000
max_num_batched_tokens = 8192
max_num_seqs = 32
enable_prefix_caching = true
kv_groups = "full, 3 x mamba"

[step_time]
memory_fixed_s = 0.0586
memory_per_kv_token_s = 4.51e-08
memory_per_seq_s = 0.000424
compute_fixed_s = 0.0
compute_per_token_s = 0.000288
compute_per_pair_s = 1.81e-09

[front_end]
fixed_s = 0.026
per_prompt_token_s = 1.7e-06
delivery_s = 0.0

[ranges]
concurrency = [1, 20]
context_tokens = [30000, 99000]
"""


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_are_fitted_and_pass_their_own_checks(name: str) -> None:
    profile = load_profile(name)
    assert (profile.name, profile.status) == (name, "calibrated")
    assert profile.tables["validation"]["given_tpot_mean_s"]["median_error"] <= PASSES_TPOT
    facts = facts_of(profile)
    known = priors(facts.model, facts.gpu, facts.tensor_parallel_size)
    # Of how KV is stored, which the profile does not say, its cost per token depends.
    assert [text for text in check_peak(profile.step_time, known) if "memory_per_kv" not in text] == []
    assert check_peak(profile.step_time._replace(compute_per_token_s=1e-9), known)


def test_of_one_gpu_the_name_can_be_short() -> None:
    assert load_profile("qwen3.8-27b-h200") == load_profile("qwen3.8-27b-h200-tp1")
    assert shipped_file("qwen3.6-35b-l40s") is None


@pytest.mark.parametrize("name", NAMES)
def test_written_and_read_again(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    richer = replace(
        profile,
        notes=('quotes " and \\ and\nlines', "é"),
        engine=replace(profile.engine, spec_accept=(2, 0), num_speculative_tokens=2, watermark=0.5),
        tables={
            "intervals": {"memory_fixed_s": {"value": 0.15, "low": 0.1, "high": 0.2}},
            "covariance": {"names": ["memory_fixed_s"], "log_matrix": [[0.01]]},
        },
    )
    path = tmp_path / "p.toml"
    write_profile(richer, path, {"": "head\n\nof file", "engine.block_size": "why"})
    assert load_profile(path) == richer
    assert list(tmp_path.iterdir()) == [path]
    assert profile_text(richer) == profile_text(load_profile(path))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_boots(name: str) -> None:
    got = resolve(EngineArgs(), load_profile(name).engine_args())
    assert got.config.max_model_len == 200_000
    assert got.config.enable_prefix_caching
    assert got.config.rules == "0.25.1"
    assert any("0.27.1" in w for w in got.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_decode_takes_about_the_sweeps_time_per_token(name: str, shared_dir: Path) -> None:
    document = json.loads((shared_dir / "sweeps" / f"{SWEEPS[name]}.json").read_text())
    level = document["levels"][0]
    assert level["concurrency"] == 1
    profile = load_profile(name)
    pool = facts_of(profile).pool_tokens
    context = round(level["kv_cache_usage"]["mean"] / level["requests_running"]["mean"] * pool)
    step = profile.to_step_time().of(StepLoad(1, 1, context, context))
    assert seconds(step) == pytest.approx(level["tpot_ms_mean"] / 1e3, rel=0.3)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("memory_fixed_s = 0.0586", "memory_fixed_s = -1.0", "step_time.memory_fixed_s is -1.0"),
        ("memory_fixed_s = 0.0586", "memory_fixed_s = nan", "step_time.memory_fixed_s"),
        ("memory_fixed_s = 0.0586", "memory_fixed_s = true", "step_time.memory_fixed_s"),
        ("memory_fixed_s = 0.0586", "memory_fixed_s = 0", "a step takes time"),
        ("memory_fixed_s = 0.0586", "", "step_time.memory_fixed_s is missing"),
        ("memory_fixed_s = 0.0586", "memory_fixed = 1", "step_time.memory_fixed"),
        ("fixed_s = 0.026", "fixed_s = inf", "front_end.fixed_s"),
        ("block_size = 1568", 'block_size = "big"', "engine.block_size"),
        ("block_size = 1568", "max_seqs = 3", "engine.max_seqs is not a key"),
        ("block_size = 1568", 'scheduling_policy = "lifo"', "engine.scheduling_policy"),
        ('status = "provisional"', 'status = "fine"', "status"),
        ('schema = "replicast/profile/1"', 'schema = "replicast/profile/9"', "schema"),
        ("tensor_parallel_size = 1", "tensor_parallel_size = 0", "tensor_parallel_size"),
        ("price_usd_per_hour = 3.004", "price_usd_per_hour = -3", "price_usd_per_hour"),
        ("concurrency = [1, 20]", "concurrency = [20, 1]", "ranges.concurrency"),
        ("concurrency = [1, 20]", "concurrency = 20", "ranges.concurrency"),
        ('gpu = "L40S"', "gpu = 3", "gpu"),
        ('gpu = "L40S"', 'gpu = "L40S"\ntypo = 1', "typo is not a key"),
        ("[step_time]", "[step_times]", "step_time is missing"),
        ('gpu = "L40S"', "gpu = L40S", "not valid TOML"),
    ],
)
def test_a_bad_profile_names_file_and_key(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in HAND
    path = tmp_path / "bad.toml"
    path.write_text(HAND.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert words in str(caught.value)
    assert "bad.toml" in str(caught.value)


def test_an_unknown_name_lists_the_shipped_ones(tmp_path: Path) -> None:
    for name in ("qwen", tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match=r"qwen3\.8-27b-l40s"):
            load_profile(name)


def test_a_binary_file_is_no_profile(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"x\.toml"):
        load_profile(path)


def test_optional_parts_may_be_left_out() -> None:
    document = tomllib.loads(HAND)
    for key in ("front_end", "ranges", "notes", "price_usd_per_hour"):
        del document[key]
    document["step_time"] = {"memory_fixed_s": 0.01}
    profile = parse_profile(document, "here")
    assert profile.front_end.fixed_s == 0
    assert profile.price_usd_per_hour is None
