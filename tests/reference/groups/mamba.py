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

from replicast.sim.kv_groups import KVGroup

from reference.block_pool import NULL_BLOCK, BlockPool
from reference.groups.full import (
    Cached,
    CacheSettings,
    FullGroup,
    GroupBlocks,
    RequestBlocks,
    cdiv,
)


class MambaGroup(FullGroup):
    """One group of states in mode "none"."""

    def __init__(self, group: KVGroup, number: int, pool: BlockPool, settings: CacheSettings) -> None:
        super().__init__(group, number, pool, settings)
        self.num_speculative_blocks = group.num_speculative_blocks

    def num_skipped_tokens(self, num_computed: int) -> int:
        return num_computed - 1

    def num_to_admit(self, hits: list[int], num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        return super().num_to_admit(hits, num_hit_tokens, num_tokens, self._with_drafts(num_slots))

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        return super().num_to_take(blocks, num_tokens, self._with_drafts(num_slots))

    def drop_skipped(self, blocks: GroupBlocks, num_computed: int) -> None:
        super().drop_skipped(blocks, self._surely_computed(num_computed))

    def _with_drafts(self, num_slots: int) -> int:
        return num_slots + self.block_size * self.num_speculative_blocks

    def _surely_computed(self, num_computed: int) -> int:
        """0.25 takes all drafts for rejected; 0.33 knows which tokens are not computed yet."""
        return max(0, num_computed - self.num_speculative_blocks) if self.settings.is_25 else num_computed


class AlignedMambaGroup(MambaGroup):
    """One group of states in mode "align"."""

    def __init__(self, group: KVGroup, number: int, pool: BlockPool, settings: CacheSettings) -> None:
        super().__init__(group, number, pool, settings)
        self._published_this_step: set[int] = set()

    def new_step_starts(self) -> None:
        self._published_this_step.clear()

    def find(self, cached: Cached, num_tokens: int) -> list[tuple[int, ...]]:
        for number in range(num_tokens // self.block_size - 1, -1, -1):
            blocks = cached(number)
            if blocks is not None and (number + 1) * self.block_size % self.settings.alignment == 0:
                return [(NULL_BLOCK,) * len(blocks)] * number + [blocks]
        return []

    def is_reachable(self, number: int, held: RequestBlocks) -> bool:
        interval = self.settings.retention_interval
        if interval is None:
            return True
        end = (number + 1) * self.block_size
        if interval and end % interval == 0:
            return True
        alignment = self.settings.alignment
        boundaries = (held.num_prompt_tokens - 1, held.shared_prefix_boundary)
        return any(tokens // alignment * alignment == end for tokens in boundaries)

    def publish(self, blocks: GroupBlocks, held: RequestBlocks, num_tokens: int) -> list[int]:
        published = super().publish(blocks, held, num_tokens)
        self._published_this_step.update(published)
        return published

    def num_to_admit(self, hits: list[int], num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        if hits and self.pool.block_hash[hits[-1]] in self._published_this_step:
            return len(self.pool.ref_cnt) + 1  # more than there are: not in this step
        missing = self._num_places(num_tokens) - len(hits)
        new = 1 + self.num_speculative_blocks if missing > 0 else missing
        return new + self.pool.num_idle(hits)

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        # Negative where rejected drafts left a place too many: vLLM counts it against other groups.
        return min(self._num_places(num_tokens) - len(blocks.block_ids), 1)

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        """Take the block of the state at the step's end, after the places passed over."""
        ids = blocks.block_ids
        drafts = self.num_speculative_blocks
        is_first = not blocks.has_state
        places = self._num_places(num_tokens)
        if places <= len(ids):
            return
        before = len(ids)
        if not is_first:
            blocks.last_state = before - 1 - drafts
        elif before:
            blocks.last_state = before - 1  # the state that was hit
        running = places - drafts - 1
        ids += [NULL_BLOCK] * (running - before)
        if not is_first:
            for number in range(before - drafts, min(before, running)):
                ids.append(ids[number])
                ids[number] = NULL_BLOCK
        ids += self.pool.take(places - len(ids))
        blocks.has_state = True

    def drop_skipped(self, blocks: GroupBlocks, num_computed: int) -> None:
        num_computed = self._surely_computed(num_computed)
        if self.settings.is_25:
            FullGroup.drop_skipped(self, blocks, num_computed)
        else:
            self._retire(blocks, self.num_skipped_tokens(num_computed) // self.block_size)
        last, ids = blocks.last_state, blocks.block_ids
        if last is not None and last < cdiv(num_computed, self.block_size) - 1 and ids[last] != NULL_BLOCK:
            freed = ids[last]
            ids[last] = NULL_BLOCK
            self.pool.free([freed])

    def _retire(self, blocks: GroupBlocks, skipped: int) -> None:
        """Free all states before place `skipped`, across the null gaps that chunks leave."""
        last = min(skipped, len(blocks.block_ids))
        if last <= blocks.num_retired:
            return
        freed = blocks.block_ids[blocks.num_retired : last]
        blocks.block_ids[blocks.num_retired : last] = [NULL_BLOCK] * len(freed)
        blocks.num_retired = last
        self.pool.free(freed)

    def _num_places(self, num_tokens: int) -> int:
        return cdiv(num_tokens, self.block_size) + self.num_speculative_blocks
