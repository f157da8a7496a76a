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

from replicast.sim.engine.hybrid.block_pool import GroupPool, Key, Table
from replicast.sim.engine.hybrid.groups.full import CacheSettings, Found, FullGroups, GroupBlocks
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.kv_groups import KVGroup

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class WindowGroups(FullGroups):
    """Equal groups of sliding-window attention."""

    def __init__(
        self,
        group: KVGroup,
        count: int,
        pool: GroupPool,
        tree: int,
        tables: list[Table],
        settings: CacheSettings,
    ) -> None:
        super().__init__(group, count, pool, tree, tables, settings)
        assert group.sliding_window is not None, "a sliding-window group has a window"
        self.window: int = group.sliding_window
        self.num_needed = cdiv(self.window - 1, self.block_size)
        most_tokens = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        # It may start inside a block.
        self.most_admission_tokens = (cdiv(most_tokens, self.block_size) + 1) * self.block_size

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        """From right to left: the first run long enough, else what run there is from the start."""
        per_hit, nodes = self.alignment // self.block_size, held.paths[self.tree][0]
        first, others = tables[0].first, tables[1:]
        run: list[Key] = []  # cached, the last place first
        index = len(nodes) - 1
        for place in range(num_tokens // self.block_size - 1, -1, -1):
            while nodes[index].first_block > place:
                index -= 1
            key = nodes[index], place
            if key not in first or (others and not _in_all(others, key)):
                run.clear()
                continue
            if run or not (place + 1) % per_hit:
                run.append(key)
                if len(run) >= self.num_needed:
                    break
        run.reverse()
        if len(run) < self.num_needed:
            del run[len(run) - len(run) % per_hit :]
        return Found(run[0][1] if run else 0, [[table.first[key] for key in run] for table in tables])

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def reachable(self, blocks: GroupBlocks, end: int, held: HybridState) -> Sequence[int]:
        interval, alignment = self.settings.retention_interval, self.alignment
        first, needed = blocks.num_published, self.num_needed
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


def _in_all(tables: Sequence[Table], key: Key) -> bool:
    return all(key in table.first for table in tables)
