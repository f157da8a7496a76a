"""Facts of GPUs and models, each with its source: what physics bounds are computed from.

GPU rates are dense peaks (no sparsity) of the makers' data sheets, memory is what the driver reports.
Model shapes are those of the published `config.json` or model card; what could not be found there is named
in `assumed`. `kv_bytes` and `pair_flops` follow from the shape:

    kv_bytes   = full-attention layers x 2 x KV heads x head size x bytes     (MLA: layers x (rank + rope))
    pair_flops = full-attention layers x 4 x query heads x head size     (multiply and add, scores and values)

vLLM computes MLA's prefill as multi-head attention over unpacked keys and values, its decode over the latent
(vllm/v1/attention/backends/mla/common.py). Sparse MLA (DeepSeek-V3.2, GLM-5) works on the latent in
both: an indexer in FP8, whole on every rank, meets all context, attention its best 2,048 tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from replicast.calibration.hybrid import (
    AttentionLayers,
    GatedDeltaNet,
    HybridShape,
    Mamba2,
    kinds_of_layers,
    shape_from_config,
    size_of_a_head,
    whole,
)
from replicast.calibration.precision import BYTES, Precision
from replicast.sim.errors import InputError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device; `fp8_flops` and `fp4_flops` are None where the device does not multiply in them."""

    name: str
    memory_gib: float
    bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    fp4_flops: float | None
    source: str

    @property
    def largest_group(self) -> int:
        """GPUs that tensor parallelism spans: two nodes of eight, a rack of Blackwell, one node with PCIe."""
        return {"L40S": 8, "B200": 72, "B300": 72}.get(self.name, 16)

    def flops(self, precision: str) -> float:
        """Dense peak at `precision`, or BF16's: vLLM unpacks what the device cannot multiply (Marlin)."""
        return {"fp8": self.fp8_flops, "fp4": self.fp4_flops}.get(precision) or self.bf16_flops


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu("L40S", 44.4, 864e9, 362e12, 733e12, None, "NVIDIA L40S data sheet"),
        Gpu("A100", 79.2, 2039e9, 312e12, None, None, "NVIDIA A100 80GB SXM data sheet"),
        Gpu("H100", 79.2, 3.35e12, 989e12, 1979e12, None, "NVIDIA H100 SXM data sheet"),
        Gpu("H200", 140.4, 4.8e12, 989e12, 1979e12, None, "NVIDIA H200 SXM data sheet"),
        Gpu("B200", 178.0, 7.7e12, 2250e12, 4500e12, 9000e12, "NVIDIA HGX B200 data sheet"),
        Gpu("B300", 268.0, 7.7e12, 2250e12, 4500e12, 13500e12, "NVIDIA HGX B300 data sheet"),
        Gpu("MI300X", 191.5, 5.3e12, 1307e12, 2615e12, None, "AMD Instinct MI300X data sheet"),
    )
}
# What a cloud instance holds: GPU and how many.
INSTANCES: Mapping[str, tuple[str, int]] = {
    "g6e.4xlarge": ("L40S", 1),
    "g6e.12xlarge": ("L40S", 4),
    "g6e.48xlarge": ("L40S", 8),
    "p4de.24xlarge": ("A100", 8),
    "p5.48xlarge": ("H100", 8),
    "p5e.48xlarge": ("H200", 8),
    "p5en.48xlarge": ("H200", 8),
    "p6-b200.48xlarge": ("B200", 8),
    "p6-b300.48xlarge": ("B300", 8),
}

# $/h of whole instances, us-east-1, as published sweeps used them (on demand, 1 and 3 years, negotiated).
PRICES: Mapping[str, tuple[float, ...]] = {
    "g6e.4xlarge": (3.004, 2.764, 1.893, 1.298),
    "g6e.12xlarge": (10.493, 10.49, 6.61, 4.533),
    "p5e.48xlarge": (54.92, 41.1424, 27.72),
    "p5en.48xlarge": (63.296, 54.92, 41.1424, 40.43, 27.72, 22.1536),
    "p6-b300.48xlarge": (112.32, 104.68, 94.91),
}


class Indexer(NamedTuple):
    """What chooses the tokens that sparse attention sees."""

    heads: int
    size: int = 128
    topk: int = 2048


class Attention(NamedTuple):
    """Elements of KV cache a token, and operations of one (new token, context token) pair.

    With an indexer a pair is its operations (`index_flops`, at FP8 rates, on every rank), a new token
    has `token_flops` beside those of its weights, and a decode reads `index_bytes` of each context token and
    `chosen_elements` of the cache.
    """

    kv_elements: float
    pair_flops: float
    kv_heads: int = 64
    token_flops: float = 0.0
    index_flops: float = 0.0
    index_bytes: float = 0.0
    chosen_elements: float = 0.0

    def ranks(self, tensor_parallel_size: int) -> int:
        """Tensor-parallel ranks that the cache is split over; beyond its heads ranks hold copies."""
        return min(tensor_parallel_size, self.kv_heads)


def gqa(full_layers: int, query_heads: int, kv_heads: int, head_size: int) -> Attention:
    """Grouped-query attention in `full_layers` layers; others (linear, sliding) hold next to nothing."""
    return Attention(
        full_layers * 2 * kv_heads * head_size, full_layers * 4.0 * query_heads * head_size, kv_heads
    )


def mla(
    layers: int, query_heads: int, key_size: int = 192, value_size: int = 128, indexer: Indexer | None = None
) -> Attention:
    """Multi-head latent attention of rank 512 + rope 64; sizes are those of an unpacked head."""
    held = layers * (512 + 64)
    if indexer is None:
        return Attention(held, layers * 2.0 * query_heads * (key_size + value_size), 1)
    latent = layers * 2.0 * query_heads * (576 + 512)  # scores over rank and rope, values over the rank
    return Attention(
        held,
        0.0,
        1,
        token_flops=indexer.topk * latent,
        index_flops=layers * 2.0 * indexer.heads * indexer.size,
        index_bytes=layers * (indexer.size + 4.0),  # a scale beside each key
        chosen_elements=indexer.topk * held,
    )


# Of the families below, with another memory or bandwidth: A100 40 GB, H100 PCIe and NVL, GH200, slices.
OTHER_DEVICE = re.compile(r"40 ?GB|H100.*PCIE|NVL|GH[0-9]|\bMIG\b")
FOUR_BITS = re.compile(r"int4|awq|gptq|w4a|4[-_ ]?bit|bitsandbytes")
EIGHT_BITS = re.compile(r"fp8|int8|w8a8|8[-_ ]?bit")


@dataclass(frozen=True, slots=True)
class Model:
    """What a step of one model moves and computes.

    `active` are parameters used by one token; `weight_bytes` what lies in memory. A mixture of experts with
    `experts` and `experts_per_token` reads more of its experts with every sequence of a step.
    `hybrid` models mix kinds of layers; `shape` says which, where it is known.
    """

    name: str
    parameters: float
    active: float
    precision: Precision
    weight_bytes: float
    attention: Attention
    layers: int
    source: str
    experts: int = 1
    experts_per_token: int = 1
    hybrid: bool = False
    shape: HybridShape | None = None
    kv_dtype: Precision = "bf16"
    assumed: tuple[str, ...] = ()

    def with_kv(self, dtype: str | None) -> Model:
        """The same with its KV cache stored as `dtype` (a vLLM --kv-cache-dtype)."""
        if dtype is None or dtype == "auto":
            return self
        return replace(self, kv_dtype="fp8" if "fp8" in dtype else "bf16")

    def quantized(self, text: str) -> Model:
        """The same with its weights stored as a name or a `--quantization` says; itself where it does not.

        Weights of four bits without such activations (AWQ, GPTQ) are multiplied as they were.
        """
        words = text.lower()
        if "fp4" in words:
            return self._stored("fp4", "fp4")
        if FOUR_BITS.search(words):
            return self._stored(self.precision, "fp4")
        return self._stored("fp8", "fp8") if EIGHT_BITS.search(words) else self

    def _stored(self, multiplied: Precision, stored: Precision) -> Model:
        size = self.parameters * BYTES[stored]
        if size > 0.7 * self.weight_bytes:  # already so
            return self
        return replace(self, precision=multiplied, weight_bytes=size)

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV cache a token."""
        return self.attention.kv_elements * BYTES[self.kv_dtype]

    @property
    def sequence_bytes(self) -> float:
        """Bytes that a step moves for each sequence whatever its context: states, windows, chosen tokens."""
        chosen = self.attention.chosen_elements * BYTES[self.kv_dtype]
        return chosen + (self.shape.sequence_bytes(self.kv_dtype) if self.shape else 0.0)

    @property
    def read_bytes(self) -> float:
        """Bytes that a decode reads of each token of its context."""
        return self.attention.index_bytes or self.kv_bytes


CARD = "model card and config.json"
SWEEPS = "notes of the public agentic sweeps (aws-samples/sample-agentic-coding-harness-benchmarks)"

# Layers of hybrid models, as their config.json states them.
QWEN36 = HybridShape(AttentionLayers(10, 2, 256), GatedDeltaNet(30, 16, 32, 128))
QWEN38 = HybridShape(AttentionLayers(16, 4, 256), GatedDeltaNet(48, 16, 48, 128))
GEMMA4 = HybridShape(AttentionLayers(10, 4, 512), AttentionLayers(50, 16, 256, sliding_window=1024))
NEMOTRON = HybridShape(AttentionLayers(12, 2, 128), Mamba2(48, 256, 64, groups=8, state_size=128))

GLM5 = mla(78, 64, 256, 256, Indexer(32))  # GLM-5 technical report

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("qwen3.6-35b", 35.9e9, 3e9, "bf16", 72e9, gqa(10, 16, 2, 256), layers=40, experts=256,
              experts_per_token=8, hybrid=True, shape=QWEN36, source=SWEEPS),
        Model("qwen3.6-35b-fp8", 35.9e9, 3e9, "fp8", 37.5e9, gqa(10, 16, 2, 256), layers=40, experts=256,
              experts_per_token=8, hybrid=True, shape=QWEN36, source=SWEEPS),
        Model("qwen3-coder-30b", 30.5e9, 3.3e9, "bf16", 61e9, gqa(48, 32, 4, 128), layers=48, experts=128,
              experts_per_token=8, source=CARD),
        Model("qwen3.8-27b", 27e9, 27e9, "fp8", 29e9, gqa(16, 24, 4, 256), layers=64, hybrid=True,
              shape=QWEN38, source=SWEEPS, assumed=("24 query heads, as Qwen3.5-27B",)),
        Model("gemma-4-31b", 31e9, 31e9, "bf16", 63e9, gqa(10, 32, 4, 512), layers=60, hybrid=True,
              shape=GEMMA4, source=CARD),
        Model("minicpm5-2b", 2.52e9, 2.52e9, "bf16", 5.03e9, gqa(42, 16, 2, 128), layers=42, source=SWEEPS,
              assumed=("16 query heads",)),
        Model("minimax-m2.5", 230e9, 10e9, "fp8", 230e9, gqa(62, 48, 8, 128), layers=62, experts=256,
              experts_per_token=8, source=CARD),
        Model("minimax-m3", 428e9, 23e9, "fp8", 444e9, gqa(60, 64, 4, 128), layers=60, experts=128,
              experts_per_token=4, source=SWEEPS,
              assumed=("23e9 active parameters", "64 query and 4 KV heads of 128 (the pool agrees)")),
        Model("glm-5.2", 744e9, 40e9, "fp8", 750e9, GLM5, layers=78, experts=256,
              experts_per_token=8, source=SWEEPS),
        Model("glm-5.3", 743e9, 39e9, "fp8", 750e9, GLM5, layers=78, experts=256,
              experts_per_token=8, source=SWEEPS),
        Model("kimi-k2.7-code", 1058.6e9, 32e9, "fp4", 595e9, mla(61, 64), layers=61, experts=384,
              experts_per_token=8, source=SWEEPS,
              assumed=("experts in 4 bits: 1,059 GB do not fit 8 x 140 GiB beside a cache",)),
        Model("kimi-k3", 2.8e12, 104e9, "fp4", 1.5e12, mla(61, 64), layers=61, experts=384,
              experts_per_token=8, source=SWEEPS, assumed=("shape as kimi-k2",)),
        Model("deepseek-v3.2", 685e9, 37e9, "fp8", 689e9, mla(61, 128, indexer=Indexer(64)),
              layers=61, experts=256,
              experts_per_token=8, source=CARD),
        Model("devstral-2-123b", 123e9, 123e9, "fp8", 128e9, gqa(88, 96, 8, 128), layers=88, source=CARD),
        Model("nemotron-ultra-550b", 550e9, 55e9, "fp4", 352e9, gqa(12, 64, 2, 128), layers=108, hybrid=True,
              shape=NEMOTRON, experts=512, experts_per_token=22, source=CARD),
        Model("qwen3-coder-480b", 480e9, 35e9, "fp8", 482e9, gqa(62, 96, 8, 128), layers=62, experts=160,
              experts_per_token=8, source=CARD),
        Model("codellama-34b", 33.7e9, 33.7e9, "bf16", 67.5e9, gqa(48, 64, 8, 128), layers=48, source=CARD),
        Model("llama-2-7b", 6.74e9, 6.74e9, "bf16", 13.5e9, gqa(32, 32, 32, 128), layers=32, source=CARD),
        Model("llama-2-70b", 69e9, 69e9, "bf16", 138e9, gqa(80, 64, 8, 128), layers=80, source=CARD),
        Model("llama-3.1-8b", 8.03e9, 8.03e9, "bf16", 16.1e9, gqa(32, 32, 8, 128), layers=32, source=CARD),
        Model("llama-3.1-70b", 70.6e9, 70.6e9, "bf16", 141e9, gqa(80, 64, 8, 128), layers=80, source=CARD),
        Model("mixtral-8x7b", 46.7e9, 12.9e9, "bf16", 93.4e9, gqa(32, 32, 8, 128), layers=32, experts=8,
              experts_per_token=2, source=CARD),
        Model("mixtral-8x22b", 141e9, 39e9, "bf16", 282e9, gqa(56, 48, 8, 128), layers=56, experts=8,
              experts_per_token=2, source=CARD),
        Model("qwen3-14b", 14.8e9, 14.8e9, "bf16", 29.6e9, gqa(40, 40, 8, 128), layers=40, source=CARD),
        Model("qwen2.5-7b", 7.6e9, 7.6e9, "bf16", 15.2e9, gqa(28, 28, 4, 128), layers=28, source=CARD),
        Model("mistral-nemo-12b", 12.2e9, 12.2e9, "bf16", 24.5e9, gqa(40, 32, 8, 128), layers=40,
              source=CARD),
        Model("yi-34b", 34.4e9, 34.4e9, "bf16", 68.8e9, gqa(60, 56, 8, 128), layers=60, source=CARD),
        Model("llama-4-scout", 109e9, 17e9, "bf16", 218e9, gqa(48, 40, 8, 128), layers=48, experts=16,
              experts_per_token=1, source=CARD),
    )
}  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """A GPU by its name, or by a longer one that holds it ("NVIDIA H200 SXM")."""
    wanted = name.upper()
    for known in sorted(GPUS, key=len, reverse=True):
        if re.search(rf"{known.upper()}(?![0-9])", wanted) and not OTHER_DEVICE.search(wanted):
            return GPUS[known]
    raise InputError(f"no facts about a GPU {name!r}", remedy=f"known: {', '.join(GPUS)}")


def find_model(name: str, kv_cache_dtype: str | None = None) -> Model | None:
    """Facts about a model by the closest known name in `name`; None where none is known."""
    wanted = _plain(name)
    fits = [known for known in MODELS if _plain(known) in wanted]
    if not fits:
        return None
    model = MODELS[max(fits, key=len)].with_kv(kv_cache_dtype)
    return model.quantized(name)


def model_from_config(path: Path, parameters: float, active: float | None = None) -> Model:
    """Facts from a Hugging Face `config.json`; the numbers of parameters are on the model's card."""
    where = str(path)
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot be read as JSON: {why}", where=where) from error
    try:
        text = config.get("text_config", config)
        layers, heads = whole(text, "num_hidden_layers"), whole(text, "num_attention_heads")
        head = size_of_a_head(text)
        kinds = kinds_of_layers(text)
        full = kinds.count("full_attention") + kinds.count("attention") if kinds else layers
        if full == 0 or (kinds and len(kinds) != layers):
            raise ValueError(f"{layers} layers, of which layer_types names {len(kinds)}, {full} of attention")
        kv_heads = whole(text, "num_key_value_heads", default=heads)
        shape = shape_from_config(text)
        if shape is not None:
            full, kv_heads, head = shape.full.layers, shape.full.kv_heads, shape.full.head_size
        attention = (
            _latent(text, layers, heads) if text.get("kv_lora_rank") else gqa(full, heads, kv_heads, head)
        )
        experts = whole(text, "num_experts", "n_routed_experts", "num_local_experts", default=1)
        experts_per_token = whole(text, "num_experts_per_tok", default=1)
        if experts_per_token > experts > 1:
            raise ValueError(f"num_experts_per_tok is {experts_per_token}, above the number of experts")
    except KeyError as error:
        raise InputError(
            f"not a model's config.json: {error} is missing",
            where=where,
            remedy="give the config.json of the model's repository",
        ) from error
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise InputError(
            f"not a model's config.json: {error}",
            where=where,
            remedy="give the config.json of the model's repository",
        ) from error
    quant = json.dumps(config.get("quantization_config", "")).lower()
    precision: Precision = "fp4" if "fp4" in quant else "fp8" if "fp8" in quant else "bf16"
    return Model(
        name=path.absolute().parent.name or path.stem if path.name == "config.json" else path.stem,
        parameters=parameters,
        active=active or parameters,
        precision=precision,
        weight_bytes=parameters * BYTES[precision],
        layers=layers,
        source=where,
        experts=experts,
        experts_per_token=experts_per_token,
        hybrid=full != layers,
        shape=shape,
        attention=attention,
    )


def _latent(text: Mapping[str, Any], layers: int, heads: int) -> Attention:
    """MLA of a config.json, sparse where it names an indexer."""
    rope = whole(text, "qk_rope_head_dim", default=64)
    indexer = None
    if text.get("index_topk"):
        indexer = Indexer(
            whole(text, "index_n_heads"),
            whole(text, "index_head_dim", default=128),
            whole(text, "index_topk"),
        )
    return mla(
        layers,
        heads,
        whole(text, "qk_nope_head_dim", default=128) + rope,
        whole(text, "v_head_dim", default=128),
        indexer,
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())
