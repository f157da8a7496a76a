"""KV blocks of requests: what they hit, whether they find room, when their blocks are published.

The rules, as in `vllm/v1/core/kv_cache_manager.py` (those of the pool stand in `block_pool.py`):

1. A full block is published (look-ups find it) when it is scheduled, not when it is computed.
2. A look-up never covers the last token. A hit block leaves the free queue only when its request is admitted.
3. A request is admitted only if all its known tokens would fit now, though only the first chunk's
   blocks are taken.

Each group of layers has its own blocks of a request: what is needed is the sum, a hit is what all agree on.
Where exactly one group is of full attention, its blocks are the runs of content of plain models
(`sim/engine/kv_cache.py`), so that a prompt costs what its content has of nodes, however long it is; those
of the other groups stand in `groups/`. Each keeps the token counts at which it next has something to do, so
that a call in which no group has is a few comparisons.
"""

from __future__ import annotations

from itertools import groupby

from replicast.sim.config import EngineConfig
from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.engine.content_tree import ContentTree
from replicast.sim.engine.hybrid.block_pool import GroupPool, Table
from replicast.sim.engine.hybrid.groups.blocks import NEVER
from replicast.sim.engine.hybrid.groups.full import CacheSettings, Found, FullGroups, Parts
from replicast.sim.engine.hybrid.groups.lookup import Hit, PrefixLookup
from replicast.sim.engine.hybrid.groups.mamba import AlignedStateGroups, StateGroups
from replicast.sim.engine.hybrid.groups.window import WindowGroups
from replicast.sim.engine.hybrid.spans import SpanTable
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.kv_cache import KVCache, cdiv
from replicast.sim.hybrid import in_flight_tokens
from replicast.sim.kv_groups import scheduler_block_size
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
        self._has_run = len(full) == 1
        self._num_before_run = 0  # units that free their blocks before it does
        self.units: list[FullGroups] = []
        for group, alike in groupby(kv_groups):
            if self._has_run and group.kind == "full":
                self._num_before_run = len(self.units)
                continue
            tree = sizes.index(group.block_size)
            make_table = SpanTable if group.kind == "sliding_window" else Table
            table = make_table(self._trees[tree], len(list(alike)), self)
            self.units.append(_make(Parts(group, tree, table, self, settings)))
        self._lookup = PrefixLookup(self.units, self._is_25, self._has_run)
        self._no_hit = Hit([Found(0, []) for _ in self.units], 0, 0)

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

    # Look-up

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
        for unit in self.units:
            unit.new_step_starts()

    def get_computed_blocks(self, held: HybridState, num_tokens: int) -> Hit:
        """The cached blocks that `num_tokens` tokens start with (rule 2)."""
        if not self.enable_caching:
            return self._no_hit
        if not self._has_run:
            hit = self._lookup.find(held, num_tokens - 1)
        else:
            index, blocks = self.look_up(held, num_tokens)
            length = blocks * self.block_size
            hit = self._lookup.find(held, length - length % self._alignment)
            hit.longest = length - length % self._alignment
            end = hit.num_tokens // self.block_size
            nodes = held.nodes
            while index >= 0 and nodes[index].first_block >= end:
                index -= 1
            hit.index = index
        held.shared_prefix_boundary = hit.longest if hit.longest > hit.num_tokens else 0
        return hit

    # Allocation

    def num_to_take(self, held: HybridState, num_tokens: int) -> int:
        """Blocks that a running request lacks for `num_tokens` tokens."""
        slots = self._slots(num_tokens)
        need = max(cdiv(slots, self.block_size) - held.num_blocks, 0) if self._has_run else 0
        for blocks in held.groups:
            if slots > blocks.room or self._speculates:
                need += blocks.num_to_take(num_tokens, slots)
        return need

    def allocate(self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int) -> bool:
        """Blocks for `num_new` tokens of a running request that knows `num_tokens`; False: no room.

        0.25 frees what left the windows of tokens scheduled before, 0.33 of those no longer in flight.
        """
        assert isinstance(held, HybridState)
        processed, in_flight = num_computed, held.num_in_flight_tokens
        if in_flight <= num_computed and not self._is_25:
            processed -= in_flight
        self._drop(held, processed)
        if self.num_to_take(held, num_computed + num_new) > self.num_free:
            return False
        self._grow(held, num_computed + num_new, num_tokens)
        return True

    def advance(
        self, held: HybridState, num_processed: int, num_computed: int, num_new: int, num_tokens: int
    ) -> None:
        """The same where there is room for certain."""
        if num_processed >= held.next_drop:
            self._drop(held, num_processed)
        total = num_computed + num_new
        slots = total + self.num_lookahead_tokens
        if slots > held.room:
            self._take(held, total, min(slots, self.max_model_len))
        if total < num_tokens:
            num_tokens = total
        if num_tokens >= held.next_publish:
            self.publish(held, num_tokens)

    def _drop(self, held: HybridState, processed: int) -> None:
        next_drop = NEVER
        for blocks in held.groups:
            if processed >= blocks.next_drop:
                blocks.drop(processed)
            if blocks.next_drop < next_drop:
                next_drop = blocks.next_drop
        held.next_drop = next_drop

    def _grow(self, held: HybridState, total: int, num_tokens: int) -> None:
        """Take the blocks that `total` computed tokens need, and publish those that the known ones fill."""
        HybridCache.advance(self, held, -1, 0, total, num_tokens)

    def _take(self, held: HybridState, total: int, slots: int) -> None:
        number = 0
        room = next_drop = NEVER
        if self._has_run:
            places = -(-slots // self.block_size)
            number = places - held.num_blocks
            if number > 0:
                held.num_blocks = places
            else:
                number = 0
            room = held.num_blocks * self.block_size
        for blocks in held.groups:
            if slots > blocks.room:
                number += blocks.take(total, slots)
            if blocks.room < room:
                room = blocks.room
            if blocks.next_drop < next_drop:
                next_drop = blocks.next_drop
        self.take(number)
        held.room = room
        held.next_drop = next_drop

    def _slots(self, num_tokens: int) -> int:
        return min(num_tokens + self.num_lookahead_tokens, self.max_model_len)

    # Admission

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
        units, found, num_hit = self.units, hit.found, hit.num_tokens
        total = num_hit + num_new
        slots = self._slots(total)
        whole = min(num_tokens, self.max_model_len) if reserve_full_isl else 0
        longest = max(whole, slots)
        spare = self.num_free
        if use_watermark:
            spare -= self.watermark_blocks
        most = -(-longest // self.block_size) if self._has_run else 0  # hits included
        for index in range(len(units)):
            unit, one = units[index], found[index]
            if unit.is_refused(one):
                return False
            most += unit.most_held(one, longest)
        if most > spare and not self._fits(held, hit, total, slots, whole, spare):
            return False
        if self._has_run and num_hit:
            self.touch(held, hit.index, num_hit // self.block_size)
            held.num_blocks = held.num_published
        for index in range(len(units)):
            held.groups.append(units[index].adopt(held, found[index], num_hit))
        held.next_publish = num_hit + self._alignment if self.enable_caching else NEVER
        held.room = 0
        self._grow(held, total, num_tokens)
        return True

    def _fits(self, held: HybridState, hit: Hit, total: int, slots: int, whole: int, spare: int) -> bool:
        """Whether the blocks of the first chunk, and of `whole` tokens, find room beside the hits."""
        need = reserved = idle = 0
        num_hit = hit.num_tokens
        if self._has_run:
            blocks = num_hit // self.block_size
            need = max(cdiv(slots, self.block_size) - blocks, 0)
            reserved = max(cdiv(whole, self.block_size) - blocks, 0)
            idle = self.num_idle(held, hit.index, blocks)
        for unit, found in zip(self.units, hit.found, strict=True):
            need += unit.num_to_admit(found, num_hit, total, slots)
            if whole:
                reserved += unit.num_to_reserve(found, num_hit, whole)
            idle += unit.num_idle(found, num_hit)
        return max(need, reserved) + idle <= spare

    # Publishing and the end

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Let look-ups find the blocks that `num_tokens` tokens fill (rule 1); a hit cannot end between."""
        assert isinstance(held, HybridState)
        if num_tokens < held.next_publish:
            return
        num_tokens -= num_tokens % self._alignment
        held.next_publish = num_tokens + self._alignment
        if self._has_run:
            KVCache.publish(self, held, num_tokens)
        for blocks in held.groups:
            blocks.publish(held, num_tokens)

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request."""
        assert isinstance(held, HybridState)
        groups, number = held.groups, self._num_before_run
        for index in range(number):
            groups[index].free()
        if self._has_run:
            KVCache.free(self, held)
        for index in range(number, len(groups)):
            groups[index].free()
        held.groups = []

    def finish(self, held: RequestBlocks, num_tokens: int) -> None:
        assert isinstance(held, HybridState)
        if num_tokens >= held.next_publish:
            self.publish(held, num_tokens)
        self.free(held)
        self.forget(held)


def _make(parts: Parts) -> FullGroups:
    group = parts.group
    if group.kind == "sliding_window":
        return WindowGroups(parts)
    if group.kind == "mamba":
        return AlignedStateGroups(parts) if group.mamba_cache_mode == "align" else StateGroups(parts)
    return FullGroups(parts)
