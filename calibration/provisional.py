"""The provisional profiles: a few published sweep figures, and physics for the rest.

    python -m replicast.calibration.provisional [FOLDER]

Every figure typed in here names its source. The sweeps are those of
github.com/aws-samples/sample-agentic-coding-harness-benchmarks (MIT-0, July to September 2026):
`performance-summary.json` of one model on one server, level c = 1, unless another is named.

Memory side: what a step streams over the bandwidth. The fixed part is what the lone session's time per
output token leaves after KV cache and state are read; it holds weights and launches.
Compute side: prefill seconds of the lone session over the tokens it computed, less attention.
A summary has no count of computed tokens, so that number is taken from elsewhere and is the weakest
link: the prefill rate is as uncertain as it is. No coefficient may beat the hardware's peak: `check`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from replicast.calibration.profile import SHIPPED, Profile, StepSeconds, write_profile
from replicast.sim.config import EngineArgs
from replicast.sim.fleet.config import FrontEnd

DATE = "2026-11-30"
# Share of the peak bandwidth that KV reads reached on codellama-34b, H100: 70 ns a token.
BANDWIDTH_SHARE = 0.84
# TTFT - queue - prefill over 28 task windows: 26 ms and 1.7 ms per 1,000 prompt tokens.
FRONT_END = FrontEnd(fixed_s=0.026, per_prompt_token_s=1.7e-6, delivery_s=0.0)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU: dense peak rates of the data sheet, memory as the driver reports it."""

    name: str
    memory_gib: float
    bytes_per_s: float
    bf16_flops: float
    fp8_flops: float
    usd_per_hour: float


H200 = Device("H200", 140.4, 4.8e12, 989e12, 1979e12, 7.912)  # p5en.48xlarge on demand, an eighth
L40S = Device("L40S", 44.4, 864e9, 362e12, 733e12, 3.004)  # g6e.4xlarge on demand


@dataclass(frozen=True, slots=True)
class Model:
    """What a step moves and computes, by the model's configuration.

    `read_bytes` are weights read in any step, `active_bytes` more for each sequence (experts),
    `kv_bytes` per context token, `state_bytes` of the linear-attention layers per sequence.
    `pair_flops` = 4 x query heads x head size x full-attention layers: multiply and add, for scores and for
    values. `matmul_fp8` says whether weights multiply in FP8.
    """

    name: str
    read_bytes: float
    active_bytes: float
    kv_bytes: float
    state_bytes: float
    token_flops: float
    pair_flops: float
    matmul_fp8: bool
    block_size: int


# 35.9B parameters, 3B active, BF16: 72 GB. 10 full-attention layers, 2 KV heads x 256, BF16: 20 KiB a token.
# 256 experts, 8 a token, hold all but about 4 GB: n sequences touch 1 - (31/32)^n of them. From n = 1 to 32
# that is 1.96 % more a sequence, 1.33 GB. State: 30 layers x 2.16 MB (one page of 1,056 tokens each).
QWEN36_35B = Model(
    name="Qwen3.6-35B-A3B (BF16)",
    read_bytes=6e9 - 1.33e9,
    active_bytes=1.33e9,
    kv_bytes=20_480,
    state_bytes=30 * 2.163e6,
    token_flops=2 * 3e9,
    pair_flops=4 * 16 * 256 * 10,
    matmul_fp8=False,
    block_size=1056,
)
# 27B dense, FP8: 29 GB. 16 full-attention layers, 24 query and 4 KV heads x 256 (assumed as in Qwen3.5-27B;
# the pools at FP8 and BF16 agree with it), FP8: 32 KiB a token. State: 48 layers x 3.21 MB (48 heads x
# 128 x 128 FP32 and the convolution), which a block of 1,568 FP8 tokens of a layer just holds.
QWEN38_27B = Model(
    name="Qwen3.8-27B (FP8)",
    read_bytes=29e9,
    active_bytes=0.0,
    kv_bytes=32_768,
    state_bytes=48 * 3.207e6,
    token_flops=2 * 27e9,
    pair_flops=4 * 24 * 256 * 16,
    matmul_fp8=True,
    block_size=1568,
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One server of the sweeps: figures of its c = 1 level, and what was taken from elsewhere."""

    name: str
    slug: str
    model: Model
    device: Device
    vllm_version: str
    kv_cache_tokens: int
    tpot_s: float  # tpot_ms_mean
    prefill_s: float  # prefill_ms_mean
    kv_usage_mean: float  # kv_cache_usage.mean
    running_mean: float  # requests_running.mean
    computed_tokens: float  # per request: `computed_why`
    prefill_context: float | None  # mean context after prefill where it is not the level's
    pair_s: float
    engine: EngineArgs
    concurrency: tuple[float, float]
    context_tokens: tuple[float, float]
    version_why: str
    pool_why: str
    computed_why: str
    pair_why: str
    engine_why: str

    @property
    def context(self) -> float:
        """Mean context of a running request: KV usage x pool / running."""
        return self.kv_usage_mean * self.kv_cache_tokens / self.running_mean


# AIConfigurator 0.12, Qwen3.5-35B-A3B on one H200: a chunk of 8,192 tokens takes 113 ms at context 0 and
# 288 ms at 98,304.
AIC_PAIR_S = (0.288 - 0.113) / (8_192 * 98_304)

STATES = "full, 3 x mamba"

ARMS = (
    Arm(
        name="qwen3.6-35b-h200",
        slug="qwen3.6-35b (1xH200 TP1)",
        model=QWEN36_35B,
        device=H200,
        vllm_version="0.27.1",
        kv_cache_tokens=2_800_000,
        tpot_s=0.0051,
        prefill_s=1.7705,
        kv_usage_mean=0.0304,
        running_mean=0.7819,
        computed_tokens=15_091 + (7_392 - 1_056) / 2,
        prefill_context=None,
        pair_s=AIC_PAIR_S,
        engine=EngineArgs(
            num_gpu_blocks=2_745,
            block_size=1056,
            kv_groups=STATES,
            max_model_len=200_000,
            enable_prefix_caching=True,
            hybrid_model=True,
        ),
        concurrency=(1, 20),
        context_tokens=(82_000, 117_000),
        version_why="Not stated for this arm; assumed as on the other H200 arms of the same weeks.",
        pool_why=(
            "Not published; from memory: 140.4 GiB x 0.90 - 67.1 GiB of weights - 4 GiB of activations and "
            "graphs (assumed) = 55.3 GiB = 2,745 blocks of 21.6 MB; 200,000 tokens take 190 + 6 of them."
        ),
        computed_why=(
            "18,259 tokens computed a request: 15,091 in the one strictly serial task window of the same "
            "model and harness (4xL40S, budget 2,048), and half a chunk more, because a hybrid model keeps "
            "state only where a chunk ends: every 7,392 tokens at a budget of 8,192, every 1,056 at 2,048. "
            "AIConfigurator's operators give 12.9 us, six times faster; then the sweep's prefill seconds "
            "would mean more than half of each prompt computed. The summary cannot tell the two apart."
        ),
        pair_why="AIConfigurator 0.12: an 8,192-token chunk takes 113 ms at context 0, 288 ms at 98,304.",
        engine_why="Flags of the sweep: --max-model-len 200000, utilisation 0.90; budget and seats unset.",
    ),
    Arm(
        name="qwen3.8-27b-h200",
        slug="qwen3.8-27b (1xH200 TP1)",
        model=QWEN38_27B,
        device=H200,
        vllm_version="0.27.1",
        kv_cache_tokens=2_400_000,
        tpot_s=0.0119,
        prefill_s=1.9781,
        kv_usage_mean=0.0193,
        running_mean=0.8028,
        computed_tokens=19_000,
        prefill_context=19_000,
        pair_s=AIC_PAIR_S * QWEN38_27B.pair_flops / QWEN36_35B.pair_flops,
        engine=EngineArgs(
            num_gpu_blocks=1_758,
            block_size=1568,
            kv_groups=STATES,
            max_model_len=200_000,
            max_num_batched_tokens=8192,
            max_num_seqs=32,
            enable_prefix_caching=True,
            hybrid_model=True,
        ),
        concurrency=(1, 30),
        context_tokens=(30_000, 60_000),
        version_why="The sweeps of this model ran 0.27.1 or newer.",
        pool_why="10.4 times the L40S pool, by the ratio of KV usage at equal load: 2,400,000 tokens.",
        computed_why=(
            "19,000 tokens computed a request: what the L40S arm computes in its prefill seconds at c = 1 "
            "with the coefficients of its task window. Same model, harness and tasks; mostly cold "
            "first turns."
        ),
        pair_why="AIConfigurator's Qwen3.5-35B-A3B figure on one H200, times 2.4 for heads and layers.",
        engine_why=(
            "Flags of the sweep: seqs 32, KV FP8, budget 8,192, utilisation 0.90. It served 65,536; a task "
            "window of this model served 200,000, which agents need."
        ),
    ),
    Arm(
        name="qwen3.8-27b-l40s",
        slug="qwen3.8-27b (g6e.4xlarge, 1xL40S)",
        model=QWEN38_27B,
        device=L40S,
        vllm_version="0.27.1",
        kv_cache_tokens=228_010,
        tpot_s=0.0616,
        prefill_s=1.649,
        kv_usage_mean=0.1394,
        running_mean=0.5653,
        computed_tokens=3_556,
        prefill_context=98_939,
        pair_s=QWEN38_27B.pair_flops / (0.6 * L40S.bf16_flops),
        engine=EngineArgs(
            num_gpu_blocks=167,
            block_size=1568,
            kv_groups=STATES,
            max_model_len=200_000,
            max_num_batched_tokens=8192,
            max_num_seqs=32,
            enable_prefix_caching=True,
            hybrid_model=True,
        ),
        concurrency=(1, 20),
        context_tokens=(30_000, 99_000),
        version_why="The sweeps of this model ran 0.27.1 or newer.",
        pool_why="Boot log at KV FP8: 228,010 tokens at 65,536, which are 167 blocks.",
        computed_why=(
            "tasks.csv, qwen3.8-27b, pi, ssrf-hardening, g6e.4xlarge, 148 serial requests: 1.649 s of "
            "prefill for 3,556 computed tokens of 98,939. The c = 1 level's 5.7965 s then mean "
            "19,000 computed tokens."
        ),
        pair_why="Assumed: FlashAttention-2 at 60 % of the BF16 peak of 362 TFLOP/s.",
        engine_why=(
            "Flags of the sweep: seqs 32, KV FP8, budget 8,192, utilisation 0.90. It served 65,536; the task "
            "window on this server served 200,000, which agents need."
        ),
    ),
)


def step_seconds(arm: Arm) -> StepSeconds:
    """The six coefficients of an arm."""
    rate = BANDWIDTH_SHARE * arm.device.bytes_per_s
    kv_s = arm.model.kv_bytes / rate
    seq_s = (arm.model.active_bytes + 2 * arm.model.state_bytes) / rate
    context = arm.prefill_context or arm.context
    pairs = arm.computed_tokens * (context - arm.computed_tokens / 2)
    return StepSeconds(
        memory_fixed_s=_figures(arm.tpot_s - kv_s * arm.context - seq_s),
        memory_per_kv_token_s=_figures(kv_s),
        memory_per_seq_s=_figures(seq_s),
        compute_fixed_s=0.0,
        compute_per_token_s=_figures((arm.prefill_s - arm.pair_s * pairs) / arm.computed_tokens),
        compute_per_pair_s=_figures(arm.pair_s),
    )


def check(arm: Arm, steps: StepSeconds) -> None:
    """No coefficient beats the hardware's peak."""
    device, model = arm.device, arm.model
    flops = device.fp8_flops if model.matmul_fp8 else device.bf16_flops
    floors = {
        "memory_fixed_s": model.read_bytes / device.bytes_per_s,
        "memory_per_kv_token_s": model.kv_bytes / device.bytes_per_s,
        "memory_per_seq_s": (model.active_bytes + 2 * model.state_bytes) / device.bytes_per_s,
        "compute_per_token_s": model.token_flops / flops,
        "compute_per_pair_s": model.pair_flops / device.bf16_flops,
    }
    for name, floor in floors.items():
        value = getattr(steps, name)
        assert value >= floor, f"{arm.name}: {name} {value:.3g} beats the hardware's {floor:.3g}"


def provisional(arm: Arm) -> tuple[Profile, dict[str, str]]:
    """The profile of an arm, and the comments of its file."""
    steps = step_seconds(arm)
    check(arm, steps)
    model, device = arm.model, arm.device
    profile = Profile(
        name=arm.name,
        status="provisional",
        source=f"performance-summary.json of {arm.slug}, level c = 1; physics for the memory side",
        date=DATE,
        model=model.name,
        gpu=device.name,
        gpu_memory_gib=device.memory_gib,
        tensor_parallel_size=1,
        vllm_version=arm.vllm_version,
        engine=arm.engine,
        step_time=steps,
        front_end=FRONT_END,
        price_usd_per_hour=device.usd_per_hour,
        ranges={"concurrency": arm.concurrency, "context_tokens": arm.context_tokens},
        notes=(
            "Provisional: not fitted, no intervals. Expect tens of percent on time to first token.",
            "The prefill rate rests on an assumed number of computed tokens a request.",
        ),
    )
    comments = {
        "": (
            "Provisional profile, made by `python -m replicast.calibration.provisional`; edit that.\n"
            "Sweeps: github.com/aws-samples/sample-agentic-coding-harness-benchmarks (MIT-0), Jul to Sep "
            "2026."
        ),
        "vllm_version": arm.version_why,
        "price_usd_per_hour": "us-east-1 on demand, 2026-09-01, this GPU's share of the instance.",
        "engine": arm.engine_why,
        "engine.num_gpu_blocks": arm.pool_why,
        "engine.block_size": "vLLM raises it for hybrid models until a block holds one layer's state.",
        "step_time": "Seconds. A step takes the larger of the memory and the compute side.",
        "step_time.memory_fixed_s": (
            f"tpot_ms_mean {1e3 * arm.tpot_s:g} ms less KV and state of one request of {arm.context:,.0f} "
            f"tokens "
            f"(kv_cache_usage.mean {arm.kv_usage_mean:g} x pool / requests_running.mean "
            f"{arm.running_mean:g})."
        ),
        "step_time.memory_per_kv_token_s": (
            f"{model.kv_bytes:,.0f} bytes at {BANDWIDTH_SHARE:.0%} of {device.bytes_per_s / 1e9:,.0f} GB/s."
        ),
        "step_time.memory_per_seq_s": _seq_why(model),
        "step_time.compute_fixed_s": "Not separable from the figures used; small against a chunk.",
        "step_time.compute_per_token_s": arm.computed_why,
        "step_time.compute_per_pair_s": arm.pair_why,
        "front_end": "TTFT - queue - prefill over 28 task windows (delivery included in fixed_s).",
        "ranges": "Of the sweep: sessions, and mean context of a running request.",
    }
    return profile, comments


def _seq_why(model: Model) -> str:
    state = f"Linear-attention state read and written, 2 x {model.state_bytes / 1e6:.0f} MB"
    if model.active_bytes:
        state += f", and {model.active_bytes / 1e9:.2f} GB of experts that each of up to 32 sequences adds"
    return state + "; same bandwidth."


def _figures(x: float) -> float:
    """Three figures: more would be a claim."""
    return float(f"{x:.3g}")


def main(folder: Path = SHIPPED) -> None:
    """Write the profiles."""
    for arm in ARMS:
        profile, comments = provisional(arm)
        write_profile(profile, folder / f"{arm.name}.toml", comments)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
