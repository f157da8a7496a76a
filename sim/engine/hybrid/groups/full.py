"""Full attention, block by block: a hit is the longest run from the start, and all is held to the end.

With one such group its blocks are runs of content, and none of this is needed (`kv_cache.py`); it serves
models with several. Also what the other kinds share (`vllm/v1/core/single_type_kv_cache_manager.py`): they
change what may be dropped, what is published and what a look-up needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from replicast.sim.engine.hybrid.block_pool import Block, GroupPool, Table, cached_row, key_of
from replicast.sim.engine.hybrid.groups.blocks import NEVER, GroupBlocks, PlaceBlocks
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.kv_groups import KVGroup

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """What the groups of one engine share. `alignment`: hits are its multiples."""

    is_25: bool
    alignment: int
    max_model_len: int
    max_in_flight_tokens: int
    retention_interval: int | None
    speculates: bool


class Parts(NamedTuple):
    """Equal groups that follow one another. `tree`: which path of a request counts."""

    group: KVGroup
    tree: int
    table: Table
    pool: GroupPool
    settings: CacheSettings


class Found:
    """What a look-up found in equal groups: from place `start` on a row each of their blocks, none before."""

    __slots__ = ("rows", "start")

    def __init__(self, start: int, rows: list[list[Block]]) -> None:
        self.start = start
        self.rows = rows

    @property
    def num_places(self) -> int:
        """Places up to the end of the hit."""
        return self.start + len(self.rows)

    def part(self, first: int, count: int) -> Found:
        """What of it is `count` groups from `first` on."""
        return Found(self.start, [row[first : first + count] for row in self.rows])


class FullGroups:
    """Equal groups of full attention, and the base of the others."""

    def __init__(self, parts: Parts) -> None:
        self.group, self.tree, self.table, self.pool, self.settings = parts
        self.count = self.table.num_groups
        self.is_25 = self.settings.is_25
        self.speculates = self.settings.speculates
        self.alignment = self.settings.alignment
        self.block_size = self.group.block_size
        self.num_drafts = self.group.num_speculative_blocks
        self.num_unsure = 0  # processed tokens that drafts may take back
        self.most_admission_tokens = NEVER

    # What differs between the kinds

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        """What serves a look-up of at most `num_tokens` tokens; `tables` are those of all equal groups."""
        path = held.paths[self.tree]
        rows: list[list[Block]] = []
        for place in range(num_tokens // self.block_size):
            row = cached_row(tables, key_of(path, place))
            if row is None:
                break
            rows.append(row)
        del rows[len(rows) - len(rows) % (self.alignment // self.block_size) :]
        return Found(0, rows)

    def num_skipped(self, num_computed: int) -> int:
        """Leading places that no later token looks at."""
        return 0

    def after_drop(self, num_dropped: int) -> int:
        """Tokens that must be processed before more than `num_dropped` places can be dropped."""
        return NEVER

    def adopt(self, held: HybridState, found: Found, num_hit_tokens: int) -> GroupBlocks:
        """Hold the hits of a request that is admitted: its first blocks."""
        if not num_hit_tokens:
            return PlaceBlocks(self, 0, [])
        kept = self.kept(found, num_hit_tokens)
        for row in kept.rows:
            self.pool.hold_row(row)
        return PlaceBlocks(self, kept.start, kept.rows)

    def new_step_starts(self) -> None:
        """A schedule() call begins."""

    # Admission

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
        return Found(skipped, found.rows[skipped - found.start :])

    def num_idle(self, found: Found, num_hit_tokens: int) -> int:
        """Hits that nobody holds: they leave the free queue when they are taken."""
        number = 0
        for row in self.kept(found, num_hit_tokens).rows:
            for block in row:
                number += not block.holders
        return number

    def most_held(self, found: Found, num_tokens: int) -> int:
        """The most blocks that a request of so many tokens takes or hits when it is admitted."""
        places = max(cdiv(num_tokens, self.block_size), found.num_places)
        return (places + self.num_drafts) * self.count
