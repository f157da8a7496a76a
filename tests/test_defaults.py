"""vLLM's defaults and its refusals to boot, as its own source and error texts have them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.config import FIELDS, EngineArgs, EngineConfig
from replicast.sim.defaults import batch_defaults, resolve, rules_of, verify
from replicast.sim.errors import InputError

POOL = EngineArgs(num_gpu_blocks=40_001, block_size=16)


@pytest.mark.parametrize(
    ("given_version", "rules", "warns"),
    [
        ("0.25.1", "0.25.1", False),
        ("0.33.0", "0.33.0", False),
        ("v0.33.0", "0.33.0", False),
        ("0.25", "0.25.1", True),
        ("0.11.0", "0.25.1", True),
        ("v0.30.1", "0.25.1", True),
        ("0.32.9rc1", "0.25.1", True),
        ("0.33.0.post1", "0.33.0", True),
        ("0.34.0rc2+cu130", "0.33.0", True),
        ("1.0", "0.33.0", True),
        ("0.8.0", "0.25.1", True),
    ],
)
def test_any_v1_version_maps_to_recorded_rules(given_version: str, rules: str, warns: bool) -> None:
    got, warning = rules_of(given_version)
    assert got == rules
    assert (warning is not None) == warns
    if warning is not None:
        assert given_version in warning
        assert rules in warning


@pytest.mark.parametrize("text", ["", "latest", "0", "0.33.0.1.2", "0.-1", "0.33 .0", "vv0.33", "nan", "٣.٣"])
def test_nonsense_is_no_version(text: str) -> None:
    with pytest.raises(InputError, match="not a vLLM version"):
        rules_of(text)


@pytest.mark.parametrize("text", ["0.6.3", "0.7.9", "v0.2"])
def test_v0_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="V1"):
        rules_of(text)


@pytest.mark.parametrize(
    ("device", "gib", "serve_33", "serve_25", "llm_33"),
    [
        ("NVIDIA B200", 178, (16384, 1024), (8192, 1024), (16384, 1024)),
        ("MI300X", 191, (16384, 1024), (8192, 1024), (16384, 1024)),
        ("NVIDIA H200", 140, (8192, 1024), (8192, 1024), (16384, 1024)),
        ("NVIDIA H100 80GB HBM3", 79.2, (8192, 1024), (8192, 1024), (16384, 1024)),
        ("RTX PRO 6000", 95, (8192, 1024), (8192, 1024), (16384, 1024)),
        ("NVIDIA GB10", 119, (2048, 256), (8192, 1024), (8192, 256)),
        ("NVIDIA A100-SXM4-80GB", 79.2, (2048, 256), (2048, 256), (8192, 256)),
        ("L40S", 44.4, (2048, 256), (2048, 256), (8192, 256)),
        ("cpu", 0, (2048, 128), (2048, 128), (4096, 256)),
    ],
)
def test_budget_and_seats_by_device(
    device: str,
    gib: float,
    serve_33: tuple[int, int],
    serve_25: tuple[int, int],
    llm_33: tuple[int, int],
) -> None:
    assert batch_defaults("0.33.0", "serve", device, gib)[:2] == serve_33
    assert batch_defaults("0.25.1", "serve", device, gib)[:2] == serve_25
    assert batch_defaults("0.33.0", "llm", device, gib)[:2] == llm_33
    config = resolve(replace(POOL, device=device, vllm_version="0.33.0")).config  # memory by name
    assert (config.max_num_batched_tokens, config.max_num_seqs) == serve_33


def test_unset_budget_and_seats_are_cut_and_raised() -> None:
    h200 = replace(POOL, device="H200", max_model_len=30_000)
    assert resolve(replace(h200, enable_chunked_prefill=False)).config.max_num_batched_tokens == 30_000
    assert resolve(replace(h200, max_num_seqs=1, max_model_len=2000)).config.max_num_batched_tokens == 2000
    assert resolve(replace(h200, max_num_batched_tokens=100)).config.max_num_seqs == 100
    assert resolve(replace(h200, performance_mode="throughput")).config.max_num_seqs == 2048


def test_flag_beats_profile_beats_default() -> None:
    profile = EngineArgs(kv_cache_tokens=320_000, block_size=32, max_num_seqs=64, device="L40S")
    got = resolve(EngineArgs(max_num_seqs=8), profile)
    assert (got.config.max_num_seqs, got.origins["max_num_seqs"]) == (8, "flag")
    assert (got.config.block_size, got.origins["block_size"]) == (32, "profile")
    assert got.origins["max_num_batched_tokens"].startswith("default (vllm serve")
    assert got.config.num_gpu_blocks == 10_000
    assert "320,000 tokens" in got.origins["num_gpu_blocks"]
    assert resolve(EngineArgs(num_gpu_blocks=9000), profile).config.num_gpu_blocks == 9000
    assert resolve(EngineArgs(block_size=16), profile).config.num_gpu_blocks == 20_000


def test_another_device_does_not_keep_the_profiles_memory() -> None:
    profile = replace(POOL, device="H200", device_memory_gib=140.4)
    assert resolve(EngineArgs(device="L40S"), profile).config.max_num_seqs == 256
    assert resolve(EngineArgs(device_memory_gib=24.0), profile).config.max_num_seqs == 256
    assert resolve(EngineArgs(), profile).config.max_num_seqs == 1024


def test_an_unknown_device_is_named() -> None:
    assert any("device" in w for w in resolve(POOL).warnings)
    assert not resolve(replace(POOL, max_num_seqs=8, max_num_batched_tokens=64)).warnings


def test_every_value_has_an_origin_and_every_field_a_flag() -> None:
    got = resolve(POOL)
    assert [name for name, _, _ in got.rows()][3:] == [f.name for f in fields(EngineConfig)]
    assert all(origin for _, _, origin in got.rows())
    assert [f.name for f in FIELDS] == [f.name for f in fields(EngineArgs)]
    assert {f.name for f in fields(EngineConfig)} - {"rules"} <= {f.name for f in FIELDS}
    assert FIELDS[0].flag == "--vllm-version"


def test_asynchronous_scheduling() -> None:
    assert resolve(POOL).config.async_scheduling
    assert not resolve(replace(POOL, num_speculative_tokens=3, spec_accept=(2, 0))).config.async_scheduling
    assert resolve(replace(POOL, num_speculative_tokens=3, num_lookahead_tokens=3)).config.async_scheduling
    assert not resolve(replace(POOL, async_scheduling=False)).config.async_scheduling


@pytest.mark.parametrize(
    ("version", "asynchronous", "full"),
    [
        ("0.11.0", False, False),
        ("v0.13.2rc1", False, False),
        ("0.14", True, False),
        ("0.19.1", True, False),
        ("0.20.0", True, True),
        ("0.33.0", True, True),
    ],
)
def test_versions_schedule_as_in_their_time(version: str, asynchronous: bool, full: bool) -> None:
    old = replace(POOL, vllm_version=version)
    found = resolve(old)
    assert (found.config.async_scheduling, found.config.scheduler_reserve_full_isl) == (asynchronous, full)
    assert ("0.14" in found.origins["async_scheduling"]) == (not asynchronous)
    assert ("0.20" in found.origins["scheduler_reserve_full_isl"]) == (not full)
    told = resolve(replace(old, async_scheduling=True, scheduler_reserve_full_isl=True)).config
    assert told.async_scheduling
    assert told.scheduler_reserve_full_isl


def test_blocks_too_small_for_a_state_mean_full_attention() -> None:
    profile = EngineArgs(block_size=1056, num_gpu_blocks=2745, kv_groups="full, 3 x mamba", hybrid_model=True)
    found = resolve(EngineArgs(block_size=16, num_gpu_blocks=40_001), profile)
    assert found.config.kv_groups is None
    assert any("block_size 16 holds no state" in warning for warning in found.warnings)
    assert resolve(EngineArgs(block_size=2112), profile).config.kv_groups is not None
    named = EngineArgs(block_size=16, num_gpu_blocks=40_001, kv_groups="full, mamba")
    assert resolve(named, profile).config.kv_groups is not None


def test_prefix_caching_of_hybrid_models() -> None:
    hybrid = replace(POOL, hybrid_model=True)
    assert not resolve(replace(hybrid, vllm_version="0.25.1")).config.enable_prefix_caching
    assert resolve(replace(hybrid, vllm_version="0.33.0")).config.enable_prefix_caching
    assert resolve(
        replace(hybrid, vllm_version="0.25.1", enable_prefix_caching=True)
    ).config.enable_prefix_caching


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"num_gpu_blocks": 1000}, "estimated maximum model length is 15984"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 65}, "greater than or equal to max_num_seqs"),
        ({"max_num_batched_tokens": 8192, "enable_chunked_prefill": False}, "smaller than max_model_len"),
        ({"long_prefill_token_threshold": 200_001}, "greater than the max_model_len"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold is -1"),
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": -0.1}, "watermark"),
        ({"watermark": float("nan")}, "watermark"),
        ({"block_size": 0}, "block_size is 0"),
        ({"num_gpu_blocks": 1}, "null block"),
        ({"num_gpu_blocks": -5}, "num_gpu_blocks is -5"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": -1}, "max_num_batched_tokens is -1"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 2, "spec_accept": (3,)}, "spec_accept"),
        ({"num_speculative_tokens": 2, "spec_accept": ()}, "spec_accept"),
        ({"spec_accept": (1,)}, "spec_accept"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy"),
        ({"entry_point": "bench"}, "entry_point"),
        ({"kv_cache_tokens": 5}, "both name the KV pool"),
        ({"kv_cache_tokens": -5, "num_gpu_blocks": None}, "kv_cache_tokens is -5"),
        ({"num_gpu_blocks": None}, "KV pool"),
        ({"device_memory_gib": -1.0}, "device_memory_gib"),
        ({"max_num_scheduled_tokens": 0}, "max_num_scheduled_tokens"),
        ({"max_num_scheduled_tokens": 4096}, "above max_num_batched_tokens"),
        ({"max_num_active_seqs": 4, "vllm_version": "0.25.1"}, "not known to vLLM below 0.33"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval"),
        ({"kv_groups": "full, 3 x mamba", "hybrid_model": False}, "hybrid_model is false"),
    ],
)
def test_what_vllm_does_not_start_is_refused(args: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        resolve(replace(POOL, **args))  # type: ignore[arg-type]


@given(st.integers(2, 300), st.integers(1, 64), st.integers(1, 20_000))
def test_a_started_server_holds_its_longest_request(blocks: int, block_size: int, longest: int) -> None:
    config = EngineConfig(num_gpu_blocks=blocks, block_size=block_size, max_model_len=longest)
    if longest <= (blocks - 1) * block_size:
        verify(config)
    else:
        with pytest.raises(InputError, match="max seq len"):
            verify(config)
