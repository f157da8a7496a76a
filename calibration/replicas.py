"""A fleet's server learnt from rows of one replica count, rows of another predicted.

Published replica sweeps give a row per concurrency: TTFT and time between tokens, hit rate, token rates. They
give no lengths, no gauges and no window, so the load is assumed (`Load`), and only what such rows can tell is
fitted, with the whole fleet and its router in the loop:

    memory_fixed_s, memory_per_kv_token_s, memory_per_seq_s, compute_per_token_s      of each replica
    pool_scale                                             of the KV pool that memory leaves

Sessions are those of kv-cache-tester's corpus (`traces/synth_fit.py`, preset "fresh"). Clients replay a
recording from a random turn on, so that prompts do not shrink with load (published ones do not); a finished
session is replaced at once.

A prediction is the simulation at the fitted point, moved by what it missed at the fitted rows of the same
router (`predict.correction`, over sessions a replica). Its rival takes the fitted row with as many sessions a
replica: rates times the ratio of replicas, all else alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.physics import FRONT_END
from replicast.calibration.predict import Residuals, correction
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.fleet.config import FleetConfig, RouterName
from replicast.sim.fleet.run import simulate
from replicast.sim.workload import Session, Turn
from replicast.traces.report import ImportReport
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS, Quantiles
from replicast.traces.turns import Builder

Floats = NDArray[np.float64]

STEPS = ("memory_fixed_s", "memory_per_kv_token_s", "memory_per_seq_s", "compute_per_token_s")
FITTED = (*STEPS, "pool_scale")
POOL_SPREAD = 0.7  # of log(pool): what weights, states and activations leave is little known
SMALLEST_POOL = 0.05
RATES = ("prompt_tokens_per_s", "output_tokens_per_s")
# Log differences that the model may leave. Hit rates are judged by what was missed: the work.
FLOOR: Mapping[str, float] = {
    "ttft_s": 0.3,
    "itl_s": 0.15,
    "missed": 0.15,
    "kv_usage": 0.15,
    "prompt_tokens_per_s": 0.15,
    "output_tokens_per_s": 0.15,
}
SHARES = ("missed", "kv_usage")
STEP = 0.1  # of a logarithm, for slopes: requests are whole
EVALUATIONS = 8
_STARTS = 31  # random stream


@dataclass(frozen=True, slots=True)
class Load:
    """What is assumed of the clients; gaps between turns longer than `longest_gap_s` are cut to it."""

    window_s: float = 900.0
    stagger_s: float = 60.0
    longest_gap_s: float = 60.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    seed: int = 1

    def sessions(self, count: int) -> tuple[Session, ...]:
        """`count` chains of turns, each from a random turn on."""
        preset = PRESETS["fresh"]
        spec = replace(
            preset,
            subagent_share=0.0,
            prompt_scale=self.prompt_scale,
            output_scale=self.output_scale,
            tool_gap_s=_cut(preset.tool_gap_s, self.longest_gap_s),
            human_gap_s=_cut(preset.human_gap_s, self.longest_gap_s),
        )
        whole = Builder(ImportReport("synth")).sessions(generate(spec, count, self.seed))
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(_STARTS,)))
        return tuple(_from_turn(session, int(rng.integers(len(session.turns)))) for session in whole)


class Arm(NamedTuple):
    """Rows of one replica count and router."""

    replicas: int
    router: RouterName
    levels: tuple[SweepLevel, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What rows are simulated with."""

    facts: ServerFacts
    load: Load
    sessions: tuple[Session, ...]

    def start(self) -> Floats:
        """Logarithms of the fitted values as physics has them."""
        return np.log([*(self.facts.priors[name].value for name in STEPS), 1.0])

    def observe(self, x: Floats, replicas: int, router: RouterName, concurrency: int) -> dict[str, float]:
        """What a row of this fleet would say, by the names of `FLOOR`, and its mean prompt."""
        values = {name: prior.value for name, prior in self.facts.priors.items()}
        moved = dict(zip(FITTED, np.exp(x).tolist(), strict=True))
        config = _with_pool(self.facts, moved.pop("pool_scale"))
        fleet = FleetConfig(
            replicas=replicas,
            router=router,
            loop="closed",
            sessions=concurrency,
            stagger_s=self.load.stagger_s,
            think_cap_s=None,
            warmup_s=0.0,
            horizon_s=self.load.window_s,
            over_length="truncate-session",
            front_end=FRONT_END,
        )
        steps = StepTime.from_seconds(**(values | moved))
        run = simulate(self.sessions, config, steps, fleet, seed=self.load.seed)
        records = run.records
        began, done = ~np.isnan(records.ttft_s), records.finished
        prompts, cached = (float(v[began].sum()) for v in (records.prompt_tokens, records.cached_tokens))
        later_tokens = float((records.output_tokens[done] - 1).sum())
        return {
            "ttft_s": float(records.ttft_s[began].mean()),
            "itl_s": float(records.decode_s[done].sum()) / max(later_tokens, 1.0),
            "missed": 1 - cached / prompts,
            "kv_usage": statistics.mean(replica.mean_kv_usage for replica in run.replicas),
            "prompt_tokens_per_s": prompts / self.load.window_s,
            "output_tokens_per_s": float(records.output_tokens.sum()) / self.load.window_s,
            "prompt_tokens": prompts / int(began.sum()),
        }


def measured(level: SweepLevel) -> dict[str, float]:
    """What a published row says, by the names of `FLOOR`."""
    hit = level.hit_rate
    found = {
        "ttft_s": level.ttft.mean if level.ttft else None,
        "itl_s": level.itl.mean if level.itl else None,
        "missed": None if hit is None else 1 - hit,
        "kv_usage": level.kv_usage.mean if level.kv_usage else None,
        "prompt_tokens_per_s": level.prompt_tokens_per_s,
        "output_tokens_per_s": level.output_tokens_per_s,
    }
    return {name: value for name, value in found.items() if value}


def matched(facts: ServerFacts, arms: Sequence[Arm], prompt_tokens: float, load: Load, count: int) -> Fleet:
    """The fleet with requests as long as they were: `prompt_tokens`, and the rows' outputs a prompt token.

    Both are seen at the middle row of each arm, with step times of physics.
    """
    middle = [(arm, arm.levels[len(arm.levels) // 2].concurrency or 1) for arm in arms]
    fleet = Fleet(facts, load, load.sessions(min(count, 50 + 2 * max(c for _, c in middle))))
    seen = [fleet.observe(fleet.start(), arm.replicas, arm.router, c) for arm, c in middle]
    ratio = statistics.mean(row[RATES[1]] / row[RATES[0]] for row in seen)
    wanted = [value for arm in arms for level in arm.levels if (value := _reply_ratio(level)) is not None]
    prompt_scale = prompt_tokens / statistics.mean(row["prompt_tokens"] for row in seen)
    load = replace(
        load,
        prompt_scale=load.prompt_scale * prompt_scale,
        # A shorter prompt carries as many more outputs a token.
        output_scale=load.output_scale * prompt_scale * statistics.median(wanted) / ratio,
    )
    return Fleet(facts, load, load.sessions(count))


def fit_arms(fleet: Fleet, arms: Sequence[Arm]) -> Floats:
    """Logarithms of the fitted values that explain the rows best; physics is the prior."""
    from scipy.optimize import least_squares

    priors = [fleet.facts.priors[name] for name in STEPS]
    centre = fleet.start()
    spread = np.array([*(prior.spread for prior in priors), POOL_SPREAD])
    low = np.log([*(max(prior.low, 1e-9) for prior in priors), SMALLEST_POOL])
    rows = [(arm, level.concurrency or 1, measured(level)) for arm in arms for level in arm.levels]

    def residuals(x: Floats) -> Floats:
        out = list((x - centre) / spread)
        for arm, concurrency, row in rows:
            seen = fleet.observe(x, arm.replicas, arm.router, concurrency)
            out += [_gap(seen[name], value) / FLOOR[name] for name, value in row.items()]
        return np.array(out)

    def slopes(x: Floats) -> Floats:
        base = residuals(x)
        return np.stack([(residuals(x + STEP * unit) - base) / STEP for unit in np.eye(len(x))], axis=1)

    found = least_squares(
        residuals, np.maximum(centre, low + 1e-3), slopes, bounds=(low, np.full(len(low), np.inf)),
        loss="soft_l1", x_scale=0.3, max_nfev=EVALUATIONS, xtol=3e-3, ftol=3e-3,
    )  # fmt: skip
    return np.asarray(found.x)


def residuals_of(fleet: Fleet, x: Floats, arm: Arm) -> list[Residuals]:
    """What the simulation misses at each row, by sessions a replica."""
    found = []
    for level in arm.levels:
        concurrency = level.concurrency or 1
        seen = fleet.observe(x, arm.replicas, arm.router, concurrency)
        gaps = {name: -_gap(seen[name], value) for name, value in measured(level).items()}
        found.append(Residuals(_a_replica(concurrency, arm.replicas), gaps))
    return found


def predict_row(
    fleet: Fleet, x: Floats, replicas: int, router: RouterName, concurrency: int, known: Sequence[Residuals]
) -> dict[str, float]:
    """A row that had no part in the fit; `known` are the residuals of its router's fitted rows."""
    seen = fleet.observe(x, replicas, router, concurrency)
    at = _a_replica(concurrency, replicas)
    moved = {name: value * math.exp(correction(at, name, known)) for name, value in seen.items()}
    return moved | {name: min(moved[name], 1.0) for name in SHARES}


def rival_row(arm: Arm, replicas: int, concurrency: int) -> dict[str, float]:
    """The row of `arm` with as many sessions a replica, rates times the ratio of replicas; {} without one."""
    share = replicas / arm.replicas
    for level in arm.levels:
        if level.concurrency == round(concurrency / share):
            return {
                name: value * (share if name in RATES else 1.0) for name, value in measured(level).items()
            }
    return {}


def _reply_ratio(level: SweepLevel) -> float | None:
    """Outputs a prompt token: of the rates, or of the lengths."""
    prompts, outputs = level.prompt_tokens_per_s, level.output_tokens_per_s
    if not prompts or not outputs:
        prompts, outputs = (
            item.mean if item else None for item in (level.prompt_per_request, level.output_per_request)
        )
    return outputs / prompts if prompts and outputs else None


def _gap(value: float, other: float) -> float:
    return math.log(max(value, 1e-9) / other) if value == value else 3.0


def _a_replica(concurrency: int, replicas: int) -> int:
    return max(round(concurrency / replicas), 1)


def _with_pool(facts: ServerFacts, scale: float) -> EngineConfig:
    blocks = max(round(scale * facts.config.num_gpu_blocks), 1 + facts.least_blocks)
    return replace(facts.config, num_gpu_blocks=blocks)


def _cut(gaps: Quantiles, longest_s: float) -> Quantiles:
    return Quantiles(tuple((p, min(value, longest_s)) for p, value in gaps.knots))


def _from_turn(session: Session, start: int) -> Session:
    return replace(session, turns=tuple(_later(turn, start) for turn in session.turns[start:]))


def _later(turn: Turn, start: int) -> Turn:
    """A turn of a chain whose first `start` turns are left out."""
    depends_on = tuple(i - start for i in turn.depends_on if i >= start)
    return turn._replace(depends_on=depends_on, delay_s=turn.delay_s if depends_on else 0.0)
