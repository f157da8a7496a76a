"""Step time from requests known one by one, and what a later load then gives.

Lone requests (a synchronous stage) show prefill and decode of every length without queueing, so that the
engine's coefficients come out separately: the smallest load from which a server can be learnt. The requests
are replayed open loop, at their recorded arrivals, with their own lengths; nothing of the later stages
is used. Distinct prompts are taken as distinct content, a prefix that all share can be named.

Versions before 0.14 schedule synchronously unless told otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import MakeEngine
from replicast.calibration.physics import Prior
from replicast.calibration.profile import StepSeconds
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import ClientRequest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig, FrontEnd
from replicast.sim.fleet.records import Records
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Content, Segment, Session, Turn

Floats = NDArray[np.float64]

FITTED = (
    "memory_fixed_s",
    "memory_per_kv_token_s",
    "compute_fixed_s",
    "compute_per_token_s",
    "compute_per_pair_s",
    "front_end_fixed_s",
    "front_end_per_token_s",
)
ASYNC_SINCE = (0, 14)
PRECISION = 0.01  # of one latency: what residuals are measured in


@dataclass(frozen=True, slots=True)
class Shared:
    """Content that prompts have in common: `prefix` tokens of all, and `distinct` prompts in all."""

    prefix: int = 0
    distinct: int | None = None


class RequestFit(NamedTuple):
    """Coefficients from lone requests; `sd` of their logarithms."""

    steps: StepSeconds
    front_end: FrontEnd
    sd: dict[str, float]
    rows_used: int
    rows_left_out: tuple[int, ...]


def as_sessions(requests: Sequence[ClientRequest], shared: Shared = Shared()) -> list[Session]:
    """One session a request, at its arrival."""
    sessions = []
    for index, request in enumerate(requests):
        if request.prompt_tokens is None or request.output_tokens is None or request.arrival_s is None:
            raise InputError(
                f"request {index} lacks arrival, prompt or output tokens",
                remedy="a replay of requests needs all three of each",
            )
        prompt = max(request.prompt_tokens, 1)
        output = max(request.output_tokens, 1)
        own = index if shared.distinct is None else index % shared.distinct
        prefix = min(shared.prefix, prompt - 1)
        content: Content = (Segment(2 + own, 0, prompt - prefix),)
        if prefix:
            content = (Segment(1, 0, prefix), *content)
        turn = Turn(
            turn_id="0", agent="main", depends_on=(), delay_s=0.0, prompt=content,
            output=(Segment(-1 - index, 0, output),), num_prompt_tokens=prompt, num_output_tokens=output,
            arrival_s=request.arrival_s,
        )  # fmt: skip
        sessions.append(Session(session_id=str(index), turns=(turn,), start_s=request.arrival_s))
    return sessions


def config_for(facts: ServerFacts, *, async_scheduling: bool | None = None) -> EngineConfig:
    """The engine's configuration, with the scheduling of its time."""
    if async_scheduling is None:
        numbers = tuple(int(part) for part in facts.vllm_version.split(".")[:2] if part.isdigit())
        async_scheduling = numbers >= ASYNC_SINCE
    return replace(facts.config, async_scheduling=async_scheduling)


def replay_requests(
    requests: Sequence[ClientRequest],
    config: EngineConfig,
    steps: StepSeconds,
    front_end: FrontEnd,
    *,
    shared: Shared = Shared(),
    engines: MakeEngine = make_engine,
) -> Records:
    """The requests as they would fare, in their order."""
    fleet = FleetConfig(
        replicas=1, router="round-robin", loop="partly-open", warmup_s=0.0, front_end=front_end,
        stops_at_eos=False,
    )  # fmt: skip
    first = min(request.arrival_s or 0.0 for request in requests)
    shifted = [r._replace(arrival_s=(r.arrival_s or 0.0) - first) for r in requests]
    return simulate(
        as_sessions(shifted, shared), config, StepTime.from_seconds(**steps._asdict()), fleet, seed=0,
        engines=engines,
    ).records  # fmt: skip


def lone_requests(requests: Sequence[ClientRequest]) -> tuple[list[ClientRequest], tuple[int, ...]]:
    """Requests that had the server to themselves, and the rows left out.

    Left out: a first request far slower than the rest (a warm-up), and rows that another one overlaps.
    """
    rows = list(requests)
    rates = [
        (r.ttft_s or 0.0) / (100.0 + (r.prompt_tokens or 0)) for r in rows
    ]  # 100 tokens stand for what a prompt of none costs
    out: list[int] = []
    if len(rows) > 3 and rates[0] > 2.5 * sorted(rates)[len(rates) // 2]:
        out.append(0)
    for i in range(len(rows)):
        end = (rows[i].arrival_s or 0.0) + (rows[i].e2e_s or 0.0)
        if any((rows[j].arrival_s or 0.0) < end - 1e-3 for j in range(i + 1, len(rows))):
            out.append(i)
    # The last lone row's tail may lie in the next stage: its pace tells.
    paces = [tpot for r in rows if (tpot := _tpot(r)) is not None]
    typical = sorted(paces)[len(paces) // 2] if paces else 0.0
    out += [i for i, r in enumerate(rows) if typical and (_tpot(r) or 0.0) > 1.2 * typical]
    left = tuple(sorted(set(out)))
    return [r for i, r in enumerate(rows) if i not in left], left


def fit_requests(
    requests: Sequence[ClientRequest],
    facts: ServerFacts,
    *,
    async_scheduling: bool | None = None,
    engines: MakeEngine = make_engine,
) -> RequestFit:
    """Coefficients that give each lone request its TTFT and its pace."""
    from scipy.optimize import least_squares

    rows, left_out = lone_requests(requests)
    if len(rows) < 5:
        raise InputError(
            f"{len(rows)} lone requests of {len(requests)}, 5 are needed",
            remedy="give a synchronous stage: one request at a time",
        )
    # Spread out so that none meets another whatever the trial says.
    spread = [r._replace(arrival_s=1e4 * i) for i, r in enumerate(rows)]
    config = config_for(facts, async_scheduling=async_scheduling)
    priors = request_priors(facts)
    x0 = np.array([math.log(priors[name].value) for name in FITTED])
    low = np.array([math.log(max(priors[name].low, 1e-13)) for name in FITTED])
    ttft = np.array([r.ttft_s or math.nan for r in rows])
    prefill = np.array([r.prefill_s or math.nan for r in rows])
    outside = ttft - np.array([r.queue_s if r.queue_s is not None else math.nan for r in rows]) - prefill
    pace = np.array([_tpot(r) or math.nan for r in rows])
    long_enough = np.array([(r.output_tokens or 0) > 20 for r in rows])

    def residuals(x: Floats) -> Floats:
        steps, front_end = _split(x)
        records = replay_requests(spread, config, steps, front_end, engines=engines)
        first = np.log(records.ttft_s / ttft) / PRECISION
        # Spans tell what happens outside the engine; then each part has its own residual.
        inside = np.log(records.prefill_s / prefill) / PRECISION
        around = (records.ttft_s - records.queue_s - records.prefill_s - outside) / (PRECISION * ttft)
        later = np.where(long_enough, np.log(np.maximum(records.tpot_s, 1e-9) / pace), 0.0) / PRECISION
        prior = np.array(
            [(v - math.log(priors[n].value)) / priors[n].spread for v, n in zip(x, FITTED, strict=True)]
        )
        return np.asarray(np.nan_to_num(np.concatenate([first, inside, around, later, prior])))

    found = least_squares(
        residuals, np.maximum(x0, low + 1e-6), bounds=(low, np.full(len(low), 5.0)), loss="soft_l1",
        diff_step=np.full(len(low), 1e-3), x_scale=0.3, max_nfev=60,
    )  # fmt: skip
    steps, front_end = _split(found.x)
    jacobian = np.asarray(found.jac)
    normal = jacobian.T @ jacobian
    spread_ = np.sqrt(
        np.diag(np.linalg.pinv(normal)) * max(2 * found.cost / max(2 * len(rows) - len(FITTED), 1), 0.1)
    )
    return RequestFit(steps, front_end, dict(zip(FITTED, spread_.tolist(), strict=True)), len(rows), left_out)


def request_priors(facts: ServerFacts) -> dict[str, Prior]:
    """Physics for the engine, the task windows' front end for the rest; all weaker than any row."""
    found = {name: facts.priors[name] for name in FITTED if name in facts.priors}
    # Starting a prefill step outside CUDA graphs costs milliseconds on some servers: rows tell.
    found["compute_fixed_s"] = found["compute_fixed_s"]._replace(spread=1.5)
    found["front_end_fixed_s"] = Prior(1e-5, 2e-3, 1.5)
    found["front_end_per_token_s"] = Prior(1e-9, 2e-7, 1.5)
    return found


def _split(x: Floats) -> tuple[StepSeconds, FrontEnd]:
    values = dict(zip(FITTED, np.exp(x).tolist(), strict=True))
    front = FrontEnd(values.pop("front_end_fixed_s"), values.pop("front_end_per_token_s"))
    return StepSeconds(**values), front


def _tpot(request: ClientRequest) -> float | None:
    if request.output_tokens is None or request.output_tokens < 2:
        return None
    decode = request.decode_s
    if decode is None and request.e2e_s is not None and request.ttft_s is not None:
        decode = request.e2e_s - request.ttft_s
    return None if decode is None else decode / (request.output_tokens - 1)
