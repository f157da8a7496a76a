"""Physics: bounds hold, estimates order as hardware does, pools agree with boot logs."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest
from replicast.calibration.facts import GPUS, MODELS, find_gpu, find_model, model_from_config
from replicast.calibration.physics import check_peak, estimate, expected_kv_tokens, priors
from replicast.calibration.profile import parse_profile, profile_text
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import Given, Sweep
from replicast.sim.errors import InputError

# Pools that boot logs state, in tokens.
BOOTED = [
    ("qwen3-coder-30b", "L40S", 4, None, 0.90, 1_037_152),
    ("minicpm5-2b", "L40S", 1, None, 0.90, 856_480),
    ("minimax-m2.5", "H200", 4, None, 0.92, 1_180_000),
    ("qwen3.6-35b", "L40S", 4, None, 0.90, 2_150_000),
    ("qwen3-coder-480b", "H200", 4, None, 0.95, 255_000),
]


@pytest.mark.parametrize(("model", "gpu", "tp", "kv_dtype", "utilization", "tokens"), BOOTED)
def test_expected_pool_is_near_the_boot_log(
    model: str, gpu: str, tp: int, kv_dtype: str | None, utilization: float, tokens: int
) -> None:
    facts = find_model(model, kv_dtype)
    assert facts is not None
    assert expected_kv_tokens(facts, GPUS[gpu], tp, utilization) == pytest.approx(tokens, rel=0.35)


@pytest.mark.parametrize("gpu", list(GPUS))
@pytest.mark.parametrize("model", list(MODELS))
def test_priors_lie_above_the_peak(model: str, gpu: str) -> None:
    for name, prior in priors(MODELS[model], GPUS[gpu], 4).items():
        assert prior.value >= prior.low >= 0, name
        assert prior.spread > 0


def test_faster_hardware_is_not_slower() -> None:
    model = MODELS["qwen3-coder-30b"]
    slow, fast = priors(model, GPUS["L40S"], 1), priors(model, GPUS["H200"], 1)
    assert all(fast[name].value <= slow[name].value for name in slow)


def test_measured_codellama_respects_the_bounds() -> None:
    """Fitted on single requests of codellama-34b, H100 (docs/accuracy.md)."""
    found = priors(MODELS["codellama-34b"], GPUS["H100"], 1)
    for name, value in (
        ("memory_fixed_s", 25.8e-3), ("memory_per_kv_token_s", 70e-9), ("compute_per_token_s", 95e-6),
        ("compute_per_pair_s", 3.8e-9),
    ):  # fmt: skip
        assert found[name].low <= value <= 2.5 * found[name].value, name


def test_estimate_is_marked_and_can_be_read_again() -> None:
    profile = estimate(MODELS["llama-3.1-8b"], "H100", 1, date="2026-11-30")
    assert profile.status == "uncalibrated"
    assert check_peak(profile.step_time, priors(MODELS["llama-3.1-8b"], GPUS["H100"], 1)) == []
    import tomllib

    again = parse_profile(tomllib.loads(profile_text(profile)), "test")
    assert again == profile
    for interval in again.tables["intervals"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        estimate(MODELS["glm-5.2"], "L40S", 1)


def test_names_are_found_inside_longer_ones() -> None:
    assert find_gpu("NVIDIA H200 SXM").name == "H200"
    found = find_model("zai-org/GLM-5.2-FP8")
    assert found is not None
    assert found.name == "glm-5.2"
    assert find_model("somebody/unheard-of") is None
    with pytest.raises(InputError, match="known"):
        find_gpu("TPU v9")


def test_config_json_gives_the_shape(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"num_experts": 128, "num_experts_per_tok": 8}))
    model = model_from_config(path, 30.5e9, 3.3e9)
    assert model.kv_bytes == MODELS["qwen3-coder-30b"].kv_bytes
    assert model.attention == MODELS["qwen3-coder-30b"].attention
    path.write_text("{}")
    with pytest.raises(InputError, match=r"config\.json"):
        model_from_config(path, 1e9)


@pytest.mark.parametrize(
    ("source", "instance", "price", "size"),
    [
        ("coder-h200-tp1.json", "p5en.48xlarge", 5.1428, 1),
        ("devstral.json", "p5en.48xlarge", 13.86, 4),
        ("coder-480b.json", "p5en.48xlarge", 20.5712, 4),
        ("glm.json", "p5en.48xlarge", 27.72, 8),
        ("gemma.json", "g6e.12xlarge", 6.61, 4),
        ("other.json", "p5en.48xlarge", None, 8),
    ],
)
def test_gpus_in_use_follow_from_name_or_price(
    source: str, instance: str, price: float | None, size: int
) -> None:
    given = Given(model="qwen3-coder-30b", instance=instance, price_usd_per_hour=price)
    facts = server_facts(Sweep(source, "test", (), model="qwen3-coder-30b", given=given))
    assert facts.tensor_parallel_size == size
    assert any("tensor_parallel_size is not told" in note for note in facts.notes)


def test_estimate_of_a_hybrid_model_names_its_groups() -> None:
    engine = estimate(MODELS["qwen3.6-35b"], "H200", 1, date="2026-11-30").engine
    assert (engine.kv_groups, engine.block_size) == ("full, 3 x mamba", 1056)
    assert engine.kv_cache_tokens is None
    assert engine.num_gpu_blocks == pytest.approx(2745, rel=0.01)  # 55.3 GiB in blocks of 21.6 MB


# GPU and how many of them, where a row of the task windows does not say or says the whole machine.
TASK_SERVERS = {"minimax-m2.5": ("H200", 4), "devstral-2-123b": ("H200", 4)}
TASK_INSTANCES = {"g6e.12xlarge": ("L40S", 4), "g6e.4xlarge": ("L40S", 1)}


def test_prefill_times_of_task_windows_follow_from_physics(shared_dir: Path) -> None:
    """28 tasks of 11 models: seconds from first schedule to first token."""
    ratios = []
    with (shared_dir / "sweeps" / "tasks.csv").open() as file:
        for row in csv.DictReader(file):
            model = find_model(row["model"])
            assert model is not None
            gpu, tp = TASK_SERVERS.get(row["model"]) or TASK_INSTANCES.get(row["instance"], ("H200", 8))
            steps = {name: prior.value for name, prior in priors(model, GPUS[gpu], tp).items()}
            new, prompt = float(row["computed_per_req"]), float(row["prompt_per_req"])
            expected = (
                steps["compute_fixed_s"]
                + steps["compute_per_token_s"] * new
                + steps["compute_per_pair_s"] * new * (prompt - new / 2)
            )
            ratios.append(float(row["prefill_mean_s"]) / expected)
    assert len(ratios) == 28
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.15
    assert min(ratios) > 0.5
    assert max(ratios) < 3


def test_sparse_attention_reads_its_indexer_and_chosen_tokens(tmp_path: Path) -> None:
    dense, sparse = MODELS["kimi-k2.7-code"], MODELS["deepseek-v3.2"]
    assert dense.read_bytes == dense.kv_bytes
    assert dense.sequence_bytes == 0
    assert sparse.read_bytes == 61 * 132 < sparse.kv_bytes
    assert sparse.sequence_bytes == 2048 * sparse.kv_bytes
    shape = {
        "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "kv_lora_rank": 512,
        "index_n_heads": 64, "index_topk": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(shape))
    assert model_from_config(path, 685e9, 37e9).attention == sparse.attention


def test_weights_that_cannot_be_multiplied_as_they_are_count_as_bf16() -> None:
    hopper, blackwell = GPUS["H200"], GPUS["B300"]
    assert hopper.flops("fp4") == hopper.bf16_flops < hopper.flops("fp8")
    assert blackwell.flops("fp4") == blackwell.fp4_flops
    assert GPUS["A100"].flops("fp8") == GPUS["A100"].bf16_flops


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-40GB", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "H100 NVL", "L4"]
)
def test_other_devices_of_a_family_are_not_taken_for_it(name: str) -> None:
    with pytest.raises(InputError, match="no facts about a GPU"):
        find_gpu(name)


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200", "h100-80gb-hbm3", "8xH200", "NVIDIA_L40S"]
)
def test_devices_are_found_as_servers_name_them(name: str) -> None:
    assert find_gpu(name).name in name.upper()


@pytest.mark.parametrize(
    ("name", "precision", "bytes_each"),
    [
        ("Qwen/Qwen3-14B", "bf16", 2.0),
        ("Qwen/Qwen3-14B-FP8", "fp8", 1.0),
        ("Qwen/Qwen3-14B-AWQ", "bf16", 0.5),
        ("nvidia/Qwen3-14B-NVFP4", "fp4", 0.5),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "bf16", 0.5),
    ],
)
def test_a_quantized_model_has_smaller_weights(name: str, precision: str, bytes_each: float) -> None:
    model = find_model(name)
    assert model is not None
    assert model.precision == precision
    assert model.weight_bytes == pytest.approx(bytes_each * model.parameters, rel=0.02)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_is_itself_under_its_own_name(name: str) -> None:
    assert find_model(name) == MODELS[name]
    assert MODELS[name].quantized(MODELS[name].precision) == MODELS[name]


def told(given: Given) -> tuple[ServerFacts, str]:
    facts = server_facts(Sweep("s", "test", (), model="qwen3-14b", given=given), hardware="H100")
    return facts, " ".join(facts.notes)


def test_what_is_told_of_a_server_is_used_or_named() -> None:
    plain, _ = told(Given())
    quantized, _ = told(Given(quantization="fp8"))
    assert quantized.model.weight_bytes == pytest.approx(plain.model.weight_bytes / 2, rel=0.01)
    assert quantized.expected_pool_tokens > plain.expected_pool_tokens
    four, notes = told(Given(gpus=4))
    assert four.tensor_parallel_size == 4
    assert "4, all 4 GPUs that are told" in notes
    for given in (
        Given(pipeline_parallel_size=4),
        Given(num_speculative_tokens=3),
        Given(dtype="float32"),
        Given(quantization="compressed-tensors"),
    ):
        assert "is not used" in told(given)[1], given
    for given in (
        Given(),
        Given(dtype="bfloat16"),
        Given(pipeline_parallel_size=1),
        Given(quantization="awq"),
    ):
        assert "is not used" not in told(given)[1], given
