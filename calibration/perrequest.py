"""Step time from requests known one by one.

Lone requests (a synchronous stage) show prefill and decode of every length without queueing, so that the
engine's coefficients come out separately: the smallest load from which a server can be learnt. Nothing of
later stages is used; `replay.py` says what such requests then take among others.

Lone rows are disturbed to one side: a clock that has to rise, a process that has to wake. So the fit
seeks where most rows agree (Cauchy loss), not their mean, and measures residuals in the rows' own spread.

What a further row of a step costs, no lone request shows. Where scheduling is synchronous, the host's work
on each row (inputs, sampling, stop checks) lengthens the step; of `ROW_S` later stages of codellama-34b
would have 45 us and those of llama-2-7b 35 us (both vLLM 0.11, H100).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.harness import MakeEngine
from replicast.calibration.physics import Prior
from replicast.calibration.profile import StepSeconds
from replicast.calibration.replay import ALL_DISTINCT, Shared, replay_requests
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import ClientRequest
from replicast.sim.engine.factory import make_engine
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

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
ROW_S = 40e-6
PRECISION = 0.01  # of one latency
LEAST_SPREADS = (PRECISION, PRECISION, PRECISION, 0.3e-3)  # TTFT, prefill, pace; seconds outside the engine
CAUCHY_AT = 0.5  # of the spread: rows beyond lose their pull
PASSES = 3
LONG_OUTPUT = 20  # tokens from which on a row tells its pace


class RequestFit(NamedTuple):
    """Coefficients from lone requests; `covariance` is of the logarithms of `FITTED`."""

    steps: StepSeconds
    front_end: FrontEnd
    covariance: Floats
    rows_used: int
    rows_left_out: tuple[int, ...]


class _Seen(NamedTuple):
    """Measured columns; NaN where not known."""

    ttft: Floats
    prefill: Floats
    outside: Floats  # of the engine: TTFT less queue and prefill
    pace: Floats


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
    next_s = math.inf  # the earliest arrival of a later row
    for i in range(len(rows) - 1, -1, -1):
        arrival_s = rows[i].arrival_s or 0.0
        if next_s < arrival_s + (rows[i].e2e_s or 0.0) - 1e-3:
            out.append(i)
        next_s = min(next_s, arrival_s)
    # The last lone row's tail may lie in the next stage: its pace tells.
    paces = [tpot for r in rows if (tpot := _tpot(r)) is not None]
    typical = sorted(paces)[len(paces) // 2] if paces else 0.0
    out += [i for i, r in enumerate(rows) if typical and (_tpot(r) or 0.0) > 1.2 * typical]
    left = set(out)
    return [r for i, r in enumerate(rows) if i not in left], tuple(sorted(left))


def fit_requests(
    requests: Sequence[ClientRequest],
    facts: ServerFacts,
    *,
    shared: Shared = ALL_DISTINCT,
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
    config = facts.config
    row_s = facts.priors["memory_per_seq_s"].value if config.async_scheduling else ROW_S
    priors = request_priors(facts)
    start = np.array([math.log(priors[name].value) for name in FITTED])
    low = np.array([math.log(max(priors[name].low, 1e-13)) for name in FITTED])
    widths = np.array([priors[name].spread for name in FITTED])
    seen = _seen(rows)

    def misses(x: Floats) -> list[Floats]:
        """Per kind of fact, by how much each row is missed; 0 where it is not known."""
        steps, front_end = _split(x, row_s)
        told = replay_requests(spread, config, steps, front_end, shared=shared, engines=engines)
        # Spans tell what happens outside the engine; then each part has its own residual, else TTFT has.
        whole = np.where(np.isnan(seen.prefill), np.log(told.ttft_s / seen.ttft), 0.0)
        inside = np.log(told.prefill_s / seen.prefill)
        around = told.ttft_s - told.queue_s - told.prefill_s - seen.outside
        later = np.log(np.maximum(told.tpot_s, 1e-9) / seen.pace)
        return [np.nan_to_num(part) for part in (whole, inside, later, around)]

    def residuals(x: Floats) -> Floats:
        parts = [part / scale for part, scale in zip(misses(x), scales, strict=True)]
        return np.concatenate([*parts, (x - start) / widths])

    scales = list(LEAST_SPREADS)
    x = np.maximum(start, low + 1e-6)
    for attempt in range(PASSES):
        found = least_squares(
            residuals, x, bounds=(low, np.full(len(low), 5.0)), loss="cauchy" if attempt else "soft_l1",
            f_scale=CAUCHY_AT if attempt else 1.0, diff_step=np.full(len(low), 1e-3), x_scale=0.3,
            max_nfev=60,
        )  # fmt: skip
        x = np.maximum(found.x, low + 1e-6)
        own = [_spread(part) for part in misses(x)]
        scales = [max(pair) for pair in zip(own, LEAST_SPREADS, strict=True)]
    steps, front_end = _split(x, row_s)
    jacobian = np.asarray(found.jac)
    free = max(2 * len(rows) - len(FITTED), 1)
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * max(2 * found.cost / free, 0.1)
    # At a bound, or where rows spread far, the curvature knows less than the prior alone.
    shrink = np.minimum(widths / np.sqrt(np.diag(covariance)), 1.0)
    return RequestFit(steps, front_end, covariance * np.outer(shrink, shrink), len(rows), left_out)


def request_priors(facts: ServerFacts) -> dict[str, Prior]:
    """Physics for the engine, the task windows' front end for the rest; all weaker than any row."""
    found = {name: facts.priors[name] for name in FITTED if name in facts.priors}
    # Starting a prefill step outside CUDA graphs costs milliseconds on some servers: rows tell.
    found["compute_fixed_s"] = found["compute_fixed_s"]._replace(spread=1.5)
    found["front_end_fixed_s"] = Prior(1e-5, 2e-3, 1.5)
    found["front_end_per_token_s"] = Prior(1e-9, 2e-7, 1.5)
    return found


def _seen(rows: Sequence[ClientRequest]) -> _Seen:
    def column(values: Sequence[float | None]) -> Floats:
        return np.array([math.nan if value is None else value for value in values])

    ttft = column([r.ttft_s for r in rows])
    prefill = column([r.prefill_s for r in rows])
    outside = ttft - column([r.queue_s for r in rows]) - prefill
    pace = column([_tpot(r) if (r.output_tokens or 0) > LONG_OUTPUT else None for r in rows])
    return _Seen(ttft, prefill, outside, pace)


def _spread(values: Floats) -> float:
    """Standard deviation by the median deviation of what is known."""
    known = values[values != 0.0]
    return 1.4826 * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0


def _split(x: Floats, row_s: float) -> tuple[StepSeconds, FrontEnd]:
    values = dict(zip(FITTED, np.exp(x).tolist(), strict=True))
    front = FrontEnd(values.pop("front_end_fixed_s"), values.pop("front_end_per_token_s"))
    return StepSeconds(**values, memory_per_seq_s=row_s), front


def _tpot(request: ClientRequest) -> float | None:
    if request.output_tokens is None or request.output_tokens < 2:
        return None
    decode = request.decode_s
    if decode is None and request.e2e_s is not None and request.ttft_s is not None:
        decode = request.e2e_s - request.ttft_s
    return None if decode is None else decode / (request.output_tokens - 1)
