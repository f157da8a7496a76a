"""Requests known one by one, replayed open loop: when the engine gets each, and what it then takes.

The API server hands requests over in their order of arrival, each after a time of its own (tokens are
checked, blocks hashed). What follows from that, and was seen in vLLM 0.11's spans:

1. Nobody overtakes: a short prompt waits behind the intake of a long one.
2. An idle engine starts with the first request, and takes along what comes while that is taken in.
3. Time outside the engine is shorter while it runs: nobody has to be woken.

Where in a running step a request arrives decides up to a step of its TTFT, and is not known: clocks of
model and server drift apart by more than a step between two arrivals. A forecast is therefore the mean over
replays whose steps differ by up to half a percent, which leaves bursts as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import MakeEngine
from replicast.calibration.profile import StepSeconds
from replicast.calibration.sweep import ClientRequest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Content, Seconds, Segment, Session, Turn

Floats = NDArray[np.float64]

INTAKE_S = 0.28e-6  # a token of a prompt that wakes an engine; three openings of bursts: .19 to .42
ASLEEP_S = 0.9e-3  # a lone request's way through sleeping processes; codellama-34b 1.2 ms, llama-2-7b .8
LEAD_S = 100.0  # before the first request: what is cached has been computed by then
PHASES = 9
PHASE_SPREAD = 0.01  # of the fixed part of a step, from the first replay to the last


@dataclass(frozen=True, slots=True)
class Shared:
    """Content that prompts have in common: `prefix` tokens of all, and `distinct` prompts in all.

    `cached`: the server has met the prefix before, so that the first of these requests hits it, too.
    """

    prefix: int = 0
    distinct: int | None = None
    cached: bool = False


ALL_DISTINCT = Shared()


class Replay(NamedTuple):
    """Times of requests in the order given, as the client sees them."""

    ttft_s: Floats
    e2e_s: Floats
    queue_s: Floats
    prefill_s: Floats
    tpot_s: Floats


def replay_requests(
    requests: Sequence[ClientRequest],
    config: EngineConfig,
    steps: StepSeconds,
    front_end: FrontEnd,
    *,
    shared: Shared = ALL_DISTINCT,
    awake: Sequence[bool] = (),
    engines: MakeEngine = make_engine,
) -> Replay:
    """The requests as they would fare; `awake` names those that find the server at work."""
    arrival_s = np.array([_arrival(r, i) for i, r in enumerate(requests)])
    order = np.argsort(arrival_s, kind="stable")
    queue = [requests[i] for i in order]
    handed_s = handed_over(queue, front_end, [awake[i] for i in order] if awake else ())
    first = min(handed_s)
    sent = [r._replace(arrival_s=LEAD_S + at - first) for r, at in zip(queue, handed_s, strict=True)]
    if shared.cached:
        sent = [ClientRequest(0.0, shared.prefix + 1, 1, None, None), *sent]
    sessions = as_sessions(sent, shared)
    fleet = FleetConfig(
        replicas=1, router="round-robin", loop="partly-open", warmup_s=0.0, stops_at_eos=False
    )
    step_time = StepTime.from_seconds(**steps._asdict())
    records = simulate(sessions, config, step_time, fleet, seed=0, engines=engines).records
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    outside = np.array(handed_s)[back] - arrival_s + front_end.delivery_s
    by_session = np.argsort(records.session_index, kind="stable")[len(sent) - len(queue) :][back]
    return Replay(
        records.ttft_s[by_session] + outside,
        records.e2e_s[by_session] + outside,
        records.queue_s[by_session],
        records.prefill_s[by_session],
        records.tpot_s[by_session],
    )


def forecast(
    requests: Sequence[ClientRequest],
    config: EngineConfig,
    steps: StepSeconds,
    front_end: FrontEnd,
    *,
    shared: Shared = ALL_DISTINCT,
    engines: MakeEngine = make_engine,
) -> Replay:
    """What each request is expected to take: the mean over unknown phases of arrivals in steps."""
    alone = replay_requests(requests, config, steps, front_end, shared=shared, engines=engines)
    awake = _meets_others(requests, alone.e2e_s)
    runs = []
    for share in np.linspace(-0.5, 0.5, PHASES).tolist():
        fixed_s = steps.memory_fixed_s * (1 + PHASE_SPREAD * share)
        trial = steps._replace(memory_fixed_s=fixed_s)
        runs.append(
            replay_requests(requests, config, trial, front_end, shared=shared, awake=awake, engines=engines)
        )
    return Replay(*np.mean(np.array(runs), axis=0))


def handed_over(
    requests: Sequence[ClientRequest], front_end: FrontEnd, awake: Sequence[bool] = ()
) -> list[Seconds]:
    """When the engine gets each of the requests, which are in order of arrival."""
    handed_s: list[Seconds] = []
    for index, request in enumerate(requests):
        intake_s = front_end.per_prompt_token_s * (request.prompt_tokens or 0)
        saved_s = min(ASLEEP_S, front_end.fixed_s) if awake and awake[index] else 0.0
        at = _arrival(request, index) + front_end.fixed_s - saved_s + intake_s
        handed_s.append(max(at, handed_s[-1] + intake_s) if handed_s else at)
    for index in range(len(requests) - 2, -1, -1):
        gap_s = _arrival(requests[index + 1], index + 1) - _arrival(requests[index], index)
        if gap_s < INTAKE_S * (requests[index].prompt_tokens or 0):
            handed_s[index] = handed_s[index + 1]
    return handed_s


def as_sessions(requests: Sequence[ClientRequest], shared: Shared = ALL_DISTINCT) -> list[Session]:
    """One session a request, at its arrival. Distinct prompts are taken as distinct content."""
    sessions = []
    for index, request in enumerate(requests):
        arrival_s = _arrival(request, index)
        prompt = max(request.prompt_tokens or 0, 1)
        output = max(request.output_tokens or 0, 1)
        own = index if shared.distinct is None else index % shared.distinct
        prefix = min(shared.prefix, prompt - 1)
        content: Content = (Segment(2 + own, 0, prompt - prefix),)
        if prefix:
            content = (Segment(1, 0, prefix), *content)
        turn = Turn(
            turn_id="0", agent="main", depends_on=(), delay_s=0.0, prompt=content,
            output=(Segment(-1 - index, 0, output),), num_prompt_tokens=prompt, num_output_tokens=output,
            arrival_s=arrival_s,
        )  # fmt: skip
        sessions.append(Session(session_id=str(index), turns=(turn,), start_s=arrival_s))
    return sessions


def _arrival(request: ClientRequest, index: int) -> Seconds:
    if request.prompt_tokens is None or request.output_tokens is None or request.arrival_s is None:
        raise InputError(
            f"request {index} lacks arrival, prompt or output tokens",
            remedy="a replay of requests needs all three of each",
        )
    return request.arrival_s


def _meets_others(requests: Sequence[ClientRequest], e2e_s: Floats) -> list[bool]:
    """Which requests arrive while an earlier one is still served."""
    arrival_s = np.array([r.arrival_s for r in requests], dtype=float)
    order = np.argsort(arrival_s, kind="stable")
    until = np.maximum.accumulate((arrival_s + e2e_s)[order])
    found = np.zeros(len(order), dtype=bool)
    found[order[1:]] = arrival_s[order[1:]] < until[:-1]
    return [bool(value) for value in found]
