"""The only group of full attention, in stretches of blocks (`stretch.py`): a request costs a few of them.

A block's hash covers all before, and a request that holds a block holds all before. So what is cached of a
prompt is a few stretches, and where the last block of one is found, so are the others.
"""

from __future__ import annotations

from replicast.sim.engine.hybrid.block_hash import BlockHashes
from replicast.sim.engine.hybrid.groups.full import Found, FullGroups, GroupBlocks, RequestBlocks, cdiv
from replicast.sim.engine.hybrid.stretch import Chain, Stretch


class FoundStretches(Found):
    """What a look-up found up to place `length`: of each stretch the blocks up to the next one."""

    __slots__ = ("length", "stretches")

    def __init__(self, stretches: list[Stretch], length: int) -> None:
        super().__init__(0, [])
        self.stretches = stretches
        self.length = length

    @property
    def num_places(self) -> int:
        return self.length

    def cut(self, num_places: int) -> None:
        self.length = min(self.length, num_places)


class ChainBlocks(GroupBlocks):
    """The blocks of one request in the only group."""

    __slots__ = ("chain", "num_places")

    def __init__(self, unit: FullGroups) -> None:
        super().__init__(unit)
        self.chain = Chain()
        self.num_places = 0

    def by_group(self) -> list[list[int]]:
        chain = self.chain
        return [[*(block for stretch in chain.stretches for block in stretch.blocks), *chain.own]]


class ChainGroup(FullGroups):
    """Full attention in one group."""

    def new_blocks(self) -> GroupBlocks:
        return ChainBlocks(self)

    def no_hit(self) -> Found:
        return FoundStretches([], 0)

    def find(self, cached: list[dict[int, int]], hashes: BlockHashes, num_tokens: int) -> Found:
        table, step, stretch_of = cached[0], self.hashes_per_block, self.pool.stretch_of
        found: list[Stretch] = []
        length, place = num_tokens // self.block_size, 0
        hashes.reach(length * step)
        while place < length:
            block = table.get(hashes.name((place + 1) * step - 1))
            if block is None:
                break
            stretch = stretch_of[block]
            assert stretch is not None, "what is cached has a stretch"
            found.append(stretch)
            place = self._end_of_hit(stretch, hashes, min(stretch.end, length))
        return FoundStretches(found, place - place % (self.alignment // self.block_size))

    def _end_of_hit(self, stretch: Stretch, hashes: BlockHashes, end: int) -> int:
        """The place up to which a stretch, whose first block is hit, holds what is asked for."""
        blocks, block_hash, step = stretch.blocks, self.pool.block_hash, self.hashes_per_block
        start = stretch.start
        low, middle = start + 1, end
        while low < end:
            if block_hash[blocks[middle - 1 - start]] == hashes.name(middle * step - 1):
                low = middle
            else:
                end = middle - 1
            middle = (low + end + 1) // 2
        return low

    def num_idle(self, found: Found, num_hit_tokens: int) -> int:
        assert isinstance(found, FoundStretches)
        number, end = 0, found.length
        for stretch in reversed(found.stretches):
            if stretch.start < end:
                if not stretch.holders:
                    number += end - stretch.start
                end = stretch.start
        return number

    def adopt(self, blocks: GroupBlocks, found: Found, num_hit_tokens: int) -> None:
        assert isinstance(blocks, ChainBlocks)
        assert isinstance(found, FoundStretches)
        if num_hit_tokens:
            self.pool.hold(blocks.chain, found.stretches, found.length)
            blocks.num_places = blocks.num_published = found.length
        self._note(blocks)

    def _note(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, ChainBlocks)
        blocks.room = blocks.num_places * self.block_size
        blocks.next_drop = 0 if self.speculates else self.after_drop(0)

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        assert isinstance(blocks, ChainBlocks)
        return max(cdiv(num_slots, self.block_size) - blocks.num_places, 0)

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        assert isinstance(blocks, ChainBlocks)
        places = cdiv(num_slots, self.block_size)
        self.pool.take(places - blocks.num_places, blocks.chain.own)
        blocks.num_places = places
        self._note(blocks)

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        """Nothing is."""

    def publish(self, blocks: GroupBlocks, held: RequestBlocks, num_tokens: int) -> None:
        assert isinstance(blocks, ChainBlocks)
        start, end = blocks.num_published, num_tokens // self.block_size
        if end <= start:
            return
        blocks.num_published = end
        step = self.hashes_per_block
        hashes = held.hashes
        hashes.reach(end * step)
        names = [hashes.name(place * step - 1) for place in range(start + 1, end + 1)]
        self.pool.publish_own(blocks.chain, names, start, self.numbers[0])

    def free(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, ChainBlocks)
        self.pool.let_go(blocks.chain)
