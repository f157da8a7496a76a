"""Sizes of a hybrid model's cache from its layers: block size, groups, blocks of the pool, tokens logged.

vLLM's rules (`update_block_size_for_backend`, `_get_kv_cache_groups_uniform_page_size`):

1. All groups share one pool, so a page of any must be of one size: the block size is raised until the
   attention page of a layer is at least as large as a layer's state,
   `A x ceil(state bytes / (A x attention bytes per token))`, A = 16 or the backend's larger alignment.
2. Layers of one kind are split into groups of as many layers as the rarest kind has (of the commonest
   kind, where that has less than 1.5 times as many). A block is a page of each layer of a group.
3. The boot log's "GPU KV cache size" is not blocks x block size: it is the number of requests of
   max_model_len that fit, times max_model_len.

Rule 3 gives the blocks back: qwen3.6-35b-fp8 on one L40S logged 395,115 tokens at 131,072 and 413,075 at
262,144; both are 208 blocks of 2,096 tokens. (A later model runner may keep one more state a group and
request, to save the prompt's last boundary without a chunk's end there: not modelled.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from replicast.calibration.facts import BYTES, Precision
from replicast.sim.kv_groups import KVGroup, blocks_per_request

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear-attention layers of one kind; sizes as in the model's config.json."""

    layers: int
    key_heads: int
    value_heads: int
    head_size: int
    conv_kernel: int = 4
    conv_bytes: int = 2  # of the model's dtype
    state_bytes: int = 4  # fp32, vLLM's default

    def bytes_per_layer(self, tensor_parallel_size: int) -> int:
        """One layer's state on one rank: what the convolution remembers, and the matrix a value head."""
        tp = tensor_parallel_size
        channels = (2 * self.key_heads + self.value_heads) * self.head_size // tp
        matrix = self.value_heads // tp * self.head_size * self.head_size
        return channels * (self.conv_kernel - 1) * self.conv_bytes + matrix * self.state_bytes


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Layers of a model that mixes full attention with states."""

    full_layers: int
    kv_heads: int
    head_size: int
    states: GatedDeltaNet

    def attention_bytes(self, dtype: Precision, tensor_parallel_size: int) -> int:
        """Bytes of one token in one full-attention layer on one rank, which holds a head at least."""
        heads = max(self.kv_heads // tensor_parallel_size, 1)
        return int(2 * heads * self.head_size * BYTES[dtype])

    def block_size(self, dtype: Precision, tensor_parallel_size: int = 1, alignment: int = ALIGNMENT) -> int:
        """Tokens of a block (rule 1).

        >>> SHAPES["qwen3.6-35b"].block_size("bf16"), SHAPES["qwen3.6-35b"].block_size("fp8")
        (1056, 2096)
        """
        per_step = alignment * self.attention_bytes(dtype, tensor_parallel_size)
        return alignment * -(-self.states.bytes_per_layer(tensor_parallel_size) // per_step)

    @property
    def group_layers(self) -> int:
        """Layers of a group (rule 2)."""
        few, many = sorted((self.full_layers, self.states.layers))
        return many if many < 1.5 * few else few

    @property
    def kv_groups(self) -> str:
        """The groups, as a profile names them.

        >>> SHAPES["qwen3.6-35b"].kv_groups
        'full, 3 x mamba'
        """
        counts = {
            "full": -(-self.full_layers // self.group_layers),
            "mamba": -(-self.states.layers // self.group_layers),
        }
        return ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in counts.items())

    def block_bytes(self, dtype: Precision, tensor_parallel_size: int = 1) -> int:
        """Bytes of one block on one rank."""
        tp = tensor_parallel_size
        return self.group_layers * self.block_size(dtype, tp) * self.attention_bytes(dtype, tp)


GDN_35B = GatedDeltaNet(30, key_heads=16, value_heads=32, head_size=128)
SHAPES: Mapping[str, HybridShape] = {
    "qwen3.6-35b": HybridShape(10, kv_heads=2, head_size=256, states=GDN_35B),
    "qwen3.6-35b-fp8": HybridShape(10, kv_heads=2, head_size=256, states=GDN_35B),
    "qwen3.8-27b": HybridShape(16, kv_heads=4, head_size=256, states=GatedDeltaNet(48, 16, 48, 128)),
}


def logged_tokens(num_gpu_blocks: int, groups: tuple[KVGroup, ...], max_model_len: int) -> int:
    """What the boot log calls the GPU KV cache size (rule 3)."""
    return int(num_gpu_blocks / blocks_per_request(groups, max_model_len) * max_model_len)
