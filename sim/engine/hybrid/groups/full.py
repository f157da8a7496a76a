"""Full attention: every block is held to the end, and a hit is the longest run from the start.

Also what the other kinds share (`vllm/v1/core/single_type_kv_cache_manager.py`): they change what may be
dropped, what is published and what a look-up needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Block, GroupPool, Table, key_of
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.kv_groups import KVGroup

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What the groups of one engine share. `alignment`: hits are its multiples."""

    is_25: bool
    alignment: int
    max_model_len: int
    max_in_flight_tokens: int
    retention_interval: int | None
    speculates: bool


class GroupBlocks:
    """The blocks of one request in equal groups: of each a list, None where nothing is cached.

    The first `num_published` places are past publishing, the first `num_dropped` hold no block. There is
    room for `room` tokens, and nothing to drop before `next_drop` are processed.
    """

    __slots__ = ("ids", "next_drop", "num_dropped", "num_published", "room", "unit")

    def __init__(self, unit: FullGroups) -> None:
        self.unit = unit
        self.ids: list[list[Block | None]] = []
        self.num_published = 0
        self.num_dropped = 0
        self.room = 0
        self.next_drop = 0


class Found:
    """What a look-up found in equal groups: of each the blocks from place `start` on, none before."""

    __slots__ = ("blocks", "start")

    def __init__(self, start: int, blocks: list[list[Block]]) -> None:
        self.start = start
        self.blocks = blocks

    @property
    def num_places(self) -> int:
        """Places up to the end of the hit."""
        return self.start + len(self.blocks[0])

    def cut(self, num_places: int) -> None:
        """Leave a shorter hit of full attention."""
        for blocks in self.blocks:
            del blocks[num_places:]


class FullGroups:
    """Equal groups of full attention, and the base of the others. `tree`: which path of a request counts."""

    def __init__(
        self,
        group: KVGroup,
        count: int,
        pool: GroupPool,
        tree: int,
        tables: list[Table],
        settings: CacheSettings,
    ) -> None:
        self.group = group
        self.count = count
        self.pool = pool
        self.tree = tree
        self.tables = tables
        self.settings = settings
        self.is_25 = settings.is_25
        self.speculates = settings.speculates
        self.alignment = settings.alignment
        self.block_size = group.block_size
        self.num_drafts = group.num_speculative_blocks
        self.most_admission_tokens = NEVER

    # What differs between the kinds

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        """What serves a look-up of at most `num_tokens` tokens; `tables` are those of all equal groups."""
        length, path = num_tokens // self.block_size, held.paths[self.tree]
        runs: list[list[Block]] = []
        for table in tables:
            run: list[Block] = []
            while len(run) < length:
                block = table.first.get(key_of(path, len(run)))
                if block is None:
                    length = len(run)
                else:
                    run.append(block)
            runs.append(run)
        length -= length % (self.alignment // self.block_size)
        for run in runs:
            del run[length:]
        return Found(0, runs)

    def num_skipped(self, num_computed: int) -> int:
        """Leading places that no later token looks at."""
        return 0

    def after_drop(self, num_dropped: int) -> int:
        """Tokens that must be processed before more than `num_dropped` places can be dropped."""
        return NEVER

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        """Free what no later token looks at."""
        last = min(self.num_skipped(num_processed), len(blocks.ids[0]))
        first = blocks.num_dropped
        if first < last:
            for ids in blocks.ids:
                self.pool.let_go(ids[first:last])
                ids[first:last] = [None] * (last - first)
            blocks.num_dropped = last
        self._note(blocks)

    def reachable(self, blocks: GroupBlocks, end: int, held: HybridState) -> Sequence[int]:
        """The places before `end`, not yet published, that a look-up can need; others never are."""
        return range(blocks.num_published, end)

    def new_blocks(self, held: HybridState) -> GroupBlocks:
        """Those of a request that has none yet."""
        blocks = GroupBlocks(self)
        blocks.ids = [[] for _ in self.tables]
        return blocks

    def no_hit(self, held: HybridState) -> Found:
        """What a look-up finds where there is nothing."""
        return Found(0, [[] for _ in self.tables])

    # A request's life

    def _note(self, blocks: GroupBlocks) -> None:
        """Bring the two bounds up to date after a change."""
        blocks.room = (len(blocks.ids[0]) - self.num_drafts) * self.block_size
        # Rejected drafts take tokens back: then every time is looked.
        blocks.next_drop = 0 if self.speculates else self.after_drop(blocks.num_dropped)

    def num_to_admit(self, found: Found, num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        """New blocks that a request needs for `num_tokens` tokens (with drafts' places `num_slots`)."""
        places = cdiv(num_slots, self.block_size) + self.num_drafts
        new = places - max(self.num_skipped(num_hit_tokens), found.num_places)
        return new * self.count if new > 0 else 0

    def num_to_reserve(self, found: Found, num_hit_tokens: int, num_tokens: int) -> int:
        """The same for all its known tokens, of which a window holds only a part at a time."""
        num_tokens = min(num_tokens, self.most_admission_tokens)
        return self.num_to_admit(found, num_hit_tokens, num_tokens, num_tokens)

    def is_refused(self, found: Found) -> bool:
        """Whether these hits may not be taken in this step."""
        return False

    def kept(self, found: Found, num_hit_tokens: int) -> Found:
        """The hits that the tokens to come look at."""
        if not num_hit_tokens:
            return found
        skipped = self.num_skipped(num_hit_tokens)
        if skipped <= found.start:
            return found
        return Found(skipped, [blocks[skipped - found.start :] for blocks in found.blocks])

    def num_idle(self, found: Found, num_hit_tokens: int) -> int:
        """Hits that nobody holds: they leave the free queue when they are taken."""
        number = 0
        for blocks in self.kept(found, num_hit_tokens).blocks:
            for block in blocks:
                number += not block.holders
        return number

    def most_held(self, found: Found, num_tokens: int) -> int:
        """The most blocks that a request of so many tokens takes or hits when it is admitted."""
        places = max(cdiv(num_tokens, self.block_size), found.num_places)
        return (places + self.num_drafts) * self.count

    def adopt(self, blocks: GroupBlocks, found: Found, num_hit_tokens: int) -> None:
        """Hold the hits of a request that is admitted."""
        kept = self.kept(found, num_hit_tokens)
        if num_hit_tokens:
            for ids, hits in zip(blocks.ids, kept.blocks, strict=True):
                self.pool.hold_blocks(hits)
                ids += [None] * kept.start
                ids += hits
            blocks.num_dropped = kept.start
            blocks.num_published = len(blocks.ids[0])
        self._note(blocks)

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        """Blocks that a running request lacks."""
        new = cdiv(num_slots, self.block_size) + self.num_drafts - len(blocks.ids[0])
        return new * self.count if new > 0 else 0

    def most_to_take(self, blocks: GroupBlocks, num_tokens: int, num_steps: int) -> int:
        """The most that so many steps up to `num_tokens` tokens take."""
        return self.num_to_take(blocks, num_tokens, num_tokens)

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        """Take them."""
        new = cdiv(num_slots, self.block_size) + self.num_drafts - len(blocks.ids[0])
        self.pool.take(new * self.count)
        for ids in blocks.ids:
            ids += [None] * new
        self._note(blocks)

    def publish(self, blocks: GroupBlocks, held: HybridState, num_tokens: int) -> None:
        """Let look-ups find the blocks that `num_tokens` tokens fill."""
        end = num_tokens // self.block_size
        if end <= blocks.num_published:
            return
        places = self.reachable(blocks, end, held)
        blocks.num_published = end
        path, dropped = held.paths[self.tree], blocks.num_dropped
        for place in places:
            if place >= dropped:
                key = key_of(path, place)
                for ids, block in zip(blocks.ids, self.pool.publish_blocks(key, self.tables), strict=True):
                    ids[place] = block

    def free(self, blocks: GroupBlocks) -> None:
        """Let go of all."""
        for ids in blocks.ids:
            self.pool.let_go(ids[blocks.num_dropped :] if blocks.num_dropped else ids)

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
