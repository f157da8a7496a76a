"""The server behind a sweep: what is given, and what physics says about the rest.

Given facts come from the sweep itself (boot log, labels), from the caller, or, for the GPU, from the instance
type. What is still unset follows vLLM's own defaults (`replicast.sim.defaults`), the KV pool follows from
memory, KV groups and block size of a hybrid model from its layers. Each step of that is named in `notes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from replicast.calibration.facts import (
    EIGHT_BITS,
    FOUR_BITS,
    INSTANCES,
    PRICES,
    Attention,
    Gpu,
    Model,
    find_gpu,
    find_model,
)
from replicast.calibration.hybrid import context_tokens
from replicast.calibration.physics import (
    Priors,
    caches_of,
    check_group,
    expected_blocks,
    expected_kv_tokens,
    priors,
)
from replicast.calibration.pool import IN_FLIGHT, hybrid_pool, plain_pool
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.sim.config import EngineArgs, EngineConfig
from replicast.sim.defaults import resolve
from replicast.sim.errors import InputError
from replicast.sim.kv_groups import blocks_per_request

TWO_BYTES = re.compile(r"auto|bfloat16|float16|half")
QUANTIZED = re.compile(rf"{FOUR_BITS.pattern}|{EIGHT_BITS.pattern}|fp4|bf16|fp16|none")
UNKNOWN_SPREAD = 0.7  # of the logarithm of a coefficient: a factor of two


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """All that is told or known about the server before anything is fitted."""

    model: Model
    gpu: Gpu
    tensor_parallel_size: int
    vllm_version: str
    args: EngineArgs
    config: EngineConfig
    priors: Priors
    expected_pool_tokens: float
    pool_is_given: bool
    known_model: bool
    notes: tuple[str, ...]
    load: Mapping[str, float] = field(default_factory=dict)  # latents that a trace of the load tells
    load_source: str = ""

    @property
    def pool_tokens(self) -> float:
        """Tokens of KV cache that requests can hold, if windows and states took none."""
        return float(self.config.num_usable_blocks * self.config.block_size)

    @property
    def least_blocks(self) -> int:
        """Blocks that one request of max_model_len needs."""
        config = self.config
        if config.kv_groups is None:
            return -(-config.max_model_len // config.block_size)
        return blocks_per_request(config.kv_groups, config.max_model_len, IN_FLIGHT)

    def context(self, share: float) -> float:
        """Tokens of a running request that holds `share` of the KV pool."""
        return context_tokens(share * self.config.num_usable_blocks, self.config)


def server_facts(
    sweep: Sweep,
    given: Given | None = None,
    *,
    hardware: str | None = None,
    model: Model | None = None,
    kv_groups: bool = True,
) -> ServerFacts:
    """Facts about the server of `sweep`; `given`, `hardware` and `model` beat what the sweep says.

    Without `kv_groups` a hybrid model is taken for one of full attention: to see what they explain.
    """
    told = (given or Given()).over(sweep.given)
    notes: list[str] = []
    gpu, count = _gpu(told, hardware, sweep.source)
    tp, why = _tensor_parallel_size(told, sweep, count)
    check_group(gpu, tp, sweep.source)
    if why:
        notes.append(f"tensor_parallel_size is not told: {tp}, {why}")
    found = model or _model(told, sweep)
    known = found is not None
    notes += _unused(told, found)
    if found is None:
        found = _stand_in(sweep, gpu, tp)
        notes.append("no facts about this model: its size is read off the fastest level, bounds are weak")
    found = found.with_kv(told.kv_cache_dtype)
    notes += [f"{found.name}: {text} (assumed)" for text in found.assumed]
    utilization = told.gpu_memory_utilization or 0.90
    expected = expected_kv_tokens(found, gpu, tp, utilization)
    version = told.vllm_version or "0.27.1"
    caches = caches_of(found, tp, version)
    if caches is not None and not kv_groups:
        # The logged tokens are then the pool: blocks are those of the groups.
        told, caches = replace(told, num_gpu_blocks=None, block_size=None), None
    if caches is None:
        pool = plain_pool(told, expected, known=known)
    else:
        blocks = expected_blocks(caches, found, gpu, tp, utilization)
        pool = hybrid_pool(told, caches, blocks, version, gpu.memory_gib)
    notes += pool.notes
    if told.max_num_batched_tokens is None:
        notes.append("max_num_batched_tokens is not given: vLLM's default for the device")
    if told.vllm_version is None:
        notes.append(f"the vLLM version is not told: {version} is taken")
    if found.hybrid:
        notes.append(
            "hybrid model: its caches are not simulated; computed tokens a request are a load latent"
            if caches is None
            else f"hybrid model: KV groups {caches.kv_groups}, blocks of {pool.args.block_size:,} tokens"
        )
    args = replace(
        pool.args,
        max_num_batched_tokens=pool.args.max_num_batched_tokens or told.max_num_batched_tokens,
        max_num_seqs=told.max_num_seqs,
        enable_prefix_caching=True if told.enable_prefix_caching is None else told.enable_prefix_caching,
        enable_chunked_prefill=told.enable_chunked_prefill,
        async_scheduling=told.async_scheduling,
    )
    named = EngineArgs(vllm_version=version, device=gpu.name, device_memory_gib=gpu.memory_gib)
    config = resolve(args, named).config
    if caches is not None:
        # In blocks, which stay what they are when the profile allows longer requests.
        args = replace(args, kv_cache_tokens=None, num_gpu_blocks=config.num_gpu_blocks)
    return ServerFacts(
        model=found,
        gpu=gpu,
        tensor_parallel_size=tp,
        vllm_version=version,
        args=args,
        config=config,
        priors=_priors(found, gpu, tp, known=known),
        expected_pool_tokens=expected,
        pool_is_given=pool.given,
        known_model=known,
        notes=tuple(notes),
    )


def physics_of(sweep: Sweep, facts: ServerFacts) -> Priors:
    """Priors of physics alone for the server of `facts`, which may come from a profile."""
    gpu, tp = facts.gpu, facts.tensor_parallel_size
    model = find_model(facts.model.name)
    if model is None:
        return _priors(_stand_in(sweep, gpu, tp), gpu, tp, known=False)
    told = sweep.given
    model = model.quantized(told.quantization or "").with_kv(told.kv_cache_dtype)
    return _priors(model, gpu, tp, known=True)


def _priors(model: Model, gpu: Gpu, tp: int, *, known: bool) -> Priors:
    """Those of physics, wider for a model that is not known."""
    found = priors(model, gpu, tp)
    if known:
        return found
    return {name: prior._replace(spread=max(prior.spread, UNKNOWN_SPREAD)) for name, prior in found.items()}


def _gpu(told: Given, hardware: str | None, where: str) -> tuple[Gpu, int | None]:
    name = hardware or told.gpu
    instance = INSTANCES.get(told.instance or "")
    if name is not None:
        gpu = find_gpu(name)
        return gpu, instance[1] if instance and instance[0] == gpu.name else None
    if instance is None:
        raise InputError(
            "neither a GPU nor a known instance type is named",
            where=where,
            remedy="name it: --hardware H200",
        )
    return find_gpu(instance[0]), instance[1]


def _tensor_parallel_size(told: Given, sweep: Sweep, count: int | None) -> tuple[int, str | None]:
    """How many GPUs serve, and what that rests on where it is not told.

    Published sweeps name it in their slug (`-tp1`), or prorate the instance's price by the GPUs in use.
    """
    if told.tensor_parallel_size is not None:
        return told.tensor_parallel_size, None
    names = (Path(sweep.source).stem, sweep.model or "", *(level.name for level in sweep.levels[:1]))
    for name in names:
        if match := re.search(r"[-_]tp(\d+)(?![0-9])", name):
            return int(match.group(1)), "by its name"
    ranks = told.data_parallel_size or 1
    if told.gpus is not None:
        return max(told.gpus // ranks, 1), f"all {told.gpus} GPUs that are told" + _shared(ranks)
    price, instance = told.price_usd_per_hour, told.instance or ""
    if price and count:
        for whole in PRICES.get(instance, ()):
            share = count * price / whole
            if share >= 0.99 and abs(share - round(share)) < 0.01 and count % round(share) == 0:
                return round(share), "by its share of the instance's price"
    return (max(count // ranks, 1), "all GPUs of the instance" + _shared(ranks)) if count else (1, "one GPU")


def _shared(ranks: int) -> str:
    return f", shared by {ranks} engines" if ranks > 1 else ""


def _model(told: Given, sweep: Sweep) -> Model | None:
    found = next((found for name in (told.model, sweep.model) if name and (found := find_model(name))), None)
    return found.quantized(told.quantization) if found is not None and told.quantization else found


def _unused(told: Given, model: Model | None) -> list[str]:
    """Told facts that a fit does not use: they bear on what its coefficients mean."""
    notes = []
    if (told.pipeline_parallel_size or 1) > 1:
        notes.append(f"pipeline_parallel_size {told.pipeline_parallel_size} is not used: one stage is taken")
    if told.num_speculative_tokens:
        notes.append(
            f"num_speculative_tokens {told.num_speculative_tokens} is not used: fitted step times are those "
            "of a token, whatever share of drafts was accepted"
        )
    if told.dtype and not TWO_BYTES.search(told.dtype.lower()):
        notes.append(f"dtype {told.dtype} is not used: weights that are not quantized have two bytes")
    if told.quantization and model is not None and not QUANTIZED.search(told.quantization.lower()):
        notes.append(f"quantization {told.quantization} is not used: weights are {model.precision}")
    return notes


def _stand_in(sweep: Sweep, gpu: Gpu, tp: int) -> Model:
    """A model whose weights would take half the fastest level's time per token; a quarter is used by each."""
    tpots = [level.tpot.mean for level in sweep.levels if level.tpot is not None and level.tpot.mean]
    size = (min(tpots) if tpots else 0.02) * 0.5 * gpu.bytes_per_s * tp
    return Model(
        name=sweep.model or "unknown",
        parameters=size / 2,
        active=size / 8,
        precision="bf16",
        weight_bytes=min(size, 0.6 * gpu.memory_gib * 2**30 * tp),
        attention=Attention(5e4, 5e5),
        layers=48,
        source="read off the sweep",
    )


def seconds_of_load(level: SweepLevel) -> tuple[float, float]:
    """(load, window) of a level in seconds; without a drain both are the window."""
    window = level.window_s or level.load_s or 600.0
    load = min(level.load_s or window, window)
    return load, window
