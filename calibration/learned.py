"""What a calibration learnt, in the form that a profile stores and a validation reads back.

Beside step times a profile of a sweep holds the load's latents (`[load]`), the fitted levels with what was
measured there and what the simulation misses (`[levels]`), and the covariance of all parameters. With these a
new level is predicted as a held-out one was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.facts import Attention, Model, find_gpu, find_model
from replicast.calibration.growth import Growth
from replicast.calibration.lengths import Lengths, Source, growth_of
from replicast.calibration.model import Parameter, Point
from replicast.calibration.physics import priors
from replicast.calibration.predict import Residuals
from replicast.calibration.profile import Profile, StepSeconds
from replicast.calibration.server import ServerFacts
from replicast.sim.config import EngineArgs
from replicast.sim.defaults import resolve
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KnownLevel:
    """A level that was fitted: its load, its measured metrics, and what the simulation misses there."""

    concurrency: int
    lengths: Lengths
    load_s: float
    measured: Mapping[str, float]
    residuals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Learned:
    """A point, its uncertainty and the levels it comes from."""

    point: Point
    params: tuple[Parameter, ...]
    x: Floats
    covariance: Floats
    centre: float
    levels: tuple[KnownLevel, ...]
    front_end: FrontEnd

    @property
    def growth(self) -> Growth | None:
        """How prompts grow, by the fitted levels, where there are any."""
        return growth_of([level.lengths for level in self.levels]) if self.levels else None

    def residuals(self) -> list[Residuals]:
        """What the simulation misses at each fitted level."""
        return [Residuals(level.concurrency, level.residuals) for level in self.levels]


def lengths_at(concurrency: int, load_s: float, known: Sequence[KnownLevel]) -> Lengths | None:
    """Lengths of a level of which only the concurrency is known: between those of the fitted ones.

    Linear in log concurrency, of logarithms; beyond the fitted levels as at the nearest one. Prompts are as
    long as their turns let them grow.
    """
    levels = sorted(known, key=lambda level: level.concurrency)
    if not levels:
        return None
    where = np.log([level.concurrency for level in levels])
    at = math.log(concurrency)

    def between(values: Sequence[float]) -> float:
        return float(np.exp(np.interp(at, where, np.log(np.maximum(values, 1e-9)))))

    computed = [level.lengths.computed for level in levels]
    sources = {level.lengths.source for level in levels}
    found = Lengths(
        prompt=1.0,
        output=between([level.lengths.output for level in levels]),
        computed=None if None in computed else between([c or 0.0 for c in computed]),
        requests=between([level.lengths.requests / level.load_s for level in levels]) * load_s,
        alive=between([level.lengths.alive / level.concurrency for level in levels]) * concurrency,
        running=between([level.lengths.running / level.concurrency for level in levels]) * concurrency,
        source="kv" if "kv" in sources else levels[0].lengths.source,
    )
    growth = growth_of([level.lengths for level in levels])
    longer = between([level.lengths.prompt / growth.mean(level.lengths.turns) for level in levels])
    prompt = longer * growth.mean(found.turns)
    held = between([level.lengths.held_share / level.lengths.prompt for level in levels]) * prompt
    return replace(found, prompt=prompt, held_share=held if "kv" in sources else 0.0)


def interpolated(concurrency: int, metric: str, known: Sequence[KnownLevel]) -> float | None:
    """The rival: straight lines in log concurrency and log metric, the outer ones continued."""
    points = sorted(
        (math.log(level.concurrency), math.log(level.measured[metric]))
        for level in known
        if level.measured.get(metric, 0.0) > 0
    )
    if len(points) < 2:
        return None
    at = math.log(concurrency)
    i = min(max(sum(x < at for x, _ in points) - 1, 0), len(points) - 2)
    (x0, y0), (x1, y1) = points[i], points[i + 1]
    return math.exp(y0 + (at - x0) * (y1 - y0) / (x1 - x0)) if x1 > x0 else math.exp(y0)


def tables_of(learned: Learned, latents: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The profile's tables `load`, `levels` and `covariance`."""
    levels = {
        key: {
            "concurrency": level.concurrency,
            "load_s": level.load_s,
            "prompt_tokens": _figures(level.lengths.prompt),
            "output_tokens": _figures(level.lengths.output),
            **(
                {}
                if level.lengths.computed is None
                else {"computed_tokens": _figures(level.lengths.computed)}
            ),
            "requests": _figures(level.lengths.requests),
            "alive": _figures(level.lengths.alive),
            "held_share": _figures(level.lengths.held_share),
            "running": _figures(level.lengths.running),
            "source": level.lengths.source,
            "measured": {name: _figures(value, 6) for name, value in level.measured.items()},
            "residuals": {name: round(value, 4) for name, value in level.residuals.items()},
        }
        for key, level in zip(_keys(learned.levels), learned.levels, strict=True)
    }
    return {
        "load": {name: _figures(value) for name, value in latents.items()}
        | {"centre_concurrency": _figures(learned.centre)},
        "levels": levels,
        "covariance": {
            "names": [p.name for p in learned.params],
            "low": [_figures(p.low, 5) for p in learned.params],
            "high": [_figures(p.high, 5) for p in learned.params],
            "log_matrix": [[_figures(v, 4) for v in row] for row in learned.covariance.tolist()],
        },
    }


def _keys(levels: Sequence[KnownLevel]) -> list[str]:
    """`c5` of a level of five sessions, `c5_2` of a second one."""
    names = [f"c{level.concurrency}" for level in levels]
    return [
        name if (before := names[:at].count(name)) == 0 else f"{name}_{before + 1}"
        for at, name in enumerate(names)
    ]


def learned_of(profile: Profile) -> Learned:
    """What a profile learnt; one without these tables learnt step times only."""
    try:
        return _learned(profile)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"profile {profile.name}: its tables load, levels and covariance are not as calibrate wrote them "
            f"({error})",
            remedy="Calibrate again, or take the three tables out.",
        ) from error


def _learned(profile: Profile) -> Learned:
    load = dict(profile.tables.get("load", {}))
    centre = float(load.pop("centre_concurrency", 1.0))
    values = {**profile.step_time._asdict(), **{name: float(value) for name, value in load.items()}}
    table = profile.tables.get("covariance", {})
    names = [name for name in table.get("names", []) if name in values]
    params = tuple(
        Parameter(name, 0.0, 0.0, 1.0, float(low), float(high))
        for name, low, high in zip(names, table.get("low", []), table.get("high", []), strict=True)
    )
    x = np.array([_log(name, values[name]) for name in names])
    levels = tuple(_level(row) for row in profile.tables.get("levels", {}).values())
    return Learned(
        Point(values), params, x, np.array(table.get("log_matrix", []), dtype=float).reshape(len(x), len(x)),
        centre, levels, profile.front_end,
    )  # fmt: skip


def facts_of(profile: Profile) -> ServerFacts:
    """The server of a profile: everything is given there."""
    gpu = find_gpu(profile.gpu)
    model = find_model(profile.model) or Model(
        profile.model, 1e9, 1e9, "bf16", 2e9, Attention(1e4, 1e5), 32, "the profile names no known model"
    )
    args = profile.engine_args()
    steps = profile.step_time._asdict()
    known = priors(model, gpu, profile.tensor_parallel_size)
    load = profile.tables.get("load", {})
    told = profile.tables.get("load_given", {})
    return ServerFacts(
        model=model,
        gpu=gpu,
        tensor_parallel_size=profile.tensor_parallel_size,
        vllm_version=profile.vllm_version,
        args=profile.engine,
        config=resolve(EngineArgs(), args).config,
        priors={name: prior._replace(value=steps[name]) for name, prior in known.items()},
        expected_pool_tokens=0.0,
        pool_is_given=True,
        known_model=True,
        notes=(),
        load={name: float(load[name]) for name in told.get("latents", ())},
        load_source=str(told.get("source", "")),
    )


def steps_of(values: Mapping[str, float]) -> StepSeconds:
    """The six coefficients among `values`."""
    return StepSeconds(**{name: values[name] for name in StepSeconds._fields})


def _level(row: Mapping[str, Any]) -> KnownLevel:
    return KnownLevel(
        int(row["concurrency"]),
        Lengths(
            float(row["prompt_tokens"]), float(row["output_tokens"]),
            float(row["computed_tokens"]) if "computed_tokens" in row else None, float(row["requests"]),
            float(row["alive"]), cast(Source, row["source"]), float(row["held_share"]),
            float(row.get("running", 0.0)),
        ),
        float(row["load_s"]),
        {name: float(value) for name, value in row["measured"].items()},
        {name: float(value) for name, value in row["residuals"].items()},
    )  # fmt: skip


def _log(name: str, value: float) -> float:
    return value if name == "computed_slope" else math.log(max(value, 1e-300))


def _figures(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")
