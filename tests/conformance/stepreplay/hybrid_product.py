"""The product's engine of hybrid models, one step at a time.

Jumps are planned as ever and handed out as those of plain models (`product.py`), but for the decodes after a
prompt. Each step handed out of a jump touches who is due in it: the pool is what it was after that step.

Its blocks have no numbers. They come from the reference's cache, which gets the same calls in the same order
and must give the same answers; so recorded numbers are met only if each call is vLLM's own.
"""

from __future__ import annotations

from typing import Any

from reference.block_hash import BlockHashes
from reference.groups.full import RequestBlocks
from reference.kv_cache import Hit, KVCacheManager
from reference.output import ScheduledRow
from replicast.sim.config import EngineConfig
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.engine.hybrid.kv_cache import HybridCache
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.request_state import RequestState
from replicast.sim.engine.step_time import StepTime
from replicast.sim.kv_groups import hash_block_size
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import Tick

from .product import Product


class _Cache(HybridCache):
    """Asks the reference's cache the same."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.shadow = KVCacheManager.of(config)
        self.of: dict[Any, RequestBlocks] = {}
        self._hits: dict[Any, Hit] = {}
        groups = config.kv_groups or ()
        self._num_groups = len(groups)
        self._hash_block_size = hash_block_size(groups, config.enable_prefix_caching)

    def name(self, held: Any, content: Any) -> None:
        super().name(held, content)
        r = held.request
        private = -1 - r.request_id
        hashes = BlockHashes(r.prompt, r.output, r.max_tokens, self._hash_block_size, private)
        self.of[held] = RequestBlocks(hashes, r.num_prompt_tokens, self._num_groups)

    def new_step_starts(self) -> None:
        self.shadow.new_step_starts()
        super().new_step_starts()

    def get_computed_blocks(self, held: Any, num_tokens: int) -> Any:
        hit = super().get_computed_blocks(held, num_tokens)
        self._hits[held] = self.shadow.get_computed_blocks(self.of[held], num_tokens)
        assert self._hits[held].num_tokens == hit.num_tokens
        return hit

    def allocate(self, held: Any, *numbers: int) -> bool:
        done = self.shadow.allocate_slots(self.of[held], *numbers, held.num_in_flight_tokens)
        self._checked(done, super().allocate(held, *numbers))
        return done

    def advance(
        self, held: Any, num_processed: int, num_computed: int, num_new: int, num_tokens: int
    ) -> None:
        in_flight = num_computed - num_processed
        done = self.shadow.allocate_slots(self.of[held], num_computed, num_new, num_tokens, in_flight)
        super().advance(held, num_processed, num_computed, num_new, num_tokens)
        self._checked(done, True)

    def admit_hit(self, held: Any, hit: Any, *numbers: int, **settings: bool) -> bool:
        done = self.shadow.admit(self.of[held], self._hits[held], *numbers, **settings)
        self._checked(done, super().admit_hit(held, hit, *numbers, **settings))
        return done

    def publish(self, held: Any, num_tokens: int) -> None:
        self.shadow.publish(self.of[held], num_tokens)
        super().publish(held, num_tokens)

    def free(self, held: Any) -> None:
        self.shadow.free(self.of[held])
        super().free(held)
        self._checked(True, True)

    def _checked(self, theirs: bool, ours: bool) -> None:
        assert (theirs, self.shadow.pool.num_free_blocks) == (ours, self.num_free)


class _Engine(HybridEngine):
    """Notes admissions and cuts instead of placing them on a clock."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StepTime(1, 0, 0, 0, 0, 0))
        self.shadowed = cache = _Cache(config)
        cache.holders, cache.sync = self.scheduler.running, self._sync
        self.cache = self.groups = self.hybrid.groups = self.scheduler.kv_cache = cache
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

    def _num_steps_after(self, prefill: HybridState, k: int) -> int:
        return 0

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
        return self.engine.cache.num_free  # type: ignore[no-any-return]

    def block_ids(self, request: Request) -> list[int] | list[list[int]]:
        groups = [list(group.block_ids) for group in self.engine.shadowed.of[request.state].groups]
        return groups[0] if len(groups) == 1 else groups

    def free_queue(self) -> list[int]:
        return list(self.engine.shadowed.shadow.pool.free_queue)

    def cached_blocks(self) -> list[int]:
        hashes = self.engine.shadowed.shadow.pool.block_hash
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
