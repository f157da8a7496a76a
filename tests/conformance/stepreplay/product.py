"""The product's engine, one step at a time: each jump is planned as ever, then handed out step by step.

For comparison with vLLM's recorded steps. What a step of a jump did follows from the jump's first step:
decodes compute one token more each, the half-done prompt one chunk more, blocks by `Decodes`. A jump ends
early exactly where the engine itself would cut it. Only the two conveniences that join a jump to the
step before or after it are switched off, since the driver wants each step's end.

Blocks get their numbers here (`block_ids.py`): in a jump from the rows in order, row by row from what the
cache does for each request. The free queue's order is the engine's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reference.output import RequestOutput, ScheduledRow, SchedulerOutput
from replicast.sim.config import EngineConfig
from replicast.sim.engine import EngineStats
from replicast.sim.engine.block_pool import RequestBlocks
from replicast.sim.engine.kv_cache import KVCache, cdiv
from replicast.sim.engine.macro import MacroEngine
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_time import StepTime
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import Tick

from .block_ids import BlockIds


class _Cache(KVCache):
    """Tells `block_ids` what it does for one request; what a jump does for all, its rows tell."""

    def watch(self, block_ids: BlockIds, engine: MacroEngine) -> None:
        self._block_ids = block_ids
        self._engine = engine

    def touch(self, held: RequestBlocks, index: int, hits: int) -> None:
        super().touch(held, index, hits)
        if not self._engine.is_jumping:
            self._block_ids.hit(held, hits)

    def publish(self, held: RequestBlocks, num_tokens: int) -> None:
        super().publish(held, num_tokens)
        if not self._engine.is_jumping:
            self._block_ids.grow(held, held.num_blocks)
            self._block_ids.publish(held, held.num_published)

    def free(self, held: RequestBlocks) -> None:
        super().free(held)
        self._block_ids.free(held)

    def finish(self, held: RequestBlocks, num_tokens: int) -> None:
        self._block_ids.publish(held, num_tokens // self.block_size)
        self._block_ids.free(held)
        super().finish(held, num_tokens)


class _Engine(MacroEngine):
    """Notes admissions and cuts instead of placing them on a clock."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StepTime(1, 0, 0, 0, 0, 0))
        self.block_ids = BlockIds(config.num_gpu_blocks)
        cache = _Cache(
            config.num_gpu_blocks,
            config.block_size,
            config.max_model_len,
            config.enable_prefix_caching,
            config.watermark,
            config.num_lookahead_tokens,
        )
        cache.watch(self.block_ids, self)
        cache.holders, cache.sync = self.scheduler.running, self._sync
        self.cache = self.scheduler.kv_cache = cache
        self.admitted: list[tuple[RequestState, int, int]] = []
        self.wants_cut = False
        self._in_mixed = False

    def _may_have_tail(self, count: int, head: RequestState | None) -> bool:
        return False

    def _plan_mixed(self, now: Tick, budget: int) -> bool:
        self._in_mixed = True
        try:
            return super()._plan_mixed(now, budget)
        finally:
            self._in_mixed = False

    def _plan_decodes(self, now: Tick, taken: int = 0, head: RequestState | None = None) -> bool:
        if self._in_mixed and head is None:
            return False
        return super()._plan_decodes(now, taken, head)

    def _admit(self, state: RequestState, budget: int, now: Tick) -> tuple[int, int]:
        done, new = super()._admit(state, budget, now)
        if new:
            self.admitted.append((state, done, new))
        return done, new

    def _cut(self, now: Tick) -> None:
        self.wants_cut = True


class Product:
    """The engine as the driver of recordings wants it."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine = self._make_engine(config)
        self.num_untold = 0
        self.num_handed_out = 0  # steps of jumps, but for their first
        self._step = 0  # steps of the jump under way already handed out; 0: no jump
        self._is_planned = False  # a plan that is not applied yet
        self._decoding: list[tuple[RequestState, int]] = []
        self._prefill: tuple[RequestState, int, int] | None = None
        self._half_done: list[tuple[RequestState, int]] = []
        self._in_flight = 0  # steps with rows that the driver has not updated from

    def _make_engine(self, config: EngineConfig) -> Any:
        return _Engine(config)

    # What the driver looks at

    @property
    def running(self) -> list[Request]:
        return [state.request for state in self.engine.scheduler.running]

    @property
    def waiting(self) -> list[Request]:
        waiting = self.engine.scheduler.waiting
        ordered = reversed(waiting) if isinstance(waiting, list) else waiting
        found = [state.request for state in ordered] + self.engine._input_queue
        if isinstance(waiting, list):
            found.sort(key=lambda r: (r.priority, r.arrival_tick, r.request_id))
        return found

    @property
    def num_free_blocks(self) -> int:
        engine = self.engine
        free = engine.cache.num_free
        if self._step:
            free -= engine.decodes.num_new_blocks(engine.clock, self._step) - engine._taken
            if self._prefill:
                state, done, chunk = self._prefill
                computed = done + self._step * chunk
                free -= -(-computed // engine.config.block_size) - state.num_blocks
        return free

    @property
    def usage(self) -> float:
        usable = self.engine.config.num_usable_blocks
        return 1.0 - self.num_free_blocks / usable if usable else 0.0

    @property
    def stats(self) -> EngineStats:
        engine = self.engine
        if not self._step or engine._blocked is None or not engine.config.enable_prefix_caching:
            return engine.stats
        request, stats, again = engine._blocked.request, engine.stats, self._step - 1
        if request.num_preemptions:
            return replace(
                stats,
                preempted_queries=stats.preempted_queries + again * request.num_tokens,
                preempted_hits=stats.preempted_hits + again * engine._blocked_hits,
            )
        return replace(
            stats,
            prefix_cache_requests=stats.prefix_cache_requests + again,
            prefix_cache_queries=stats.prefix_cache_queries + again * request.num_tokens,
            prefix_cache_hits=stats.prefix_cache_hits + again * engine._blocked_hits,
        )

    def block_ids(self, request: Request) -> list[int]:
        return list(self.engine.block_ids.of[_state(request)])

    def free_queue(self) -> list[int]:
        block_ids, cache = self.engine.block_ids, self.engine.cache
        if self._step:  # the engine's own is brought up to date when the jump is over
            return list(block_ids.queue)
        names = [(entry.node, b) for entry in cache.queue for b in range(entry.high - 1, entry.low - 1, -1)]
        return block_ids.in_order(cache.unhashed, names)

    def cached_blocks(self) -> list[int]:
        return sorted(self.engine.block_ids.name)

    # What the driver does

    def add_request(self, request: Request) -> None:
        self.engine.submit(request, request.arrival_tick)

    def abort(self, request: Request) -> None:
        self._set_clock()
        if self._step:
            self.engine.wants_cut = True
        self.engine._aborts.append(request)
        self._end_jump_where_wanted()
        self.engine._drain_input(0)
        self.num_untold += 1

    def schedule(self) -> SchedulerOutput:
        engine = self.engine
        self.num_untold = 0
        self._set_clock()
        self._end_jump_where_wanted()
        preempted: list[Request] = []
        if self._step:
            self._step += 1
            self.num_handed_out += 1
            rows = self._rows_of_jump()
            self._number_blocks(rows)
        else:
            engine._drain_input(0)
            waited = {request.request_id: request.status for request in self.waiting}
            if not engine.is_jumping and engine._can_jump():
                engine._enter_jumps()
            rows, preempted = self._plan(waited)
            if engine.is_jumping:
                self._number_blocks(rows)
        self._in_flight += bool(rows)
        return SchedulerOutput(rows, preempted)

    def update(self, output: SchedulerOutput) -> list[RequestOutput]:
        engine = self.engine
        self._in_flight -= bool(output.rows)
        if not engine.is_jumping:
            return self._update_row_by_row() if output.rows else []
        finished: list[Request] = []
        if self._is_planned and (not self._step or self._step == engine._k):
            finished = self._apply()
        self.num_untold += len(finished)
        return [
            RequestOutput(row.request, 1, row.request in finished)
            for row in output.rows
            if row.num_sampled_tokens and (row.request in finished or row.request in self.running)
        ]

    # How

    def _set_clock(self) -> None:
        """All that the engine asks of time here is whether a step is in flight."""
        self.engine.gpu_free = 1 if self._in_flight and self.engine.is_async else 0

    def _apply(self) -> list[Request]:
        self._is_planned = False
        self._step = 0
        self._prefill = None
        self.engine.wants_cut = False
        return self.engine._apply(0)

    def _end_jump_where_wanted(self) -> None:
        engine = self.engine
        if self._is_planned and (not self._step or self._step == engine._k or engine.wants_cut):
            engine._k = self._step
            engine._has_tail = False
            assert not self._apply()
            self._set_clock()
        engine.wants_cut = False

    def _plan(self, waited: dict[int, RequestStatus]) -> tuple[list[ScheduledRow], list[Request]]:
        engine = self.engine
        if engine.is_jumping:
            clock = engine.clock
            self._half_done = self._look_at_prompts()
            prompts = [state for state, _ in self._half_done]
            self._decoding = [
                (state, state.base + clock)
                for state in engine.scheduler.running
                if state not in prompts and state.leave > clock
            ]
            engine.admitted = []
            engine.next_tick = None
            if engine._plan(0):
                self._is_planned = True
                if engine._k:
                    self._step = 1
                    if engine.prefill is not None:
                        chunk = engine.scheduler.token_budget - engine.decodes.count
                        self._prefill = (engine.prefill, engine.prefill_computed, chunk)
                    return self._rows_of_jump(), []
                return self._rows_of_mixed_step(waited), []
            engine._leave_jumps(0)
        made = engine.scheduler.schedule()
        if made.rows:
            engine.in_flight.append((made, 1))
            engine.clock += 1
        rows = [
            ScheduledRow(state.request, n, c, state.request.num_tokens, drafts, sampled, _how(state, waited))
            for state, n, c, drafts, sampled in made.rows
        ]
        return rows, [state.request for state in made.preempted]

    def _number_blocks(self, rows: list[ScheduledRow]) -> None:
        """The blocks of a step that the engine made as a sum."""
        block_ids, block_size = self.engine.block_ids, self.engine.config.block_size
        for row in rows:
            state = _state(row.request)
            if row.admitted:
                block_ids.hit(state, row.num_computed_tokens // block_size)
            computed = row.num_computed_tokens + row.num_scheduled_tokens
            block_ids.grow(state, cdiv(computed, block_size))
            block_ids.publish(state, min(computed, row.num_tokens) // block_size)

    def _decode_row(self, state: RequestState, computed: int) -> ScheduledRow:
        known = computed if self.engine.is_async else computed + 1
        return ScheduledRow(state.request, 1, computed, known, 0, 1, None)

    def _rows_of_jump(self) -> list[ScheduledRow]:
        ago = self._step - 1
        rows = [self._decode_row(state, computed + ago) for state, computed in self._decoding]
        if self._prefill:
            state, done, chunk = self._prefill
            rows.append(
                ScheduledRow(state.request, chunk, done + ago * chunk, state.request.num_tokens, 0, 0, None)
            )
        return rows

    def _look_at_prompts(self) -> list[tuple[RequestState, int]]:
        """Half-done prompts, and what of them is computed."""
        engine = self.engine
        return [] if engine.prefill is None else [(engine.prefill, engine.prefill_computed)]

    def _rows_of_mixed_step(self, waited: dict[int, RequestStatus]) -> list[ScheduledRow]:
        rows = [self._decode_row(state, computed) for state, computed in self._decoding]
        for half_done, done in self._half_done:
            known = half_done.request.num_tokens
            rows.append(ScheduledRow(half_done.request, known - done, done, known, 0, 1, None))
        rows += self._rows_of_admissions(waited)
        return rows

    def _rows_of_admissions(self, waited: dict[int, RequestStatus]) -> list[ScheduledRow]:
        rows = []
        for state, hits, new in self.engine.admitted:
            known = state.request.num_tokens
            sampled = int(hits + new == known)
            rows.append(ScheduledRow(state.request, new, hits, known, 0, sampled, _how(state, waited)))
        return rows

    def _update_row_by_row(self) -> list[RequestOutput]:
        engine = self.engine
        made, _ = engine.in_flight.popleft()
        before = {id(row.state): row.state.request.num_output_tokens for row in made.rows}
        delivered, finished = engine.scheduler.update_from_output(made)
        self.num_untold += len(finished)
        return [
            RequestOutput(
                state.request, state.request.num_output_tokens - before[id(state)], state in finished
            )
            for state in delivered
        ]


def _state(request: Request) -> RequestState:
    assert isinstance(request.state, RequestState)
    return request.state


def _how(state: RequestState, waited: dict[int, RequestStatus]) -> Any:
    was = waited.get(state.request.request_id)
    return None if was is None else "new" if was == RequestStatus.WAITING else "resumed"
