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
    """What is cached of equal groups: a row of the blocks published `first`, None where one is gone, and
    those published `later`, in that order.
    """

    __slots__ = ("first", "later", "num_groups", "pool", "tree")

    def __init__(self, tree: ContentTree, num_groups: int, pool: GroupPool) -> None:
        self.tree = tree
        self.num_groups = num_groups
        self.pool = pool
        self.first: dict[Key, list[Block | None]] = {}
        self.later: dict[Key, list[Block]] = {}


class GroupEntry(Entry):
    """Something in the free queue that is no run of content."""

    __slots__ = ()

    def evict(self, most: int) -> int:
        """Up to so many blocks of it were taken from the head of the queue; how many."""
        raise NotImplementedError


class Block(GroupEntry):
    """A cached block of a window or a state; in the free queue while it has no `holders`."""

    __slots__ = ("group", "holders", "key", "table")

    def __init__(self, key: Key, table: Table, group: int) -> None:
        self.node, place = key
        self.low = place
        self.high = place + 1
        self.copy = NOT_IN_A_RUN
        self.key = key
        self.table = table
        self.group = group
        self.holders = 1

    def evict(self, most: int) -> int:
        prev, after = self.prev, self.next
        prev.next = after
        after.prev = prev
        table, key, group = self.table, self.key, self.group
        row = table.first.get(key)
        later = table.later.get(key) if table.later else None
        if later is not None:
            if row is None or row[group] is not self:
                later.remove(self)
            else:
                _succeed(row, group, later)
            if not later:
                del table.later[key]
        elif row is not None:
            row[group] = None
        if row is not None and row[group] is None and row.count(None) == table.num_groups:
            del table.first[key]
        node = key[0]
        node.refs -= 1
        if not node.refs:
            table.tree.prune(node)
        return 1


def cached_row(tables: Sequence[Table], key: Key) -> list[Block] | None:
    """The blocks that a look-up finds; None unless all of the groups have one."""
    found: list[Block] = []
    for table in tables:
        row = table.first.get(key)
        if row is None:
            return None
        for block in row:
            if block is None:
                return None
            found.append(block)
    return found


class GroupPool(KVCache):
    """The pool of all groups."""

    def publish_row(self, key: Key, table: Table) -> list[Block]:
        """Let look-ups find the blocks that a request holds in equal groups."""
        blocks = [Block(key, table, group) for group in range(table.num_groups)]
        row = table.first.get(key)
        if row is None:
            table.first[key] = [*blocks]
        else:
            for block in blocks:
                if row[block.group] is None:
                    row[block.group] = block
                else:
                    table.later.setdefault(key, []).append(block)
        key[0].refs += table.num_groups  # the node stays as long as something is cached of it
        return blocks

    def evict_from(self, entry: Entry, most: int) -> int:
        return entry.evict(most) if isinstance(entry, GroupEntry) else super().evict_from(entry, most)

    def hold_row(self, blocks: Sequence[Block]) -> None:
        """Hold cached blocks, so that they cannot be taken."""
        for block in blocks:
            if not block.holders:
                prev, after = block.prev, block.next
                prev.next = after
                after.prev = prev
                self.num_free -= 1
            block.holders += 1

    def let_go(self, rows: list[list[Block]]) -> None:
        """Let go of cached blocks of equal groups, a row a place: group by group, the last place first."""
        if len(rows) > 1:
            rows = [[row[group] for row in reversed(rows)] for group in range(len(rows[0]))]
        end, freed = self.queue.end, 0
        last = end.prev
        for row in rows:
            for block in row:
                block.holders -= 1
                if not block.holders:
                    freed += 1
                    last.next = block
                    block.prev = last
                    last = block
        last.next = end
        end.prev = last
        self.num_free += freed

    def let_go_unnamed(self, number: int) -> None:
        """Let go of blocks that cache nothing."""
        self.unhashed += number
        self.num_free += number


def _succeed(row: list[Block | None], group: int, later: list[Block]) -> None:
    """The block of a group that was published next takes its place in the row, if there is one."""
    row[group] = None
    for index, block in enumerate(later):
        if block.group == group:
            row[group] = later.pop(index)
            return
