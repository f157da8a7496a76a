"""Full attention: every block is held to the end, and a hit is the longest run from the start.

Also what the other kinds share (`vllm/v1/core/single_type_kv_cache_manager.py`): they change what
may be dropped, what is published and what a look-up needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replicast.sim.kv_groups import KVGroup

from reference.block_hash import BlockHashes
from reference.block_pool import NULL_BLOCK, BlockPool

# Block number -> that block in each of several equal groups, None unless all have it.
Cached = Callable[[int], tuple[int, ...] | None]


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


class GroupBlocks:
    """The blocks of one request in one group, in order; null where dropped.

    The first `num_published` are past publishing. The rest is for groups of states.
    """

    __slots__ = ("block_ids", "has_state", "last_state", "num_published", "num_retired")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self.block_ids: list[int] = []
        self.num_published = 0
        self.has_state = False
        self.last_state: int | None = None
        self.num_retired = 0


class RequestBlocks:
    """The blocks of one request in all groups.

    `shared_prefix_boundary`: to where another request's prompt was seen to be the same, though not
    all groups have it cached; 0 if nowhere.
    """

    __slots__ = (
        "groups",
        "hashes",
        "num_prompt_tokens",
        "shared_prefix_boundary",
    )

    def __init__(self, hashes: BlockHashes, num_prompt_tokens: int = 0, num_groups: int = 1) -> None:
        self.hashes = hashes
        self.num_prompt_tokens = num_prompt_tokens
        self.groups = [GroupBlocks() for _ in range(num_groups)]
        self.shared_prefix_boundary = 0

    @property
    def block_ids(self) -> list[int]:
        """Those of the first group."""
        return self.groups[0].block_ids

    @property
    def num_published(self) -> int:
        """That of the first group."""
        return self.groups[0].num_published


class FullGroup:
    """One group of full attention, and the base of the others."""

    def __init__(self, group: KVGroup, number: int, pool: BlockPool, settings: CacheSettings) -> None:
        self.group = group
        self.number = number
        self.pool = pool
        self.settings = settings
        self.block_size = group.block_size
        self.max_admission_blocks: int | None = None
        self._hashes_per_block = group.block_size // settings.hash_block_size

    # What differs between the kinds

    def find(self, cached: Cached, num_tokens: int) -> list[tuple[int, ...]]:
        """The blocks with which a look-up of at most `num_tokens` tokens is served."""
        found: list[tuple[int, ...]] = []
        for number in range(num_tokens // self.block_size):
            blocks = cached(number)
            if blocks is None:
                break
            found.append(blocks)
        return self.aligned(found)

    def num_skipped_tokens(self, num_computed: int) -> int:
        """Leading tokens that no later token looks at."""
        return 0

    def is_reachable(self, number: int, held: RequestBlocks) -> bool:
        """Whether any look-up can need block `number`; others are not published."""
        return True

    # A request's life

    def num_to_admit(self, hits: list[int], num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        """Free blocks that a request needs for `num_tokens` tokens (with drafts' places `num_slots`)."""
        skipped = max(self.num_skipped_tokens(num_hit_tokens) // self.block_size, 0)
        new = cdiv(num_slots, self.block_size) - max(skipped, len(hits))
        return max(new, 0) + self.pool.num_idle(hits[skipped:])

    def num_to_reserve(self, hits: list[int], num_hit_tokens: int, num_tokens: int) -> int:
        """The same for all its known tokens, of which a window holds only a part at a time."""
        most = self.max_admission_blocks
        if most is not None:
            num_tokens = min(num_tokens, most * self.block_size)
        return self.num_to_admit(hits, num_hit_tokens, num_tokens, num_tokens)

    def adopt(self, blocks: GroupBlocks, hits: list[int], num_hit_tokens: int) -> None:
        """Hold the hits of a request that is admitted."""
        skipped = max(self.num_skipped_tokens(num_hit_tokens) // self.block_size, 0)
        self.pool.touch(hits[skipped:])
        blocks.block_ids = [NULL_BLOCK] * skipped + hits[skipped:]
        blocks.num_published = len(blocks.block_ids)

    def drop_skipped(self, blocks: GroupBlocks, num_computed: int) -> None:
        """Free what no later token looks at."""
        skipped = self.num_skipped_tokens(num_computed) // self.block_size
        ids = blocks.block_ids
        last = min(skipped, len(ids))
        first = last
        while first > 0 and ids[first - 1] != NULL_BLOCK:
            first -= 1
        if first < last:
            freed = ids[first:last]
            ids[first:last] = [NULL_BLOCK] * (last - first)
            self.pool.free(freed)

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        """Blocks that a running request lacks."""
        return max(cdiv(num_slots, self.block_size) - len(blocks.block_ids), 0)

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        """Take them."""
        blocks.block_ids += self.pool.take(self.num_to_take(blocks, num_tokens, num_slots))

    def publish(self, blocks: GroupBlocks, held: RequestBlocks, num_tokens: int) -> list[int]:
        """Give the blocks that `num_tokens` tokens fill their hashes; which ones were given."""
        num_full = num_tokens // self.block_size
        published: list[int] = []
        if num_full <= blocks.num_published:
            return published
        step = self._hashes_per_block
        hashes = held.hashes.first(num_full * step)
        for number in range(blocks.num_published, num_full):
            block = blocks.block_ids[number]
            if block != NULL_BLOCK and self.is_reachable(number, held):
                block_hash = hashes[(number + 1) * step - 1]
                self.pool.publish(block, block_hash, self.number)
                published.append(block_hash)
        blocks.num_published = num_full
        return published

    def free(self, blocks: GroupBlocks) -> None:
        """Let go of all."""
        self.pool.free(blocks.block_ids)
        blocks.clear()

    def new_step_starts(self) -> None:
        """A schedule() call begins."""

    def aligned(self, found: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """`found` without the blocks past the last multiple of the alignment."""
        step = self.settings.alignment // self.block_size
        del found[len(found) // step * step :]
        return found
