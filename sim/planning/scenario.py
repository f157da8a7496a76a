"""All that replications have in common, and how a variant changes it.

A `Scenario` is what the user described; `study(variant)` is one concrete case of it: engine, step time, fleet
and load after the changes. Making it is cheap to repeat, so that workers need only the variant's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from replicast.sim.config import EngineArgs, EngineConfig
from replicast.sim.defaults import ResolvedConfig, resolve
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FleetConfig
from replicast.sim.planning.changes import ENGINE_NAMES, LOAD_NAMES, PINNED, Change, Variant
from replicast.sim.planning.load import LoadModel
from replicast.sim.planning.slo import SLO

MEASURED_S = 3600.0
WARMUP_S = 1200.0
STAGGER_S = 900.0
COOLDOWN_S = 300.0
_MODEL_ERROR = 21  # random stream


@dataclass(frozen=True, slots=True)
class ModelError:
    """How wrong the step time may be: logarithms of coefficients, normal with this covariance.

    `names` are fields of `StepTime`; `low` and `high` bound the logarithm of each coefficient's factor.
    """

    names: tuple[str, ...]
    covariance: tuple[tuple[float, ...], ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def draw(self, step_time: StepTime, seed: int, replication: int) -> StepTime:
        """A step time that may be the true one; the same for the same replication."""
        key = np.random.SeedSequence(seed, spawn_key=(_MODEL_ERROR, replication))
        rng = np.random.default_rng(key)
        zero = np.zeros(len(self.names))
        logs = rng.multivariate_normal(zero, np.array(self.covariance), method="eigh")
        logs = np.clip(logs, self.low, self.high)
        factors = {name: float(np.exp(x)) for name, x in zip(self.names, logs, strict=True)}
        changed = {name: round(getattr(step_time, name) * factor) for name, factor in factors.items()}
        return replace(step_time, **changed)


@dataclass(frozen=True, slots=True)
class Study:
    """One concrete case. `pinned_hit_rate` is None where hits emerge; `warnings` are those of the engine."""

    load: LoadModel
    engine: EngineConfig
    step_time: StepTime
    fleet: FleetConfig
    slos: tuple[SLO, ...]
    seed: int
    model_error: ModelError | None
    pinned_hit_rate: float | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What was described; `fleet.replicas` is a placeholder, each run names its own."""

    load: LoadModel
    flags: EngineArgs
    profile_args: EngineArgs
    step_time: StepTime
    fleet: FleetConfig
    slos: tuple[SLO, ...]
    seed: int
    model_error: ModelError | None = None

    def resolved(self) -> ResolvedConfig:
        """The engine without changes."""
        return resolve(self.flags, self.profile_args)

    def study(self, variant: Variant = ()) -> Study:
        """The case after the changes, in order."""
        flags, fleet, load, step = self.flags, self.fleet, self.load, self.step_time
        pinned: float | None = None
        for change in variant:
            if change.name == PINNED:
                pinned = _share(change)
            elif change.name == "router":
                fleet = replace(fleet, router=cast(Any, change.value))
                replace(fleet, sessions=1).resolved(())
            elif change.name in ("compute-time", "memory-time"):
                step = _slower(step, change)
            elif change.name in LOAD_NAMES:
                load = load.changed(change)
            elif change.name != "replicas":
                flags = _engine_change(flags, resolve(flags, self.profile_args).config, change)
        engine = resolve(flags, self.profile_args)
        if any(change.name == "max-model-len" for change in variant):
            load = load.below(engine.config.max_model_len)
        return Study(
            load, engine.config, step, fleet, self.slos, self.seed, self.model_error, pinned, engine.warnings
        )


def _share(change: Change) -> float:
    value = change.number()
    if not 0 <= value <= 1:
        raise change.bad("must lie between 0 and 1")
    return value


def _slower(step: StepTime, change: Change) -> StepTime:
    factor = change.number(1.0)
    if factor <= 0:
        raise change.bad("must leave a time above 0")
    side = change.name.removesuffix("-time")
    names = [name for name in StepTime.__slots__ if name.startswith(side)]
    return replace(step, **{name: round(getattr(step, name) * factor) for name in names})


def _engine_change(flags: EngineArgs, config: EngineConfig, change: Change) -> EngineArgs:
    """Flags with one of vLLM's values set; the KV pool keeps its tokens when the block size changes."""
    tokens = config.num_usable_blocks * config.block_size
    if change.name in ("kv-pool", "kv-cache-tokens"):
        pool = round(change.number(tokens))
        if pool < config.block_size:
            raise change.bad("leaves no block of KV cache")
        blocks = -(-pool // config.block_size) + 1
        return replace(flags, num_gpu_blocks=blocks, kv_cache_tokens=None)
    field = ENGINE_NAMES[change.name]
    value: Any
    if field.kind in ("int", "float"):
        base = getattr(config, field.name, None)
        number = change.number(base)
        if field.kind == "int" and number != round(number) and "%" not in change.value:
            raise change.bad("must be a whole number")
        value = round(number) if field.kind == "int" else number
    elif field.kind == "bool":
        words = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False}
        if change.value.lower() not in {**words, "no": False}:
            raise change.bad("must be true or false")
        value = words.get(change.value.lower(), False)
    elif field.kind == "ints":
        try:
            value = tuple(int(part) for part in change.value.split(","))
        except ValueError:
            raise change.bad("must be whole numbers such as 2,0,3") from None
    else:
        value = change.value
        if field.choices and value not in field.choices:
            raise change.bad(f"must be one of {', '.join(field.choices)}")
    flags = replace(flags, **{field.name: value})
    if field.name == "block_size":
        if value < 1:
            raise change.bad("must be 1 or more")
        flags = replace(flags, num_gpu_blocks=tokens // value + 1, kv_cache_tokens=None)
    return flags


def check_horizon(fleet: FleetConfig) -> FleetConfig:
    """The fleet's clock for a replication: stagger, warm-up, an hour, and time to finish."""
    warmup_s = WARMUP_S if fleet.warmup_s is None else fleet.warmup_s
    stagger_s = min(STAGGER_S, 0.75 * warmup_s) if fleet.stagger_s is None else fleet.stagger_s
    horizon_s = warmup_s + MEASURED_S if fleet.horizon_s is None else fleet.horizon_s
    if horizon_s - warmup_s < MEASURED_S:
        raise InputError(
            f"a replication measures {horizon_s - warmup_s:.0f} s, must be an hour or more after warm-up",
            remedy="Give a longer horizon.",
        )
    return replace(
        fleet,
        loop="closed",
        think_cap_s=None,  # the load has capped it
        stagger_s=stagger_s,
        warmup_s=warmup_s,
        horizon_s=horizon_s,
        cooldown_s=max(fleet.cooldown_s, COOLDOWN_S),
    )
