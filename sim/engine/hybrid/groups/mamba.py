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

from replicast.sim.engine.hybrid.block_pool import Block, GroupPool, Key, Table, key_of
from replicast.sim.engine.hybrid.groups.full import NEVER, CacheSettings, Found, FullGroups, GroupBlocks
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.kv_groups import KVGroup

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.state import HybridState


class StateGroups(FullGroups):
    """Equal groups of states in mode "none"."""

    def __init__(
        self,
        group: KVGroup,
        count: int,
        pool: GroupPool,
        tree: int,
        tables: list[Table],
        settings: CacheSettings,
    ) -> None:
        super().__init__(group, count, pool, tree, tables, settings)
        # 0.25 takes all drafts for rejected; 0.33 knows which tokens are not computed yet.
        self.num_unsure = group.num_speculative_blocks if settings.is_25 else 0

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - 1) // self.block_size

    def after_drop(self, num_dropped: int) -> int:
        return (num_dropped + 1) * self.block_size + 1 + self.num_unsure

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        super().drop(blocks, max(0, num_processed - self.num_unsure))


class State:
    """One place that is not null: its block in each of the equal groups; no `blocks`: nothing is cached."""

    __slots__ = ("blocks", "place")

    def __init__(self, place: int, blocks: list[Block]) -> None:
        self.place = place
        self.blocks = blocks


class StateBlocks(GroupBlocks):
    """The states of one request in equal groups, in the order of their places."""

    __slots__ = ("has_state", "last_state", "num_places", "states")

    def __init__(self, unit: FullGroups) -> None:
        super().__init__(unit)
        self.states: list[State] = []
        self.num_places = 0
        self.has_state = False  # one that the request itself took
        self.last_state = -1  # place of the state before the running one, -1: none to drop


class AlignedStateGroups(StateGroups):
    """Equal groups of states in mode "align"."""

    def __init__(
        self,
        group: KVGroup,
        count: int,
        pool: GroupPool,
        tree: int,
        tables: list[Table],
        settings: CacheSettings,
    ) -> None:
        super().__init__(group, count, pool, tree, tables, settings)
        self._published_this_step: set[Key] = set()

    def new_step_starts(self) -> None:
        if self._published_this_step:
            self._published_this_step.clear()

    def new_blocks(self, held: HybridState) -> GroupBlocks:
        return StateBlocks(self)

    def find(self, tables: Sequence[Table], held: HybridState, num_tokens: int) -> Found:
        per_hit, nodes = self.alignment // self.block_size, held.paths[self.tree][0]
        first = tables[0].first
        index = len(nodes) - 1
        end = num_tokens // self.block_size
        for place in range(end - end % per_hit - 1, -1, -per_hit):
            while nodes[index].first_block > place:
                index -= 1
            key = nodes[index], place
            if key in first:
                blocks: list[list[Block]] = []
                for table in tables:
                    block = table.first.get(key)
                    if block is None:
                        break
                    blocks.append([block])
                else:
                    return Found(place, blocks)
        return Found(0, [[] for _ in tables])

    def is_refused(self, found: Found) -> bool:
        blocks = found.blocks[0]
        return bool(blocks) and blocks[0].key in self._published_this_step

    def num_to_admit(self, found: Found, num_hit_tokens: int, num_tokens: int, num_slots: int) -> int:
        missing = cdiv(num_tokens, self.block_size) + self.num_drafts - found.num_places
        return (1 + self.num_drafts if missing > 0 else missing) * self.count

    def most_held(self, found: Found, num_tokens: int) -> int:
        return (2 + self.num_drafts) * self.count  # the hit and the running state

    def adopt(self, blocks: GroupBlocks, found: Found, num_hit_tokens: int) -> None:
        assert isinstance(blocks, StateBlocks)
        if num_hit_tokens:
            hits = [one[0] for one in found.blocks]
            self.pool.hold_blocks(hits)
            blocks.states.append(State(found.start, hits))
            blocks.num_dropped = found.start
            blocks.num_places = blocks.num_published = found.start + 1
        self._note(blocks)

    def num_to_take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> int:
        # Negative where rejected drafts left a place too many: vLLM counts it against other groups.
        assert isinstance(blocks, StateBlocks)
        missing = cdiv(num_tokens, self.block_size) + self.num_drafts - blocks.num_places
        return (1 if missing > 1 else missing) * self.count

    def most_to_take(self, blocks: GroupBlocks, num_tokens: int, num_steps: int) -> int:
        return num_steps * (1 + self.num_drafts) * self.count

    def take(self, blocks: GroupBlocks, num_tokens: int, num_slots: int) -> None:
        """Take the block of the state at the step's end, after the places passed over."""
        assert isinstance(blocks, StateBlocks)
        drafts = self.num_drafts
        places = cdiv(num_tokens, self.block_size) + drafts
        before = blocks.num_places
        if places <= before:
            return
        if blocks.has_state:
            blocks.last_state = before - 1 - drafts
        elif before:
            blocks.last_state = before - 1  # the state that was hit
        blocks.num_places = places
        if drafts:
            self._take_with_drafts(blocks, before, places)
        else:
            self.pool.take(self.count)  # one for each
            blocks.states.append(State(places - 1, []))
        blocks.has_state = True
        self._note(blocks)

    def _take_with_drafts(self, blocks: StateBlocks, before: int, places: int) -> None:
        """The blocks of drafts move behind the running state; what is missing is new."""
        drafts = self.num_drafts
        running = places - drafts - 1
        start = max(before, running)
        if blocks.has_state:
            first, end = before - drafts, min(before, running)
            for state in blocks.states:
                if first <= state.place < end:
                    state.place += start - first
            start += max(end - first, 0)
        self.pool.take((places - start) * self.count)
        for place in range(start, places):
            blocks.states.append(State(place, []))
        blocks.states.sort(key=lambda state: state.place)

    def drop(self, blocks: GroupBlocks, num_processed: int) -> None:
        assert isinstance(blocks, StateBlocks)
        if self.is_25:
            self._drop_25(blocks, max(0, num_processed - self.num_unsure))
            return
        end, states = (num_processed - 1) // self.block_size, blocks.states
        number = 0
        while number < len(states) and states[number].place < end:
            number += 1
        if number:
            self._free(states[:number])
            del states[:number]
        self._note(blocks)

    def _drop_25(self, blocks: StateBlocks, num_processed: int) -> None:
        """0.25 stops at the gap that a chunk left, and looks at the state before the running one besides."""
        end = min(self.num_skipped(num_processed), blocks.num_places)
        first, last = end, blocks.last_state
        for state in reversed(blocks.states):
            first -= state.place == first - 1
        if last >= cdiv(num_processed, self.block_size) - 1:
            last = -1
        else:
            blocks.last_state = -1
        self._free([state for state in blocks.states if first <= state.place < end])
        if not first <= last < end:
            self._free([state for state in blocks.states if state.place == last])
        blocks.states = [s for s in blocks.states if s.place != last and not first <= s.place < end]
        blocks.num_dropped = max(blocks.num_dropped, end)
        self._note(blocks)

    def _free(self, states: list[State]) -> None:
        cached: list[State] = []
        for state in states:
            if state.blocks:
                cached.append(state)
            else:
                self.pool.let_go_unnamed(self.count)
        if len(cached) == 1:
            self.pool.let_go_each(cached[0].blocks)
        elif cached:
            for index in range(self.count):
                for state in reversed(cached):
                    self.pool.let_go_each([state.blocks[index]])

    def _note(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, StateBlocks)
        blocks.room = (blocks.num_places - self.num_drafts) * self.block_size
        if self.speculates:
            return
        if self.is_25:
            blocks.next_drop = self.after_drop(blocks.num_dropped)
            if blocks.last_state >= 0:
                blocks.next_drop = min(blocks.next_drop, self.after_drop(blocks.last_state))
        else:
            states = blocks.states
            blocks.next_drop = (states[0].place + 1) * self.block_size + 1 if states else NEVER

    def publish(self, blocks: GroupBlocks, held: HybridState, num_tokens: int) -> None:
        assert isinstance(blocks, StateBlocks)
        first, end = blocks.num_published, num_tokens // self.block_size
        if end <= first:
            return
        blocks.num_published = end
        for state in blocks.states:
            if first <= state.place < end and self._is_reachable(state.place, held):
                key = key_of(held.paths[self.tree], state.place)
                state.blocks = self.pool.publish_blocks(key, self.tables)
                self._published_this_step.add(key)

    def _is_reachable(self, place: int, held: HybridState) -> bool:
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

    def free(self, blocks: GroupBlocks) -> None:
        assert isinstance(blocks, StateBlocks)
        self._free(blocks.states)
