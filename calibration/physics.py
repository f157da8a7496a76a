"""What the hardware allows: bounds and weak priors of step-time coefficients, and the expected KV pool.

Memory side (seconds = bytes / bandwidth): weights read in any step, KV cache, experts that each further
sequence adds. Compute side (seconds = operations / FLOPS). A coefficient at the hardware's peak is its
lower bound; what servers reach of the peak is the prior, with a log-normal spread:

    bandwidth  65 % of the peak, x/ 1.5     codellama-34b on H100: 84 % for KV reads, 78 % for weights
    arithmetic 40 % of the peak, x/ 1.4     codellama-34b on H100: 95 us a token are 72 %
    experts    20 % of the BF16 peak        in any precision: glm-5.2, deepseek-v3.2, kimi-k2.7 on H200
    attention  40 % of the peak, x/ 1.4

(With these, prefill times of 28 task windows of the agentic sweeps come out with a median error of a tenth.)

Steps also pay for launches and for tensor-parallel exchanges; both grow with layers, and the exchange is
slow over PCIe (L40S).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from replicast.calibration.facts import GPUS, Gpu, Model
from replicast.calibration.hybrid import Caches, Mamba2
from replicast.calibration.profile import Profile, StepSeconds
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import rules_of
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

BANDWIDTH_SHARE, BANDWIDTH_SPREAD = 0.65, 1.5
FLOPS_SHARE, FLOPS_SPREAD = 0.40, 1.4  # spread: 1.27 between 11 models in task windows
EXPERTS_SHARE = 0.20  # of the BF16 peak
ROW_S = 5e-6  # sampling and small kernels of one more row, whatever the model
LAUNCH_S = 12e-6  # per layer and step, CUDA graphs on
PCIE = ("L40S",)
# Two all-reduces a layer: of one row (latency) and of each token of a chunk (bf16 over the link).
EXCHANGE_S, EXCHANGE_PCIE_S = 8e-6, 25e-6
# What an all-reduce moves in a second. PCIe: 5.7 to 6.7 GB/s in prefills of four models on 4 x L40S (task
# windows of the agentic sweeps, less arithmetic and attention).
LINK_BYTES_PER_S, LINK_PCIE_BYTES_PER_S = 350e9, 6.5e9
# TTFT - queue - prefill over 28 task windows of the agentic sweeps.
FRONT_END = FrontEnd(fixed_s=0.026, per_prompt_token_s=1.7e-6, delivery_s=0.0)
SEQUENCES = 32  # range over which experts are taken to grow evenly
ROUNDED = 1e-4  # of a coefficient in a profile
RESERVED = 0.03  # share of memory for activations, CUDA graphs and the context of a rank


class Prior(NamedTuple):
    """A coefficient's bound by physics, its likely value, and the spread of its logarithm."""

    low: float
    value: float
    spread: float  # standard deviation of log(value)


Priors = Mapping[str, Prior]


def handling_s(front_end: FrontEnd, prompt_tokens: float) -> float:
    """Seconds from a request's arrival until the engine has it."""
    return front_end.fixed_s + front_end.per_prompt_token_s * prompt_tokens


def priors(model: Model, gpu: Gpu, tensor_parallel_size: int) -> dict[str, Prior]:
    """Bounds and weak priors of every step-time coefficient, by the names of `StepSeconds`."""
    tp = tensor_parallel_size
    bandwidth = gpu.bytes_per_s * tp
    kv_bandwidth = gpu.bytes_per_s * model.attention.ranks(tp)
    one, more = _expert_bytes(model)
    least = min(one, model.active * model.weight_bytes / model.parameters)
    pcie = gpu.name in PCIE
    exchange = (EXCHANGE_PCIE_S if pcie else EXCHANGE_S) * 2 * model.layers if tp > 1 else 0.0
    flops, attention_flops = gpu.flops(model.precision) * tp, gpu.bf16_flops * tp
    attention = model.attention
    chosen_s = attention.token_flops / attention_flops
    pair_s = attention.pair_flops / attention_flops + attention.index_flops / gpu.flops("fp8")
    wide = math.log(BANDWIDTH_SPREAD)
    return {
        "memory_fixed_s": Prior(
            least / bandwidth, one / (BANDWIDTH_SHARE * bandwidth) + LAUNCH_S * model.layers + exchange, wide
        ),
        "memory_per_kv_token_s": Prior(
            model.read_bytes / kv_bandwidth, model.read_bytes / (BANDWIDTH_SHARE * kv_bandwidth), wide
        ),
        "memory_per_seq_s": Prior(
            0.0,
            (more + model.sequence_bytes) / (BANDWIDTH_SHARE * bandwidth) + ROW_S,
            math.log(2.5),
        ),
        "compute_fixed_s": Prior(0.0, LAUNCH_S * model.layers + exchange, wide),
        "compute_per_token_s": Prior(
            2 * model.active / flops + chosen_s,
            2 * model.active / _reached_flops(model, gpu, tp)
            + chosen_s / FLOPS_SHARE
            + (_exchange_per_token(model, pcie) if tp > 1 else 0.0),
            math.log(FLOPS_SPREAD),
        ),
        "compute_per_pair_s": Prior(pair_s, pair_s / FLOPS_SHARE, math.log(FLOPS_SPREAD)),
    }


def _expert_bytes(model: Model) -> tuple[float, float]:
    """Weight bytes that one sequence's step reads, and those that each further one adds."""
    weights = model.weight_bytes
    if model.experts <= 1:
        return weights, 0.0
    share = model.experts_per_token / model.experts
    # Bytes of everything but routed experts: what `active` leaves beyond the routed share.
    per_parameter = weights / model.parameters
    dense = max(model.active - share * model.parameters, 0.0) / (1 - share) * per_parameter
    routed = weights - dense
    # Experts that n sequences touch, as the straight line nearest to it for n = 1 to 32.
    count = range(1, SEQUENCES + 1)
    touched = [1 - (1 - share) ** n for n in count]
    mean_n, mean = sum(count) / SEQUENCES, sum(touched) / SEQUENCES
    slope = sum((n - mean_n) * t for n, t in zip(count, touched, strict=True))
    slope /= sum((n - mean_n) ** 2 for n in count)
    return dense + (mean - slope * (mean_n - 1)) * routed, slope * routed


def _reached_flops(model: Model, gpu: Gpu, tp: int) -> float:
    """What prefill reaches: small experts multiply badly, and no faster in narrow precision."""
    if model.experts <= 1:
        return FLOPS_SHARE * gpu.flops(model.precision) * tp
    return EXPERTS_SHARE * gpu.bf16_flops * tp


def _exchange_per_token(model: Model, pcie: bool) -> float:
    # The hidden size follows from parameters of a layer well enough: 12 h^2 a dense layer.
    hidden = math.sqrt(model.active / model.layers / 12)
    return 2 * model.layers * 2 * hidden * 2 / (LINK_PCIE_BYTES_PER_S if pcie else LINK_BYTES_PER_S)


def expected_kv_tokens(
    model: Model, gpu: Gpu, tensor_parallel_size: int, gpu_memory_utilization: float = 0.90
) -> float:
    """Tokens of KV cache that memory leaves after weights and activations; 0 where the weights do not fit."""
    ranks = model.attention.ranks(tensor_parallel_size)
    return _cache_bytes(model, gpu, tensor_parallel_size, gpu_memory_utilization) * ranks / model.kv_bytes


def _cache_bytes(model: Model, gpu: Gpu, tensor_parallel_size: int, gpu_memory_utilization: float) -> float:
    """Bytes that memory leaves for the cache on one rank."""
    per_rank = gpu.memory_gib * 2**30 * (gpu_memory_utilization - RESERVED)
    return max(per_rank - model.weight_bytes / tensor_parallel_size, 0.0)


def caches_of(model: Model, tensor_parallel_size: int, vllm_version: str) -> Caches | None:
    """The KV groups of a hybrid model; None for plain ones and where they are not known or not modelled.

    0.25 keeps a Mamba-2 state at every block ("all"), which is not modelled.
    """
    shape = model.shape
    if shape is None or (isinstance(shape.other, Mamba2) and rules_of(vllm_version)[0] == "0.25.1"):
        return None
    return shape.caches(model.kv_dtype, tensor_parallel_size)


def expected_blocks(
    caches: Caches, model: Model, gpu: Gpu, tensor_parallel_size: int, gpu_memory_utilization: float = 0.90
) -> int:
    """Blocks of the pool that memory leaves, the null block included."""
    left = _cache_bytes(model, gpu, tensor_parallel_size, gpu_memory_utilization)
    return int(left // caches.block_bytes)


def check_group(gpu: Gpu, tensor_parallel_size: int, where: str | None = None) -> None:
    """Refuse more GPUs than tensor parallelism spans."""
    if tensor_parallel_size > gpu.largest_group:
        raise InputError(
            f"tensor_parallel_size is {tensor_parallel_size:,}, and {gpu.largest_group} {gpu.name} at most "
            "share the layers of one model",
            where=where,
            remedy="more GPUs than that make further replicas",
        )


def check_peak(steps: StepSeconds, bounds: Priors) -> list[str]:
    """Coefficients that beat the hardware, in words; empty if none does."""
    return [
        f"{name} {getattr(steps, name):.3g} beats the hardware's peak of {prior.low:.3g}"
        for name, prior in bounds.items()
        if getattr(steps, name) < prior.low * (1 - ROUNDED) and name != "compute_fixed_s"
    ]


@dataclass(frozen=True, slots=True)
class Server:
    """Facts that an estimate needs."""

    model: Model
    gpu: Gpu
    tensor_parallel_size: int
    gpu_memory_utilization: float = 0.90


def estimate(
    model: Model,
    hardware: Gpu | str,
    tensor_parallel_size: int = 1,
    *,
    engine: EngineArgs | None = None,
    vllm_version: str = "0.33.0",
    date: str = "unknown",
) -> Profile:
    """A profile from physics alone: marked uncalibrated, with the wide intervals that it deserves."""
    gpu = GPUS[hardware] if isinstance(hardware, str) else hardware
    check_group(gpu, tensor_parallel_size)
    found = priors(model, gpu, tensor_parallel_size)
    pool = expected_kv_tokens(model, gpu, tensor_parallel_size)
    if pool < 1_000:
        need = math.ceil(model.weight_bytes / (gpu.memory_gib * (0.9 - RESERVED) * 2**30))
        raise InputError(
            f"{model.name} ({model.weight_bytes / 1e9:,.0f} GB of weights) does not fit "
            f"{tensor_parallel_size} x {gpu.name}",
            remedy=f"its weights need at least {need} of them",
        )
    steps = StepSeconds(**{name: float(f"{prior.value:.3g}") for name, prior in found.items()})
    intervals = {
        name: {
            "value": getattr(steps, name),
            "low": float(f"{max(prior.value * math.exp(-1.96 * prior.spread), prior.low):.3g}"),
            "high": float(f"{prior.value * math.exp(1.96 * prior.spread):.3g}"),
            "status": "physics",
        }
        for name, prior in found.items()
    }
    notes = [
        "Uncalibrated: physics only. Values may be wrong by a factor of two; calibrate on a sweep.",
        f"Facts: {model.source}; {gpu.source}.",
        *(f"Assumed: {text}." for text in model.assumed),
    ]
    args = engine or EngineArgs()
    caches = caches_of(model, tensor_parallel_size, vllm_version)
    if caches is not None and args.block_size is None and args.kv_groups is None:
        args = replace(args, kv_groups=caches.kv_groups, block_size=caches.block_size)
        if args.enable_prefix_caching is None:
            args = replace(args, enable_prefix_caching=True)
        if args.kv_cache_tokens is None and args.num_gpu_blocks is None:
            args = replace(args, num_gpu_blocks=expected_blocks(caches, model, gpu, tensor_parallel_size))
    elif model.hybrid and args.kv_groups is None:
        notes.append("The model is hybrid; its KV groups are taken as one group of full attention.")
    if args.kv_cache_tokens is None and args.num_gpu_blocks is None:
        block = args.block_size or 16
        args = replace(args, kv_cache_tokens=int(pool // block) * block)
    return Profile(
        name=f"{model.name}-{gpu.name.lower()}-tp{tensor_parallel_size}-estimate",
        status="uncalibrated",
        source="physics: parameters and layers over data-sheet bandwidth and FLOPS",
        date=date,
        model=f"{model.name} ({model.precision.upper()})",
        gpu=gpu.name,
        gpu_memory_gib=gpu.memory_gib,
        tensor_parallel_size=tensor_parallel_size,
        vllm_version=vllm_version,
        engine=args,
        step_time=steps,
        front_end=FRONT_END,
        notes=tuple(notes),
        tables={"intervals": intervals},
    )
