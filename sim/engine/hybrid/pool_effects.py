"""What steps of a hybrid model do to the pool, request by request, in the order of steps and seats.

A decode is touched in the steps in which it is due (`due.py`), a half-done prompt in each step with a chunk
of it. In a jump all that is put off until it is over, for nobody looks at the pool before; then it is the
same calls in the same order as step by step.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.conversion import can_jump, enter_jumps, leave_jumps
from replicast.sim.engine.hybrid.due import DueDecodes
from replicast.sim.engine.hybrid.scheduler import HybridScheduler
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.macro import MacroEngine
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.scheduler import Scheduler
from replicast.sim.engine.step_time import StepTime
from replicast.sim.ticks import Tick


class PoolEffects(MacroEngine):
    """The state of an engine of a hybrid model, and what its steps do to the pool."""

    def __init__(self, config: EngineConfig, step_time: StepTime) -> None:
        assert config.kv_groups is not None, "a model without groups has a faster engine"
        super().__init__(config, step_time)
        scheduler = self.scheduler
        assert isinstance(scheduler, HybridScheduler)
        self.hybrid = scheduler
        self.manager = scheduler.manager
        self.due = DueDecodes(config)
        self.prefills: list[HybridState] = []  # half-done, in the order of their seats
        self._chunks: list[int] = []  # of the only one, in the steps of the jump under way
        self._group_sizes = [group.block_size for group in config.kv_groups]
        self._smallest = min(self._group_sizes)

    def _make_scheduler(self) -> Scheduler:
        return HybridScheduler(self.config, self.stats)

    # Between jumps and single steps

    def _can_jump(self) -> bool:
        return can_jump(self)

    def _enter_jumps(self) -> None:
        enter_jumps(self)

    def _leave_jumps(self, now: Tick) -> None:
        leave_jumps(self, now)

    # What the pool sees

    def tokens_in_flight(self, state: HybridState, clock: int, otherwise: int) -> int:
        """Tokens of the step before `clock` that are still to be computed; `otherwise` if it was no chunk."""
        if not self.is_async:
            return 0
        return state.last_tokens if state.last_clock == clock - 1 else otherwise

    def _touch(self, state: HybridState, clock: int) -> None:
        """What a decode that is due in step `clock` does to the pool."""
        computed = state.base + clock
        in_flight = self.tokens_in_flight(state, clock, 1)
        done = self.manager.allocate_slots(
            state.blocks, computed, 1, computed if self.is_async else computed + 1, in_flight
        )
        assert done, "blocks were counted before"
        self.due.put(state, clock + 1)

    def _compute_chunk(self, state: HybridState, clock: int) -> int:
        """Blocks for a half-done prompt's chunk; tokens computed before."""
        done, new = state.computed, state.chunk
        in_flight = self.tokens_in_flight(state, clock, 0)
        enough = self.manager.allocate_slots(state.blocks, done, new, state.target, in_flight)
        assert enough, "blocks were counted before"
        state.computed = done + new
        state.last_clock = clock
        state.last_tokens = new
        return done

    def _take_blocks(self, k: int) -> None:
        due, step, end = self.due, self.clock, self.clock + k
        for chunk in self._chunks[:k]:
            self._touch_due(step)
            prefill = self.prefills[0]
            if prefill.last_clock < step:
                prefill.chunk = chunk
                self._compute_chunk(prefill, step)
                self.stats.step_token_sum += chunk
            self._look_at_peak()
            step += 1
        step = due.next(end)
        while step < end:
            self._touch_due(step)
            self._look_at_peak()
            step = due.next(end)

    def _touch_due(self, step: int) -> None:
        if self.due.next(step + 1) == step:
            for state in self.due.pop(step):
                self._touch(state, step)

    def _look_at_peak(self) -> None:
        used = self.cache.num_usable - self.manager.pool.num_free
        if used > self.stats.peak_used_blocks:
            self.stats.peak_used_blocks = used

    def _apply_jump(self, now: Tick) -> None:
        super()._apply_jump(now)
        if self._chunks:
            prefill = self.prefills[0]
            if prefill.computed == prefill.target:
                self.prefills.clear()
                self._start_decoding(prefill, self.clock, self.gpu_free)

    def _start_decoding(self, state: RequestState, after: int, end: Tick) -> None:
        super()._start_decoding(state, after, end)
        assert isinstance(state, HybridState)
        self.due.put(state, after)

    def _count(self, k: int, tokens: int, duration: Tick) -> None:
        self.cache.num_free = self.manager.pool.num_free
        super()._count(k, tokens, duration)

    def _give_up_blocks(self, state: RequestState, computed: int) -> None:
        assert isinstance(state, HybridState)
        self.manager.publish(state.blocks, computed)
        self.manager.free(state.blocks)

    def _most_decodes(self, k: int) -> int:
        """The most steps of decodes up to `k` for whose blocks there is room."""
        count, clock = self.decodes.count, self.clock
        free = self.manager.pool.num_free
        if self._most_to_take(k) * count <= free:
            return k
        quiet = self.due.next(clock + k) - clock
        if quiet == k:
            return k
        if self._num_to_take(k) <= free:
            return k
        if quiet:
            return quiet
        return 1 if self._num_to_take(1) <= free else 0

    def _most_to_take(self, k: int) -> int:
        """The most blocks that one decode takes in `k` steps."""
        most = len(self._group_sizes)
        if k >= self._smallest:
            for size in self._group_sizes:
                most += k // size
        return most

    def _num_to_take(self, k: int) -> int:
        """Blocks that the next `k` steps of the decodes take."""
        needed = 0
        for _, _, state in self.decodes.leaving:
            assert isinstance(state, HybridState)
            needed += self.manager.num_to_take(state.blocks, state.base + self.clock + k)
        return needed
