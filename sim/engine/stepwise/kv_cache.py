"""KV blocks: which are free, which are cached, who holds them, which goes next.

The rules, as in `vllm/v1/core/kv_cache_manager.py` and `block_pool.py`:

1. One pool. Block 0 is the null block and never used. The free queue starts as 1, 2, …, n - 1;
   new blocks are taken from its head. Taking a block drops the hash it carries: the only eviction.
2. A free block may keep its hash. It is then cached *and* free.
3. A full block is published (gets its hash) when it is scheduled, not when it is computed.
   Several blocks may carry one hash; a look-up takes the one published first.
4. A look-up walks the hashes from block 0 while found, and never covers the last token.
   A hit block leaves the free queue only when its request is admitted.
5. Freeing walks the blocks from last to first. Those nobody holds any more go, without hash, to
   the front of the queue (the last block becomes its head), with hash to the back (last block
   first): half-filled tails are reused at once, cached blocks leave in the order in which they
   were freed, and of one request the tail before the head.

One KV group with full attention only: blocks of hybrid models (sliding window, linear attention)
are not modelled here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from replicast.sim.engine.stepwise.block_hash import BlockHashes

NULL_BLOCK = 0


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


class BlockPool:
    """All blocks of one engine: reference counts, hashes and the free queue."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.ref_cnt = [0] * num_gpu_blocks
        self.block_hash: list[int | None] = [None] * num_gpu_blocks
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_gpu_blocks))
        self._cached: dict[int, list[int]] = {}  # hash -> blocks, first published first

    @property
    def num_free_blocks(self) -> int:
        """Blocks nobody holds, cached ones included."""
        return len(self.free_queue)

    def cached_block(self, block_hash: int) -> int | None:
        """The block a look-up of `block_hash` finds."""
        blocks = self._cached.get(block_hash)
        return blocks[0] if blocks else None

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
            if self.ref_cnt[block] == 0:
                del self.free_queue[block]
            self.ref_cnt[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Let go of a request's blocks, given first to last (rule 5)."""
        unhashed: list[int] = []
        for block in reversed(blocks):
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

    def publish(self, block: int, block_hash: int) -> None:
        """Let look-ups of `block_hash` find `block`."""
        self.block_hash[block] = block_hash
        self._cached.setdefault(block_hash, []).append(block)

    def _evict(self, block: int) -> None:
        block_hash = self.block_hash[block]
        if block_hash is None:
            return
        self.block_hash[block] = None
        blocks = self._cached[block_hash]
        blocks.remove(block)
        if not blocks:
            del self._cached[block_hash]


class RequestBlocks:
    """The blocks of one request, in order, of which the first `num_published` carry their hash."""

    __slots__ = ("block_ids", "hashes", "num_published")

    def __init__(self, hashes: BlockHashes) -> None:
        self.hashes = hashes
        self.block_ids: list[int] = []
        self.num_published = 0


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
    ) -> None:
        self.pool = BlockPool(num_gpu_blocks)
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.num_lookahead_tokens = num_lookahead_tokens
        self._num_usable_blocks = num_gpu_blocks - 1
        self._watermark_blocks = int(watermark * num_gpu_blocks)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        if not self._num_usable_blocks:
            return 0.0
        return 1.0 - self.pool.num_free_blocks / self._num_usable_blocks

    def get_computed_blocks(self, held: RequestBlocks, num_tokens: int) -> list[int]:
        """The cached blocks that `num_tokens` tokens start with (rule 4)."""
        if not self.enable_caching:
            return []
        blocks: list[int] = []
        most = (num_tokens - 1) // self.block_size
        for block_hash in held.hashes.first(most)[:most]:
            block = self.pool.cached_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def allocate_slots(self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int) -> bool:
        """Blocks for `num_new` tokens of a running request that knows `num_tokens`; False: no room."""
        need = self._blocks_for(num_computed + num_new) - len(held.block_ids)
        if need > self.pool.num_free_blocks:
            return False
        if need > 0:
            held.block_ids += self.pool.take(need)
        self.publish(held, min(num_computed + num_new, num_tokens))
        return True

    def admit(
        self,
        held: RequestBlocks,
        hits: list[int],
        num_new: int,
        num_tokens: int,
        *,
        reserve_full_isl: bool,
        use_watermark: bool,
    ) -> bool:
        """Blocks for a waiting request's first chunk after `hits`; False, and nothing changed: no room.

        With `reserve_full_isl` all `num_tokens` must fit now, though only the chunk is allocated.
        """
        idle = sum(self.pool.ref_cnt[block] == 0 for block in hits)
        spare = self.pool.num_free_blocks - idle
        if use_watermark:
            spare -= self._watermark_blocks
        whole = max(cdiv(min(num_tokens, self.max_model_len), self.block_size) - len(hits), 0)
        if reserve_full_isl and whole > spare:
            return False
        num_computed = len(hits) * self.block_size
        need = max(self._blocks_for(num_computed + num_new) - len(hits), 0)
        if need > spare:
            return False
        self.pool.touch(hits)
        held.block_ids = hits + self.pool.take(need)
        held.num_published = len(hits)
        self.publish(held, min(num_computed + num_new, num_tokens))
        return True

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Give the blocks that `num_tokens` tokens fill their hashes (rule 3)."""
        num_full = num_tokens // self.block_size
        if not self.enable_caching or num_full <= held.num_published:
            return
        hashes = held.hashes.first(num_full)
        for index in range(held.num_published, num_full):
            self.pool.publish(held.block_ids[index], hashes[index])
        held.num_published = num_full

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request."""
        self.pool.free(held.block_ids)
        held.block_ids = []
        held.num_published = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return cdiv(min(num_tokens + self.num_lookahead_tokens, self.max_model_len), self.block_size)
