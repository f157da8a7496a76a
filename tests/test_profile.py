"""Profiles: read, written, refused; and the shipped ones against the sweeps and the hardware."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from replicast.calibration.profile import (
    SHIPPED,
    load_profile,
    parse_profile,
    profile_text,
    shipped_profiles,
    write_profile,
)
from replicast.calibration.provisional import ARMS, Arm, check, main, step_seconds
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.engine.step_time import StepLoad, row_pairs
from replicast.sim.errors import InputError
from replicast.sim.ticks import seconds

NAMES = ("qwen3.6-35b-h200", "qwen3.8-27b-h200", "qwen3.8-27b-l40s")
arms = pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)


def test_three_profiles_are_shipped_and_made_by_the_script(tmp_path: Path) -> None:
    assert set(NAMES) <= set(shipped_profiles())
    main(tmp_path)
    for name in NAMES:
        assert (tmp_path / f"{name}.toml").read_bytes() == (SHIPPED / f"{name}.toml").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_written_and_read_again(name: str, tmp_path: Path) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.status == "provisional"
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


@arms
def test_a_shipped_profile_boots(arm: Arm) -> None:
    got = resolve(EngineArgs(), load_profile(arm.name).engine_args())
    assert got.config.max_model_len == 200_000
    assert got.config.enable_prefix_caching
    assert got.config.rules == "0.25.1"
    assert any("0.27.1" in w for w in got.warnings)


@arms
def test_a_lone_decode_takes_the_sweeps_time_per_token(arm: Arm) -> None:
    context = round(arm.context)
    step = load_profile(arm.name).to_step_time().of(StepLoad(1, 1, context, context))
    assert seconds(step) == pytest.approx(arm.tpot_s, rel=0.02)


@pytest.mark.parametrize(
    (
        "name",
        "rate",
    ),  # tokens/s: the published prefill rates of neighbouring servers, a factor of two either way
    [("qwen3.6-35b-h200", 8_800), ("qwen3.8-27b-h200", 6_400), ("qwen3.8-27b-l40s", 2_200)],
)
def test_a_lone_cold_prompt_takes_a_plausible_time(name: str, rate: float) -> None:
    step_time = load_profile(name).to_step_time()
    total, done = 0, 0
    while done < 100_000:
        n = min(8192, 100_000 - done)
        total += step_time.of(StepLoad(n, 1, done + n, row_pairs(done, n)))
        done += n
    assert rate / 2 < 100_000 / seconds(total) < 2 * rate


@arms
def test_no_coefficient_beats_the_hardware(arm: Arm) -> None:
    steps = step_seconds(arm)
    check(arm, steps)
    with pytest.raises(AssertionError, match="compute_per_token_s"):
        check(arm, steps._replace(compute_per_token_s=1e-7))


@arms
def test_the_typed_figures_are_the_sweeps(arm: Arm, shared_dir: Path) -> None:
    files = {
        "qwen3.6-35b-h200": "qwen3.6-35b-h200-tp1",
        "qwen3.8-27b-h200": "qwen3.8-27b-h200-tp1",
        "qwen3.8-27b-l40s": "qwen3.8-27b-g6e",
    }
    level = json.loads((shared_dir / "sweeps" / f"{files[arm.name]}.json").read_text())["levels"][0]
    assert level["concurrency"] == 1
    assert level["tpot_ms_mean"] / 1e3 == pytest.approx(arm.tpot_s)
    assert level["kv_cache_usage"]["mean"] == arm.kv_usage_mean
    assert level["requests_running"]["mean"] == arm.running_mean
    if arm.name != "qwen3.8-27b-l40s":  # its prefill is a task window's
        assert level["prefill_ms_mean"] / 1e3 == pytest.approx(arm.prefill_s)


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
    text = (SHIPPED / "qwen3.8-27b-l40s.toml").read_text()
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new))
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
    document = tomllib.loads((SHIPPED / "qwen3.8-27b-l40s.toml").read_text())
    for key in ("front_end", "ranges", "notes", "price_usd_per_hour"):
        del document[key]
    document["step_time"] = {"memory_fixed_s": 0.01}
    profile = parse_profile(document, "here")
    assert profile.front_end.fixed_s == 0
    assert profile.price_usd_per_hour is None
