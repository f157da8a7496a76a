"""Which blocks are held, idle, free: per node of the content tree two numbers, and one queue.

The free queue of vLLM is blocks without hash first, then cached ones, oldest freed first. The former are
all alike and need only a number (`unhashed`); of the latter, whoever holds block k + 1 of some content
holds a copy of block k, and frees it just after k + 1. So some copy of k is held, or stands later in the
queue than every copy of k + 1: what is cached has no holes. Per node, blocks `first_block … held_end` are
held, `held_end … cached_end` are idle (in the free queue), beyond nothing is cached. An eviction is one
subtraction.

Why a hold costs the same however long the path. Who holds a node's block holds all of the path above.
So a request counts only where it ends, and a held child counts once in its parent, at the branch.

The one exception, two requests that computed the same block, is in `duplicates.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicast.sim.engine.content_tree import ContentTree, Node
from replicast.sim.engine.duplicates import Copy, Duplicates
from replicast.sim.engine.free_queue import Entry, FreeQueue


class RequestBlocks:
    """The blocks of one request: how many, and how many of them are published along its path.

    Its hold stands at `nodes[index]`, up to block `num_published`; index -1: it holds nothing.
    """

    __slots__ = ("copies", "ends", "index", "nodes", "num_blocks", "num_published")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ends: list[int] = []  # block at which the path leaves each node
        self.num_blocks = 0
        self.num_published = 0
        self.index = -1
        self.copies: dict[tuple[Node, int], Copy] | None = None  # later copies that it made


class BlockPool:
    """All blocks of one engine. `holders` is the engine's list of running requests."""

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.num_usable = num_gpu_blocks - 1
        self.unhashed = self.num_usable  # free blocks that cache nothing; always taken first
        self.num_free = self.num_usable  # idle cached blocks included
        self.tree = ContentTree(block_size)
        self.queue = FreeQueue(self.tree.root)
        self.duplicates = Duplicates(self)
        self.holders: Sequence[RequestBlocks] = []

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold."""
        return 1.0 - self.num_free / self.num_usable if self.num_usable else 0.0

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
            was_held = node.held_end >= 0
            node.hold(end)
            parent = node.parent
            if was_held or parent is None:
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
        node.drop(end)
        held_end = node.held_end
        if held_end < 0:
            return node.first_block
        return held_end if held_end < end else end

    def move_hold(self, old: Node | None, node: Node, start: int, end: int) -> None:
        """A holder that stood at `start` of `old` now reaches up to `end` of `node`, further down."""
        if old is node:
            node.move(start, end)
            return
        self.hold(node, end)
        if old is not None:
            self.drop_hold(old, start)  # the new hold reaches through `old` at least as far

    # The free queue

    def push(self, node: Node, low: int, high: int) -> None:
        """Blocks `low … high` of `node` become idle."""
        entry = Entry(node, low, high)
        node.idle.append(entry)
        end = self.queue.end
        last = end.prev
        entry.prev = last
        entry.next = end
        last.next = end.prev = entry
        self.num_free += high - low

    def take(self, num_blocks: int) -> None:
        """New blocks from the head of the free queue; what they cached is lost."""
        self.num_free -= num_blocks
        if num_blocks <= self.unhashed:
            self.unhashed -= num_blocks
            return
        num_blocks -= self.unhashed
        self.unhashed = 0
        end = self.queue.end
        while num_blocks:
            entry = end.next
            node = entry.node
            low = entry.low
            if entry.copy is not None:
                num_blocks -= self.evict_from(entry, num_blocks)
                continue
            if node.later is not None:
                self.duplicates.evict_one(entry)
                num_blocks -= 1
                continue
            size = entry.high - low
            if size > num_blocks:
                node.cached_end = entry.high = entry.high - num_blocks
                return
            after = end.next = entry.next
            after.prev = end
            node.idle.pop(0)
            node.cached_end = low
            num_blocks -= size
            if not node.refs and low == node.first_block:
                self.tree.prune(node)

    def evict_from(self, entry: Entry, most: int) -> int:
        """Up to so many blocks of an entry that is no run of content were taken; how many."""
        assert entry.copy is not None
        self.queue.unlink(entry)
        self.duplicates.evict(entry.node, entry.low, entry.copy)
        return 1
