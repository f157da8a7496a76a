"""What a prompt's tokens are called: a tree over runs of content, never split.

A node is one run of a stream: "from token `start` on, the tokens of `stream` from `offset` on",
without an end, for a run may always grow. A prompt is a path of nodes, one per merged segment, with
the position at which the path leaves each. Two prompts that differ from token p on leave a node at
p, for different children keyed (p, stream, offset); nothing is ever split, and naming content
changes no cache state.

A block belongs to the node in which its *last* token lies: a node that starts at token p owns blocks
from p // B on, a path that leaves it at token e reaches up to block e // B (exclusive). So a block
that straddles a branch belongs to the child, whose hash it has, and a node may own no block on a
path. Positions are counted in blocks from here on.

A node is dropped when it has nothing cached, no child, and no live path ends in it: memory follows
the pool and the live requests, not the past.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from replicast.sim.engine.free_queue import Entry
from replicast.sim.workload import Segment

if TYPE_CHECKING:
    from replicast.sim.engine.duplicates import Copy

Key = tuple[object, ...]  # parent, start token, stream, offset; compiled, of any length means built once


class Node:
    """One run of content and what is cached of it (`kv_cache.py` says what the fields mean)."""

    __slots__ = (
        "cached_end",
        "copies",
        "first_block",
        "held_end",
        "idle",
        "key",
        "later",
        "num_holders",
        "parent",
        "refs",
        "shorter",
        "writer",
    )

    def __init__(self, parent: Node | None, first_block: int, key: Key | None) -> None:
        self.parent = parent
        self.key = key
        self.first_block = first_block
        self.refs = 0  # children, and live paths that end here
        self.cached_end = first_block  # blocks first_block … cached_end are cached
        self.held_end = -1  # how far any holder reaches, -1 if nobody holds
        self.num_holders = 0  # that reach so far
        self.shorter: dict[int, int] | None = None  # end block -> holders that reach up to it, less far
        self.idle: list[Entry] = []  # cached, held by nobody: highest blocks first
        self.copies: dict[int, list[Copy]] | None = None  # blocks with several copies, some being made
        self.later: dict[int, list[Copy]] | None = None  # idle copies of others, but for the first
        self.writer: object | None = None  # the decode that will publish here

    def hold(self, end: int) -> None:
        """One more holder, up to block `end`."""
        held_end = self.held_end
        if end == held_end:
            self.num_holders += 1
        elif end < held_end:
            self._hold_shorter(end, 1)
        else:
            if held_end >= 0:
                self._hold_shorter(held_end, self.num_holders)
            self.held_end, self.num_holders = end, 1

    def _hold_shorter(self, end: int, number: int) -> None:
        if self.shorter is None:
            self.shorter = {}
        self.shorter[end] = self.shorter.get(end, 0) + number

    def drop(self, end: int) -> None:
        """One holder less of those that reach up to block `end`."""
        shorter = self.shorter
        if end < self.held_end:
            assert shorter is not None
            shorter[end] -= 1
            if not shorter[end]:
                del shorter[end]
            return
        self.num_holders -= 1
        if not self.num_holders:
            self.held_end = -1
            if shorter:
                self.held_end = max(shorter)
                self.num_holders = shorter.pop(self.held_end)

    def move(self, start: int, end: int) -> None:
        """A holder that reached up to block `start` now reaches up to `end`, further down."""
        if start == self.held_end and self.num_holders == 1:
            self.held_end = end
        else:
            self.drop(start)
            self.hold(end)


class ContentTree:
    """All content that is cached, or that a live request names."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node(None, 0, None)
        self._nodes: dict[Key, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def path(self, content: Iterable[Segment]) -> tuple[list[Node], list[int]]:
        """The nodes that `content` runs through, and the block at which it leaves each.

        The last node counts the path (`leave` gives it up).
        """
        table, block_size = self._nodes, self.block_size
        node = self.root
        nodes: list[Node] = []
        ends: list[int] = []
        position = 0
        now, due = None, 0  # the run goes on if the next segment is stream `now` at `due`
        for stream, offset, length in content:
            if length <= 0:
                continue
            if stream != now or offset != due:
                if nodes:
                    ends.append(position // block_size)
                key: Key = (node, position, stream, offset)
                child = table.get(key)
                if child is None:
                    child = table[key] = Node(node, position // block_size, key)
                    node.refs += 1
                node = child
                nodes.append(child)
                now = stream
            due = offset + length
            position += length
        ends.append(position // block_size)
        node.refs += 1
        return nodes, ends

    def leave(self, nodes: list[Node]) -> None:
        """A live path ends no longer here."""
        if nodes:
            node = nodes[-1]
            node.refs -= 1
            if not node.refs:
                self.prune(node)

    def prune(self, node: Node) -> None:
        """Drop `node` and what it alone kept, if nothing is cached or named there any more."""
        while not node.refs and node.cached_end == node.first_block:
            parent = node.parent
            if parent is None:
                return
            assert node.key is not None
            del self._nodes[node.key]
            parent.refs -= 1
            node = parent
