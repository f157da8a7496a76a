"""Blocks of which several copies exist: two requests computed the same content.

How they arise: a look-up is cut before the last token although the next block is cached (a prompt of
exactly k blocks that is a prefix of something cached), or two requests compute the same content side
by side (long-prefill threshold; a reply that another prompt already contains). vLLM then keeps
several blocks under one hash, and a look-up takes the one published first.

Such a block leaves its node's interval arithmetic and becomes an explicit list of copies in order of
publication, each with its holders and its own place in the queue. Who made a later copy frees it;
everyone else holds the first one, for they found it by look-up, and a held copy cannot be evicted,
so "first" cannot change under a holder. One copy left: back to plain intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.engine.free_queue import Entry

if TYPE_CHECKING:
    from replicast.sim.engine.block_pool import BlockPool, RequestBlocks
    from replicast.sim.engine.content_tree import Node


class Copy:
    """One of several blocks with the same content; idle if it has an `entry` in the free queue."""

    __slots__ = ("entry", "maker", "refs")

    def __init__(self, refs: int, maker: RequestBlocks | None) -> None:
        self.refs = refs
        self.maker = maker
        self.entry: Entry | None = None


class Duplicates:
    """All blocks of one cache that have several copies."""

    def __init__(self, cache: BlockPool) -> None:
        self.cache = cache
        self.count = 0  # blocks with several copies

    def add(self, node: Node, block: int, held: RequestBlocks) -> None:
        """`held` publishes a block that is cached already."""
        if node.copies is None:
            node.copies = {}
        copies = node.copies.get(block)
        if copies is None:
            copies = node.copies[block] = [self._first_copy(node, block, held)]
            self.count += 1
        copy = Copy(1, held)
        copies.append(copy)
        if held.copies is None:
            held.copies = {}
        held.copies[node, block] = copy

    def _first_copy(self, node: Node, block: int, newcomer: RequestBlocks) -> Copy:
        refs = sum(_reaches(held, node, block) for held in self.cache.holders if held is not newcomer)
        first = Copy(refs, None)
        if not refs:
            first.entry = self._part(node, block)
            first.entry.copy = first
        return first

    def _part(self, node: Node, block: int) -> Entry:
        """Give an idle block an entry of its own, in its place between those above and below it."""
        queue, idle = self.cache.queue, node.idle
        position = next(i for i, entry in enumerate(idle) if entry.low <= block < entry.high)
        entry = idle[position]
        own = Entry(node, block, block + 1)
        queue.insert_after(entry, own)
        rest: list[Entry] = []
        if block + 1 < entry.high:
            rest.append(entry)
        else:
            queue.unlink(entry)
        if entry.low < block:
            below = Entry(node, entry.low, block)
            queue.insert_after(own, below)
            rest.append(below)
        entry.low = block + 1
        idle[position : position + 1] = rest
        return own

    def evict(self, node: Node, block: int, copy: Copy) -> None:
        """An idle copy was taken from the head of the queue."""
        assert node.copies is not None
        copies = node.copies[block]
        copies.remove(copy)
        if len(copies) > 1:
            return
        self.count -= 1
        del node.copies[block]
        if not node.copies:
            node.copies = None
        last = copies[0]
        if last.maker is not None and last.maker.copies is not None:
            del last.maker.copies[node, block]
        if last.entry is not None:
            last.entry.copy = None
            idle = node.idle
            position = next((i for i, entry in enumerate(idle) if entry.low < block), len(idle))
            idle.insert(position, last.entry)

    def num_idle(self, held: RequestBlocks, index: int, hits: int) -> int:
        """As `KVCache.num_idle`, where some blocks have copies: a hit takes the first of them."""
        idle, end, counts = 0, hits, True
        for i in range(index, -1, -1):
            node = held.nodes[i]
            low = max(node.held_end, node.first_block)
            if counts and end > low:
                idle += end - low
            for block, copies in (node.copies or {}).items():
                if block < end:
                    if counts and block >= low:
                        idle -= 1
                    if copies[0].entry is not None:
                        idle += 1
            counts = counts and node.held_end < 0
            end = node.first_block
        return idle

    def touch(self, held: RequestBlocks, index: int, hits: int) -> None:
        """Hold the first copy of every hit block that has several."""
        end = hits
        for i in range(index, -1, -1):
            node = held.nodes[i]
            for block, copies in (node.copies or {}).items():
                if block < end:
                    first = copies[0]
                    first.refs += 1
                    if first.entry is not None:
                        self.cache.queue.unlink(first.entry)
                        first.entry = None
                        self.cache.num_free -= 1
            end = node.first_block

    def release(self, held: RequestBlocks) -> None:
        """As `BlockPool.release`, along the whole path: own copies may stand where others hold too."""
        cache = self.cache
        end, releases = held.num_published, True
        for i in range(held.index, -1, -1):
            node = held.nodes[i]
            low = cache.drop_hold(node, end) if releases else end
            high = end
            for block in sorted((b for b in node.copies or () if b < end), reverse=True):
                if low <= block:
                    if block + 1 < high:
                        cache.push(node, block + 1, high)
                    high = block
                elif low < high:
                    cache.push(node, low, high)
                    high = low
                self._release_copy(node, block, held)
            if low < high:
                cache.push(node, low, high)
            releases = releases and node.held_end < 0
            end = node.first_block
        if releases:
            cache.drop_hold(cache.tree.root, 0)
        for copy in (held.copies or {}).values():
            copy.maker = None
        held.copies = None

    def _release_copy(self, node: Node, block: int, held: RequestBlocks) -> None:
        assert node.copies is not None
        own = (held.copies or {}).get((node, block))
        copy = own if own is not None else node.copies[block][0]
        copy.refs -= 1
        if not copy.refs:
            copy.entry = Entry(node, block, block + 1, copy)
            self.cache.queue.push(copy.entry)
            self.cache.num_free += 1


def _reaches(held: RequestBlocks, node: Node, block: int) -> bool:
    """Whether a request holds `block` of `node`."""
    if held.num_published <= block:
        return False
    return any(at is node and end > block for at, end in zip(held.nodes, held.ends, strict=True))
