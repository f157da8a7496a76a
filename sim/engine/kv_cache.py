"""KV blocks without blocks: what is free, cached, held, and what goes next, in runs of content.

The rules are vLLM's (`vllm/v1/core/kv_cache_manager.py`, `block_pool.py`): new blocks come from the
head of the free queue and lose what they cached; full blocks are published when scheduled; a look-up
never covers the last token; freed blocks go, without hash, to the front, with hash to the back, last
block first. Which physical block is which never matters to them. So it is enough to keep

* `unhashed`, the number of free blocks that cache nothing, which are always taken first, and
* per node of the content tree how far it is cached and how far it is held.

Why two numbers a node suffice. Whoever holds block k + 1 of some content holds a copy of block k,
and frees it just after k + 1. So some copy of k is held, or stands later in the queue than every copy
of k + 1: what is cached has no holes. Per node, blocks `first_block … held_end` are held,
`held_end … cached_end` are idle (in the free queue), beyond nothing is cached. A look-up is one
comparison, an eviction one subtraction.

Why a hold costs the same however long the path. Who holds a node's block holds all of the path above.
So a request counts only where it ends, and a held child counts once in its parent, at the branch.

The one exception, two requests that computed the same block, is in `duplicates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from replicast.sim.engine.content_tree import ContentTree, Node
from replicast.sim.engine.duplicates import Copy, Duplicates
from replicast.sim.engine.free_queue import Entry, FreeQueue
from replicast.sim.workload import Content, Segment


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


class RequestBlocks:
    """The blocks of one request: how many, and how many of them are published along its path.

    Its hold stands at `nodes[index]`, up to block `num_published`; index -1: it holds nothing.
    """

    __slots__ = ("copies", "ends", "index", "nodes", "num_blocks", "num_published")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ends: list[int] = []
        self.num_blocks = 0
        self.num_published = 0
        self.index = -1
        self.copies: dict[tuple[Node, int], Copy] | None = None  # later copies that it made


class KVCache:
    """The pool of one engine.

    `holders` is the engine's list of running requests; `sync` brings a decode's publications up to
    date, which a jump leaves undone until somebody looks.
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
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.num_lookahead_tokens = num_lookahead_tokens
        self.num_usable = num_gpu_blocks - 1
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.unhashed = self.num_usable
        self.num_free = self.num_usable  # idle cached blocks included
        self.tree = ContentTree(block_size)
        self.queue = FreeQueue(self.tree.root)
        self.duplicates = Duplicates(self)
        self.holders: Sequence[RequestBlocks] = []
        self.sync: Callable[[object], None] = lambda writer: None

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        return 1.0 - self.num_free / self.num_usable if self.num_usable else 0.0

    # Paths

    def name(self, held: RequestBlocks, prompt: Content, output: Content, missing: Segment) -> None:
        """Find the path of a request's prompt and output; `missing` are outputs that `output` lacks."""
        if self.enable_caching:
            held.nodes, held.ends = self.tree.path(chain(prompt, output, (missing,)))

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
                if node.writer is not None:
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
                if node.writer is not None and node.writer is not held:
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
        self._move_hold(nodes[old] if old >= 0 else None, nodes[index], start, full)

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

    # Holds

    def touch(self, held: RequestBlocks, index: int, hits: int) -> None:
        """Hold the hit blocks; those nobody held leave the free queue."""
        if self.duplicates.count:
            self.duplicates.touch(held, index, hits)
        held.index = index
        held.num_published = hits
        self.hold(held.nodes[index], hits)

    def hold(self, node: Node, end: int) -> None:
        """One more holder of `node` up to block `end`, and of all above it."""
        while True:
            idle = node.idle
            while idle:
                entry = idle[-1]
                low = entry.low
                if low >= end:
                    break
                if entry.high <= end:
                    self.num_free -= entry.high - low
                    idle.pop()
                    self.queue.unlink(entry)
                else:
                    self.num_free -= end - low
                    entry.low = end
                    break
            holds = node.holds
            holds[end] = holds.get(end, 0) + 1
            held_end = node.held_end
            if end > held_end:
                node.held_end = end
            parent = node.parent
            if held_end >= 0 or parent is None:
                return
            end = node.first_block
            node = parent

    def release(self, node: Node, end: int) -> None:
        """One holder less; what nobody holds now goes to the back of the queue, deepest first."""
        while True:
            low = self.drop_hold(node, end)
            if low < end:
                self.push(node, low, end)
            parent = node.parent
            if node.held_end >= 0 or parent is None:
                return
            end = node.first_block
            node = parent

    def drop_hold(self, node: Node, end: int) -> int:
        """One holder less in `node` itself; from which block up to `end` nobody holds it now."""
        holds = node.holds
        count = holds[end] - 1
        if count:
            holds[end] = count
            return end
        del holds[end]
        if end < node.held_end:
            return end
        if not holds:
            node.held_end = -1
            return node.first_block
        low = node.held_end = max(holds)
        return low

    def _move_hold(self, old: Node | None, node: Node, start: int, end: int) -> None:
        """A holder that stood at `start` of `old` now reaches up to `end` of `node`, further down."""
        if old is node:
            holds = node.holds
            count = holds[start] - 1
            if count:
                holds[start] = count
            else:
                del holds[start]
            holds[end] = holds.get(end, 0) + 1
            if end > node.held_end:
                node.held_end = end
            return
        self.hold(node, end)
        if old is not None:
            self.drop_hold(old, start)  # the new hold reaches through `old` at least as far

    # The free queue

    def push(self, node: Node, low: int, high: int) -> None:
        """Blocks `low … high` of `node` become idle."""
        entry = Entry(node, low, high)
        node.idle.append(entry)
        self.queue.push(entry)
        self.num_free += high - low

    def take(self, num_blocks: int) -> None:
        """New blocks from the head of the free queue; what they cached is lost."""
        self.num_free -= num_blocks
        if num_blocks <= self.unhashed:
            self.unhashed -= num_blocks
            return
        num_blocks -= self.unhashed
        self.unhashed = 0
        queue = self.queue
        while num_blocks:
            entry = queue.end.next
            node = entry.node
            low = entry.low
            if entry.copy is not None:
                queue.unlink(entry)
                self.duplicates.evict(node, low, entry.copy)
                num_blocks -= 1
                continue
            size = entry.high - low
            if size > num_blocks:
                node.cached_end = entry.high = entry.high - num_blocks
                return
            queue.unlink(entry)
            del node.idle[0]
            node.cached_end = low
            num_blocks -= size
            if not node.refs and low == node.first_block:
                self.tree.prune(node)
