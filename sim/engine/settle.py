"""How far requests have come at a tick inside a jump: what a run that ends there must write down.

A jump is applied when it is over, and a mixed step when it is planned; an observer in between wants what
vLLM had delivered by then. Of the steps planned so far (`clock`) all have been delivered but those that
end at `now` or later: the last one before the jump, if the jump has not begun on the GPU, and asynchronous
also the one before it, if that is still under way. Of the jump itself those steps that end before `now`.

Nothing of the engine changes; only the requests' own counts do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.engine.jump_effects import NEVER
from replicast.sim.ticks import Tick

if TYPE_CHECKING:
    from replicast.sim.engine.macro import MacroEngine


def settle(engine: MacroEngine, now: Tick) -> None:
    """Bring delivered tokens, first tokens and QUEUED stamps of live requests to `now`, exclusive."""
    for state in [*engine.scheduler.running, *engine.scheduler.waiting]:
        first = state.request.first_token_tick
        if first is not None and first >= now:
            state.request.first_token_tick = None
    if not engine.is_jumping:
        return
    jumped, pending = _jumped(engine, now), _pending(engine, now)
    decoding = [state for _, _, state in engine.decodes.leaving]
    for state in [*decoding, *engine.last_in_flight]:
        request = state.request
        if state.leave > engine.clock:
            delivered = engine.clock - pending + jumped
        else:
            delivered = min(state.leave, engine.clock - pending)  # no row in the steps since it left
        outputs = state.base + delivered + 1 - request.num_prompt_tokens
        if outputs > request.num_output_tokens:
            request.num_output_tokens = outputs


def _jumped(engine: MacroEngine, now: Tick) -> int:
    """Steps of the jump under way that end before `now`."""
    if not engine._k or now <= engine._start:
        return 0
    return engine._run.steps_until(now - engine._start) - 1


def _pending(engine: MacroEngine, now: Tick) -> int:
    """Steps planned before the jump that end at `now` or later."""
    if engine._k:
        behind = now <= engine._start
        return behind + (engine.is_async and engine._lead != NEVER and now <= engine._lead)
    if engine.next_tick is None or engine.gpu_free < now:
        return 0
    return 2 if engine.is_async else 1
