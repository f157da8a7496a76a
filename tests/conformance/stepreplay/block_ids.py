"""Which block is which, for an engine that keeps only how many there are.

vLLM's blocks have numbers; the product's engine needs none (`sim/engine/block_pool.py`). They follow from
what it did: who hit, took, published and freed how many blocks, in which order. This file keeps vLLM's
free queue of numbers (`vllm/v1/core/block_pool.py`) by those four moves, and decides nothing. What a block
holds is called as the engine calls it, by a node of its content tree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict

from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.engine.content_tree import Node

Name = tuple[Node, int]  # block number so of a node
NO_SUCH_BLOCK = -1


class BlockIds:
    """The blocks of one engine by number, from 1."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.of: defaultdict[RequestBlocks, list[int]] = defaultdict(list)
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self.name: dict[int, Name] = {}  # of the blocks that cache something
        self._copies: defaultdict[Name, list[int]] = defaultdict(list)  # first published first
        self._holders: Counter[int] = Counter()
        self._num_published: Counter[RequestBlocks] = Counter()

    def hit(self, held: RequestBlocks, num_blocks: int) -> None:
        """A request holds the cached blocks that its content starts with."""
        for number in range(num_blocks):
            block = self._copies[_name(held, number)][0]
            self.queue.pop(block, None)
            self._holders[block] += 1
            self.of[held].append(block)
        self._num_published[held] = num_blocks

    def grow(self, held: RequestBlocks, num_blocks: int) -> None:
        """A request takes blocks from the head of the queue until it has so many."""
        blocks = self.of[held]
        while len(blocks) < num_blocks:
            block, _ = self.queue.popitem(last=False)
            name = self.name.pop(block, None)
            if name is not None:
                self._copies[name].remove(block)
            self._holders[block] = 1
            blocks.append(block)

    def publish(self, held: RequestBlocks, num_blocks: int) -> None:
        """The first `num_blocks` of a request are cached now."""
        if not held.nodes:
            return  # caching is off
        for number in range(self._num_published[held], num_blocks):
            block = self.of[held][number]
            self.name[block] = name = _name(held, number)
            self._copies[name].append(block)
            self._num_published[held] = number + 1

    def free(self, held: RequestBlocks) -> None:
        """Let go from the last to the first: what caches nothing to the front, the rest to the back."""
        front: list[int] = []
        for block in reversed(self.of.pop(held, [])):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if block in self.name:
                self.queue[block] = None
            else:
                front.append(block)
        for block in reversed(front):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)
        self._num_published.pop(held, None)

    def in_order(self, num_unnamed: int, names: list[Name]) -> list[int]:
        """The free blocks as an engine's own queue has them: those that cache nothing, then `names`."""
        idle: defaultdict[Name, list[int]] = defaultdict(list)
        unnamed: list[int] = []
        for block in self.queue:
            if block in self.name:
                idle[self.name[block]].append(block)
            else:
                unnamed.append(block)
        cached = [idle[name].pop(0) if idle[name] else NO_SUCH_BLOCK for name in names]
        return unnamed[:num_unnamed] + cached


def _name(held: RequestBlocks, number: int) -> Name:
    return held.nodes[bisect_right(held.ends, number)], number
