"""Full attention: every block is held to the end, and a hit is the longest run from the start.

Also what the other kinds share (`vllm/v1/core/single_type_kv_cache_manager.py`): they change what may be
dropped, what is published and what a look-up needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from replicast.sim.engine.hybrid.block_hash import BlockHashes
from replicast.sim.engine.hybrid.block_pool import NULL_BLOCK, BlockPool
from replicast.sim.kv_groups import KVGroup

NEVER = 1 << 62


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What the groups of one engine share. `alignment`: hits are its multiples."""

    is_25: bool
    alignment: int
    hash_block_size: int
    max_model_len: int
    max_in_flight_tokens: int
    retention_interval: int | None
    speculates: bool


class GroupBlocks:
    """The blocks of one request in equal groups: of each a list, null where dropped or passed over.

    The first `num_published` places are past publishing, the first `num_dropped` past dropping. There is
    room for `room` tokens, and nothing to drop before `next_drop` are processed.
    """

    __slots__ = ("ids", "next_drop", "num_dropped", "num_published", "room", "unit")

    def __init__(self, unit: FullGroups) -> None:
        self.unit = unit
        self.ids: list[list[int]] = []
        self.num_published = 0
        self.num_dropped = 0
        self.room = 0
        self.next_drop = 0

    def by_group(self) -> list[list[int]]:
        """All places of each group."""
        return self.ids


class RequestBlocks:
    """The blocks of one request in all groups.

    `shared_prefix_boundary`: to where another request's prompt was seen to be the same, though not
    all groups have it cached; 0 if nowhere. Fewer than `next_publish` tokens fill no further block.
    """

    __slots__ = ("hashes", "next_publish", "num_prompt_tokens", "shared_prefix_boundary", "units")

    def __init__(self, hashes: BlockHashes, num_prompt_tokens: int) -> None:
        self.hashes = hashes
        self.num_prompt_tokens = num_prompt_tokens
        self.units: list[GroupBlocks] = []
        self.shared_prefix_boundary = 0
        self.next_publish = 0

    @property
    def block_ids(self) -> list[list[int]]:
        """The blocks of each group."""
        return [list(ids) for unit in self.units for ids in unit.by_group()]


class Found:
    """What a look-up found in equal groups: of each the blocks from place `start` on, nulls before."""

    __slots__ = ("blocks", "start")

    def __init__(self, start: int, blocks: list[list[int]]) -> None:
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
    """Equal groups of full attention, and the base of the others."""

    def __init__(
        self, group: KVGroup, numbers: Sequence[int], pool: BlockPool, settings: CacheSettings
    ) -> None:
        self.group = group
        self.numbers = list(numbers)
        self.count = len(self.numbers)
        self.pool = pool
        self.settings = settings
        self.is_25 = settings.is_25
        self.speculates = settings.speculates
        self.alignment = settings.alignment
        self.block_size = group.block_size
        self.num_drafts = group.num_speculative_blocks
        self.most_admission_tokens = NEVER
        self.hashes_per_block = group.block_size // settings.hash_block_size

    # What differs between the kinds

    def find(self, cached: list[dict[int, int]], hashes: BlockHashes, num_tokens: int) -> Found:
        """What serves a look-up of at most `num_tokens` tokens; `cached` are the tables of the groups."""
        step = self.hashes_per_block
        length = num_tokens // self.block_size
        names = hashes.first(length * step)[step - 1 : length * step : step]
        blocks: list[list[int]] = []
        for table in cached:
            hits = [*map(table.get, names)]
            if None in hits:
                length = hits.index(None)
                del names[length:], hits[length:]
            blocks.append(cast(list[int], hits))
        per_hit = self.alignment // self.block_size
        length -= length % per_hit
        for run in blocks:
            del run[length:]
        return Found(0, blocks)

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
                freed = ids[first:last]
                ids[first:last] = [NULL_BLOCK] * (last - first)
                self.pool.free(freed)
            blocks.num_dropped = last
        self._note(blocks)

    def reachable(self, blocks: GroupBlocks, end: int, held: RequestBlocks) -> Sequence[int]:
        """The places before `end`, not yet published, that a look-up can need; others never are."""
        return range(blocks.num_published, end)

    def new_blocks(self) -> GroupBlocks:
        """Those of a request that has none yet."""
        blocks = GroupBlocks(self)
        blocks.ids = [[] for _ in self.numbers]
        return blocks

    def no_hit(self) -> Found:
        """What a look-up finds where there is nothing."""
        return Found(0, [[] for _ in self.numbers])

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
        return sum([self.pool.num_idle(blocks) for blocks in self.kept(found, num_hit_tokens).blocks])

    def most_held(self, found: Found, num_tokens: int) -> int:
        """The most blocks that a request of so many tokens takes or hits when it is admitted."""
        places = max(cdiv(num_tokens, self.block_size), found.num_places)
        return (places + self.num_drafts) * self.count

    def adopt(self, blocks: GroupBlocks, found: Found, num_hit_tokens: int) -> None:
        """Hold the hits of a request that is admitted."""
        kept = self.kept(found, num_hit_tokens)
        if num_hit_tokens:
            for index in range(self.count):
                hits, ids = kept.blocks[index], blocks.ids[index]
                self.pool.touch(hits)
                ids += [NULL_BLOCK] * kept.start
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
        for ids in blocks.ids:
            self.pool.take(new, ids)
        self._note(blocks)

    def publish(self, blocks: GroupBlocks, held: RequestBlocks, num_tokens: int) -> None:
        """Give the blocks that `num_tokens` tokens fill their hashes."""
        end = num_tokens // self.block_size
        if end <= blocks.num_published:
            return
        places = self.reachable(blocks, end, held)
        blocks.num_published = end
        if not places:
            return
        step, pool = self.hashes_per_block, self.pool
        hashes = held.hashes.first(end * step)
        for index in range(self.count):
            group, ids = self.numbers[index], blocks.ids[index]
            for place in places:
                block = ids[place]
                if block != NULL_BLOCK:
                    pool.publish(block, hashes[(place + 1) * step - 1], group)

    def free(self, blocks: GroupBlocks) -> None:
        """Let go of all."""
        for ids in blocks.ids:
            self.pool.free(ids[blocks.num_dropped :] if blocks.num_dropped else ids)

    def new_step_starts(self) -> None:
        """A schedule() call begins."""
