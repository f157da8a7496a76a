"""One request inside an engine, and what is recorded of it."""

from __future__ import annotations

from typing import Final

from replicast.sim.request_status import RequestStatus
from replicast.sim.ticks import Tick
from replicast.sim.workload import Content

__all__ = ["Request", "RequestStatus"]

_WAITING: Final = RequestStatus.WAITING  # members of an enumeration are slow to look up


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

    __slots__ = (
        "arrival_tick",
        "finish_tick",
        "first_token_tick",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "output",
        "priority",
        "prompt",
        "queued_tick",
        "request_id",
        "resumed_hit_tokens",
        "scheduled_tick",
        "state",
        "status",
        "stops_at_eos",
        "tag",
    )

    def __init__(
        self,
        request_id: int,
        prompt: Content,
        output: Content,
        num_prompt_tokens: int,
        max_tokens: int,
        stops_at_eos: bool = False,
        priority: int = 0,
        arrival_tick: Tick = 0,
        tag: object = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.output = output
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.stops_at_eos = stops_at_eos
        self.priority = priority
        self.arrival_tick = arrival_tick
        self.status = _WAITING
        self.num_computed_tokens = 0
        self.num_output_tokens = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.resumed_hit_tokens: list[int] = []
        self.queued_tick: Tick | None = None
        self.scheduled_tick: Tick | None = None
        self.first_token_tick: Tick | None = None
        self.finish_tick: Tick | None = None
        self.tag = tag  # the client's own handle; the engine never looks at it
        self.state: object = None  # the engine's own handle; nobody else looks at it

    @property
    def num_tokens(self) -> int:
        """Tokens the scheduler knows: prompt and delivered output (T of RULES.md)."""
        return self.num_prompt_tokens + self.num_output_tokens
