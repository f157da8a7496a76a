"""Step time from runs of which only means are known: a constant rate, fixed lengths, mean TTFT and TPOT.

Such a run shows two facts a stage, so few parameters move: the fixed part of a step, its share a
sequence, the KV read and the front end; the rest stays physics. The stage is simulated open loop; the
first requests, which fill the prefix cache, are left out of the means.

All requests of a run are alike, so context a row is constant and its two costs, KV read and row, are one
fact: a run with longer outputs rests on how the prior splits them, and near saturation it feels every
error several times over. Hence priors as narrow as other servers allow:

    KV read  85 % of the bandwidth, x/ 1.13    lone requests: codellama-34b 72 to 84 %, llama-2-7b 96 %
    row      18 us, x/ 2                       llama-2-7b and codellama-34b (tp 2) under vLLM 0.15.1
    experts  those that the rows at work reach, and their growth there: with 8 experts 22 rows read all

Physics' own line through 1 to 32 rows has each row read further experts for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.facts import Model
from replicast.calibration.harness import MakeEngine
from replicast.calibration.physics import BANDWIDTH_SHARE, Prior
from replicast.calibration.profile import StepSeconds
from replicast.calibration.replay import Shared, replay_requests
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import ClientRequest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.fleet.config import FrontEnd

Floats = NDArray[np.float64]

MOVED = ("memory_fixed_s", "memory_per_kv_token_s", "memory_per_seq_s", "front_end_fixed_s")
PRECISION = 0.01
SIMULATED_S = 40.0
WARM_UP = 110  # requests: all distinct prompts have come by
SETTLE_S = 10.0  # and their backlog is gone
KV_SHARE, KV_SPREAD = 0.85, 0.12  # of the bandwidth; of its logarithm
ROW_S, ROW_SPREAD = 18e-6, 0.7


class Means(NamedTuple):
    """Mean TTFT and time per output token of a stage."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A constant rate of equal requests; `measured` is None where it is to be predicted."""

    rate: float
    prompt_tokens: int
    output_tokens: int
    distinct: int
    prefix: int
    measured: Means | None = None

    @property
    def running(self) -> float:
        """Requests in the server, by Little's law; of a measured stage."""
        assert self.measured is not None
        return self.rate * (self.measured.ttft_s + self.output_tokens * self.measured.tpot_s)

    @property
    def warm_up(self) -> int:
        """Requests that are left out of the means."""
        return WARM_UP + math.ceil(self.rate * SETTLE_S)

    def requests(self) -> list[ClientRequest]:
        """Requests at even times, enough for a steady state."""
        count = self.warm_up + math.ceil(self.rate * SIMULATED_S)
        return [
            ClientRequest(i / self.rate, self.prompt_tokens, self.output_tokens, None, None)
            for i in range(count)
        ]


def stage_means(
    stage: Stage,
    config: EngineConfig,
    steps: StepSeconds,
    front_end: FrontEnd,
    engines: MakeEngine = make_engine,
) -> Means:
    """What a stage of this server would measure."""
    shared = Shared(prefix=stage.prefix, distinct=stage.distinct)
    told = replay_requests(stage.requests(), config, steps, front_end, shared=shared, engines=engines)
    late = slice(stage.warm_up, None)
    return Means(float(told.ttft_s[late].mean()), float(told.tpot_s[late].mean()))


def fit_stages(
    stages: Sequence[Stage], facts: ServerFacts, *, engines: MakeEngine = make_engine
) -> tuple[StepSeconds, FrontEnd]:
    """Coefficients that give each stage its means, from physics on."""
    from scipy.optimize import least_squares

    config = facts.config
    priors = steady_priors(facts, sum(stage.running for stage in stages) / len(stages))
    x0 = np.array([math.log(max(priors[name].value, 1e-9)) for name in MOVED])
    low = np.array([math.log(max(priors[name].low, 1e-9)) for name in MOVED])

    def residuals(x: Floats) -> Floats:
        steps, front_end = coefficients(x, facts)
        out = [(v - p0) / priors[n].spread for v, p0, n in zip(x, x0, MOVED, strict=True)]
        for stage in stages:
            assert stage.measured is not None
            seen = stage_means(stage, config, steps, front_end, engines)
            out += [
                math.log(seen.ttft_s / stage.measured.ttft_s) / PRECISION,
                math.log(seen.tpot_s / stage.measured.tpot_s) / PRECISION,
            ]
        return np.array(out)

    high, step = np.full(len(low), 5.0), np.full(len(low), 0.01)
    found = least_squares(
        residuals, np.maximum(x0, low + 1e-3), bounds=(low, high), diff_step=step, x_scale=0.3, max_nfev=12
    )
    return coefficients(found.x, facts)


def steady_priors(facts: ServerFacts, rows: float) -> dict[str, Prior]:
    """Priors of what moves, for steps of about `rows` sequences."""
    bandwidth = facts.gpu.bytes_per_s * facts.tensor_parallel_size
    read, growth = _weights_read(facts.model, rows)
    fixed, kv = facts.priors["memory_fixed_s"], facts.priors["memory_per_kv_token_s"]
    own_s = facts.model.sequence_bytes / (BANDWIDTH_SHARE * bandwidth)
    launch_s = facts.priors["compute_fixed_s"].value
    first = read - growth * rows
    return {
        "memory_fixed_s": Prior(
            first / bandwidth, first / (BANDWIDTH_SHARE * bandwidth) + launch_s, fixed.spread
        ),
        "memory_per_kv_token_s": Prior(kv.low, kv.low / KV_SHARE, KV_SPREAD),
        "memory_per_seq_s": Prior(0.0, growth / (BANDWIDTH_SHARE * bandwidth) + own_s + ROW_S, ROW_SPREAD),
        "front_end_fixed_s": Prior(1e-4, 8e-3, 1.0),
    }


def _weights_read(model: Model, rows: float) -> tuple[float, float]:
    """Bytes of weights that a step of `rows` sequences reads, and what a further one adds there."""
    if model.experts <= 1:
        return model.weight_bytes, 0.0
    share = model.experts_per_token / model.experts
    # Bytes of everything but routed experts: what `active` leaves beyond the routed share.
    dense = max(model.active - share * model.parameters, 0.0) / (1 - share)
    dense *= model.weight_bytes / model.parameters
    routed = model.weight_bytes - dense
    unread = (1 - share) ** rows
    return dense + routed * (1 - unread), -routed * unread * math.log(1 - share)


def coefficients(x: Floats, facts: ServerFacts) -> tuple[StepSeconds, FrontEnd]:
    """Step times and front end at `x`."""
    values = {name: prior.value for name, prior in facts.priors.items()}
    moved = dict(zip(MOVED, np.exp(x).tolist(), strict=True))
    front_end = FrontEnd(moved.pop("front_end_fixed_s"), 0.0, 0.0)
    return StepSeconds(**(values | moved)), front_end
