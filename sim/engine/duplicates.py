"""Blocks of which several copies exist: two requests computed the same content.

How they arise: a look-up is cut before the last token although the next block is cached (a prompt of
exactly k blocks that is a prefix of something cached), or two requests compute the same content side
by side (long-prefill threshold; a reply that another prompt already contains). vLLM then keeps
several blocks under one hash, and a look-up takes the one published first.

As long as somebody runs who made a later copy, such a block leaves its node's interval arithmetic and is an
explicit list of copies in order of publication, each with its holders and its own place in the queue.
Who made a later copy frees it; everyone else holds the first one, for they found it by look-up, and a
held copy cannot be evicted, so "first" cannot change under a holder. Then the first is one of an interval
again, and the others (`Node.later`) only wait to be taken; one of them takes its place if it goes before.
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
            if node.later is not None:
                copies += self._pop_later(node, block)
            self.count += 1
        copy = Copy(1, held)
        copies.append(copy)
        if held.copies is None:
            held.copies = {}
        held.copies[node, block] = copy

    def _first_copy(self, node: Node, block: int, newcomer: RequestBlocks) -> Copy:
        refs = 0
        if node.held_end > block:
            refs = sum(_reaches(held, node, block) for held in self.cache.holders if held is not newcomer)
        first = Copy(refs, None)
        if not refs:
            first.entry = self._part(node, block)
            first.entry.copy = first
        return first

    def _part(self, node: Node, block: int) -> Entry:
        """Give an idle block an entry of its own, in its place between those above and below it."""
        queue, idle = self.cache.queue, node.idle
        entry = idle[-1]
        if entry.low == block:  # the lowest of all, as where a hit ended before what is cached
            if entry.high == block + 1:
                return idle.pop()
            entry.low = block + 1
            own = Entry(node, block, block + 1)
            queue.insert_after(entry, own)
            return own
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
        copy.entry = None
        copies = node.copies.get(block) if node.copies is not None else None
        if copies is None:
            assert node.later is not None
            rest = self._pop_later(node, block)
            rest.remove(copy)
            self._wait(node, block, rest)
            return
        copies.remove(copy)
        if len(copies) == 1:
            last = copies[0]
            if last.maker is not None and last.maker.copies is not None:
                del last.maker.copies[node, block]
            self._back_to_intervals(node, block)

    def evict_one(self, entry: Entry) -> None:
        """The highest block of an interval, where some have later copies, was taken from the queue's head."""
        node = entry.node
        block = entry.high = entry.high - 1
        if block == entry.low:
            self.cache.queue.unlink(entry)
            node.idle.remove(entry)
        later = self._pop_later(node, block)
        if later:
            self._put_in_interval(node, block, later.pop(0))
            self._wait(node, block, later)
            return
        node.cached_end = block
        if not node.refs and block == node.first_block:
            self.cache.tree.prune(node)

    def _pop_later(self, node: Node, block: int) -> list[Copy]:
        if node.later is None:
            return []
        later = node.later.pop(block, [])
        if not node.later:
            node.later = None
        return later

    def _wait(self, node: Node, block: int, later: list[Copy]) -> None:
        if later:
            if node.later is None:
                node.later = {}
            node.later[block] = later

    def _back_to_intervals(self, node: Node, block: int) -> None:
        """Nobody makes a copy of it any more."""
        assert node.copies is not None
        first, *later = node.copies.pop(block)
        if not node.copies:
            node.copies = None
        self.count -= 1
        self._put_in_interval(node, block, first)
        self._wait(node, block, later)

    def _put_in_interval(self, node: Node, block: int, copy: Copy) -> None:
        if copy.entry is not None:
            copy.entry.copy = None
            idle = node.idle
            position = next((i for i, entry in enumerate(idle) if entry.low < block), len(idle))
            idle.insert(position, copy.entry)

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
            if node.copies is not None:
                self._touch_node(node.copies, end)
            end = node.first_block

    def _touch_node(self, of_node: dict[int, list[Copy]], end: int) -> None:
        for block, copies in of_node.items():
            if block < end:
                first = copies[0]
                first.refs += 1
                if first.entry is not None:
                    self.cache.queue.unlink(first.entry)
                    first.entry = None
                    self.cache.num_free -= 1

    def release(self, held: RequestBlocks) -> None:
        """As `BlockPool.release`, along the whole path: own copies may stand where others hold too."""
        cache = self.cache
        end, releases = held.num_published, True
        for i in range(held.index, -1, -1):
            node = held.nodes[i]
            low = cache.drop_hold(node, end) if releases else end
            if node.copies is not None:
                self._release_node(node, low, end, held)
            elif low < end:
                cache.push(node, low, end)
            releases = releases and node.held_end < 0
            end = node.first_block
        if releases:
            cache.drop_hold(cache.tree.root, 0)
        if held.copies is not None:
            for copy in held.copies.values():
                copy.maker = None
            for node, block in held.copies:
                assert node.copies is not None
                if not any(copy.maker is not None for copy in node.copies[block]):
                    self._back_to_intervals(node, block)
            held.copies = None

    def _release_node(self, node: Node, low: int, high: int, held: RequestBlocks) -> None:
        """Blocks from `low` up to `high` go, and of those below each copied one has a holder less."""
        assert node.copies is not None
        cache = self.cache
        for block in sorted(node.copies, reverse=True):
            if block >= high:
                continue
            if low <= block:
                if block + 1 < high:
                    cache.push(node, block + 1, high)
                high = block
            elif low < high:
                cache.push(node, low, high)
                high = low
            copy = node.copies[block][0]
            if held.copies is not None:
                copy = held.copies.get((node, block), copy)
            copy.refs -= 1
            if not copy.refs:
                copy.entry = Entry(node, block, block + 1, copy)
                cache.queue.push(copy.entry)
                cache.num_free += 1
        if low < high:
            cache.push(node, low, high)


def _reaches(held: RequestBlocks, node: Node, block: int) -> bool:
    """Whether a request holds `block` of `node`."""
    if held.num_published <= block:
        return False
    return any(at is node and end > block for at, end in zip(held.nodes, held.ends, strict=True))
