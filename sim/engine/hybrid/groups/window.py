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

from replicast.sim.engine.hybrid.block_hash import BlockHashes
from replicast.sim.engine.hybrid.block_pool import BlockPool
from replicast.sim.engine.hybrid.groups.full import (
    CacheSettings,
    Found,
    FullGroups,
    GroupBlocks,
    RequestBlocks,
    cdiv,
)
from replicast.sim.kv_groups import KVGroup


class WindowGroups(FullGroups):
    """Equal groups of sliding-window attention."""

    def __init__(
        self, group: KVGroup, numbers: Sequence[int], pool: BlockPool, settings: CacheSettings
    ) -> None:
        super().__init__(group, numbers, pool, settings)
        assert group.sliding_window is not None, "a sliding-window group has a window"
        self.window: int = group.sliding_window
        self.num_needed = cdiv(self.window - 1, self.block_size)
        most_tokens = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        # It may start inside a block.
        self.most_admission_tokens = (cdiv(most_tokens, self.block_size) + 1) * self.block_size

    def find(self, cached: list[dict[int, int]], hashes: BlockHashes, num_tokens: int) -> Found:
        """From right to left: the first run long enough, else what run there is from the start."""
        step, per_hit = self.hashes_per_block, self.alignment // self.block_size
        names = hashes.first(num_tokens // self.block_size * step)
        first, others = cached[0], cached[1:]
        run = end = 0  # places end - run … end are cached
        for place in range(num_tokens // self.block_size - 1, -1, -1):
            block_hash = names[(place + 1) * step - 1]
            if block_hash not in first or (others and not _in_all(others, block_hash)):
                run = 0
                continue
            if run == 0:
                if (place + 1) % per_hit:
                    continue
                end = place + 1
            run += 1
            if run >= self.num_needed:
                break
        if run < self.num_needed:
            run = end = run - run % per_hit
        places = range(end - run, end)
        return Found(
            end - run, [[table[names[(place + 1) * step - 1]] for place in places] for table in cached]
        )

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + self.window - 1

    def reachable(self, blocks: GroupBlocks, end: int, held: RequestBlocks) -> Sequence[int]:
        interval, alignment = self.settings.retention_interval, self.alignment
        first, needed = blocks.num_published, self.num_needed
        per_segment = (alignment if interval is None else interval) // self.block_size
        if interval is None and per_segment <= needed:
            return range(first, end)
        wanted: set[int] = set()
        if interval is not None:
            for tokens in (held.num_prompt_tokens - 1, held.shared_prefix_boundary):
                stop = tokens // alignment * alignment // self.block_size
                wanted.update(range(max(first, stop - needed), min(end, stop)))
        if per_segment:
            for start in range(first // per_segment * per_segment, end, per_segment):
                stop = start + per_segment
                wanted.update(range(max(first, start, stop - needed), min(end, stop)))
        return sorted(wanted)


def _in_all(tables: list[dict[int, int]], block_hash: int) -> bool:
    return all(block_hash in table for table in tables)
