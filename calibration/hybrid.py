"""Caches of a hybrid model from its layers: KV groups, block size, bytes of a block, tokens logged.

vLLM's rules (`update_block_size_for_backend`, `unify_kv_cache_spec_page_size`,
`_get_kv_cache_groups_uniform_page_size`):

1. All groups share one pool, so a page of any layer must be of one size. Beside states the block size is
   raised until the attention page of a layer is at least as large as a layer's state,
   `A x ceil(state bytes / (A x attention bytes per token))`, A = 16 or the backend's larger alignment.
   Beside windows, layers with the smaller token get blocks of as many more tokens.
2. Layers of one kind are split into groups of as many layers as the rarest kind has (of the commonest
   kind, where that has less than 1.5 times as many). A block is a page of each layer of a group.
3. The boot log's "GPU KV cache size" is not blocks x block size: it is the number of requests of
   max_model_len that fit, times max_model_len.

Rule 3 gives the blocks back: qwen3.6-35b-fp8 on one L40S logged 395,115 tokens at 131,072 and 413,075 at
262,144; both are 208 blocks of 2,096 tokens. (A later model runner may keep one more state a group and
request, to save the prompt's last boundary without a chunk's end there: not modelled.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from replicast.calibration.precision import BYTES, Precision
from replicast.sim.config import EngineConfig
from replicast.sim.kv_groups import KVGroup, blocks_per_request

ALIGNMENT = 16
LARGEST_SIZE = 10**7  # heads, layers, tokens of a window: beyond any model
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
CONV_BYTES, STATE_BYTES = 2, 4  # the model's dtype; fp32, the default of all of these models


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Attention layers of one kind; with `sliding_window` only so many last tokens are held."""

    layers: int
    kv_heads: int
    head_size: int
    sliding_window: int | None = None

    def token_bytes(self, dtype: Precision, tensor_parallel_size: int = 1) -> int:
        """Bytes of one token in one layer on one rank, which holds a head at least."""
        heads = max(self.kv_heads // tensor_parallel_size, 1)
        return int(2 * heads * self.head_size * BYTES[dtype])


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear-attention layers; sizes as in the model's config.json."""

    layers: int
    key_heads: int
    value_heads: int
    head_size: int
    conv_kernel: int = 4

    def layer_bytes(self, tensor_parallel_size: int = 1) -> int:
        """One layer's state on one rank: what the convolution remembers, and the matrix a value head."""
        tp = tensor_parallel_size
        channels = (2 * self.key_heads + self.value_heads) * self.head_size // tp
        matrix = self.value_heads // tp * self.head_size * self.head_size
        return channels * (self.conv_kernel - 1) * CONV_BYTES + matrix * STATE_BYTES


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 layers; sizes as in the model's config.json."""

    layers: int
    heads: int
    head_size: int
    groups: int
    state_size: int
    conv_kernel: int = 4

    def layer_bytes(self, tensor_parallel_size: int = 1) -> int:
        """The same of a Mamba-2 layer; ranks beyond the groups hold copies of one."""
        tp = tensor_parallel_size
        channels = self.heads * self.head_size // tp + 2 * max(self.groups // tp, 1) * self.state_size
        matrix = self.heads // tp * self.head_size * self.state_size
        return channels * (self.conv_kernel - 1) * CONV_BYTES + matrix * STATE_BYTES


class Caches(NamedTuple):
    """What vLLM makes of a model's layers: `kv_groups` as a profile names them, `block_size` of the full
    groups, bytes of one block on one rank.
    """

    kv_groups: str
    block_size: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Layers of a model that mixes full attention with one other kind."""

    full: AttentionLayers
    other: AttentionLayers | GatedDeltaNet | Mamba2

    @property
    def has_states(self) -> bool:
        """Whether the other kind keeps a state."""
        return not isinstance(self.other, AttentionLayers)

    def caches(self, dtype: Precision, tensor_parallel_size: int = 1, alignment: int = ALIGNMENT) -> Caches:
        """Groups and blocks (rules 1 and 2); `alignment` is the least block size.

        >>> from replicast.calibration.facts import MODELS
        >>> MODELS["qwen3.6-35b"].shape.caches("bf16")
        Caches(kv_groups='full, 3 x mamba', block_size=1056, block_bytes=21626880)
        >>> MODELS["gemma-4-31b"].shape.caches("bf16", 4)
        Caches(kv_groups='full, 5 x sliding_window:1024@16', block_size=32, block_bytes=655360)
        """
        token = self.full.token_bytes(dtype, tensor_parallel_size)
        if isinstance(self.other, AttentionLayers):
            window_token = self.other.token_bytes(dtype, tensor_parallel_size)
            block = alignment * max(window_token // token, 1)
            window_block = alignment * max(token // window_token, 1)
            name = f"sliding_window:{self.other.sliding_window}"
            name += f"@{window_block}" if window_block != block else ""
        else:
            block = alignment * -(-self.other.layer_bytes(tensor_parallel_size) // (alignment * token))
            name = "mamba"
        few, many = sorted((self.full.layers, self.other.layers))
        size = many if many < 1.5 * few else few
        counts = {"full": -(-self.full.layers // size), name: -(-self.other.layers // size)}
        text = ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in counts.items())
        return Caches(text, block, size * block * token)

    def sequence_bytes(self, dtype: Precision) -> float:
        """Bytes that a step moves for each sequence whatever its context, over all ranks: windows are
        read, states read and written.
        """
        other = self.other
        if isinstance(other, AttentionLayers):
            return float(other.layers * (other.sliding_window or 0) * other.token_bytes(dtype))
        return 2.0 * other.layers * other.layer_bytes()


def whole(text: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """A size in a config.json: the first of `keys` that is there; null and 0 are "not there"."""
    for key in keys:
        value = text.get(key)
        if value is None or value == 0:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_SIZE:
            raise ValueError(f"{key} is {str(value)[:40]}, not a whole number from 1 to {LARGEST_SIZE:,}")
        return value
    if default is None:
        raise KeyError(keys[0])
    return default


def size_of_a_head(text: Mapping[str, Any]) -> int:
    """Elements of an attention head, stated or the hidden size over the heads."""
    if text.get("head_dim"):
        return whole(text, "head_dim")
    hidden, heads = whole(text, "hidden_size"), whole(text, "num_attention_heads")
    if hidden < heads:
        raise ValueError(f"hidden_size is {hidden}, below the number of heads ({heads})")
    return hidden // heads


def kinds_of_layers(text: Mapping[str, Any]) -> list[str]:
    """The kind of each layer as a config.json states it; empty where it has but one kind."""
    kinds = text.get("layer_types") or text.get("layers_block_type") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ValueError("layer_types is no list of words")
    if kinds:
        return kinds
    layers = whole(text, "num_hidden_layers", default=1)
    if pattern := text.get("hybrid_override_pattern"):  # Nemotron-H
        return [PATTERN.get(letter, letter) for letter in str(pattern)]
    for key, other in (
        ("full_attention_interval", "linear_attention"),  # Qwen3-Next
        ("sliding_window_pattern", "sliding_attention"),  # Gemma 3
    ):
        if text.get(key):
            every = whole(text, key)
            return [other if number % every else "full_attention" for number in range(1, layers + 1)]
    return []


def shape_from_config(text: Mapping[str, Any]) -> HybridShape | None:
    """The shape that a Hugging Face `config.json` states; None for a plain model, for kinds of layers not
    known here and where sizes are missing.
    """
    try:
        return _shape(text)
    except KeyError:
        return None


def _shape(text: Mapping[str, Any]) -> HybridShape | None:
    kinds = kinds_of_layers(text)
    count = Counter(kinds)
    full_layers = count["full_attention"] + count["attention"]
    if full_layers == 0 or full_layers == len(kinds):
        return None
    head_size = size_of_a_head(text)
    kv_heads = whole(text, "num_key_value_heads", "num_attention_heads")
    full = AttentionLayers(
        full_layers,
        whole(text, "num_global_key_value_heads", default=kv_heads),
        whole(text, "global_head_dim", default=head_size),
    )
    if layers := count["linear_attention"]:
        size = whole(text, "linear_key_head_dim")
        if size != whole(text, "linear_value_head_dim"):
            return None
        return HybridShape(
            full,
            GatedDeltaNet(
                layers,
                whole(text, "linear_num_key_heads"),
                whole(text, "linear_num_value_heads"),
                size,
                whole(text, "linear_conv_kernel_dim"),
            ),
        )
    if layers := count["mamba"]:
        return HybridShape(
            full,
            Mamba2(
                layers,
                whole(text, "mamba_num_heads"),
                whole(text, "mamba_head_dim"),
                whole(text, "n_groups"),
                whole(text, "ssm_state_size"),
                whole(text, "conv_kernel"),
            ),
        )
    if layers := count["sliding_attention"]:
        return HybridShape(full, AttentionLayers(layers, kv_heads, head_size, whole(text, "sliding_window")))
    return None


def logged_tokens(num_gpu_blocks: int, groups: tuple[KVGroup, ...], max_model_len: int) -> int:
    """What the boot log calls the GPU KV cache size (rule 3)."""
    return int(num_gpu_blocks / blocks_per_request(groups, max_model_len) * max_model_len)


def context_tokens(blocks: float, config: EngineConfig) -> float:
    """Tokens of a decoding request that holds `blocks` on average over its groups.

    A group's last block is half full; a window holds its blocks and one more, a state one.
    """
    groups = config.kv_groups
    if groups is None:
        return blocks * config.block_size
    full = sum(group.kind == "full" for group in groups)
    others = sum(
        1.0 if group.sliding_window is None else group.sliding_window / group.block_size + 1.0
        for group in groups
        if group.kind != "full"
    )
    return max(((blocks - others) / full - 0.5) * config.block_size, 0.0)
