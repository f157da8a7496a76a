"""One pool for all groups: what is cached of windows and states, beside the runs of full attention.

The rules are those of every model (`sim/engine/block_pool.py`): new blocks come from the head of the free
queue and lose what they cached; freed ones go, without content, to the front, with it to the back, last
block first. Blocks without content are all alike and only counted. Those of full attention are runs of
content; a `Block` of another group has an entry of its own in the same queue.

What a block holds is called as in the content tree: by the node in which its last token lies, and its place
among the blocks of the path. Several blocks may hold the same; a look-up takes the one published first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from replicast.sim.engine.content_tree import ContentTree, Node
from replicast.sim.engine.duplicates import Copy
from replicast.sim.engine.free_queue import Entry
from replicast.sim.engine.kv_cache import KVCache

Path = tuple[list[Node], list[int]]  # nodes, and the place at which the path leaves each
Key = tuple[Node, int]

NOT_IN_A_RUN = Copy(0, None)


def key_of(path: Path, place: int) -> Key:
    """What block `place` of a path is called."""
    return path[0][bisect_right(path[1], place)], place


class Table:
    """What is cached of one group: the block published first, and those published later."""

    __slots__ = ("first", "later", "tree")

    def __init__(self, tree: ContentTree) -> None:
        self.tree = tree
        self.first: dict[Key, Block] = {}
        self.later: dict[Key, list[Block]] = {}


class Block(Entry):
    """A cached block of a window or a state; in the free queue while it has no `holders`."""

    __slots__ = ("holders", "key", "table")

    def __init__(self, key: Key, table: Table) -> None:
        super().__init__(key[0], key[1], key[1] + 1, NOT_IN_A_RUN)
        self.key = key
        self.table = table
        self.holders = 1


class GroupPool(KVCache):
    """The pool of all groups."""

    def publish_blocks(self, key: Key, tables: list[Table]) -> list[Block]:
        """Let look-ups find the blocks that a request holds in equal groups."""
        blocks: list[Block] = []
        for table in tables:
            block = Block(key, table)
            if key in table.first:
                table.later.setdefault(key, []).append(block)
            else:
                table.first[key] = block
            blocks.append(block)
        key[0].refs += len(blocks)  # the node stays as long as something is cached of it
        return blocks

    def evict_single(self, entry: Entry) -> None:
        if not isinstance(entry, Block):
            super().evict_single(entry)
            return
        table, key = entry.table, entry.key
        later = table.later.get(key) if table.later else None
        if later is None:
            del table.first[key]
        else:
            if table.first[key] is entry:
                table.first[key] = later.pop(0)
            else:
                later.remove(entry)
            if not later:
                del table.later[key]
        node = entry.node
        node.refs -= 1
        if not node.refs:
            table.tree.prune(node)

    def hold_blocks(self, blocks: Sequence[Block]) -> None:
        """Hold cached blocks, so that they cannot be taken."""
        for block in blocks:
            if not block.holders:
                self.queue.unlink(block)
                self.num_free -= 1
            block.holders += 1

    def let_go_each(self, blocks: list[Block]) -> None:
        """Let go of cached blocks one by one."""
        for block in blocks:
            block.holders -= 1
            if not block.holders:
                self.num_free += 1
                self.queue.push(block)

    def let_go(self, blocks: Sequence[Block | None]) -> None:
        """Let go of blocks that a request holds, given first to last; None: one that caches nothing."""
        freed = plain = 0
        for block in reversed(blocks):
            if block is None:
                plain += 1
                continue
            block.holders -= 1
            if not block.holders:
                freed += 1
                self.queue.push(block)
        self.unhashed += plain
        self.num_free += freed + plain

    def let_go_unnamed(self, number: int) -> None:
        """Let go of blocks that cache nothing."""
        self.unhashed += number
        self.num_free += number
