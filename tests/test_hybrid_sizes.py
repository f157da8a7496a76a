"""Sizes of hybrid caches: vLLM's block sizes, and pools that boot logs state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replicast.calibration.hybrid import SHAPES, logged_tokens
from replicast.sim.defaults import EngineArgs, resolve
from replicast.sim.errors import InputError
from replicast.sim.kv_groups import KVGroup, blocks_of_tokens, parse_groups


@pytest.mark.parametrize(
    ("model", "dtype", "tp", "tokens"),
    [
        ("qwen3.6-35b", "bf16", 1, 1056),
        ("qwen3.6-35b", "fp8", 1, 2096),
        ("qwen3.6-35b", "bf16", 4, 528),
        ("qwen3.8-27b", "bf16", 1, 784),
        ("qwen3.8-27b", "fp8", 1, 1568),
    ],
)
def test_block_size(model: str, dtype: str, tp: int, tokens: int) -> None:
    assert SHAPES[model].block_size(dtype, tp) == tokens  # type: ignore[arg-type]


def test_a_block_is_a_page_of_each_layer_of_a_group() -> None:
    shape = SHAPES["qwen3.6-35b"]
    assert shape.kv_groups == SHAPES["qwen3.8-27b"].kv_groups == "full, 3 x mamba"
    assert shape.block_bytes("bf16") == 21_626_880
    assert 40 * 2**30 // shape.block_bytes("bf16") == 1985


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
