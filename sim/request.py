"""One request inside an engine, and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from replicast.sim.ticks import Tick
from replicast.sim.workload import Content


class RequestStatus(IntEnum):
    """Life of a request, in vLLM's words."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3  # EOS or a stop id
    FINISHED_LENGTH_CAPPED = 4  # max_tokens or max_model_len
    FINISHED_ABORTED = 5


@dataclass(slots=True, eq=False)
class Request:
    """A request as the engine holds it; one is made for one run and never reused.

    `max_tokens` is the number of tokens it will generate. With `stops_at_eos` the last of them is
    EOS, which async scheduling cannot foresee (RULES section 7); without, it ends by length.
    Only the engine reads `max_tokens`, `stops_at_eos` and `output`: routers must not.

    Ticks (None until they happen): `arrival_tick` handed to the engine's input queue,
    `queued_tick` taken into the scheduler at a step boundary (QUEUED), `scheduled_tick` its first
    schedule() call (SCHEDULED), `first_token_tick` and `finish_tick` the updates that delivered its
    first and last token. `num_cached_tokens` are the hit tokens of the first admission,
    `resumed_hit_tokens` those of every later one.
    """

    request_id: int
    prompt: Content
    output: Content
    num_prompt_tokens: int
    max_tokens: int
    stops_at_eos: bool = False
    priority: int = 0
    arrival_tick: Tick = 0

    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    resumed_hit_tokens: list[int] = field(default_factory=list)
    queued_tick: Tick | None = None
    scheduled_tick: Tick | None = None
    first_token_tick: Tick | None = None
    finish_tick: Tick | None = None
    tag: object = None  # the client's own handle; the engine never looks at it
    state: object = None  # the engine's own handle; nobody else looks at it

    @property
    def num_tokens(self) -> int:
        """Tokens the scheduler knows: prompt and delivered output (T of RULES.md)."""
        return self.num_prompt_tokens + self.num_output_tokens
