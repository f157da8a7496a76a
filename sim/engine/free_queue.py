"""Which cached blocks are taken next: a queue of intervals, each from its high end down.

vLLM's free queue is always [blocks without hash][blocks with hash, oldest freed first]: the former
are put at the front, the latter at the back, and both leave only at the head or because somebody
needs what they cache. Blocks without hash are all alike, so `kv_cache.py` keeps them as one number;
here are the others. One request frees its blocks from last to first, so an entry `low … high` of a
node stands for blocks high - 1, …, low in that order.

A doubly linked list, as vLLM's own (`FreeKVCacheBlockQueue`): an entry leaves from anywhere, and an
entry that must be parted stays in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicast.sim.engine.content_tree import Node
    from replicast.sim.engine.duplicates import Copy


class Entry:
    """Blocks `low … high` of `node`, or one `copy` of a block that has several."""

    __slots__ = ("copy", "high", "low", "next", "node", "prev")

    prev: Entry
    next: Entry

    def __init__(self, node: Node, low: int, high: int, copy: Copy | None = None) -> None:
        self.node = node
        self.low = low
        self.high = high
        self.copy = copy


class FreeQueue:
    """Entries in the order in which they will be taken."""

    def __init__(self, root: Node) -> None:
        self.end = end = Entry(root, 0, 0)
        end.prev = end.next = end

    def __iter__(self) -> Iterator[Entry]:
        entry = self.end.next
        while entry is not self.end:
            yield entry
            entry = entry.next

    def push(self, entry: Entry) -> None:
        """Put at the back."""
        end = self.end
        last = end.prev
        entry.prev = last
        entry.next = end
        last.next = end.prev = entry

    def insert_after(self, place: Entry, entry: Entry) -> None:
        """Put right behind `place`."""
        entry.prev = place
        entry.next = place.next
        place.next.prev = entry
        place.next = entry

    def unlink(self, entry: Entry) -> None:
        """Take out, wherever it stands."""
        prev, after = entry.prev, entry.next
        prev.next = after
        after.prev = prev
