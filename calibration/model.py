"""Parameters of a calibration, and a level predicted from them.

Three kinds, kept apart. *Given* stands in `ServerFacts`. *Engine*: what a step costs. *Load*: how many tokens
a request computes, which a summary does not tell and which belongs to the harness. All are positive and
fitted as logarithms, inside the bounds of physics and with weak priors from it.

    memory_fixed_s        seconds of a step that does next to nothing: weights, launches
    memory_per_kv_token_s a context token read: attention of decodes
    memory_per_seq_s      a further sequence: experts, state, sampling
    compute_per_token_s   a prefilled token
    compute_per_pair_s    a prefilled token meets one of its context: attention; hardly told from the above,
                          and fitted so that its uncertainty is in the above's. Where computed tokens are not
                          counted, they have that part, and this is physics'
    computed_tokens       computed by a request after a session's first, at the geometric mean of the levels
    computed_slope        its exponent in concurrency: levels cut at the deadline see earlier turns when slow
    first_tokens          of a session's own in its first prompt
    output_spread         sd of log(output)
    computed_spread       of computed tokens, where counted latencies or computed tokens tell it
    calls_per_session     of a session that does not fail
    failed_sessions       share of sessions that end after a few calls
    shared_tokens         of all sessions' prompts: the cache holds them once, so the KV gauge tells prompts
                          only together with it
    pool_scale            of a KV pool that is not given, against what memory leaves

The start-up of a prefill step is taken from physics: sweeps do not tell it from the rest
(docs/calibration.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.growth import CALLS_PER_SESSION, FAILED_SESSIONS, MOST_FAILED, Endings, Growth
from replicast.calibration.harness import Draw, MakeEngine, Observed, ServerModel, observe, run_level
from replicast.calibration.lengths import (
    SHARED_TOKENS,
    Habits,
    Lengths,
    growth_of,
    lengths_of,
    load_of,
    own_growth,
    scaled,
    with_context,
)
from replicast.calibration.physics import FRONT_END, handling_s
from replicast.calibration.profile import StepSeconds
from replicast.calibration.scale import mean_observed, measured
from replicast.calibration.server import ServerFacts
from replicast.calibration.shape import bounds_of, quantiles_of
from replicast.calibration.spread import counted_log_sd
from replicast.calibration.sweep import SweepLevel
from replicast.calibration.workload import COMPUTED_SPREAD, OUTPUT_SPREAD, LevelLoad, draw_sessions
from replicast.sim.config import EngineConfig
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FrontEnd

Floats = NDArray[np.float64]

ENGINE = (
    "memory_fixed_s",
    "memory_per_kv_token_s",
    "memory_per_seq_s",
    "compute_per_token_s",
    "compute_per_pair_s",
)
FIRST_SPREAD = 0.3  # of log(first prompt) around the learnt curve: 0.25 rms on 12 servers of `recovery`
FEW_SESSIONS = 2  # no contention to speak of
FRONT_END_SPREAD = 0.5  # of its size between servers
FRONT_END_READ = 0.1  # how well a long level tells it


class Parameter(NamedTuple):
    """One fitted quantity: everything in logarithms."""

    name: str
    start: float
    prior: float
    spread: float
    low: float
    high: float


def parameters(levels: Sequence[SweepLevel], facts: ServerFacts) -> list[Parameter]:
    """What is to be fitted for these levels, with starting values by operational laws."""
    found: list[Parameter] = []
    starts = _starts(levels, facts)
    seen = [lengths_of(level, facts) for level in levels]
    told = facts.load
    counted = "computed_tokens" in told or all(lengths.computed is not None for lengths in seen)
    for name in ENGINE:
        if name == "compute_per_pair_s" and not counted:
            continue
        prior = facts.priors[name]
        low = max(prior.low, 1e-9)
        high = 30 * max(prior.value, starts[name])
        start = min(max(starts[name], 1.05 * low), high)
        found.append(
            Parameter(
                name,
                math.log(start),
                math.log(prior.value),
                prior.spread,
                math.log(low),
                math.log(high),
            )
        )
    if not counted:
        guess = starts["computed_tokens"]
        found.append(
            Parameter(
                "computed_tokens", math.log(guess), math.log(6_000.0), 1.2, math.log(50), math.log(1.5e5)
            )
        )
        found.append(Parameter("computed_slope", 0.0, 0.0, 0.25, -1.0, 1.0))
    first = own_growth(growth_of(seen)).first_tokens
    from_kv = any(lengths.source == "kv" for lengths in seen)
    load = [
        _near("first_tokens", first, FIRST_SPREAD, 50.0, 1.5e5),
        _near("output_spread", OUTPUT_SPREAD, 0.25, 0.3, 2.5),
        _near("calls_per_session", CALLS_PER_SESSION, 0.4, 5.0, 1_000.0),
        _near("failed_sessions", FAILED_SESSIONS, 1.0, 1e-3, MOST_FAILED),
    ]
    if any(_tells_computed_spread(level) for level in levels):
        load.append(_near("computed_spread", COMPUTED_SPREAD, 0.4, 0.1, 2.5))
    if from_kv:
        load.append(_near("shared_tokens", SHARED_TOKENS, 0.8, 200.0, 40_000.0))
    found += [parameter for parameter in load if parameter.name not in told]
    if from_kv and not facts.pool_is_given:
        found.append(_near("pool_scale", 1.0, 0.2, 0.4, 2.5))
    return found


def _tells_computed_spread(level: SweepLevel) -> bool:
    return any(name.startswith(("ttft", "prefill")) for name in quantiles_of(level)) or (
        counted_log_sd(level.computed_per_request) is not None
    )


def _near(name: str, value: float, spread: float, low: float, high: float) -> Parameter:
    return Parameter(name, math.log(value), math.log(value), spread, math.log(low), math.log(high))


def _starts(levels: Sequence[SweepLevel], facts: ServerFacts) -> dict[str, float]:
    """Stage 1: laws. The fastest level's time per token is the step's, its prefill time computed tokens."""
    priors = {name: prior.value for name, prior in facts.priors.items()}
    tpots = [(level.tpot.mean, level) for level in levels if level.tpot is not None and level.tpot.mean]
    start = dict(priors)
    if tpots:
        tpot, level = min(tpots, key=lambda pair: pair[0])
        context = lengths_of(level, facts).prompt
        start["memory_fixed_s"] = max(0.8 * tpot - priors["memory_per_kv_token_s"] * context, 0.2 * tpot)
    prefills = [
        (level.prefill.mean, level) for level in levels if level.prefill is not None and level.prefill.mean
    ]
    start["computed_tokens"] = 6_000.0
    if prefills:
        prefill_s, level = min(prefills, key=lambda pair: pair[0])
        context = 0.8 * lengths_of(level, facts).prompt
        token_s = priors["compute_per_token_s"] + priors["compute_per_pair_s"] * context
        start["computed_tokens"] = min(max(0.7 * prefill_s / token_s, 300.0), 60_000.0)
    return start


@dataclass(frozen=True, slots=True)
class Point:
    """Values of the parameters by name, in natural units (`computed_slope` as it is)."""

    values: Mapping[str, float]

    @property
    def key(self) -> tuple[tuple[str, float], ...]:
        """Names and values in order."""
        return tuple(sorted(self.values.items()))

    def get(self, name: str, default: float) -> float:
        """A value, or what holds where it is not fitted."""
        return self.values.get(name, default)


def point_at(params: Sequence[Parameter], x: Floats) -> Point:
    """The values at `x`."""
    return Point(
        {
            p.name: float(v) if p.name == "computed_slope" else math.exp(float(v))
            for p, v in zip(params, x, strict=True)
        }
    )


def step_seconds(facts: ServerFacts, point: Point) -> StepSeconds:
    """All six coefficients: fitted ones, and physics for the rest."""
    values = {name: point.get(name, prior.value) for name, prior in facts.priors.items()}
    return StepSeconds(**values)


def front_end_of(levels: Sequence[SweepLevel], facts: ServerFacts) -> FrontEnd:
    """Time outside the engine: TTFT less queue and prefill of the levels without contention.

    Only its size is told there; how it splits is as in the task windows, and so is its size where levels are
    short: TTFT is of all requests, queue and prefill of finished ones.
    """
    weights, factors = [FRONT_END_SPREAD**-2], [1.0]
    for level in levels:
        seen = measured(level)
        ttft, queue, prefill = (seen[name] for name in ("ttft_mean_s", "queue_mean_s", "prefill_mean_s"))
        concurrency = level.concurrency or 1
        if concurrency > FEW_SESSIONS or ttft is None or queue is None or prefill is None:
            continue
        lengths = lengths_of(level, facts)
        usual = handling_s(FRONT_END, lengths.prompt)
        weights.append((concurrency / lengths.requests * ttft / usual + FRONT_END_READ) ** -2)
        factors.append((ttft - queue - prefill) / usual)
    factor = min(max(float(np.average(factors, weights=weights)), 0.1), 2.0)
    return FrontEnd(factor * FRONT_END.fixed_s, factor * FRONT_END.per_prompt_token_s, 0.0)


class LevelModel:
    """One measured level and its simulation: what must be asked for so that lengths come out as measured."""

    replays = False  # recorded sessions, in place of drawn ones

    def __init__(
        self,
        level: SweepLevel,
        facts: ServerFacts,
        centre: float,
        engines: MakeEngine = make_engine,
        lengths: Lengths | None = None,
        front_end: FrontEnd = FRONT_END,
        growth: Growth | None = None,
    ) -> None:
        self.level = level
        self.facts = facts
        self.lengths = lengths or lengths_of(level, facts)
        self.growth = growth or growth_of([self.lengths])
        self.measured = measured(level)
        known = quantiles_of(level)
        self.quantiles = {name: quantile for name, (quantile, _) in known.items()}
        self.shapes = {name: bounds_of(name, quantile, mean_s) for name, (quantile, mean_s) in known.items()}
        self.concurrency = level.concurrency or max(round(self.lengths.alive), 1)
        self._centre = centre
        self._engines = engines
        self.front_end = front_end
        self.prompt_factor = 1.0
        self.output_factor = 1.0
        self.computed_factor = 1.0
        self.tells_prompt = True  # of the level's measured lengths
        self.draw: Draw = draw_sessions
        self._known: dict[tuple[object, float, float, float, int], Observed] = {}

    def __getstate__(self) -> dict[str, object]:
        """Without what was simulated: a worker meets other points."""
        return {**self.__dict__, "_known": {}}

    def simulate(self, point: Point, seeds: Sequence[int]) -> list[Observed]:
        """The level at `point`, once a seed."""
        out = []
        for seed in seeds:
            key = (point.key, self.prompt_factor, self.output_factor, self.computed_factor, seed)
            if key not in self._known:
                self._known[key] = self._run(point, seed)
            out.append(self._known[key])
        return out

    def _run(self, point: Point, seed: int) -> Observed:
        load = self.load(point)
        return observe(run_level(load, self.server(point), seed, self.draw), load, self.quantiles)

    def server(self, point: Point) -> ServerModel:
        """The server at `point`."""
        steps = StepTime.from_seconds(**step_seconds(self.facts, point)._asdict())
        return ServerModel(self.config(point), steps, self.front_end, self._engines)

    def config(self, point: Point) -> EngineConfig:
        """The engine's configuration, its pool scaled where it is not given."""
        config = self.facts.config
        scale = point.get("pool_scale", 1.0)
        if scale != 1.0:
            blocks = max(round(scale * config.num_gpu_blocks), 1 + self.facts.least_blocks)
            config = replace(config, num_gpu_blocks=blocks)
        return config

    def load(self, point: Point) -> LevelLoad:
        """What is asked of the generator."""

        def value(name: str, usual: float) -> float:
            return point.get(name, self.facts.load.get(name, usual))

        shared = value("shared_tokens", SHARED_TOKENS)
        found = with_context(self.lengths, shared, point.get("pool_scale", 1.0))
        asked = scaled(found, self.prompt_factor, self.output_factor)
        computed = self.lengths.computed
        if computed is None:
            slope = value("computed_slope", 0.0)
            computed = value("computed_tokens", 6_000.0) * (self.concurrency / self._centre) ** slope
        return load_of(
            self.level,
            asked,
            self.growth,
            computed_tokens=computed * self.computed_factor,
            first_tokens=value("first_tokens", 0.0) or None,
            habits=Habits(
                shared,
                Endings(
                    value("calls_per_session", CALLS_PER_SESSION),
                    value("failed_sessions", FAILED_SESSIONS),
                ),
                value("output_spread", OUTPUT_SPREAD),
                value("computed_spread", COMPUTED_SPREAD),
            ),
            front_end=self.front_end,
        )

    def match(self, point: Point, seeds: Sequence[int]) -> None:
        """Move the factors so that simulated lengths come out as measured.

        Where prompts rest on the KV gauge, what must agree is the gauge itself: KV held per running request.
        """
        wanted = self.lengths
        seen = mean_observed(self.simulate(point, seeds))
        if not (seen.prompt_per_request > 0 and seen.output_tokens_per_s > 0):
            return
        gap = wanted.prompt / seen.prompt_per_request
        if wanted.source == "kv":
            pool = self.facts.pool_tokens * point.get("pool_scale", 1.0)
            missing = pool * (wanted.held_share - seen.kv_usage_mean / max(seen.running_mean, 1e-9))
            gap = 1 + missing / seen.prompt_per_request
        if wanted.computed is not None:
            # First prompts compute more than later ones, and what was evicted is computed again.
            more = min(max(wanted.computed / max(seen.computed_per_request, 1.0), 0.5), 2.0)
            self.computed_factor = min(max(self.computed_factor * more, 0.02), 4.0)
        gap = min(max(gap, 0.6), 1.6)
        self.prompt_factor = min(max(self.prompt_factor * gap, 0.2), 4.0)
        # Outputs per prompt token; a longer prompt must carry more of them.
        ratio = seen.output_tokens_per_s / seen.prompt_tokens_per_s
        factor = wanted.output / wanted.prompt / ratio * (gap if wanted.source == "kv" else 1.0)
        self.output_factor = min(max(self.output_factor * min(max(factor, 0.5), 2.0), 0.1), 10.0)

    def by_lengths(self, point: Point, seeds: Sequence[int]) -> LevelModel:
        """The level simulated by its lengths, matched at `point`."""
        return self
