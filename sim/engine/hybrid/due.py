"""In which steps a decoding request does something to the pool, and when it next will.

Between two of them a step of it changes one count. With `c` tokens computed before the step it

* takes a block of each group where `c` is a multiple of the group's block size;
* publishes where its known tokens reach a multiple of the alignment: `c + 1` tokens, or asynchronously
  `c`, for the last one is still to be delivered;
* drops what left its windows, and the state before its last one, where `c` less a few tokens is such a
  multiple. From 0.33 on only tokens that no step in flight computes count there, so asynchronously it is
  one step later; after a chunk of its prompt everything is a whole chunk later, so the first two steps
  after one are due, whatever they do.

A step that turns out to change nothing may be among them: it is made by the same rules.
"""

from __future__ import annotations

from heapq import heappop, heappush

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.kv_groups import scheduler_block_size


def due_offsets(config: EngineConfig) -> list[tuple[int, int]]:
    """(block size, offset): a decode is due where computed tokens and offset add up to whole blocks."""
    groups = config.kv_groups or ()
    is_25 = config.rules == "0.25.1"
    lag = config.async_scheduling and not is_25
    found = {(group.block_size, 0) for group in groups}
    if config.enable_prefix_caching and not config.async_scheduling:
        found.add((scheduler_block_size(groups), 1))
    for group in groups:
        if group.sliding_window is not None:
            found.add((group.block_size, -lag - group.sliding_window + 1))
        elif group.kind == "mamba":
            found.add((group.block_size, -lag - 1 - (group.num_speculative_blocks if is_25 else 0)))
    return sorted({(size, offset % size) for size, offset in found})


class DueDecodes:
    """The decodes by the step in which they are next due; in one step, in the order of their seats."""

    __slots__ = ("_heap", "_offsets", "_settles_late")

    def __init__(self, config: EngineConfig) -> None:
        self._heap: list[tuple[int, int, HybridState]] = []
        self._offsets = due_offsets(config)
        self._settles_late = config.async_scheduling and config.rules != "0.25.1"

    def start(self, state: HybridState, clock: int) -> None:
        """A request whose first step as a decode is `clock`."""
        if clock < state.leave:
            heappush(self._heap, (clock, state.seat, state))

    def next(self, never: int) -> int:
        """The first step in which somebody is due, at most `never`."""
        heap = self._heap
        return heap[0][0] if heap and heap[0][0] < never else never

    def pop(self, clock: int) -> list[HybridState]:
        """Those due in step `clock`, who will be due again later."""
        heap = self._heap
        found: list[HybridState] = []
        while heap and heap[0][0] == clock:
            state = heappop(heap)[2]
            found.append(state)
        for state in found:
            later = clock + self._steps(state, clock)
            if later < state.leave:
                heappush(heap, (later, state.seat, state))
        return found

    def _steps(self, state: HybridState, clock: int) -> int:
        """Steps from `clock`, in which `state` was due, until it is again."""
        if self._settles_late and state.last_clock == clock - 1:
            return 1
        computed = state.base + clock
        steps = 1 << 60
        for size, offset in self._offsets:
            ahead = size - (computed + offset) % size
            if ahead < steps:
                steps = ahead
        return steps

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
