"""The only group of full attention: the cache of plain models, whose blocks are runs of content.

Which block is which does not matter there, so a request costs what its content has of nodes
(`sim/engine/kv_cache.py`), however long it is. With several such groups it is block by block (`full.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Table
from replicast.sim.engine.hybrid.groups.full import NEVER, Found, FullGroups, GroupBlocks
from replicast.sim.engine.kv_cache import KVCache, cdiv

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class FoundRun(Found):
    """A hit of the first `length` blocks; the last lies in node `index` of the request's path."""

    __slots__ = ("held", "index", "length")

    def __init__(self, held: HybridState, index: int, length: int) -> None:
        super().__init__(0, [])
        self.held = held
        self.index = index
        self.length = length

    @property
    def num_places(self) -> int:
        return self.length

    def cut(self, num_places: int) -> None:
        if num_places >= self.length:
            return
        self.length = num_places
        nodes, index = self.held.nodes, self.index
        while index >= 0 and nodes[index].first_block >= num_places:
            index -= 1
        self.index = index


class ChainBlocks(GroupBlocks):
    """Those of one request, which are noted with itself."""

    __slots__ = ("held",)

    def __init__(self, unit: FullGroups, held: HybridState) -> None:
        super().__init__(unit)
        self.held = held


class ChainGroup(FullGroups):
    """Full attention in one group."""

    def new_blocks(self, held: HybridState) -> GroupBlocks:
        return ChainBlocks(self, held)

    def no_hit(self, held: HybridState) -> Found:
        return FoundRun(held, -1, 0)

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        index, length = self.pool.look_up(held, num_tokens + 1)
        found = FoundRun(held, index, length)
        found.cut(length - length % (self.alignment // self.block_size))
        return found

    def num_idle(self, found: Found, num_hit_tokens: int) -> int:
        assert isinstance(found, FoundRun)
        return self.pool.num_idle(found.held, found.index, found.length)

    def adopt(self, blocks: GroupBlocks, found: Found, num_hit_tokens: int) -> None:
        assert isinstance(blocks, ChainBlocks)
        if num_hit_tokens:
            assert isinstance(found, FoundRun)
            self.pool.touch(found.held, found.index, found.length)
            found.held.num_blocks = found.length
        self._note(blocks)

    def _note(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, ChainBlocks)
        blocks.room = blocks.held.num_blocks * self.block_size
        blocks.next_drop = NEVER

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        assert isinstance(blocks, ChainBlocks)
        return max(cdiv(num_slots, self.block_size) - blocks.held.num_blocks, 0)

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        assert isinstance(blocks, ChainBlocks)
        places = cdiv(num_slots, self.block_size)
        self.pool.take(places - blocks.held.num_blocks)
        blocks.held.num_blocks = places
        self._note(blocks)

    def publish(self, blocks: GroupBlocks, held: HybridState, num_tokens: int) -> None:
        KVCache.publish(self.pool, held, num_tokens)

    def free(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, ChainBlocks)
        KVCache.free(self.pool, blocks.held)
