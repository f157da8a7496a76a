"""Layers with a state (Mamba, gated delta net): one block holds the state after the last token.

With `mamba_cache_mode` "align" a state can be hit where a chunk of a prompt ended on a block boundary.
The table has one place a block of tokens; in a step the request takes one block for the state at the
step's end, the places passed over stay null. The state before is copied from, so it is freed a step
later: blocks published meanwhile stay cached in the pool.

1. A hit is one state: the last published one at or before the look-up's end.
2. A state published in this step cannot be hit in it: its request waits for the next step.
3. Dense retention publishes every state (0.25), sparse (0.33) one per interval, that of the prompt's last
   boundary and that of a junction with another prompt.
4. Speculative blocks lie after the running state and move along with it.

Mode "none" (and "all") keeps a block for every place and frees those before the last token.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicast.sim.engine.hybrid.block_pool import NULL_BLOCK, BlockPool
from replicast.sim.engine.hybrid.groups.full import (
    NEVER,
    CacheSettings,
    Found,
    FullGroups,
    GroupBlocks,
    RequestBlocks,
    cdiv,
)
from replicast.sim.kv_groups import KVGroup


class StateGroups(FullGroups):
    """Equal groups of states in mode "none"."""

    def __init__(
        self, group: KVGroup, numbers: Sequence[int], pool: BlockPool, settings: CacheSettings
    ) -> None:
        super().__init__(group, numbers, pool, settings)
        # 0.25 takes all drafts for rejected; 0.33 knows which tokens are not computed yet.
        self.num_unsure = group.num_speculative_blocks if settings.is_25 else 0

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + 1 + self.num_unsure

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        super().drop(blocks, max(0, num_processed - self.num_unsure))


class AlignedStateGroups(StateGroups):
    """Equal groups of states in mode "align"."""

    def __init__(
        self, group: KVGroup, numbers: Sequence[int], pool: BlockPool, settings: CacheSettings
    ) -> None:
        super().__init__(group, numbers, pool, settings)
        self._published_this_step: set[int] = set()

    def new_step_starts(self) -> None:
        if self._published_this_step:
            self._published_this_step.clear()

    def find(self, cached: list[dict[int, int]], hashes: list[int], num_tokens: int) -> Found:
        step, per_hit = self.hashes_per_block, self.settings.alignment // self.block_size
        first = cached[0]
        end = num_tokens // self.block_size
        for place in range(end - end % per_hit - 1, -1, -per_hit):
            block_hash = hashes[(place + 1) * step - 1]
            if block_hash in first:
                blocks: list[list[int]] = []
                for table in cached:
                    block = table.get(block_hash)
                    if block is None:
                        break
                    blocks.append([block])
                else:
                    return Found(place, blocks)
        return Found(0, [[] for _ in cached])

    def reachable(self, blocks: GroupBlocks, end: int, held: RequestBlocks) -> Sequence[int]:
        interval, alignment, size = self.settings.retention_interval, self.settings.alignment, self.block_size
        ids, first = blocks.ids[0], blocks.num_published
        if interval is None:
            return [place for place in range(first, end) if ids[place] != NULL_BLOCK]
        last = (held.num_prompt_tokens - 1) // alignment * alignment // size - 1
        junction = held.shared_prefix_boundary // alignment * alignment // size - 1
        if not interval and end == first + 1:
            return [first] if ids[first] != NULL_BLOCK and first in (last, junction) else []
        per_interval = interval // size or NEVER
        return [
            place
            for place in range(first, end)
            if ids[place] != NULL_BLOCK and (place in (last, junction) or not (place + 1) % per_interval)
        ]

    def were_published(self, names: list[int]) -> None:
        self._published_this_step.update(names)

    def is_refused(self, found: Found) -> bool:
        blocks = found.blocks[0]
        return bool(blocks) and self.pool.block_hash[blocks[-1]] in self._published_this_step

    def num_to_admit(self, found: Found, num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        missing = cdiv(num_tokens, self.block_size) + self.num_drafts - found.num_places
        return (1 + self.num_drafts if missing > 0 else missing) * self.count

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        # Negative where rejected drafts left a place too many: vLLM counts it against other groups.
        missing = cdiv(num_tokens, self.block_size) + self.num_drafts - len(blocks.ids[0])
        return min(missing, 1) * self.count

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        """Take the block of the state at the step's end, after the places passed over."""
        drafts = self.num_drafts
        places = cdiv(num_tokens, self.block_size) + drafts
        before = len(blocks.ids[0])
        if places <= before:
            return
        running = places - drafts - 1
        if blocks.has_state:
            blocks.last_state = before - 1 - drafts
        elif before:
            blocks.last_state = before - 1  # the state that was hit
        for ids in blocks.ids:
            if running > before:
                ids += [NULL_BLOCK] * (running - before)
            if not drafts:
                ids.append(self.pool.take_one())
                continue
            if blocks.has_state:
                for place in range(before - drafts, min(before, running)):
                    ids.append(ids[place])
                    ids[place] = NULL_BLOCK
            self.pool.take(places - len(ids), ids)
        blocks.has_state = True
        self.note(blocks)

    def note(self, blocks: GroupBlocks) -> None:
        super().note(blocks)
        if blocks.last_state >= 0:
            blocks.next_drop = min(blocks.next_drop, self.after_drop(blocks.last_state))

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        num_processed = max(0, num_processed - self.num_unsure)
        first_ids = blocks.ids[0]
        end = min(self.num_skipped(num_processed), len(first_ids))
        first = blocks.num_dropped
        if self.settings.is_25:  # it stops at the gap that a chunk left
            first = end
            while first > 0 and first_ids[first - 1] != NULL_BLOCK:
                first -= 1
        last = blocks.last_state
        drops_last = 0 <= last < cdiv(num_processed, self.block_size) - 1
        for ids in blocks.ids:
            if first < end:
                freed = ids[first:end]
                ids[first:end] = [NULL_BLOCK] * (end - first)
                self.pool.free(freed)
            if drops_last and ids[last] != NULL_BLOCK:
                freed = [ids[last]]
                ids[last] = NULL_BLOCK
                self.pool.free(freed)
        if drops_last:
            blocks.last_state = -1
        blocks.num_dropped = max(blocks.num_dropped, end)
        self.note(blocks)
