"""Sliding-window attention: a token looks at the last `sliding_window` tokens only, itself included.

Blocks wholly before the window are freed at the next allocation and replaced by null. So a hit needs
the blocks of the last `sliding_window - 1` tokens before its end, and only those. The admission check
counts no more blocks than a request holds at one time.

What is published: blocks that a hit can end with. Hits end on multiples of the alignment (all of them
with dense retention), with sparse retention (0.33) once per interval, at the prompt's last boundary and
where another prompt was seen to branch off.
"""

from __future__ import annotations

from replicast.sim.kv_groups import KVGroup

from reference.block_pool import NULL_BLOCK, BlockPool
from reference.groups.full import Cached, CacheSettings, FullGroup, RequestBlocks, cdiv


class WindowGroup(FullGroup):
    """One group of sliding-window attention."""

    def __init__(self, group: KVGroup, number: int, pool: BlockPool, settings: CacheSettings) -> None:
        super().__init__(group, number, pool, settings)
        assert group.sliding_window is not None, "a sliding-window group has a window"
        self.window = group.sliding_window
        self.num_needed = cdiv(self.window - 1, self.block_size)
        most_tokens = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        self.max_admission_blocks = cdiv(most_tokens, self.block_size) + 1  # it may start inside a block

    def find(self, cached: Cached, num_tokens: int) -> list[tuple[int, ...]]:
        """From right to left: the first run long enough, else what run there is from the start."""
        found: dict[int, tuple[int, ...]] = {}
        run = 0
        for number in range(num_tokens // self.block_size - 1, -1, -1):
            blocks = cached(number)
            if blocks is None:
                run = 0
                continue
            if run == 0 and (number + 1) * self.block_size % self.settings.alignment:
                continue
            found[number] = blocks
            run += 1
            if run >= self.num_needed:
                nulls = (NULL_BLOCK,) * len(blocks)
                return [found[i] if i >= number else nulls for i in range(number + run)]
        return self.aligned([found[i] for i in range(run)])

    def num_skipped_tokens(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1)

    def is_reachable(self, number: int, held: RequestBlocks) -> bool:
        interval = self.settings.retention_interval
        segment = self.settings.alignment if interval is None else interval
        if segment:
            per_segment = segment // self.block_size
            if number % per_segment >= per_segment - self.num_needed:
                return True
        return interval is not None and any(
            end - self.num_needed <= number < end for end in self.reachable_ends(held)
        )

    def reachable_ends(self, held: RequestBlocks) -> tuple[int, ...]:
        """Blocks before the boundaries that sparse retention keeps."""
        alignment = self.settings.alignment
        boundaries = (held.num_prompt_tokens - 1, held.shared_prefix_boundary)
        return tuple(tokens // alignment * alignment // self.block_size for tokens in boundaries)
