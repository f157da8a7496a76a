"""From jumps to single steps and back, as `sim/engine/conversion.py` does it for plain models.

The blocks need nothing: each request's own are up to date at every step boundary. Several prompts may be
half-done, at any place in `running`, for a chunk cut to whole blocks leaves budget to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.engine.conversion import count_decode, is_half_done, sum_up
from replicast.sim.engine.decodes import Decodes
from replicast.sim.engine.hybrid.state import HybridState
from replicast.sim.engine.request_state import ScheduledRow, SchedulerOutput
from replicast.sim.ticks import Tick

if TYPE_CHECKING:
    from replicast.sim.engine.hybrid.pool_effects import PoolEffects


def leave_jumps(engine: PoolEffects, now: Tick) -> None:
    """Give every running request its own counts; call it at a step boundary."""
    engine.is_jumping = False
    clock = engine.clock
    rows: list[ScheduledRow] = []
    for state in engine.scheduler.running:
        assert isinstance(state, HybridState)
        request = state.request
        half_done = state in engine.prefills
        if half_done:
            request.num_computed_tokens = state.computed
        else:
            count_decode(engine, state)
        state.is_prefill_chunk = half_done
        in_flight = engine.tokens_in_flight(state, clock, 0 if half_done else 1)
        state.num_in_flight_tokens = in_flight
        state.num_output_placeholders = int(engine.is_async and not half_done)
        if in_flight:
            rows.append(ScheduledRow(state, in_flight, 0, 0, 0 if half_done else 1))
    if engine.is_async and engine.gpu_free > now:
        engine.in_flight.append((SchedulerOutput(rows, []), engine.gpu_free))
    engine.decodes = Decodes(engine.config.block_size)
    engine.due.clear()
    engine.prefills.clear()
    engine.last_in_flight = []


def enter_jumps(engine: PoolEffects) -> None:
    """Sum up the running requests."""
    engine.is_jumping = True
    end = engine.in_flight[0][1] if engine.in_flight else None
    engine.in_flight.clear()
    clock = engine.clock
    for seat, state in enumerate(engine.scheduler.running, engine.next_seat):
        assert isinstance(state, HybridState)
        request = state.request
        state.seat = seat
        state.last_clock = clock - 1
        state.last_tokens = state.num_in_flight_tokens
        if is_half_done(state):
            state.target = request.num_tokens
            state.computed = request.num_computed_tokens
            engine.prefills.append(state)
            continue
        sum_up(engine, state, end)
        if state.leave > clock:
            engine.due.put(state, clock)
    engine.next_seat += len(engine.scheduler.running)
