"""KV blocks of requests: what they hit, whether they find room, when their blocks are published.

The rules, as in `vllm/v1/core/kv_cache_manager.py` (those of the pool stand in `block_pool.py`):

1. A full block is published (gets its hash) when it is scheduled, not when it is computed.
2. A look-up walks the hashes from block 0 while found, and never covers the last token.
   A hit block leaves the free queue only when its request is admitted.
3. A request is admitted only if all its known tokens would fit now, though only the first chunk's
   blocks are taken.

A hybrid model has several groups of layers, each with its own blocks of a request (`groups/`): what
is needed is the sum, a hit is what all agree on. A plain model is the case of one group.
"""

from __future__ import annotations

from typing import Self

from replicast.sim.config import EngineConfig
from replicast.sim.hybrid import in_flight_tokens
from replicast.sim.kv_groups import KVGroup, hash_block_size, scheduler_block_size

from reference.block_pool import BlockPool
from reference.groups.full import CacheSettings, FullGroup, RequestBlocks, cdiv
from reference.groups.lookup import Hit, PrefixLookup
from reference.groups.mamba import AlignedMambaGroup, MambaGroup
from reference.groups.window import WindowGroup

__all__ = ["BlockPool", "Hit", "KVCacheManager", "RequestBlocks", "cdiv"]


class KVCacheManager:
    """Allocation for requests, on top of one `BlockPool`."""

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_caching: bool,
        watermark: float,
        num_lookahead_tokens: int,
        *,
        kv_groups: tuple[KVGroup, ...] | None = None,
        is_25: bool = False,
        max_in_flight_tokens: int = 0,
        retention_interval: int | None = 0,
    ) -> None:
        kv_groups = kv_groups or (KVGroup("full", block_size),)
        settings = CacheSettings(
            is_25,
            scheduler_block_size(kv_groups),
            hash_block_size(kv_groups, enable_caching),
            max_model_len,
            max_in_flight_tokens,
            None if is_25 else retention_interval,
        )
        self.pool = BlockPool(num_gpu_blocks, len(kv_groups))
        self.groups = [_make(group, i, self.pool, settings) for i, group in enumerate(kv_groups)]
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.num_lookahead_tokens = num_lookahead_tokens
        self._lookup = PrefixLookup(self.groups, is_25)
        self._is_25 = is_25
        # With one group every token counts, with several a hit cannot end elsewhere.
        self._published_unit = settings.alignment if len(kv_groups) > 1 else 1
        self._num_usable_blocks = num_gpu_blocks - 1
        self._watermark_blocks = int(watermark * num_gpu_blocks)
        self._no_hit = Hit(tuple([] for _ in kv_groups), 0, 0)

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """The manager of an engine."""
        return cls(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            config.watermark,
            config.num_lookahead_tokens,
            kv_groups=config.kv_groups,
            is_25=config.rules == "0.25.1",
            max_in_flight_tokens=in_flight_tokens(
                config.max_num_batched_tokens, config.async_scheduling, config.rules
            ),
            retention_interval=config.prefix_cache_retention_interval,
        )

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        if not self._num_usable_blocks:
            return 0.0
        return 1.0 - self.pool.num_free_blocks / self._num_usable_blocks

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
        for group in self.groups:
            group.new_step_starts()

    def get_computed_blocks(self, held: RequestBlocks, num_tokens: int) -> Hit:
        """The cached blocks that `num_tokens` tokens start with (rule 2)."""
        if not self.enable_caching:
            return self._no_hit
        hit = self._lookup.find(held.hashes, num_tokens - 1)
        held.shared_prefix_boundary = hit.longest if hit.longest > hit.num_tokens else 0
        return hit

    def allocate_slots(
        self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int, num_in_flight: int = 0
    ) -> bool:
        """Blocks for `num_new` tokens of a running request that knows `num_tokens`; False: no room.

        What left its windows is freed in any case: 0.25 counts from the tokens scheduled before,
        0.33 from those of them no longer in flight.
        """
        processed = num_computed if self._is_25 else max(num_computed - num_in_flight, 0)
        total = num_computed + num_new
        slots = self._slots(total)
        need = 0
        for group, blocks in zip(self.groups, held.groups, strict=True):
            group.drop_skipped(blocks, processed)
            need += group.num_to_take(blocks, total, slots)
        if need > self.pool.num_free_blocks:
            return False
        for group, blocks in zip(self.groups, held.groups, strict=True):
            group.take(blocks, total, slots)
        self.publish(held, min(total, num_tokens))
        return True

    def admit(
        self,
        held: RequestBlocks,
        hit: Hit,
        num_new: int,
        num_tokens: int,
        *,
        reserve_full_isl: bool,
        use_watermark: bool,
    ) -> bool:
        """Blocks for a waiting request's first chunk after `hit`; False, and nothing changed: no room.

        With `reserve_full_isl` all `num_tokens` must fit now (rule 3).
        """
        spare = self.pool.num_free_blocks
        if use_watermark:
            spare -= self._watermark_blocks
        num_hit = hit.num_tokens
        whole = min(num_tokens, self.max_model_len)
        hits = list(zip(self.groups, hit.blocks, strict=True))
        if reserve_full_isl and sum(g.num_to_reserve(h, num_hit, whole) for g, h in hits) > spare:
            return False
        total = num_hit + num_new
        slots = self._slots(total)
        if sum(g.num_to_admit(h, num_hit, total, slots) for g, h in hits) > spare:
            return False
        if num_hit:
            for (group, cached), blocks in zip(hits, held.groups, strict=True):
                group.adopt(blocks, cached, num_hit)
        for group, blocks in zip(self.groups, held.groups, strict=True):
            group.take(blocks, total, slots)
        self.publish(held, min(total, num_tokens))
        return True

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Give the blocks that `num_tokens` tokens fill their hashes (rule 1)."""
        if not self.enable_caching:
            return
        num_tokens -= num_tokens % self._published_unit
        for group, blocks in zip(self.groups, held.groups, strict=True):
            group.publish(blocks, held, num_tokens)

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request."""
        for group, blocks in zip(self.groups, held.groups, strict=True):
            group.free(blocks)

    def _slots(self, num_tokens: int) -> int:
        return min(num_tokens + self.num_lookahead_tokens, self.max_model_len)


def _make(group: KVGroup, number: int, pool: BlockPool, settings: CacheSettings) -> FullGroup:
    if group.kind == "sliding_window":
        return WindowGroup(group, number, pool, settings)
    if group.kind == "mamba":
        aligned = group.mamba_cache_mode == "align"
        return (AlignedMambaGroup if aligned else MambaGroup)(group, number, pool, settings)
    return FullGroup(group, number, pool, settings)
