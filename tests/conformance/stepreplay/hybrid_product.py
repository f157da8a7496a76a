"""The product's engine of hybrid models, one step at a time, with its own block ids.

Jumps are planned as ever and handed out as those of plain models (`product.py`). Its blocks are real ones, so
each step handed out of a jump touches who is due in it, and the pool is what it was after that step.
"""

from __future__ import annotations

from reference.output import ScheduledRow
from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_time import StepTime
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import Tick

from .product import Product


class _Engine(HybridEngine):
    """Notes admissions and cuts instead of placing them on a clock."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StepTime(1, 0, 0, 0, 0, 0))
        self.admitted: list[tuple[RequestState, int, int]] = []
        self.wants_cut = False
        self._mixed: int | None = None  # the step that `_plan_mixed` makes

    def _may_have_tail(self, count: int, head: RequestState | None) -> bool:
        return False

    def _plan_mixed(self, now: Tick, budget: int) -> bool:
        self._mixed = self.clock
        try:
            return super()._plan_mixed(now, budget)
        finally:
            self._mixed = None

    def _plan_decodes(self, now: Tick, taken: int = 0, head: RequestState | None = None) -> bool:
        if self._mixed is not None and self._mixed < self.clock:
            return False  # the jump after it is planned when it is asked for
        return super()._plan_decodes(now, taken, head)

    def _plan_prompt(self, now: Tick) -> bool:
        return self._mixed is None and super()._plan_prompt(now)

    def _admit(self, state: RequestState, budget: int, now: Tick) -> tuple[int, int]:
        done, new = super()._admit(state, budget, now)
        if new:
            self.admitted.append((state, done, new))
        return done, new

    def _cut(self, now: Tick) -> None:
        self.wants_cut = True


class HybridProduct(Product):
    """The engine of hybrid models as the driver of recordings wants it."""

    def _make_engine(self, config: EngineConfig) -> _Engine:
        return _Engine(config)

    @property
    def num_free_blocks(self) -> int:
        return self.engine.manager.pool.num_free  # type: ignore[no-any-return]

    def block_ids(self, request: Request) -> list[int] | list[list[int]]:
        assert isinstance(request.state, HybridState)
        groups = request.state.blocks.block_ids
        return groups[0] if len(groups) == 1 else groups

    def free_queue(self) -> list[int]:
        return list(self.engine.manager.pool.free_queue)

    def cached_blocks(self) -> list[int]:
        hashes = self.engine.manager.pool.block_hash
        return [block for block, held in enumerate(hashes) if held is not None]

    def _number_blocks(self, rows: list[ScheduledRow]) -> None:
        if self._step:
            self.engine._take_blocks(self._step)

    def _look_at_prompts(self) -> list[tuple[RequestState, int]]:
        return [(state, state.computed) for state in self.engine.prefills]

    def _rows_of_jump(self) -> list[ScheduledRow]:
        rows = super()._rows_of_jump()
        chunks = self.engine._chunks[: self._step]
        if chunks:
            (state, done), new = self._half_done[0], chunks.pop()
            done, known = done + sum(chunks), state.request.num_tokens
            rows.append(ScheduledRow(state.request, new, done, known, 0, int(done + new == known), None))
        return rows

    def _rows_of_mixed_step(self, waited: dict[int, RequestStatus]) -> list[ScheduledRow]:
        rows = [(state.seat, self._decode_row(state, computed)) for state, computed in self._decoding]
        for state, done in self._half_done:
            assert isinstance(state, HybridState)
            request = state.request
            new = state.computed - done
            if new:
                known = request.num_tokens
                row = ScheduledRow(request, new, done, known, 0, int(done + new == known), None)
                rows.append((state.seat, row))
        rows.sort(key=lambda one: one[0])
        return [row for _, row in rows] + self._rows_of_admissions(waited)
