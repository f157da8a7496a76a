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
from typing import cast

from replicast.sim.config import EngineConfig
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.fleet.events import ARRIVAL, REPLY, Clock
from replicast.sim.fleet.flight import NOWHERE, Flight, LiveSession
from replicast.sim.fleet.recorder import ABORTED, FINISHED, REJECTED, UNFINISHED, Recorder
from replicast.sim.fleet.replica import Replica
from replicast.sim.fleet.routers import Router
from replicast.sim.request import Request, RequestStatus
from replicast.sim.ticks import Tick, ticks
from replicast.sim.workload import Segment

Replied = Callable[[LiveSession, int, bool], None]


class Dispatcher:
    """Takes turns, gives them to replicas and records them.

    `replicas`, `on_reply(live, turn_index, rejected)` and `on_empty(replica)`, told of a replica
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
        self._in_flight: dict[int, Flight] = {}
        self._present = fleet.replicas
        self._leaving: dict[int, int] = {}  # requests left on replicas that get no more
        self._held: list[Flight] = []  # nobody was there to take them
        self.replicas: list[Replica] = []
        self.on_reply: Replied = _nobody
        self.on_empty: Callable[[int], None] = _nothing
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

    def send(self, live: LiveSession, turn_index: int) -> None:
        """A client sends a turn now."""
        turn = live.turns[turn_index]
        num_prompt_tokens, max_tokens, output = turn.num_prompt_tokens, turn.num_output_tokens, turn.output
        if max_tokens < 1:
            # vLLM generates at least one token; its content is nobody's: streams of a trace are not negative.
            self.num_raised_outputs += 1
            max_tokens, output = 1, (Segment(-1 - live.index, turn_index, 1),)
        room = self._max_model_len - num_prompt_tokens
        stops_at_eos = self._stops_at_eos
        if 0 < room < max_tokens:
            self.num_clipped_outputs += 1
            max_tokens, stops_at_eos = room, False
        now = self._clock.tick
        handed = now + self._fixed + self._per_token * num_prompt_tokens
        number = self.num_submitted
        flight = self._in_flight[number] = Flight(
            number,
            turn.prompt,
            output,
            num_prompt_tokens,
            max_tokens,
            stops_at_eos,
            turn.priority,
            handed,
            live,
            turn_index,
            now,
        )
        self.num_submitted = number + 1
        if self._present:
            flight.replica = self._router.route(flight)
        if room <= 0:
            self._clock.call_at(handed + self._delivery, REPLY, partial(self._reject, flight))
        elif flight.replica == NOWHERE:
            self._held.append(flight)
        elif handed > now:
            self._clock.call_at(handed, ARRIVAL, partial(self.replicas[flight.replica].submit, flight))
        else:
            self.replicas[flight.replica].submit(flight)

    def on_finished(self, finished: list[Request]) -> None:
        """A step of some replica finished these requests now."""
        flights = cast(list[Flight], finished)  # engines give back what they were given
        if self._delivery:
            tick: Tick = self._clock.tick + self._delivery
            self._clock.call_at(tick, REPLY, partial(self._reply, flights))
        else:
            self._reply(flights)

    def _reply(self, flights: list[Flight]) -> None:
        self.num_finished += len(flights)
        for flight in flights:
            self._close(flight, FINISHED)
        if self._progress is not None:
            self._progress(self.num_finished)

    def _reject(self, flight: Flight) -> None:
        self.num_rejected += 1
        self._close(flight, REJECTED)

    def _close(self, flight: Flight, status: int) -> None:
        del self._in_flight[flight.request_id]
        if flight.replica != NOWHERE:
            self._router.replied(flight, flight.replica)
        self._recorder.add(flight, status)
        if self._leaving:
            self._one_fewer(flight.replica)
        self.on_reply(flight.live, flight.turn_index, status == REJECTED)

    # Replicas that come and go

    def joined(self, replica: int) -> None:
        """`replica` takes requests from now on, first those that waited for one."""
        self._router.joined()
        self._present += 1
        held, self._held = self._held, []
        now = self._clock.tick
        for flight in held:
            home = flight.replica = self._router.route(flight)
            flight.arrival_tick = max(flight.arrival_tick, now)
            self._clock.call_at(flight.arrival_tick, ARRIVAL, partial(self.replicas[home].submit, flight))

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
        for flight in list(self._in_flight.values()):
            refused = flight.num_prompt_tokens >= self._max_model_len
            if flight.replica != replica or flight.finish_tick is not None or refused:
                continue
            self.num_aborted += 1
            flight.status = RequestStatus.FINISHED_ABORTED
            if flight.first_token_tick is not None and flight.first_token_tick > now:
                flight.first_token_tick = None  # it was on its way
            del self._in_flight[flight.request_id]
            self._router.replied(flight, replica)
            self._recorder.add(flight, ABORTED)
            self._one_fewer(replica)
            self._clock.call_at(now + retry, ARRIVAL, partial(self._again, flight))

    def _again(self, flight: Flight) -> None:
        if not self.is_over():
            self.send(flight.live, flight.turn_index)

    def outstanding(self, replica: int) -> int:
        """Requests on `replica`, those on their way to it and from it included."""
        return sum(flight.replica == replica for flight in self._in_flight.values())

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
        for flight in self._in_flight.values():
            self._recorder.add(flight, UNFINISHED)


def _nothing(replica: int) -> None:
    """Nobody minds."""


def _never() -> bool:
    return False


def _nobody(live: LiveSession, turn_index: int, rejected: bool) -> None:
    raise AssertionError("nobody waits for replies")
