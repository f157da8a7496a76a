"""KV blocks of requests: what they hit, whether they find room, when their blocks are published.

The rules, as in `vllm/v1/core/kv_cache_manager.py` (those of the pool stand in `block_pool.py`):

1. A full block is published (gets its hash) when it is scheduled, not when it is computed.
2. A look-up walks the hashes from block 0 while found, and never covers the last token.
   A hit block leaves the free queue only when its request is admitted.
3. A request is admitted only if all its known tokens would fit now, though only the first chunk's
   blocks are taken.

Each group of layers has its own blocks of a request (`groups/`): what is needed is the sum, a hit is what all
agree on. Each keeps the token counts at which it next has something to do, so that a call in which no
group has is a few comparisons.
"""

from __future__ import annotations

from itertools import groupby

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.block_pool import BlockPool
from replicast.sim.engine.hybrid.groups.chain import ChainGroup
from replicast.sim.engine.hybrid.groups.full import (
    NEVER,
    CacheSettings,
    FullGroups,
    RequestBlocks,
)
from replicast.sim.engine.hybrid.groups.lookup import Hit, PrefixLookup
from replicast.sim.engine.hybrid.groups.mamba import AlignedStateGroups, StateGroups
from replicast.sim.engine.hybrid.groups.window import WindowGroups
from replicast.sim.hybrid import in_flight_tokens
from replicast.sim.kv_groups import KVGroup, hash_block_size, scheduler_block_size


class KVCacheManager:
    """Allocation for requests over several groups, on top of one `BlockPool`."""

    def __init__(self, config: EngineConfig) -> None:
        kv_groups = config.kv_groups
        assert kv_groups is not None, "a model without groups has a faster cache"
        self._is_25 = config.rules == "0.25.1"
        self._alignment = scheduler_block_size(kv_groups)
        self._speculates = config.num_speculative_tokens > 0
        settings = CacheSettings(
            self._is_25,
            self._alignment,
            hash_block_size(kv_groups, config.enable_prefix_caching),
            config.max_model_len,
            in_flight_tokens(config.max_num_batched_tokens, config.async_scheduling, config.rules),
            None if self._is_25 else config.prefix_cache_retention_interval,
            self._speculates,
        )
        self.pool = pool = BlockPool(config.num_gpu_blocks, len(kv_groups))
        self.units: list[FullGroups] = []
        num_full = sum(group.kind == "full" for group in kv_groups)
        for group, alike in groupby(range(len(kv_groups)), key=lambda number: kv_groups[number]):
            self.units.append(_make(group, list(alike), pool, settings, num_full == 1))
        self.max_model_len = config.max_model_len
        self.enable_caching = config.enable_prefix_caching
        self.num_lookahead_tokens = config.num_lookahead_tokens
        self._lookup = PrefixLookup(self.units, self._is_25)
        self._num_usable_blocks = config.num_gpu_blocks - 1
        self._watermark_blocks = int(config.watermark * config.num_gpu_blocks)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        if not self._num_usable_blocks:
            return 0.0
        return 1.0 - self.pool.num_free / self._num_usable_blocks

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
        for unit in self.units:
            unit.new_step_starts()

    def get_computed_blocks(self, held: RequestBlocks, num_tokens: int) -> Hit:
        """The cached blocks that `num_tokens` tokens start with (rule 2)."""
        if not self.enable_caching:
            return Hit([unit.no_hit() for unit in self.units], 0, 0)
        hit = self._lookup.find(held.hashes, num_tokens - 1)
        held.shared_prefix_boundary = hit.longest if hit.longest > hit.num_tokens else 0
        return hit

    def num_to_take(self, held: RequestBlocks, num_tokens: int) -> int:
        """Blocks that a running request lacks for `num_tokens` tokens."""
        slots, need = self._slots(num_tokens), 0
        for blocks in held.units:
            if slots > blocks.room or self._speculates:
                need += blocks.unit.num_to_take(blocks, num_tokens, slots)
        return need

    def most_to_take(self, held: RequestBlocks, num_tokens: int, num_steps: int) -> int:
        """The most blocks that so many steps up to `num_tokens` tokens take."""
        need = 0
        for blocks in held.units:
            need += blocks.unit.most_to_take(blocks, num_tokens, num_steps)
        return need

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
        lacks = False
        for blocks in held.units:
            if processed >= blocks.next_drop:
                blocks.unit.drop(blocks, processed)
            if slots > blocks.room:
                lacks = True
                need += blocks.unit.num_to_take(blocks, total, slots)
            elif self._speculates:
                need += blocks.unit.num_to_take(blocks, total, slots)
        if lacks:
            if need > self.pool.num_free:
                return False
            for blocks in held.units:
                if slots > blocks.room:
                    blocks.unit.take(blocks, total, slots)
        known = min(total, num_tokens)
        if known >= held.next_publish:
            self.publish(held, known)
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
        units, found = self.units, hit.found
        for index in range(len(self.units)):
            if units[index].is_refused(found[index]):
                return False
        num_hit = hit.num_tokens
        total = num_hit + num_new
        slots = self._slots(total)
        spare = self.pool.num_free
        if use_watermark:
            spare -= self._watermark_blocks
        whole = min(num_tokens, self.max_model_len) if reserve_full_isl else 0
        if not self._surely_fits(hit, max(whole, slots), spare):
            need = reserved = 0
            for index in range(len(self.units)):
                need += units[index].num_to_admit(found[index], num_hit, total, slots)
                if reserve_full_isl:
                    reserved += units[index].num_to_reserve(found[index], num_hit, whole)
            if max(need, reserved) + self._num_idle(hit) > spare:
                return False
        for index in range(len(self.units)):
            blocks = units[index].new_blocks()
            units[index].adopt(blocks, found[index], num_hit)
            held.units.append(blocks)
        for blocks in held.units:
            if slots > blocks.room:
                blocks.unit.take(blocks, total, slots)
        held.next_publish = num_hit if self.enable_caching else NEVER
        self.publish(held, min(total, num_tokens))
        return True

    def _surely_fits(self, hit: Hit, num_tokens: int, spare: int) -> bool:
        """Whether even all blocks of so many tokens find room, those hit included."""
        for index in range(len(self.units)):
            spare -= self.units[index].most_held(hit.found[index], num_tokens)
        return spare >= 0

    def _num_idle(self, hit: Hit) -> int:
        """Hits that nobody holds: they leave the free queue when they are taken."""
        number = 0
        for index in range(len(self.units)):
            number += self.units[index].num_idle(hit.found[index], hit.num_tokens)
        return number

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Give the blocks that `num_tokens` tokens fill their hashes (rule 1); a hit cannot end between."""
        if num_tokens < held.next_publish:
            return
        num_tokens -= num_tokens % self._alignment
        held.next_publish = num_tokens + self._alignment
        for blocks in held.units:
            blocks.unit.publish(blocks, held, num_tokens)

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request."""
        for blocks in held.units:
            blocks.unit.free(blocks)
        held.units = []

    def _slots(self, num_tokens: int) -> int:
        return min(num_tokens + self.num_lookahead_tokens, self.max_model_len)


def _make(
    group: KVGroup, numbers: list[int], pool: BlockPool, settings: CacheSettings, one_full: bool
) -> FullGroups:
    if group.kind == "sliding_window":
        return WindowGroups(group, numbers, pool, settings)
    if group.kind == "mamba":
        aligned = group.mamba_cache_mode == "align"
        return (AlignedStateGroups if aligned else StateGroups)(group, numbers, pool, settings)
    return (ChainGroup if one_full else FullGroups)(group, numbers, pool, settings)
