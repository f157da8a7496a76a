"""Sliding-window attention: a token looks at the last `sliding_window` tokens only, itself included.

Blocks wholly before the window are freed at the next allocation and replaced by null. So a hit needs
the blocks of the last `sliding_window - 1` tokens before its end, and only those. The admission check
counts no more blocks than a request holds at one time.

What is published: blocks that a hit can end with. Hits end on multiples of the alignment (all of them
with dense retention), with sparse retention (0.33) once per interval, at the prompt's last boundary and
where another prompt was seen to branch off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Block, Table, cached_row
from replicast.sim.engine.hybrid.groups.full import Found, FullGroups, Parts
from replicast.sim.engine.kv_cache import cdiv

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class WindowGroups(FullGroups):
    """Equal groups of sliding-window attention."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        group, settings = parts.group, parts.settings
        assert group.sliding_window is not None, "a sliding-window group has a window"
        self.window: int = group.sliding_window
        self.num_needed = cdiv(self.window - 1, self.block_size)
        most_tokens = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        # It may start inside a block.
        self.most_admission_tokens = (cdiv(most_tokens, self.block_size) + 1) * self.block_size

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        """From right to left: the first run long enough, else what run there is from the start."""
        per_hit, nodes = self.alignment // self.block_size, held.paths[self.tree][0]
        start, rows = 0, list[list[Block]]()  # the last place first
        index = len(nodes) - 1
        for place in range(num_tokens // self.block_size - 1, -1, -1):
            while nodes[index].first_block > place:
                index -= 1
            row = cached_row(tables, (nodes[index], place))
            if row is None:
                rows.clear()
                continue
            if rows or not (place + 1) % per_hit:
                start = place
                rows.append(row)
                if len(rows) >= self.num_needed:
                    break
        rows.reverse()
        if len(rows) < self.num_needed:
            del rows[len(rows) - len(rows) % per_hit :]
        return Found(start if rows else 0, rows)

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def reachable(self, first: int, end: int, held: HybridState) -> Sequence[int]:
        interval, alignment, needed = self.settings.retention_interval, self.alignment, self.num_needed
        per_segment = (alignment if interval is None else interval) // self.block_size
        if interval is None and per_segment <= needed:
            return range(first, end)
        wanted: set[int] = set()
        if interval is not None:
            for tokens in (held.request.num_prompt_tokens - 1, held.shared_prefix_boundary):
                stop = tokens // alignment * alignment // self.block_size
                wanted.update(range(max(first, stop - needed), min(end, stop)))
        if per_segment:
            for start in range(first // per_segment * per_segment, end, per_segment):
                stop = start + per_segment
                wanted.update(range(max(first, start, stop - needed), min(end, stop)))
        return sorted(wanted)
