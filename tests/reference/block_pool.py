"""All blocks of one engine: which are free, which are cached, which goes next.

The rules, as in `vllm/v1/core/block_pool.py`:

1. One pool. Block 0 is the null block and never used. The free queue starts as 1, 2, …, n - 1;
   new blocks are taken from its head. Taking a block drops the hash it carries: the only eviction.
2. A free block may keep its hash. It is then cached *and* free.
3. Several blocks may carry one hash; a look-up takes the one published first.
4. Freeing walks the blocks from last to first. Those nobody holds any more go, without hash, to
   the front of the queue (the last block becomes its head), with hash to the back (last block
   first): half-filled tails are reused at once, cached blocks leave in the order in which they
   were freed, and of one request the tail before the head.

Groups of a hybrid model share the pool, but a hash is cached for one group only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0


class BlockPool:
    """Reference counts, hashes and the free queue."""

    def __init__(self, num_gpu_blocks: int, num_groups: int = 1) -> None:
        self.ref_cnt = [0] * num_gpu_blocks
        self.block_hash: list[int | None] = [None] * num_gpu_blocks
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_gpu_blocks))
        # A group's hashes -> blocks, first published first.
        self._cached: list[dict[int, list[int]]] = [{} for _ in range(num_groups)]
        self._group = [0] * num_gpu_blocks  # whose hash a block carries

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return len(self.free_queue)

    def cached_block(self, block_hash: int, group: int = 0) -> int | None:
        """The block a look-up of `block_hash` finds for a group."""
        blocks = self._cached[group].get(block_hash)
        return blocks[0] if blocks else None

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of the cached `blocks` nobody holds."""
        return sum(self.ref_cnt[block] == 0 for block in blocks if block != NULL_BLOCK)

    def take(self, num_blocks: int) -> list[int]:
        """New blocks from the head of the free queue; what they cached is lost."""
        blocks = [self.free_queue.popitem(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            self._evict(block)
            self.ref_cnt[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold cached blocks, so that they cannot be taken."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self.ref_cnt[block] == 0:
                del self.free_queue[block]
            self.ref_cnt[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Let go of a request's blocks, given first to last (rule 4)."""
        unhashed: list[int] = []
        for block in reversed(blocks):
            if block == NULL_BLOCK:
                continue
            self.ref_cnt[block] -= 1
            if self.ref_cnt[block]:
                continue
            if self.block_hash[block] is None:
                unhashed.append(block)
            else:
                self.free_queue[block] = None
        for block in reversed(unhashed):
            self.free_queue[block] = None
            self.free_queue.move_to_end(block, last=False)

    def publish(self, block: int, block_hash: int, group: int = 0) -> None:
        """Let look-ups of `block_hash` for a group find `block`."""
        self.block_hash[block] = block_hash
        self._group[block] = group
        self._cached[group].setdefault(block_hash, []).append(block)

    def _evict(self, block: int) -> None:
        block_hash = self.block_hash[block]
        if block_hash is None:
            return
        self.block_hash[block] = None
        cached = self._cached[self._group[block]]
        blocks = cached[block_hash]
        blocks.remove(block)
        if not blocks:
            del cached[block_hash]
