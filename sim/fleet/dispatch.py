"""The way of one request: router, front end, engine, delivery, record.

A request is routed when it arrives, as a proxy does, and takes the front end's time before it is handed
to the engine. The front end knows the prompt's length only then: a prompt of `max_model_len` or more
fails there as HTTP 400 does, and `max_tokens` is cut to what `max_model_len` leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicast.sim.config import EngineConfig
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.events import ARRIVAL, REPLY, Call, Clock
from replicast.sim.fleet.records import Flight, Recorder, RecordStatus
from replicast.sim.fleet.replica import Replica
from replicast.sim.fleet.routers import RoutedRequest, Router
from replicast.sim.request import Request
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Segment, Session

Replied = Callable[[int, int, bool], None]


class Dispatcher:
    """Takes turns, gives them to replicas and records them.

    `replicas` and `on_reply(session_index, turn_index, rejected)` are set before the run.
    """

    def __init__(
        self,
        clock: Clock,
        sessions: Sequence[Session],
        config: EngineConfig,
        fleet: FleetConfig,
        router: Router,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._clock = clock
        self._sessions = sessions
        self._max_model_len = config.max_model_len
        self._stops_at_eos = fleet.stops_at_eos
        self._fixed = ticks(fleet.front_end.fixed_s)
        self._per_token = ticks(fleet.front_end.per_prompt_token_s)
        self._delivery = ticks(fleet.front_end.delivery_s)
        self._router = router
        self._progress = progress
        self._in_flight: dict[int, Request] = {}
        self.replicas: list[Replica] = []
        self.on_reply: Replied = _nobody
        self.recorder = Recorder()
        self.num_submitted = 0
        self.num_finished = 0
        self.num_rejected = 0
        self.num_clipped_outputs = 0
        self.num_raised_outputs = 0

    @property
    def num_in_flight(self) -> int:
        """Requests that arrived and have no reply yet."""
        return len(self._in_flight)

    def send(self, session_index: int, turn_index: int) -> None:
        """A client sends a turn now."""
        turn = self._sessions[session_index].turns[turn_index]
        routed = RoutedRequest(turn.prompt, turn.num_prompt_tokens, session_index, turn.priority)
        replica = self._router.route(routed)
        room = self._max_model_len - turn.num_prompt_tokens
        max_tokens, output = turn.num_output_tokens, turn.output
        if max_tokens < 1:
            # vLLM generates at least one token; its content is nobody's: streams of a trace are not negative.
            self.num_raised_outputs += 1
            max_tokens, output = 1, (Segment(-1 - session_index, turn_index, 1),)
        clipped = 0 < room < max_tokens
        self.num_clipped_outputs += clipped
        now: Tick = self._clock.tick
        front_end = self._fixed + self._per_token * turn.num_prompt_tokens
        request = Request(
            request_id=self.num_submitted,
            prompt=turn.prompt,
            output=output,
            num_prompt_tokens=turn.num_prompt_tokens,
            max_tokens=room if clipped else max_tokens,
            stops_at_eos=self._stops_at_eos and not clipped,
            priority=turn.priority,
            arrival_tick=now + front_end,
            tag=Flight(session_index, turn_index, now, replica, routed),
        )
        self.num_submitted += 1
        self._in_flight[request.request_id] = request
        if front_end:
            Call(self._clock, front_end, ARRIVAL, self._handled, request)
        else:
            self._hand(request)

    def _handled(self, event: Call) -> None:
        self._hand(event.about)

    def _hand(self, request: Request) -> None:
        if request.num_prompt_tokens >= self._max_model_len:
            Call(self._clock, self._delivery, REPLY, self._rejected, request)
        else:
            self.replicas[_flight(request).replica].submit(request)

    def on_finished(self, finished: list[Request]) -> None:
        """A step of some replica finished these requests now."""
        if self._delivery:
            Call(self._clock, self._delivery, REPLY, self._delivered, finished)
        else:
            self._reply(finished)

    def _delivered(self, event: Call) -> None:
        self._reply(event.about)

    def _reply(self, finished: list[Request]) -> None:
        for request in finished:
            self.num_finished += 1
            self._close(request, RecordStatus.FINISHED)
        if self._progress is not None:
            self._progress(self.num_finished)

    def _rejected(self, event: Call) -> None:
        self.num_rejected += 1
        self._close(event.about, RecordStatus.REJECTED)

    def _close(self, request: Request, status: RecordStatus) -> None:
        flight = _flight(request)
        del self._in_flight[request.request_id]
        self._router.replied(flight.routed, flight.replica)
        self.recorder.add(request, flight, self._delivery, status)
        self.on_reply(flight.session_index, flight.turn_index, status is RecordStatus.REJECTED)

    def record_unfinished(self) -> None:
        """Record what is still in flight when the run ends."""
        for request in self._in_flight.values():
            self.recorder.add(request, _flight(request), self._delivery, RecordStatus.UNFINISHED)


def _flight(request: Request) -> Flight:
    return request.tag  # type: ignore[return-value]  # the fleet puts nothing else there


def _nobody(session_index: int, turn_index: int, rejected: bool) -> None:
    raise AssertionError("nobody waits for replies")
