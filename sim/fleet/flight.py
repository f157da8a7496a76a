"""What is under way: a session whose turns are being asked, and each request on its way."""

from __future__ import annotations

from typing import Final

from replicast.sim.request import Request
from replicast.sim.ticks import Tick
from replicast.sim.workload import Content, Turn

NOWHERE: Final = -1  # the replica of a request that nobody has taken


class LiveSession:
    """A session under way.

    `missing[t]` replies are still to come before turn t is due; `dependents` are the turns that wait for
    a reply (turns that are sent by the clock wait for none). `pending` turns are due or in flight.
    """

    __slots__ = ("dependents", "end", "index", "missing", "pending", "truncated", "turns")

    def __init__(
        self, index: int, turns: tuple[Turn, ...], missing: list[int], dependents: dict[int, list[int]]
    ) -> None:
        self.index = index
        self.turns = turns
        self.missing = missing
        self.dependents = dependents
        self.pending = 0
        self.truncated = False
        self.end: Tick | None = None  # the developer leaves


class Flight(Request):
    """A request, and what the fleet remembers of it: whose turn it is, when it was sent, and where to."""

    __slots__ = ("live", "replica", "sent_tick", "session_key", "turn_index")

    def __init__(
        self,
        request_id: int,
        prompt: Content,
        output: Content,
        num_prompt_tokens: int,
        max_tokens: int,
        stops_at_eos: bool,
        priority: int,
        arrival_tick: Tick,
        live: LiveSession,
        turn_index: int,
        sent_tick: Tick,
    ) -> None:
        super().__init__(
            request_id, prompt, output, num_prompt_tokens, max_tokens, stops_at_eos, priority, arrival_tick
        )
        self.live = live
        self.session_key = live.index
        self.turn_index = turn_index
        self.sent_tick = sent_tick
        self.replica = NOWHERE
