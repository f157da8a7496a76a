"""What one request holds in equal groups (`full.py`, `window.py`; states in `mamba.py`).

Only blocks that cache something are told apart; of the others the number is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Block, key_of

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.groups.full import FullGroups
    from replicast.sim.engine.hybrid.state import HybridState

NEVER = 1 << 62


class GroupBlocks:
    """There is room for `room` tokens, and nothing to drop before `next_drop` are processed."""

    __slots__ = ("next_drop", "room")

    room: int
    next_drop: int

    def num_to_take(self, num_tokens: int, num_slots: int) -> int:
        """Blocks that a running request lacks for `num_tokens` tokens (with drafts' places `num_slots`)."""
        raise NotImplementedError

    def take(self, num_tokens: int, num_slots: int) -> int:
        """Note what it lacks as its own; how many blocks the pool must give for that."""
        raise NotImplementedError

    def drop(self, num_processed: int) -> None:
        """Free what no later token looks at."""
        raise NotImplementedError

    def publish(self, held: HybridState, num_tokens: int) -> None:
        """Let look-ups find the blocks that `num_tokens` tokens fill."""
        raise NotImplementedError

    def free(self) -> None:
        """Let go of all."""
        raise NotImplementedError


class PlaceBlocks(GroupBlocks):
    """A block at each of `num_places` but for the first `num_dropped`; those before `num_published` are past
    publishing, `cached` are the published ones of each group, by place, in ascending order.
    """

    __slots__ = ("cached", "num_dropped", "num_places", "num_published", "unit")

    def __init__(self, unit: FullGroups, start: int, rows: list[list[Block]]) -> None:
        self.unit = unit
        self.num_dropped = start
        self.num_places = self.num_published = start + len(rows)
        self.cached: dict[int, list[Block]] = dict(enumerate(rows, start))
        self._note()

    def _note(self) -> None:
        """Bring the two bounds up to date after a change."""
        unit = self.unit
        self.room = (self.num_places - unit.num_drafts) * unit.block_size
        # Rejected drafts take tokens back: then every time is looked.
        self.next_drop = 0 if unit.speculates else unit.after_drop(self.num_dropped)

    def num_to_take(self, num_tokens: int, num_slots: int) -> int:
        unit = self.unit
        new = -(-num_slots // unit.block_size) + unit.num_drafts - self.num_places
        return new * unit.count if new > 0 else 0

    def take(self, num_tokens: int, num_slots: int) -> int:
        number = self.num_to_take(num_tokens, num_slots)
        self.num_places += number // self.unit.count
        self._note()
        return number

    def drop(self, num_processed: int) -> None:
        unit = self.unit
        skipped = unit.num_skipped(max(0, num_processed - unit.num_unsure))
        last = min(skipped, self.num_places)
        if last > self.num_dropped:
            self._let_go(last)
        self._note()

    def _let_go(self, end: int) -> None:
        """Let go of the blocks before place `end`."""
        cached, pool, count = self.cached, self.unit.pool, self.unit.count
        places = []
        for place in cached:
            if place >= end:
                break
            places.append(place)
        pool.let_go_unnamed((end - self.num_dropped - len(places)) * count)
        if places:
            pool.let_go([cached.pop(place) for place in places])
        self.num_dropped = end

    def publish(self, held: HybridState, num_tokens: int) -> None:
        unit = self.unit
        end = num_tokens // unit.block_size
        first, dropped = self.num_published, self.num_dropped
        if end <= first:
            return
        self.num_published = end
        path, cached = held.paths[unit.tree], self.cached
        for place in range(max(first, dropped), end):
            cached[place] = unit.pool.publish_row(key_of(path, place), unit.table)

    def free(self) -> None:
        self._let_go(self.num_places)
