"""Caches of hybrid models: vLLM's groups and block sizes, and pools that boot logs state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replicast.calibration.facts import MODELS
from replicast.calibration.hybrid import Caches, context_tokens, logged_tokens, shape_from_config
from replicast.calibration.physics import caches_of
from replicast.calibration.published import published_sweeps
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.sim.defaults import EngineArgs, resolve
from replicast.sim.errors import InputError
from replicast.sim.kv_groups import KVGroup, blocks_of_tokens, parse_groups

STATES, WINDOWS = "full, 3 x mamba", "full, 5 x sliding_window:1024"


@pytest.mark.parametrize(
    ("model", "dtype", "tp", "groups", "block_size", "block_bytes"),
    [  # as vLLM 0.33's kv_cache_planning makes them of the layers' specs
        ("qwen3.6-35b", "bf16", 1, STATES, 1056, 21_626_880),
        ("qwen3.6-35b", "fp8", 1, STATES, 2096, 21_463_040),
        ("qwen3.6-35b", "bf16", 4, STATES, 528, 5_406_720),
        ("qwen3.8-27b", "bf16", 1, STATES, 784, 51_380_224),
        ("qwen3.8-27b", "fp8", 1, STATES, 1568, 51_380_224),
        ("qwen3.8-27b", "fp8", 4, STATES, 1568, 12_845_056),
        ("gemma-4-31b", "bf16", 1, f"{WINDOWS}@16", 32, 2_621_440),
        ("gemma-4-31b", "bf16", 4, f"{WINDOWS}@16", 32, 655_360),
        ("gemma-4-31b", "bf16", 8, WINDOWS, 16, 327_680),
        ("nemotron-ultra-550b", "fp8", 8, "full, 4 x mamba", 4160, 12_779_520),
        ("nemotron-ultra-550b", "bf16", 8, "full, 4 x mamba", 2080, 12_779_520),
    ],
)
def test_caches_are_those_that_vllm_makes(
    model: str, dtype: str, tp: int, groups: str, block_size: int, block_bytes: int
) -> None:
    facts = MODELS[model].with_kv(dtype)
    assert caches_of(facts, tp, "0.33.0") == Caches(groups, block_size, block_bytes)


def test_states_that_0_25_keeps_at_every_block_are_left_plain() -> None:
    assert caches_of(MODELS["nemotron-ultra-550b"], 8, "0.28.0") is None


def test_config_json_states_the_shape() -> None:
    qwen = {
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "hidden_size": 2048,
        "layer_types": (3 * ["linear_attention"] + ["full_attention"]) * 10, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    gemma = {
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "num_global_key_value_heads": 4, "global_head_dim": 512, "sliding_window": 1024,
        "layer_types": (5 * ["sliding_attention"] + ["full_attention"]) * 10,
    }  # fmt: skip
    nemotron = {
        "num_attention_heads": 64, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 256,
        "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
        "layers_block_type": (4 * ["mamba", "moe"] + ["attention"]) * 12,
    }  # fmt: skip
    assert shape_from_config(qwen) == MODELS["qwen3.6-35b"].shape
    assert shape_from_config(gemma) == MODELS["gemma-4-31b"].shape
    assert shape_from_config(nemotron) == MODELS["nemotron-ultra-550b"].shape
    del qwen["layer_types"]
    every_fourth = {"num_hidden_layers": 40, "full_attention_interval": 4}
    assert shape_from_config(qwen | every_fourth) == MODELS["qwen3.6-35b"].shape
    del nemotron["layers_block_type"]
    pattern = {"hybrid_override_pattern": 12 * "MEMEMEME*"}
    assert shape_from_config(nemotron | pattern) == MODELS["nemotron-ultra-550b"].shape
    del gemma["layer_types"]
    sixth = {"num_hidden_layers": 60, "sliding_window_pattern": 6}
    assert shape_from_config(gemma | sixth) == MODELS["gemma-4-31b"].shape
    assert shape_from_config({"num_attention_heads": 8, "head_dim": 64}) is None
    assert shape_from_config({name: qwen[name] for name in qwen if "linear" not in name}) is None


def test_a_logged_pool_becomes_blocks() -> None:
    told = Given(model="qwen3.8-27b", gpu="L40S", kv_cache_dtype="fp8", max_model_len=65_536)
    for fact in (Given(kv_pool_tokens=228_010), Given(num_gpu_blocks=167, block_size=1568)):
        facts = server_facts(Sweep("s", "test", (), given=fact.over(told)))
        assert (facts.config.num_gpu_blocks, facts.config.block_size) == (167, 1568)
        assert facts.args.kv_cache_tokens is None
        assert facts.pool_is_given
    plain = server_facts(
        Sweep("s", "test", (), given=Given(kv_pool_tokens=228_010).over(told)), kv_groups=False
    )
    assert plain.config.kv_groups is None
    assert plain.pool_tokens == pytest.approx(228_010, abs=32)


def test_a_budget_below_a_block_is_raised_where_the_release_starts_with_it() -> None:
    told = Given(model="qwen3.6-35b-fp8", gpu="L40S", kv_cache_dtype="fp8", vllm_version="0.29.0")
    facts = server_facts(
        Sweep("s", "test", (), given=replace(told, kv_pool_tokens=395_115, max_model_len=131_072))
    )
    assert facts.config.num_gpu_blocks == 208
    assert facts.config.max_num_batched_tokens == 2096
    assert any("below a block" in note for note in facts.notes)


@pytest.mark.parametrize("slug", ["qwen3.6-35b-h200-tp1", "qwen3.8-27b-g6e", "gemma-4-31b-g6e12xlarge"])
def test_context_follows_from_blocks_held(slug: str) -> None:
    """Within a block and what a step changes, as the groups' own count of a request says."""
    config = server_facts(published_sweeps()[slug]).config
    assert config.kv_groups is not None
    for tokens in (20_000, 60_000):
        held = sum(
            -(-tokens // group.block_size)
            if group.kind == "full"
            else 1
            if group.sliding_window is None
            else -(-group.sliding_window // group.block_size)
            for group in config.kv_groups
        )
        assert context_tokens(held, config) == pytest.approx(tokens, abs=3 * config.block_size + 6 * 32)


@pytest.mark.parametrize(
    ("block_size", "max_model_len", "logged", "blocks"),
    [  # boot logs of one server each, twice
        (2096, 131_072, 395_115, 208),
        (2096, 262_144, 413_075, 208),
        (1568, 65_536, 228_010, 167),
        (784, 65_536, 125_974, 173),
    ],
)
def test_blocks_behind_the_logged_size(block_size: int, max_model_len: int, logged: int, blocks: int) -> None:
    groups = parse_groups("full, 3 x mamba", block_size, max_model_len, align=True)
    assert blocks_of_tokens(logged, groups, max_model_len) == blocks
    assert logged_tokens(blocks, groups, max_model_len) == logged
    args = EngineArgs(
        kv_groups="full, 3 x mamba",
        block_size=block_size,
        kv_cache_tokens=logged,
        max_model_len=max_model_len,
    )
    assert resolve(args).config.num_gpu_blocks == blocks


HYBRID = EngineArgs(kv_groups="full, 3 x mamba", block_size=1056, num_gpu_blocks=1901)


def test_groups_of_a_flag() -> None:
    config = resolve(HYBRID).config
    assert config.kv_groups == (KVGroup("full", 1056), *3 * (KVGroup("mamba", 1056),))
    assert config.enable_prefix_caching
    assert config.prefix_cache_retention_interval == 0


def test_without_prefix_caching_a_state_is_one_block() -> None:
    config = resolve(HYBRID, EngineArgs(vllm_version="0.25.1")).config
    assert not config.enable_prefix_caching
    assert config.kv_groups is not None
    assert config.kv_groups[1] == KVGroup("mamba", config.max_model_len, mamba_cache_mode="none")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_groups": "full, 3 x mumba"}, "'3 x mumba' is not a KV group"),
        ({"kv_groups": "sliding_window"}, "is not a KV group"),
        ({"kv_groups": "full, mamba@64"}, "blocks of 64 tokens beside"),
        ({"num_gpu_blocks": 150}, "over all KV groups"),
        ({"prefix_cache_retention_interval": "1000"}, "multiple of the block size"),
        ({"prefix_cache_retention_interval": "all"}, "must be dense or a number"),
    ],
)
def test_bad_groups_are_refused_in_words(changes: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        resolve(replace(HYBRID, **changes))  # type: ignore[arg-type]
