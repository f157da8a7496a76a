"""KV blocks of requests: what they hit, whether they find room, when their blocks are published.

The rules, as in `vllm/v1/core/kv_cache_manager.py` (those of the pool stand in `block_pool.py`):

1. A full block is published (look-ups find it) when it is scheduled, not when it is computed.
2. A look-up never covers the last token. A hit block leaves the free queue only when its request is admitted.
3. A request is admitted only if all its known tokens would fit now, though only the first chunk's
   blocks are taken.

Each group of layers has its own blocks of a request (`groups/`): what is needed is the sum, a hit is what all
agree on. Each keeps the token counts at which it next has something to do, so that a call in which no
group has is a few comparisons.
"""

from __future__ import annotations

from itertools import groupby

from replicast.sim.config import EngineConfig
from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.engine.content_tree import ContentTree
from replicast.sim.engine.hybrid.block_pool import GroupPool, Table
from replicast.sim.engine.hybrid.groups.chain import ChainGroup
from replicast.sim.engine.hybrid.groups.full import NEVER, CacheSettings, FullGroups
from replicast.sim.engine.hybrid.groups.lookup import Hit, PrefixLookup
from replicast.sim.engine.hybrid.groups.mamba import AlignedStateGroups, StateGroups
from replicast.sim.engine.hybrid.groups.window import WindowGroups
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.hybrid import in_flight_tokens
from replicast.sim.kv_groups import KVGroup, scheduler_block_size
from replicast.sim.workload import Content


class HybridCache(GroupPool):
    """The pool of one engine, and what requests do with it in all groups."""

    def __init__(self, config: EngineConfig) -> None:
        kv_groups = config.kv_groups
        assert kv_groups is not None, "a model without groups has a faster cache"
        full = [group.block_size for group in kv_groups if group.kind == "full"]
        super().__init__(
            config.num_gpu_blocks,
            (full or [kv_groups[0].block_size])[0],
            config.max_model_len,
            config.enable_prefix_caching,
            config.watermark,
            config.num_lookahead_tokens,
        )
        self._is_25 = config.rules == "0.25.1"
        self._alignment = scheduler_block_size(kv_groups)
        self._speculates = config.num_speculative_tokens > 0
        settings = CacheSettings(
            self._is_25,
            self._alignment,
            config.max_model_len,
            in_flight_tokens(config.max_num_batched_tokens, config.async_scheduling, config.rules),
            None if self._is_25 else config.prefix_cache_retention_interval,
            self._speculates,
        )
        sizes = [self.block_size, *{group.block_size for group in kv_groups} - {self.block_size}]
        self._trees = [self.tree, *map(ContentTree, sizes[1:])]
        self.units: list[FullGroups] = []
        for group, alike in groupby(kv_groups):
            count, tree = len(list(alike)), sizes.index(group.block_size)
            tables = [Table(self._trees[tree]) for _ in range(count)]
            self.units.append(self._make(group, count, tree, tables, settings, len(full) == 1))
        self._lookup = PrefixLookup(self.units, self._is_25)

    def _make(
        self,
        group: KVGroup,
        count: int,
        tree: int,
        tables: list[Table],
        settings: CacheSettings,
        one_full: bool,
    ) -> FullGroups:
        if group.kind == "sliding_window":
            return WindowGroups(group, count, self, tree, tables, settings)
        if group.kind == "mamba":
            aligned = group.mamba_cache_mode == "align"
            return (AlignedStateGroups if aligned else StateGroups)(
                group, count, self, tree, tables, settings
            )
        return (ChainGroup if one_full else FullGroups)(group, count, self, tree, tables, settings)

    # Paths

    def name(self, held: RequestBlocks, content: Content) -> None:
        """Find the paths of a request's prompt and output."""
        super().name(held, content)
        assert isinstance(held, HybridState)
        if self.enable_caching:
            held.paths = [(held.nodes, held.ends)]
            for tree in self._trees[1:]:
                held.paths.append(tree.path(content))

    def forget(self, held: RequestBlocks) -> None:
        """The request is over: its paths may be dropped."""
        assert isinstance(held, HybridState)
        super().forget(held)
        for number in range(1, len(held.paths)):
            self._trees[number].leave(held.paths[number][0])

    # Look-up and allocation

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
        for unit in self.units:
            unit.new_step_starts()

    def get_computed_blocks(self, held: HybridState, num_tokens: int) -> Hit:
        """The cached blocks that `num_tokens` tokens start with (rule 2)."""
        if not self.enable_caching:
            return Hit([unit.no_hit(held) for unit in self.units], 0, 0)
        hit = self._lookup.find(held, num_tokens - 1)
        held.shared_prefix_boundary = hit.longest if hit.longest > hit.num_tokens else 0
        return hit

    def num_to_take(self, held: HybridState, num_tokens: int) -> int:
        """Blocks that a running request lacks for `num_tokens` tokens."""
        slots, need = self._slots(num_tokens), 0
        for blocks in held.groups:
            if slots > blocks.room or self._speculates:
                need += blocks.unit.num_to_take(blocks, num_tokens, slots)
        return need

    def most_to_take(self, held: HybridState, num_tokens: int, num_steps: int) -> int:
        """The most blocks that so many steps up to `num_tokens` tokens take."""
        need = 0
        for blocks in held.groups:
            need += blocks.unit.most_to_take(blocks, num_tokens, num_steps)
        return need

    def allocate(self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int) -> bool:
        """Blocks for `num_new` tokens of a running request that knows `num_tokens`; False: no room."""
        assert isinstance(held, HybridState)
        self.drop(held, num_computed, held.num_in_flight_tokens)
        if self.num_to_take(held, num_computed + num_new) > self.num_free:
            return False
        self.grow(held, num_computed + num_new, num_tokens)
        return True

    def drop(self, held: HybridState, num_computed: int, num_in_flight: int) -> None:
        """Free what left its windows: 0.25 counts from the tokens scheduled before, 0.33 from those of them
        no longer in flight."""
        processed = (
            num_computed if self._is_25 or num_in_flight > num_computed else num_computed - num_in_flight
        )
        if processed >= held.next_drop:
            for blocks in held.groups:
                if processed >= blocks.next_drop:
                    blocks.unit.drop(blocks, processed)
            held.note()

    def grow(self, held: HybridState, total: int, num_tokens: int) -> None:
        """Take the blocks that `total` computed tokens need, and publish those that the known ones fill."""
        slots = self._slots(total)
        if slots > held.room:
            for blocks in held.groups:
                if slots > blocks.room:
                    blocks.unit.take(blocks, total, slots)
            held.note()
        if total < num_tokens:
            num_tokens = total
        if num_tokens >= held.next_publish:
            self.publish(held, num_tokens)

    def admit_hit(
        self,
        held: HybridState,
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
        for index in range(len(units)):
            if units[index].is_refused(found[index]):
                return False
        num_hit = hit.num_tokens
        total = num_hit + num_new
        slots = self._slots(total)
        spare = self.num_free
        if use_watermark:
            spare -= self.watermark_blocks
        whole = min(num_tokens, self.max_model_len) if reserve_full_isl else 0
        if not self._surely_fits(hit, max(whole, slots), spare):
            need = reserved = 0
            for index in range(len(units)):
                need += units[index].num_to_admit(found[index], num_hit, total, slots)
                if reserve_full_isl:
                    reserved += units[index].num_to_reserve(found[index], num_hit, whole)
            if max(need, reserved) + self._num_idle(hit) > spare:
                return False
        for index in range(len(units)):
            blocks = units[index].new_blocks(held)
            units[index].adopt(blocks, found[index], num_hit)
            held.groups.append(blocks)
        held.room = 0
        held.next_publish = num_hit if self.enable_caching else NEVER
        self.grow(held, total, num_tokens)
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
        """Let look-ups find the blocks that `num_tokens` tokens fill (rule 1); a hit cannot end between."""
        assert isinstance(held, HybridState)
        if num_tokens < held.next_publish:
            return
        num_tokens -= num_tokens % self._alignment
        held.next_publish = num_tokens + self._alignment
        for blocks in held.groups:
            blocks.unit.publish(blocks, held, num_tokens)

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request."""
        assert isinstance(held, HybridState)
        for blocks in held.groups:
            blocks.unit.free(blocks)
        held.groups = []

    def _slots(self, num_tokens: int) -> int:
        return min(num_tokens + self.num_lookahead_tokens, self.max_model_len)
