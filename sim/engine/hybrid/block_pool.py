"""All blocks of one engine: which are free, which are cached, which goes next.

The rules, as in `vllm/v1/core/block_pool.py`:

1. One pool for all groups. Block 0 is the null block and never used. New blocks are taken from the head
   of the free queue; taking a block drops the hash it carries: the only eviction.
2. A free block may keep its hash. It is then cached *and* free.
3. Several blocks of a group may carry one hash; a look-up takes the one published first.
4. Freeing walks the blocks from last to first. Those nobody holds any more go, without hash, to the front
   of the queue (the last block becomes its head), with hash to the back (last block first).

So the free queue is always blocks without hash, then cached ones, oldest freed first: a stack and a queue.
"""

from __future__ import annotations

from collections import OrderedDict

NULL_BLOCK = 0


class BlockPool:
    """Reference counts, hashes and the free queue."""

    __slots__ = ("_copies", "_group", "block_hash", "cached", "idle", "num_free", "ref_cnt", "unhashed")

    def __init__(self, num_gpu_blocks: int, num_groups: int) -> None:
        self.ref_cnt = [0] * num_gpu_blocks
        self.block_hash: list[int | None] = [None] * num_gpu_blocks
        self.num_free = num_gpu_blocks - 1  # cached ones included
        self.unhashed = list(range(num_gpu_blocks - 1, NULL_BLOCK, -1))  # free; the next to be taken is last
        self.idle: OrderedDict[int, None] = OrderedDict()  # free and cached; the next to be taken is first
        # By group: hash -> the block published first, and hash -> those published later.
        self.cached: list[dict[int, int]] = [{} for _ in range(num_groups)]
        self._copies: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        self._group = [0] * num_gpu_blocks  # whose hash a block carries

    @property
    def free_queue(self) -> list[int]:
        """Free blocks, the next to be taken first."""
        return [*reversed(self.unhashed), *self.idle]

    def take(self, num_blocks: int, blocks: list[int]) -> None:
        """Append new blocks from the head of the free queue to `blocks`; what they cached is lost."""
        unhashed, ref_cnt = self.unhashed, self.ref_cnt
        self.num_free -= num_blocks
        while num_blocks:
            if unhashed:
                block = unhashed.pop()
            else:
                block = self.idle.popitem(last=False)[0]
                self._evict(block)
            ref_cnt[block] = 1
            blocks.append(block)
            num_blocks -= 1

    def touch(self, blocks: list[int]) -> None:
        """Hold cached blocks, so that they cannot be taken."""
        ref_cnt, idle = self.ref_cnt, self.idle
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            holders = ref_cnt[block]
            if holders == 0:
                del idle[block]
                self.num_free -= 1
            ref_cnt[block] = holders + 1

    def num_idle(self, blocks: list[int]) -> int:
        """How many of the cached `blocks` nobody holds."""
        ref_cnt, number = self.ref_cnt, 0
        for block in blocks:
            if block != NULL_BLOCK and ref_cnt[block] == 0:
                number += 1
        return number

    def free(self, blocks: list[int]) -> None:
        """Let go of blocks that a request holds, given first to last (rule 4)."""
        ref_cnt, block_hash, idle = self.ref_cnt, self.block_hash, self.idle
        unhashed: list[int] = []
        freed = 0
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            holders = ref_cnt[block] - 1
            ref_cnt[block] = holders
            if holders:
                continue
            freed += 1
            if block_hash[block] is None:
                unhashed.append(block)
            else:
                idle[block] = None
        self.num_free += freed
        if unhashed:
            unhashed.reverse()
            self.unhashed += unhashed

    def free_each(self, blocks: list[int]) -> None:
        """Let go of blocks one by one, as `free` of each would."""
        for block in blocks:
            holders = self.ref_cnt[block] - 1
            self.ref_cnt[block] = holders
            if holders:
                continue
            self.num_free += 1
            if self.block_hash[block] is None:
                self.unhashed.append(block)
            else:
                self.idle[block] = None

    def publish(self, block: int, name: int, group: int) -> None:
        """Let look-ups of hash `name` for a group find `block`."""
        self.block_hash[block] = name
        self._group[block] = group
        cached = self.cached[group]
        if name in cached:
            self._copies[group].setdefault(name, []).append(block)
        else:
            cached[name] = block

    def _evict(self, block: int) -> None:
        block_hash = self.block_hash[block]
        assert block_hash is not None, "what is idle is cached"
        self.block_hash[block] = None
        group = self._group[block]
        cached, copies = self.cached[group], self._copies[group]
        if not copies or block_hash not in copies:
            del cached[block_hash]
            return
        later = copies[block_hash]
        if cached[block_hash] == block:
            cached[block_hash] = later.pop(0)
        else:
            later.remove(block)
        if not later:
            del copies[block_hash]
