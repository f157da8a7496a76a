"""The KV cache of one engine: look-up, admission, publishing, freeing, in runs of content.

The rules are vLLM's (`vllm/v1/core/kv_cache_manager.py`): new blocks come from the head of the free
queue and lose what they cached; full blocks are published when scheduled; a look-up never covers the
last token; freed blocks go, without hash, to the front, with hash to the back, last block first.

Which physical block is which never matters to them, so there are none: `block_pool.py` says what is
kept instead. What is cached of a path has no holes, so a look-up is one comparison a node, from the end
of the path upwards until something is cached.
"""

from __future__ import annotations

from collections.abc import Callable

from replicast.sim.engine.block_pool import BlockPool, RequestBlocks
from replicast.sim.engine.content_tree import Node
from replicast.sim.workload import Content

__all__ = ["KVCache", "RequestBlocks", "cdiv"]


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


class KVCache(BlockPool):
    """The pool of one engine, and what requests do with it.

    `sync` brings a decode's publications up to date, which a jump leaves undone until somebody looks.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_caching: bool,
        watermark: float,
        num_lookahead_tokens: int,
    ) -> None:
        super().__init__(num_gpu_blocks, block_size)
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.num_lookahead_tokens = num_lookahead_tokens
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.sync: Callable[[object], None] | None = None

    # Paths

    def name(self, held: RequestBlocks, content: Content) -> None:
        """Find the path of a request's prompt and output."""
        if self.enable_caching:
            held.nodes, held.ends = self.tree.path(content)

    def forget(self, held: RequestBlocks) -> None:
        """The request is over: its path may be dropped."""
        self.tree.leave(held.nodes)

    # Look-up and allocation

    def look_up(self, held: RequestBlocks, num_tokens: int) -> tuple[int, int]:
        """Where the longest cached prefix of `num_tokens` tokens ends: (index of the path, blocks)."""
        limit = (num_tokens - 1) // self.block_size
        nodes = held.nodes
        index = len(nodes) - 1
        while index >= 0:
            node = nodes[index]
            first = node.first_block
            if first < limit:
                if node.writer is not None and self.sync is not None:
                    self.sync(node.writer)
                hits = node.cached_end
                if hits > first:
                    end = held.ends[index]
                    if end < hits:
                        hits = end
                    if limit < hits:
                        hits = limit
                    if hits > first:
                        return index, hits
            index -= 1
        return -1, 0

    def num_idle(self, held: RequestBlocks, index: int, hits: int) -> int:
        """How many of the hit blocks nobody holds: they leave the free queue when touched."""
        if index < 0:
            return 0
        if self.duplicates.count:
            return self.duplicates.num_idle(held, index, hits)
        idle, end = 0, hits
        node: Node | None = held.nodes[index]
        while node is not None:
            held_end = node.held_end
            if held_end >= 0:
                return idle + end - held_end if end > held_end else idle
            first = node.first_block
            idle += end - first
            end = first
            node = node.parent
        return idle

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a request with `num_tokens` computed tokens needs."""
        return cdiv(min(num_tokens + self.num_lookahead_tokens, self.max_model_len), self.block_size)

    def allocate(self, held: RequestBlocks, num_computed: int, num_new: int, num_tokens: int) -> bool:
        """Blocks for `num_new` tokens of a running request that knows `num_tokens`; False: no room."""
        need = self.blocks_for(num_computed + num_new) - held.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            self.take(need)
            held.num_blocks += need
        self.publish(held, min(num_computed + num_new, num_tokens))
        return True

    def admit(
        self,
        held: RequestBlocks,
        place: tuple[int, int],
        num_new: int,
        num_tokens: int,
        *,
        reserve_full_isl: bool,
        use_watermark: bool,
    ) -> bool:
        """Blocks for a waiting request's first chunk after its hits; False, and nothing changed: no room.

        With `reserve_full_isl` all `num_tokens` must fit now, though only the chunk is allocated.
        """
        index, hits = place
        num_computed = hits * self.block_size
        need = max(self.blocks_for(num_computed + num_new) - hits, 0)
        wanted = need
        if reserve_full_isl:
            wanted = max(need, cdiv(min(num_tokens, self.max_model_len), self.block_size) - hits)
        spare = self.num_free - wanted
        if use_watermark:
            spare -= self.watermark_blocks
        # Idle hits are at most the hits: count them only where it matters.
        if spare < hits and spare < self.num_idle(held, index, hits):
            return False
        if index >= 0:
            self.touch(held, index, hits)
        if need:
            self.take(need)
        held.num_blocks = hits + need
        self.publish(held, min(num_computed + num_new, num_tokens))
        return True

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Let look-ups find the blocks that `num_tokens` tokens fill."""
        full = num_tokens // self.block_size
        start = position = held.num_published
        if full <= position or not held.nodes:
            return
        nodes, ends = held.nodes, held.ends
        old = held.index
        index = old if old >= 0 else 0
        while True:
            node = nodes[index]
            end = ends[index]
            if end > full:
                end = full
            if end > position:
                if node.writer is not None and node.writer is not held and self.sync is not None:
                    self.sync(node.writer)
                cached = node.cached_end
                if cached > position:
                    for block in range(position, min(cached, end)):
                        self.duplicates.add(node, block, held)
                if end > cached:
                    node.cached_end = end
                position = end
            if position == full:
                break
            index += 1
        held.index = index
        held.num_published = full
        self.move_hold(nodes[old] if old >= 0 else None, nodes[index], start, full)

    def free(self, held: RequestBlocks) -> None:
        """Let go of all blocks of a request (finish, abort, preemption)."""
        unhashed = held.num_blocks - held.num_published
        self.unhashed += unhashed
        self.num_free += unhashed
        if held.index >= 0:
            if self.duplicates.count:
                self.duplicates.release(held)
            else:
                self.release(held.nodes[held.index], held.num_published)
        held.index = -1
        held.num_blocks = held.num_published = 0

    def finish(self, held: RequestBlocks, num_tokens: int) -> None:
        """Publish up to `num_tokens`, free, and forget the path: the end of a request that decoded.

        What a decode adds is nobody else's as a rule, so its new nodes go to the queue as they are.
        """
        start, full = held.num_published, num_tokens // self.block_size
        old, nodes, ends = held.index, held.nodes, held.ends
        index = old if old >= 0 else 0
        if self.duplicates.count or old < 0 or not self._is_alone(held, full):
            self.publish(held, num_tokens)
            self.free(held)
            self.tree.leave(nodes)
            return
        unhashed = held.num_blocks - full
        self.unhashed += unhashed
        self.num_free += unhashed
        while ends[index] < full:
            index += 1
        while index > old:
            node = nodes[index]
            low, high = node.first_block, ends[index]
            if high > full:
                high = full
            if low < high:
                node.cached_end = high
                self.push(node, low, high)
            index -= 1
        node = nodes[old]
        high = ends[old] if ends[old] < full else full
        if high > node.cached_end:
            node.cached_end = high
        low = self.drop_hold(node, start)
        if low < high:
            self.push(node, low, high)
        if node.held_end < 0 and node.parent is not None:
            self.release(node.parent, node.first_block)
        self.tree.leave(nodes)

    def _is_alone(self, held: RequestBlocks, full: int) -> bool:
        """Whether nothing is cached where a request will publish up to block `full`."""
        position, index = held.num_published, held.index
        nodes, ends = held.nodes, held.ends
        if nodes[index].cached_end > position:
            return False
        while ends[index] < full:
            index += 1
            node = nodes[index]
            if node.cached_end > node.first_block or node.held_end >= 0:
                return False
        return True
