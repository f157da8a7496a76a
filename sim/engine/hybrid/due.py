"""In which step a decoding request next does something to the pool.

A step of a decode that takes no block, fills none and leaves none behind changes one count. Its blocks
know at which token counts that ends (`groups/blocks.py`): there is room for `room` tokens, the next block is
full at `next_publish`, and nothing can be dropped before `next_drop` tokens are processed. With `c` tokens
computed before a step, it

* needs room for `c + 1` tokens;
* publishes what `c + 1` known tokens fill, asynchronously `c`, for the last one is still to be delivered;
* has processed `c` tokens; asynchronously from 0.33 on, where what a step in flight computes does not count,
  one fewer, and in the step after a chunk of its prompt fewer by that chunk.

So the step is a difference. All decodes stand in a heap by it, in one step in the order of their seats.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.state import HybridState


class DueDecodes:
    """The decodes by the step in which they are next due."""

    __slots__ = ("_known_ahead", "_lag", "heap")

    def __init__(self, config: EngineConfig) -> None:
        self.heap: list[tuple[int, int, HybridState]] = []
        self._known_ahead = 0 if config.async_scheduling else 1
        self._lag = 1 if config.async_scheduling and config.rules != "0.25.1" else 0

    def put(self, state: HybridState, clock: int) -> None:
        """A decode that has a row in every step from `clock` until it leaves."""
        step = self._step(state, clock)
        if step < state.leave:
            heappush(self.heap, (step, state.seat, state))

    def put_first_again(self, clock: int) -> None:
        """The first one has been touched."""
        _, seat, state = self.heap[0]
        step = self._step(state, clock)
        if step < state.leave:
            heapreplace(self.heap, (step, seat, state))
        else:
            heappop(self.heap)

    def _step(self, state: HybridState, clock: int) -> int:
        """The first step from `clock` on in which a decode is due."""
        ends = state.next_publish - self._known_ahead
        if state.room < ends:
            ends = state.room
        base, lag, drops = state.base, self._lag, state.next_drop
        step = ends - base
        drop_step = drops + lag - base
        if lag and state.last_clock == clock - 1:
            if base + clock - state.last_tokens >= drops:
                drop_step = clock
            elif drop_step <= clock:
                drop_step = clock + 1
        if drop_step < step:
            step = drop_step
        return step if step > clock else clock

    def next(self, never: int) -> int:
        """The first step in which somebody is due, at most `never`."""
        heap = self.heap
        if heap:
            step = heap[0][0]
            if step < never:
                return step
        return never

    def pop(self, clock: int) -> list[HybridState]:
        """Those due in step `clock`; who is touched is to be put again."""
        heap = self.heap
        found: list[HybridState] = []
        while heap and heap[0][0] == clock:
            found.append(heappop(heap)[2])
        return found

    def clear(self) -> None:
        """Forget all."""
        self.heap.clear()
