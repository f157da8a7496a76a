"""What steps of a hybrid model do to the pool, request by request, in the order of steps and seats.

A decode is touched in the steps in which it is due (`due.py`), a half-done prompt in each step with a chunk
of it. In a jump all that is put off until it is over, for nobody looks at the pool before; then it is the
same calls in the same order as step by step.
"""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine.conversion import can_jump
from replicast.sim.engine.hybrid.conversion import enter_jumps, leave_jumps
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
        self.groups = scheduler.groups
        self.due = DueDecodes(config)
        self.prefills: list[HybridState] = []  # half-done, in the order of their seats
        self._lags = self.is_async and not self.is_25  # what is in flight counts as not processed
        self._chunks: list[int] = []  # of the only one, in the steps of the jump under way
        self._group_sizes = [group.block_size for group in config.kv_groups]
        self._num_groups = len(self._group_sizes)
        self._smallest = min(self._group_sizes)

    def _make_scheduler(self) -> Scheduler:
        return HybridScheduler(self.config, self.stats)

    # Between jumps and single steps

    def _can_jump(self) -> bool:
        return can_jump(self, only_last=False)

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
        """What a decode that is due in step `clock` does to the pool; that it has room was counted before."""
        computed = processed = state.base + clock
        if self._lags:
            processed -= state.last_tokens if state.last_clock == clock - 1 else 1
        self.groups.advance(state, processed, computed, 1, computed if self.is_async else computed + 1)

    def _compute_chunk(self, state: HybridState, clock: int) -> int:
        """Blocks for a half-done prompt's chunk; tokens computed before."""
        done = processed = state.computed
        new = state.chunk
        if self._lags and state.last_clock == clock - 1:
            processed -= state.last_tokens
        self.groups.advance(state, processed, done, new, state.target)
        state.computed = done + new
        state.last_clock = clock
        state.last_tokens = new
        return done

    def _take_blocks(self, k: int) -> None:
        step, end, heap = self.clock, self.clock + k, self.due.heap
        for chunk in self._chunks[:k]:
            while heap and heap[0][0] == step:
                self._touch(heap[0][2], step)
                self.due.put_first_again(step + 1)
            prefill = self.prefills[0]
            if prefill.last_clock < step:
                prefill.chunk = chunk
                self._compute_chunk(prefill, step)
                self.stats.step_token_sum += chunk
                self._look_at_peak()
            step += 1
        if self.prefills and 0 < len(self._chunks) < k:
            self._end_prompt(step)
            self.stats.step_token_sum += end - step
        self._touch_due(end)

    def _touch_due(self, end: int) -> None:
        """Touch all that are due in steps before `end`."""
        due, groups, stats = self.due, self.groups, self.stats
        heap = due.heap
        while heap:
            step, _, state = heap[0]
            if step >= end:
                break
            self._touch(state, step)
            due.put_first_again(step + 1)
            if groups.num_usable - groups.num_free > stats.peak_used_blocks and (
                not heap or heap[0][0] > step
            ):
                self._look_at_peak()

    def _look_at_peak(self) -> None:
        used = self.cache.num_usable - self.cache.num_free
        if used > self.stats.peak_used_blocks:
            self.stats.peak_used_blocks = used

    def _apply_jump(self, now: Tick) -> None:
        super()._apply_jump(now)
        if self._chunks and self.prefills and self.prefills[0].computed == self.prefills[0].target:
            self._end_prompt(self.clock)

    def _end_prompt(self, after: int) -> None:
        """The only half-done prompt decodes from step `after` on."""
        self._start_decoding(self.prefills.pop(), after, self._start + self._run.ticks(len(self._chunks)))

    def settle(self, now: Tick) -> None:
        super().settle(now)
        if not self._k or not self._chunks or now <= self._start:
            return
        delivered = self._run.steps_until(now - self._start) - len(self._chunks)
        if delivered > 0:  # the prompt was over before `now`
            request = self.prefills[0].request
            request.num_output_tokens += delivered
            if request.first_token_tick is None:
                request.first_token_tick = self._start + self._run.ticks(len(self._chunks))

    def _start_decoding(self, state: RequestState, after: int, end: Tick) -> None:
        super()._start_decoding(state, after, end)
        assert isinstance(state, HybridState)
        self.due.put(state, after)

    def mark_writer(self, state: RequestState) -> bool:
        """Decodes publish on time, so nobody has to ask them."""
        return True

    def _give_up_blocks(self, state: RequestState, computed: int) -> None:
        self.groups.finish(state, computed)

    def _most_decodes(self, k: int) -> int:
        """The most steps of decodes up to `k` for whose blocks there is room."""
        free = self.groups.num_free
        if self._most_to_take(k) * self.decodes.count <= free:
            return k
        quiet = self.due.next(self.clock + k) - self.clock
        if quiet == k or self._num_to_take(k) <= free:
            return k
        return quiet or int(self._num_to_take(1) <= free)

    def _most_to_take(self, k: int) -> int:
        """The most blocks that one decode takes in `k` steps."""
        most = self._num_groups
        if k >= self._smallest:
            for size in self._group_sizes:
                most += k // size
        return most

    def _num_to_take(self, k: int) -> int:
        """Blocks that the next `k` steps of the decodes take."""
        needed = 0
        for _, _, state in self.decodes.leaving:
            assert isinstance(state, HybridState)
            needed += self.groups.num_to_take(state, state.base + self.clock + k)
        return needed
