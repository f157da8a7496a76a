"""Layers with a state (Mamba, gated delta net): one block holds the state after the last token.

With `mamba_cache_mode` "align" a state can be hit where a chunk of a prompt ended on a block boundary.
vLLM's table has one place a block of tokens; in a step the request takes one block for the state at the
step's end, the places passed over stay null. The state before is copied from, so it is freed a step
later: blocks published meanwhile stay cached in the pool. Here only the places that are not null are kept.

1. A hit is one state: the last published one at or before the look-up's end.
2. A state published in this step cannot be hit in it: its request waits for the next step.
3. Dense retention publishes every state (0.25), sparse (0.33) one per interval, that of the prompt's last
   boundary and that of a junction with another prompt.
4. Speculative blocks lie after the running state and move along with it.

Mode "none" (and "all") keeps a block for every place and frees those before the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.engine.hybrid.block_pool import Block, Key, Table, cached_row, key_of
from replicast.sim.engine.hybrid.groups.blocks import NEVER, GroupBlocks
from replicast.sim.engine.hybrid.groups.full import Found, FullGroups, Parts
from replicast.sim.engine.kv_cache import cdiv

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class StateGroups(FullGroups):
    """Equal groups of states in mode "none"."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        # 0.25 takes all drafts for rejected; 0.33 knows which tokens are not computed yet.
        self.num_unsure = self.num_drafts if self.is_25 else 0

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + 1 + self.num_unsure


class AlignedStateGroups(StateGroups):
    """Equal groups of states in mode "align"."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.published_this_step: set[Key] = set()

    def new_step_starts(self) -> None:
        if self.published_this_step:
            self.published_this_step.clear()

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        per_hit, nodes = self.alignment // self.block_size, held.paths[self.tree][0]
        index = len(nodes) - 1
        end = num_tokens // self.block_size
        for place in range(end - end % per_hit - 1, -1, -per_hit):
            while nodes[index].first_block > place:
                index -= 1
            key = nodes[index], place
            if key in tables[0].first:
                row = cached_row(tables, key)
                if row is not None:
                    return Found(place, [row])
        return Found(0, [])

    def adopt(self, held: HybridState, found: Found, num_hit_tokens: int) -> GroupBlocks:
        return StateBlocks(self, found if num_hit_tokens else None)

    def is_refused(self, found: Found) -> bool:
        return bool(found.rows) and found.rows[0][0].key in self.published_this_step

    def num_to_admit(self, found: Found, num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        missing = cdiv(num_tokens, self.block_size) + self.num_drafts - found.num_places
        return (1 + self.num_drafts if missing > 0 else missing) * self.count

    def most_held(self, found: Found, num_tokens: int) -> int:
        return (2 + self.num_drafts) * self.count  # the hit and the running state

    def is_reachable(self, place: int, held: HybridState) -> bool:
        """Whether a look-up can need a state; others are not published."""
        interval = self.settings.retention_interval
        if interval is None:
            return True
        end, alignment = (place + 1) * self.block_size, self.alignment
        if end == (held.request.num_prompt_tokens - 1) // alignment * alignment:
            return True
        if end == held.shared_prefix_boundary // alignment * alignment:
            return True
        return interval > 0 and end % interval == 0


class StateBlocks(GroupBlocks):
    """The states of one request in equal groups: their `places`, in order, and the blocks of `cached` ones.

    `has_state`: one that it took itself; `last_state`: the place of the one before the running one, -1 if
    there is none to drop.
    """

    __slots__ = (
        "cached",
        "has_state",
        "last_state",
        "num_dropped",
        "num_places",
        "num_published",
        "places",
        "unit",
    )

    def __init__(self, unit: AlignedStateGroups, found: Found | None) -> None:
        self.unit = unit
        self.places: list[int] = []
        self.cached: dict[int, list[Block]] = {}
        self.has_state = False
        self.last_state = -1
        self.room = self.next_drop = 0
        self.num_places = self.num_published = self.num_dropped = 0
        if found is not None:
            place, row = found.start, found.rows[0]
            unit.pool.hold_row(row)
            self.places.append(place)
            self.cached[place] = row
            self.num_dropped = place
            self.num_places = self.num_published = place + 1

    def num_to_take(self, num_tokens: int, num_slots: int) -> int:
        # Negative where rejected drafts left a place too many: vLLM counts it against other groups.
        unit = self.unit
        missing = -(-num_tokens // unit.block_size) + unit.num_drafts - self.num_places
        return (1 if missing > 1 else missing) * unit.count

    def take(self, num_tokens: int, num_slots: int) -> int:
        """The block of the state at the step's end, after the places passed over."""
        unit = self.unit
        drafts = unit.num_drafts
        places = -(-num_tokens // unit.block_size) + drafts
        before = self.num_places
        if places <= before:
            return 0
        if self.has_state:
            self.last_state = before - 1 - drafts
        elif before:
            self.last_state = before - 1  # the state that was hit
        self.num_places = places
        self.room = (places - drafts) * unit.block_size
        number = 1
        if drafts:
            number = self._take_with_drafts(before, places)
        else:
            self.places.append(places - 1)
        self.has_state = True
        if unit.is_25 or len(self.places) <= number:
            self._note()
        return number * unit.count

    def _take_with_drafts(self, before: int, places: int) -> int:
        """The blocks of drafts move behind the running state; what is missing is new."""
        drafts = self.unit.num_drafts
        running = places - drafts - 1
        start = max(before, running)
        if self.has_state:
            first, end = before - drafts, min(before, running)
            self.places = [place + start - first if first <= place < end else place for place in self.places]
            start += max(end - first, 0)
        self.places = sorted([*self.places, *range(start, places)])
        return places - start

    def drop(self, num_processed: int) -> None:
        unit = self.unit
        if unit.is_25:
            self._drop_25(max(0, num_processed - unit.num_unsure))
        else:
            end, places = (num_processed - 1) // unit.block_size, self.places
            number = 0
            for place in places:
                if place >= end:
                    break
                number += 1
            if number:
                self._let_go(places[:number])
                del places[:number]
        self._note()

    def _drop_25(self, num_processed: int) -> None:
        """0.25 stops at the gap that a chunk left, and looks at the state before the running one besides."""
        unit = self.unit
        end = min(unit.num_skipped(num_processed), self.num_places)
        first, last = end, self.last_state
        for place in reversed(self.places):
            first -= place == first - 1
        if last >= cdiv(num_processed, unit.block_size) - 1:
            last = -1
        else:
            self.last_state = -1
        self._let_go([place for place in self.places if first <= place < end])
        if not first <= last < end:
            self._let_go([place for place in self.places if place == last])
        self.places = [place for place in self.places if place != last and not first <= place < end]
        self.num_dropped = max(self.num_dropped, end)

    def _let_go(self, places: list[int]) -> None:
        unit, cached, number = self.unit, self.cached, 0
        rows: list[list[Block]] = []
        for place in places:
            row = cached.pop(place, None)
            if row is None:
                number += unit.count
            else:
                rows.append(row)
        if number:
            unit.pool.let_go_unnamed(number)
        if rows:
            unit.pool.let_go(rows)

    def _note(self) -> None:
        """Bring `next_drop` up to date after a change."""
        unit = self.unit
        if unit.speculates:
            return
        if unit.is_25:
            self.next_drop = unit.after_drop(self.num_dropped)
            if self.last_state >= 0:
                self.next_drop = min(self.next_drop, unit.after_drop(self.last_state))
        else:
            self.next_drop = (self.places[0] + 1) * unit.block_size + 1 if self.places else NEVER

    def publish(self, held: HybridState, num_tokens: int) -> None:
        unit = self.unit
        first, end = self.num_published, num_tokens // unit.block_size
        if end <= first:
            return
        self.num_published = end
        for place in self.places:
            if first <= place < end and unit.is_reachable(place, held):
                key = key_of(held.paths[unit.tree], place)
                self.cached[place] = unit.pool.publish_row(key, unit.table)
                unit.published_this_step.add(key)

    def free(self) -> None:
        self._let_go(self.places)
