"""From jumps to single steps and back: the same state, as sums or row by row.

In a jump a decoding request is two numbers; row by row it has computed tokens, delivered tokens,
placeholders and, with asynchronous scheduling, a row in the step in flight. Each follows from the
step counter, for while the engine jumps every running request has a row in every step (but for those
whose last token is in flight). Where that does not hold, the engine goes on row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.engine.decodes import Decodes
from replicast.sim.engine.kv_cache import cdiv
from replicast.sim.engine.request_state import RequestState, ScheduledRow, SchedulerOutput
from replicast.sim.request import RequestStatus
from replicast.sim.ticks import Tick

if TYPE_CHECKING:
    from replicast.sim.engine.macro import MacroEngine


def leave_jumps(engine: MacroEngine, now: Tick) -> None:
    """Give every running request its own counts; call it at a step boundary."""
    engine.is_jumping = False
    engine.has_rival_writers = False
    cache = engine.scheduler.kv_cache
    rows: list[ScheduledRow] = []
    for state in engine.scheduler.running:
        request = state.request
        if state is engine.prefill:
            request.num_computed_tokens = engine.prefill_computed
        else:
            computed = count_decode(engine, state)
            state.num_blocks = cdiv(computed, cache.block_size)
            cache.publish(state, computed - engine.is_async)
            engine.unmark_writer(state)
        state.is_prefill_chunk = state is engine.prefill
        state.num_in_flight_tokens = int(engine.is_async)
        state.num_output_placeholders = int(engine.is_async and not state.is_prefill_chunk)
        rows.append(ScheduledRow(state, 1, 0, 0, 0 if state.is_prefill_chunk else 1))
    if engine.is_async and engine.gpu_free > now:
        engine.in_flight.append((SchedulerOutput(rows, []), engine.gpu_free))
    engine.decodes = Decodes(engine.config.block_size)
    engine.prefill = None
    engine.last_in_flight = []


def count_decode(engine: MacroEngine, state: RequestState) -> int:
    """Give a request that decodes its own counts; its computed tokens."""
    request = state.request
    computed = request.num_prompt_tokens + state.num_outputs - 1
    if state.leave > engine.clock:
        computed = state.base + engine.clock
    request.num_computed_tokens = computed
    known = computed if engine.is_async else computed + 1
    request.num_output_tokens = known - request.num_prompt_tokens
    return computed


def can_jump(engine: MacroEngine, only_last: bool = True) -> bool:
    """Whether the state, row by row, is one that the sums can hold.

    Only the last of `running` may be half-done, or (`only_last` false) any.
    """
    if not engine.may_jump:
        return False
    in_flight: set[RequestState] = set()
    for output, _ in engine.in_flight:
        for row in output.rows:
            state = row.state
            if state.request.status != RequestStatus.RUNNING or state.num_stale_output_tokens:
                return False
            in_flight.add(state)
    running = engine.scheduler.running
    for state in running:
        if is_half_done(state):
            if (only_last and state is not running[-1]) or engine.config.long_prefill_token_threshold:
                return False
        elif engine.is_async and (state not in in_flight or not state.num_output_placeholders):
            return False
    return True


def is_half_done(state: RequestState) -> bool:
    request = state.request
    return request.num_computed_tokens + 1 < request.num_tokens + state.num_output_placeholders or (
        state.is_prefill_chunk
    )


def enter_jumps(engine: MacroEngine) -> None:
    """Sum up the running requests, if none of them publishes what another does."""
    decoding = [state for state in engine.scheduler.running if not is_half_done(state)]
    if not all(engine.mark_writer(state) for state in decoding):
        for state in decoding:
            engine.unmark_writer(state)
        return
    engine.is_jumping = True
    end = engine.in_flight[0][1] if engine.in_flight else None
    engine.in_flight.clear()
    for seat, state in enumerate(engine.scheduler.running, engine.next_seat):
        request = state.request
        state.seat = seat
        if is_half_done(state):
            engine.prefill = state
            engine.prefill_computed = request.num_computed_tokens
            continue
        sum_up(engine, state, end)
    engine.next_seat += len(engine.scheduler.running)


def sum_up(engine: MacroEngine, state: RequestState, end: Tick | None) -> None:
    """Let a request decode in jumps; what is in flight is over at `end`."""
    request, clock = state.request, engine.clock
    sampled = request.num_output_tokens + state.num_output_placeholders
    state.leave = leave = clock + state.num_outputs - sampled + state.runs_past_eos
    if leave == clock:
        engine.last_in_flight.append(state)
    else:
        engine.decodes.add(state, request.num_computed_tokens, clock, leave)
    if request.first_token_tick is None:
        request.first_token_tick = end
