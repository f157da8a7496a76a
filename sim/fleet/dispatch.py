"""The way of one request: router, front end, engine, delivery, record.

A request is routed when it arrives, as a proxy does, and takes the front end's time before it is handed
to the engine. The front end knows the prompt's length only then: a prompt of `max_model_len` or more
fails there as HTTP 400 does, and `max_tokens` is cut to what `max_model_len` leaves.

What is on a replica when it is lost fails, and is sent again as a new request. While no replica takes
requests they wait at the router: to their clients, that is front-end time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from replicast.sim.config import EngineConfig
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.events import ARRIVAL, REPLY, Clock
from replicast.sim.fleet.records import Flight, Recorder, RecordStatus
from replicast.sim.fleet.replica import Replica
from replicast.sim.fleet.routers import RoutedRequest, Router
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Segment, Turn

Replied = Callable[[int, int, bool], None]
NOWHERE = -1  # the replica of a request that nobody has taken


class Dispatcher:
    """Takes turns, gives them to replicas and records them.

    `replicas`, `on_reply(session_index, turn_index, rejected)` and `on_empty(replica)`, told of a replica
    that has nothing left and gets no more, are set before the run.
    """

    def __init__(
        self,
        clock: Clock,
        config: EngineConfig,
        fleet: FleetConfig,
        router: Router,
        recorder: Recorder,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._clock = clock
        self._max_model_len = config.max_model_len
        self._stops_at_eos = fleet.stops_at_eos
        self._fixed = ticks(fleet.front_end.fixed_s)
        self._per_token = ticks(fleet.front_end.per_prompt_token_s)
        self._delivery = ticks(fleet.front_end.delivery_s)
        self._router = router
        self._recorder = recorder
        self._progress = progress
        self._in_flight: dict[int, Request] = {}
        self._present = fleet.replicas
        self._leaving: dict[int, int] = {}  # requests left on replicas that get no more
        self._held: list[Request] = []  # nobody was there to take them
        self.replicas: list[Replica] = []
        self.on_reply: Replied = _nobody
        self.on_empty: Callable[[int], None] = _nothing
        self.turn_of: Callable[[int, int], Turn] = _unknown
        self.is_over: Callable[[], bool] = _never
        self.num_submitted = 0
        self.num_finished = 0
        self.num_rejected = 0
        self.num_aborted = 0
        self.num_clipped_outputs = 0
        self.num_raised_outputs = 0

    @property
    def num_in_flight(self) -> int:
        """Requests that arrived and have no reply yet."""
        return len(self._in_flight)

    def send(self, session_index: int, turn_index: int, turn: Turn) -> None:
        """A client sends a turn now."""
        num_prompt_tokens, priority = turn.num_prompt_tokens, turn.priority
        routed = RoutedRequest(turn.prompt, num_prompt_tokens, session_index, priority)
        replica = self._router.route(routed) if self._present else NOWHERE
        room = self._max_model_len - num_prompt_tokens
        max_tokens, output = turn.num_output_tokens, turn.output
        if max_tokens < 1:
            # vLLM generates at least one token; its content is nobody's: streams of a trace are not negative.
            self.num_raised_outputs += 1
            max_tokens, output = 1, (Segment(-1 - session_index, turn_index, 1),)
        clipped = 0 < room < max_tokens
        if clipped:
            self.num_clipped_outputs += 1
            max_tokens = room
        now = self._clock.tick
        handed = now + self._fixed + self._per_token * num_prompt_tokens
        request = Request(
            request_id=self.num_submitted,
            prompt=turn.prompt,
            output=output,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            stops_at_eos=self._stops_at_eos and not clipped,
            priority=priority,
            arrival_tick=handed,
            tag=Flight(session_index, turn_index, now, replica, routed),
        )
        self._in_flight[self.num_submitted] = request
        self.num_submitted += 1
        if room <= 0:
            self._clock.call_at(handed + self._delivery, REPLY, partial(self._reject, request))
        elif replica == NOWHERE:
            self._held.append(request)
        elif handed > now:
            self._clock.call_at(handed, ARRIVAL, partial(self.replicas[replica].submit, request))
        else:
            self.replicas[replica].submit(request)

    def on_finished(self, finished: list[Request]) -> None:
        """A step of some replica finished these requests now."""
        if self._delivery:
            tick: Tick = self._clock.tick + self._delivery
            self._clock.call_at(tick, REPLY, partial(self._reply, finished))
        else:
            self._reply(finished)

    def _reply(self, finished: list[Request]) -> None:
        self.num_finished += len(finished)
        for request in finished:
            self._close(request, RecordStatus.FINISHED)
        if self._progress is not None:
            self._progress(self.num_finished)

    def _reject(self, request: Request) -> None:
        self.num_rejected += 1
        self._close(request, RecordStatus.REJECTED)

    def _close(self, request: Request, status: RecordStatus) -> None:
        flight = _flight(request)
        del self._in_flight[request.request_id]
        if flight.replica != NOWHERE:
            self._router.replied(flight.routed, flight.replica)
        self._recorder.add(request, flight, self._delivery, status)
        if self._leaving:
            self._one_fewer(flight.replica)
        self.on_reply(flight.session_index, flight.turn_index, status is RecordStatus.REJECTED)

    # Replicas that come and go

    def joined(self, replica: int) -> None:
        """`replica` takes requests from now on, first those that waited for one."""
        self._router.joined()
        self._present += 1
        held, self._held = self._held, []
        now = self._clock.tick
        for request in held:
            flight = _flight(request)
            home = self._router.route(flight.routed)
            request.tag = flight._replace(replica=home)
            request.arrival_tick = max(request.arrival_tick, now)
            self._clock.call_at(request.arrival_tick, ARRIVAL, partial(self.replicas[home].submit, request))

    def left(self, replica: int) -> None:
        """`replica` gets no more requests; `on_empty` will tell when it has none."""
        self._router.left(replica)
        self._present -= 1
        outstanding = self.outstanding(replica)
        if outstanding:
            self._leaving[replica] = outstanding

    def lost(self, replica: int, retry: Tick) -> None:
        """What `replica` holds fails now and is sent again after `retry`; replies under way arrive."""
        now = self._clock.tick
        for request in list(self._in_flight.values()):
            flight = _flight(request)
            refused = request.num_prompt_tokens >= self._max_model_len
            if flight.replica != replica or request.finish_tick is not None or refused:
                continue
            self.num_aborted += 1
            request.status = RequestStatus.FINISHED_ABORTED
            if request.first_token_tick is not None and request.first_token_tick > now:
                request.first_token_tick = None  # it was on its way
            del self._in_flight[request.request_id]
            self._router.replied(flight.routed, replica)
            self._recorder.add(request, flight, self._delivery, RecordStatus.ABORTED)
            self._one_fewer(replica)
            self._clock.call_at(now + retry, ARRIVAL, partial(self._again, request))

    def _again(self, request: Request) -> None:
        if self.is_over():
            return
        session_index, turn_index, *_ = _flight(request)
        self.send(session_index, turn_index, self.turn_of(session_index, turn_index))

    def outstanding(self, replica: int) -> int:
        """Requests on `replica`, those on their way to it and from it included."""
        return sum(_flight(request).replica == replica for request in self._in_flight.values())

    def _one_fewer(self, replica: int) -> None:
        left = self._leaving.get(replica)
        if left is None:
            return
        if left > 1:
            self._leaving[replica] = left - 1
        else:
            del self._leaving[replica]
            self.on_empty(replica)

    def record_unfinished(self, now: Tick) -> None:
        """Record what is still in flight when the run ends, at `now`."""
        for replica in self.replicas:
            replica.engine.settle(now)
        for request in self._in_flight.values():
            self._recorder.add(request, _flight(request), self._delivery, RecordStatus.UNFINISHED)


def _flight(request: Request) -> Flight:
    return request.tag  # type: ignore[return-value]  # the fleet puts nothing else there


def _nothing(replica: int) -> None:
    """Nobody minds."""


def _unknown(session_index: int, turn_index: int) -> Turn:
    raise AssertionError("nobody knows the turns")


def _never() -> bool:
    return False


def _nobody(session_index: int, turn_index: int, rejected: bool) -> None:
    raise AssertionError("nobody waits for replies")
