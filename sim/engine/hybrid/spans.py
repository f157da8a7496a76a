"""What is cached of windows, in runs of places: the blocks of equal groups over a run share their fate.

A request that leaves places behind lets go of them together: group by group, in each the last place first. So
one entry of the free queue stands for all of them, however many, and a prompt costs what its content has of
nodes and chunks, not of blocks.

Blocks are told apart (`Block`) only where that does not hold: copies of what is cached already, and an entry
of the queue of which something has copies, or is taken and published again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from replicast.sim.engine.free_queue import Entry
from replicast.sim.engine.hybrid.block_pool import NOT_IN_A_RUN, Block, GroupEntry, Key, Path, Table

if TYPE_CHECKING:
    from replicast.sim.engine.content_tree import ContentTree, Node
    from replicast.sim.engine.hybrid.block_pool import GroupPool


class Span:
    """Places `low … high` of a node, cached in all groups; `entry`: in the free queue, without holders."""

    __slots__ = ("entry", "high", "holders", "low", "node")

    def __init__(self, node: Node, low: int, high: int, holders: int, entry: SpanEntry | None) -> None:
        self.node = node
        self.low = low
        self.high = high
        self.holders = holders
        self.entry = entry


class SpanEntry(GroupEntry):
    """What a request let go of at once: `spans`, and before them what is `taken` from the first group.

    Once nothing of the first group is left, `num_left` blocks of the others are.
    """

    __slots__ = ("num_left", "spans", "table", "taken")

    def __init__(self, table: SpanTable, spans: list[Span]) -> None:
        self.node = spans[0].node
        self.low = self.high = 0
        self.copy = NOT_IN_A_RUN
        self.table = table
        self.spans = spans
        self.taken: list[tuple[Node, int, int]] = []
        self.num_left = 0

    def evict(self, most: int) -> int:
        return self.table.evict(self, most)

    def blocks(self) -> Iterator[tuple[int, Key]]:
        """Group and place of each block, in the order in which they are taken."""
        rest = [(span.node, span.low, span.high) for span in self.spans]
        keys = [(node, place) for node, low, high in rest for place in range(high - 1, low - 1, -1)]
        yield from ((0, key) for key in keys)
        taken = [(node, place) for node, low, high in self.taken for place in range(high - 1, low - 1, -1)]
        others = [(group, key) for group in range(1, self.table.num_groups) for key in taken + keys]
        yield from others[len(others) - self.num_left if self.num_left else 0 :]

    def meets(self, node: Node, low: int, high: int) -> bool:
        """Whether something of these places is in it."""
        for span in self.spans:
            if span.node is node and span.low < high and low < span.high:
                return True
        return any(at is node and start < high and low < stop for at, start, stop in self.taken)


class SpanTable(Table):
    """What is cached of equal groups of windows. `half_taken`: the entry at the head of the queue."""

    __slots__ = ("half_taken", "spans")

    def __init__(self, tree: ContentTree, num_groups: int, pool: GroupPool) -> None:
        super().__init__(tree, num_groups, pool)
        self.spans: dict[Node, list[Span]] = {}  # in the order of their places
        self.half_taken: SpanEntry | None = None

    # Look-up

    def stretch(self, node: Node, place: int) -> tuple[bool, int]:
        """Whether a place of a node is cached in all groups, and from where on up to it that is so."""
        low = node.first_block
        for span in reversed(self.spans.get(node, ())):
            if span.low <= place:
                if span.high > place:
                    return True, span.low
                low = span.high
                break
        if not self.first:
            return False, low
        row = self.first.get((node, place))
        return row is not None and None not in row, place

    def spans_in(self, path: Path, low: int, high: int) -> list[Span]:
        """The spans of a path's places `low … high`, the last first; those that reach beyond are parted."""
        found: list[Span] = []
        nodes, ends = path
        for index in range(len(nodes) - 1, -1, -1):
            node = nodes[index]
            first, end = max(node.first_block, low), min(ends[index], high)
            if ends[index] <= low:
                break
            spans = self.spans.get(node)
            if first >= end or spans is None:
                continue
            at = len(spans) - 1
            while at >= 0 and spans[at].high > first:
                span = spans[at]
                if span.low < end:
                    if span.high > end:
                        span = self._part(spans, at, end)
                    if span.low < first:
                        self._part(spans, at, first)
                    found.append(span)
                at -= 1
        return found

    def _part(self, spans: list[Span], at: int, place: int) -> Span:
        """Part a span before `place`; the lower one."""
        span = spans[at]
        entry = span.entry
        lower = Span(span.node, span.low, place, span.holders, entry)
        span.low = place
        span.node.refs += 1
        spans.insert(at, lower)
        if entry is not None:
            entry.spans.insert(entry.spans.index(span) + 1, lower)
        return lower

    # Holding

    def hold(self, span: Span) -> None:
        """One more holder."""
        span.holders += 1
        entry = span.entry
        if entry is None:
            return
        span.entry = None
        entry.spans.remove(span)
        self.pool.num_free -= (span.high - span.low) * self.num_groups
        if not entry.spans:
            self._first_group_is_taken(entry)

    def let_go(self, spans: list[Span]) -> None:
        """One holder less of each, at once, the last place first."""
        idle: list[Span] = []
        number = 0
        for span in spans:
            span.holders -= 1
            if not span.holders:
                idle.append(span)
                number += span.high - span.low
        if idle:
            entry = SpanEntry(self, idle)
            for span in idle:
                span.entry = entry
            self.pool.queue.push(entry)
            self.pool.num_free += number * self.num_groups

    def let_go_apart(self, spans: list[Span], cached: dict[int, list[Block]]) -> None:
        """The same beside blocks that are told apart: so are those that have no other holder."""
        for span in spans:
            if span.holders > 1:
                span.holders -= 1
                continue
            for place in range(span.low, span.high):
                cached[place] = self.pool.publish_row((span.node, place), self)
            self._forget(span)

    # Publishing

    def publish(self, path: Path, low: int, high: int, own_end: int, cached: dict[int, list[Block]]) -> None:
        """Let look-ups find a request's places; those that are copies go to `cached`, block by block.

        It holds the places before `own_end`.
        """
        nodes, ends = path
        for index in range(len(nodes)):
            node = nodes[index]
            first, end = max(node.first_block, low), min(ends[index], high)
            if first < end:
                self._publish_in(node, first, end, own_end, cached)

    def _publish_in(
        self, node: Node, low: int, high: int, own_end: int, cached: dict[int, list[Block]]
    ) -> None:
        half_taken = self.half_taken
        if half_taken is not None and half_taken.meets(node, low, high):
            self.tell_apart(half_taken)
        spans = self.spans.get(node)
        if spans is None:
            spans = self.spans[node] = []
        at = len(spans)
        while at and spans[at - 1].high > low:
            at -= 1
        has_rows = bool(self.first)
        place = low
        while place < high:
            if at < len(spans) and spans[at].low <= place:  # cached already
                stop = min(spans[at].high, high)
                for copied in range(place, stop):
                    cached[copied] = self.publish_later((node, copied))
                at += 1
            elif has_rows and (node, place) in self.first:
                stop = place + 1
                cached[place] = self.pool.publish_row((node, place), self)
            else:
                stop = min(spans[at].low, high) if at < len(spans) else high
                if has_rows:
                    stop = next((p for p in range(place, stop) if (node, p) in self.first), stop)
                before = spans[at - 1] if at else None
                if before is not None and before.high == place == own_end and before.holders == 1:
                    before.high = stop
                else:
                    spans.insert(at, Span(node, place, stop, 1, None))
                    node.refs += 1
                    at += 1
            place = stop
        if not spans:
            del self.spans[node]

    def publish_later(self, key: Key) -> list[Block]:
        """The copy of what a span holds."""
        blocks = [Block(key, self, group) for group in range(self.num_groups)]
        self.later.setdefault(key, []).extend(blocks)
        key[0].refs += self.num_groups
        return blocks

    # Eviction

    def evict(self, entry: SpanEntry, most: int) -> int:
        """Take up to so many blocks of the entry at the head of the queue; how many it were."""
        if not entry.spans:
            number = min(most, entry.num_left)
            entry.num_left -= number
            if not entry.num_left:
                self._is_taken(entry)
            return number
        if entry is not self.half_taken:
            if self.later and self._has_later(entry):
                self.tell_apart(entry)
                return 0
            self.half_taken = entry
        number = 0
        while number < most and entry.spans:
            span = entry.spans[0]
            low = max(span.low, span.high - most + number)
            self._note_taken(entry, span.node, low, span.high)
            number += span.high - low
            span.high = low
            if low == span.low:
                del entry.spans[0]
                self._forget(span)
        if not entry.spans:
            self._first_group_is_taken(entry)
        return number

    def _has_later(self, entry: SpanEntry) -> bool:
        """Whether a block of an entry has copies."""
        for span in entry.spans:
            for place in range(span.low, span.high):
                if (span.node, place) in self.later:
                    return True
        return False

    def _note_taken(self, entry: SpanEntry, node: Node, low: int, high: int) -> None:
        taken = entry.taken
        if taken and taken[-1][0] is node and taken[-1][1] == high:
            taken[-1] = node, low, taken[-1][2]
        else:
            taken.append((node, low, high))
            node.refs += 1

    def _first_group_is_taken(self, entry: SpanEntry) -> None:
        number = sum(high - low for _, low, high in entry.taken)
        entry.num_left = number * (self.num_groups - 1)
        if not entry.num_left:
            self._is_taken(entry)

    def _is_taken(self, entry: SpanEntry) -> None:
        """Nothing is left of it."""
        self.pool.queue.unlink(entry)
        if self.half_taken is entry:
            self.half_taken = None
        for node, _, _ in entry.taken:
            self._drop_ref(node)

    def _forget(self, span: Span) -> None:
        spans = self.spans[span.node]
        spans.remove(span)
        if not spans:
            del self.spans[span.node]
        self._drop_ref(span.node)

    def _drop_ref(self, node: Node) -> None:
        node.refs -= 1
        if not node.refs:
            self.tree.prune(node)

    def tell_apart(self, entry: SpanEntry) -> None:
        """Give each block of an entry one of its own, in its place."""
        last: Entry = entry
        for group, key in entry.blocks():
            block = Block(key, self, group)
            block.holders = 0
            row = self.first.get(key)
            if row is None:
                row = self.first[key] = [None] * self.num_groups
            row[group] = block
            key[0].refs += 1
            self.pool.queue.insert_after(last, block)
            last = block
        while entry.spans:
            self._forget(entry.spans.pop())
        self._is_taken(entry)
