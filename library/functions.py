"""What the command line calls and a notebook can: traces and profiles in, answers out.

    from replicast import plan
    answer = plan("sessions.jsonl", "qwen3.8-27b-h200", developers=120, slo=["ttft:p90<10s"], price=7.9)
    print(answer.text())
    answer.to_frame()

Each answer (`answers.py`) has `text()` as the command prints it, `document()` as `--json` writes it,
`to_frame()`, and shows itself as HTML in a notebook. `exit_code` is the command's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from replicast.calibration.profile import Profile, load_profile
from replicast.library.answers import (
    Context,
    DevelopersAnswer,
    PlanAnswer,
    Simulation,
    WhatIfAnswer,
)
from replicast.library.cautions import input_warnings, variant_warnings
from replicast.library.hardware import HardwareAnswer
from replicast.library.operations import day_shares, with_day, with_failure
from replicast.sim.config import EngineArgs
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import SESSIONS_PER_REPLICA, FleetConfig
from replicast.sim.fleet.run import simulate as run_fleet
from replicast.sim.planning.changes import parse_variant, parse_vary
from replicast.sim.planning.cost import Task, mean_session
from replicast.sim.planning.day import DEFAULT_DAYS, ScalingRule
from replicast.sim.planning.hardware import break_even, capacity, choices
from replicast.sim.planning.parallel import Progress, Runner, Scale
from replicast.sim.planning.plan import DEFAULT_REPLICATIONS, make_plan, most_developers
from replicast.sim.planning.rows import Money
from replicast.sim.planning.scenario import ModelError, Scenario, check_horizon
from replicast.sim.planning.sensitivity import SensitivityRow, assumptions, sensitivity
from replicast.sim.planning.slo import parse_slos
from replicast.sim.planning.summary import summarise
from replicast.sim.planning.whatif import DEFAULT_REPLICATIONS as WHATIF_REPLICATIONS
from replicast.sim.planning.whatif import make_whatif, variants_of
from replicast.traces.day import DAY_SOURCE, OFFICE_DAY, busiest
from replicast.traces.developers import DeveloperLoad, Developers
from replicast.traces.load import LoadedTrace
from replicast.traces.load import load_trace as load_paths

Trace = LoadedTrace | str | Path | Sequence[str | Path]
DEFAULT_SLO = "ttft:p90<10s"


def load_trace(paths: str | Path | Sequence[str | Path], **options: Any) -> LoadedTrace:
    """Load one path or several; options as `replicast.traces.load.load_trace` has them."""
    return load_paths([paths] if isinstance(paths, str | Path) else list(paths), **options)


def simulate(
    trace: Trace,
    profile: Profile | str | Path,
    *,
    replicas: int = 1,
    sessions: int | None = None,
    router: str = "session-affinity",
    price: float | None = None,
    flags: EngineArgs | None = None,
    fleet: FleetConfig | None = None,
    seed: int = 0,
) -> Simulation:
    """Replay a trace once on `replicas` replicas; `fleet` has further settings."""
    loaded, known = _trace(trace), _profile(profile)
    base = fleet or FleetConfig()
    config = replace(base, replicas=replicas, router=router, front_end=known.front_end)  # type: ignore[arg-type]
    if sessions is not None:
        config = replace(config, sessions=sessions)
    if config.loop is None and config.sessions is None:
        config = replace(config, loop="open" if loaded.open_loop else "closed")
    from replicast.sim.defaults import resolve

    resolved = resolve(flags or EngineArgs(), known.engine_args())
    result = run_fleet(loaded.sessions, resolved.config, known.to_step_time(), config, seed=seed)
    cost_of = price if price is not None else known.price_usd_per_hour
    task = mean_session(loaded.sessions, resolved.config.max_model_len)
    return Simulation(summarise(result, cost_of, task), result)


def context(
    trace: Trace,
    profile: Profile | str | Path,
    *,
    people: Developers,
    active_source: str,
    slo: Sequence[str],
    router: str = "session-affinity",
    flags: EngineArgs | None = None,
    warmup_s: float | None = None,
    horizon_s: float | None = None,
    model: str | None = None,
    seed: int = 7,
) -> Context:
    """Load and check everything that an answer rests on."""
    loaded, known = _trace(trace), _profile(profile)
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="use 0 or more")
    if model is not None and model.lower() not in known.model.lower():
        raise InputError(
            f"the profile is of {known.model}, not of {model}",
            where=known.name,
            remedy="Give a profile of that model, or leave --model out.",
        )
    slos = parse_slos(slo)
    fleet = FleetConfig(
        router=router,  # type: ignore[arg-type]
        front_end=known.front_end,
        over_length="truncate-session",
        warmup_s=warmup_s,
        horizon_s=horizon_s,
    )
    replace(fleet, sessions=1).resolved(())
    fleet = check_horizon(fleet)
    from replicast.sim.defaults import resolve

    resolved = resolve(flags or EngineArgs(), known.engine_args())
    assert fleet.horizon_s is not None
    load = DeveloperLoad(
        loaded.sessions,
        people,
        token_s=known.step_time.memory_fixed_s / (1 + resolved.config.num_speculative_tokens),
        horizon_s=fleet.horizon_s,
        seed=seed,
        longest=resolved.config.max_model_len,
    )
    step_time = known.to_step_time()
    scenario = Scenario(
        load,
        flags or EngineArgs(),
        known.engine_args(),
        step_time,
        fleet,
        slos,
        seed,
        model_error_of(known, step_time),
    )
    warnings = tuple(input_warnings(known, resolved, loaded))
    return Context(loaded, known, resolved, scenario, load, active_source, warnings, seed)


def plan(
    trace: Trace,
    profile: Profile | str | Path,
    *,
    developers: int,
    slo: Sequence[str] = (DEFAULT_SLO,),
    price: float | None = None,
    box: int = 1,
    spare: int = 0,
    active: float | None = None,
    day: tuple[float, ...] | None = None,
    people: Mapping[str, Any] | None = None,
    task: Task | None = None,
    router: str = "session-affinity",
    flags: EngineArgs | None = None,
    counts: Sequence[int] | None = None,
    max_replicas: int | None = None,
    replications: int = DEFAULT_REPLICATIONS,
    early: bool = True,
    with_sensitivity: bool = True,
    whole_day: ScalingRule | None = None,
    days: int = DEFAULT_DAYS,
    replaced_after_s: float | None = None,
    warmup_s: float | None = None,
    horizon_s: float | None = None,
    model: str | None = None,
    seed: int = 7,
    scale: Scale = Scale(),  # noqa: B008  (immutable)
    journal: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> PlanAnswer:
    """The smallest number of replicas that meets every SLO in the busiest hour.

    `people` are further fields of `Developers`. Without `price` the profile's is taken, if it has one. With
    `whole_day` also 24 hours of the planned fleet beside one that scales by this rule, `days` times; with
    `replaced_after_s` also the loss of one replica, whose replacement comes so much later.
    """
    given, source = population(developers, active, day, people)
    rests = context(
        trace, profile, people=given, active_source=source, slo=slo, router=router, flags=flags,
        warmup_s=warmup_s, horizon_s=horizon_s, model=model, seed=seed,
    )  # fmt: skip
    money = Money(_price(price, rests.profile), box, spare, task)
    with Runner(rests.scenario, scale, journal=journal, progress=progress) as runner:
        found = make_plan(
            runner, money, replications=replications, counts=counts, most_replicas=max_replicas, early=early,
            ranges=rests.profile.ranges,
        )  # fmt: skip
        rows: list[SensitivityRow] = []
        if with_sensitivity and found.replicas is not None:
            agents = any(turn.agent != s.turns[0].agent for s in rests.load.sessions for turn in s.turns)
            asked = assumptions(rests.resolved.config, given.active_share, subagents=agents)
            rows = sensitivity(runner, found.replicas, asked)
        found = replace(found, replications_run=runner.num_run)
    planned = PlanAnswer(found, tuple(rows), rests, money)
    if whole_day is not None:
        planned = with_day(planned, whole_day, day_shares(active, day), days, progress)
    if replaced_after_s is not None:
        planned = with_failure(planned, 0.0 if spare else replaced_after_s, progress)
    return planned


def choose_hardware(
    trace: Trace, kinds: Sequence[Mapping[str, Any]], *, developers: int, **options: Any
) -> HardwareAnswer:
    """The cheapest of several kinds: each is `{"profile": …, "price": …, "box": …, "name": …}`.

    `options` are those of `plan`, common to all kinds.
    """
    if len(kinds) < 2:
        raise InputError(
            "a choice needs two kinds of hardware or more", remedy="Repeat --profile and --price."
        )
    loaded = _trace(trace)
    plans: list[tuple[str, PlanAnswer]] = []
    for kind in kinds:
        own = dict(kind)
        profile = _profile(own.pop("profile"))
        name = str(own.pop("name", profile.name))
        if name in (other for other, _ in plans):
            raise InputError(f"{name} is given twice", where="--profile")
        plans.append((name, plan(loaded, profile, developers=developers, **{**options, **own})))
    sizes = [size for name, answer in plans if (size := capacity(name, answer.plan)) is not None]
    evens = [break_even(a, b) for i, a in enumerate(sizes) for b in sizes[i + 1 :]]
    rows = choices([(name, answer.plan) for name, answer in plans])
    return HardwareAnswer(tuple(rows), tuple(evens), tuple(plans))


def max_developers(
    trace: Trace,
    profile: Profile | str | Path,
    *,
    replicas: int,
    slo: Sequence[str] = (DEFAULT_SLO,),
    price: float | None = None,
    box: int = 1,
    spare: int = 0,
    active: float | None = None,
    day: tuple[float, ...] | None = None,
    people: Mapping[str, Any] | None = None,
    router: str = "session-affinity",
    flags: EngineArgs | None = None,
    replications: int = DEFAULT_REPLICATIONS,
    warmup_s: float | None = None,
    model: str | None = None,
    seed: int = 7,
    scale: Scale = Scale(),  # noqa: B008  (immutable)
    journal: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> DevelopersAnswer:
    """The most developers whose SLOs `replicas` meet in the busiest hour."""
    if replicas < 1:
        raise InputError(f"{replicas} replicas", where="--replicas", remedy="Use 1 or more.")
    given, source = population(max(replicas, 1), active, day, people)
    rests = context(
        trace, profile, people=given, active_source=source, slo=slo, router=router, flags=flags,
        warmup_s=warmup_s, model=model, seed=seed,
    )  # fmt: skip
    money = Money(_price(price, rests.profile), box, spare)
    with Runner(rests.scenario, scale, journal=journal, progress=progress) as runner:
        most = most_developers(runner, replicas, money, replications=replications)
    return DevelopersAnswer(most, rests, money)


def whatif(
    trace: Trace,
    profile: Profile | str | Path,
    *,
    replicas: int,
    changes: Sequence[str] = (),
    vary: str | None = None,
    developers: int | None = None,
    active: float | None = None,
    day: tuple[float, ...] | None = None,
    people: Mapping[str, Any] | None = None,
    slo: Sequence[str] = (DEFAULT_SLO,),
    price: float | None = None,
    box: int = 1,
    spare: int = 0,
    task: Task | None = None,
    router: str = "session-affinity",
    flags: EngineArgs | None = None,
    replications: int = WHATIF_REPLICATIONS,
    search: bool = True,
    max_replicas: int | None = None,
    warmup_s: float | None = None,
    horizon_s: float | None = None,
    model: str | None = None,
    seed: int = 7,
    scale: Scale = Scale(),  # noqa: B008  (immutable)
    journal: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> WhatIfAnswer:
    """What changes, paired: all of `changes` together, or one arm for each value of `vary`.

    Without `developers` ten sessions a replica are live, as in a replay.
    """
    variants = variants_of(parse_variant(changes), parse_vary(vary) if vary else ())
    if developers is None:
        live = SESSIONS_PER_REPLICA * max(replicas, 1)
        given = Developers(live, 1.0, **dict(people or {}))
        source = "not given: 10 live sessions a replica"
    else:
        given, source = population(developers, active, day, people)
    rests = context(
        trace, profile, people=given, active_source=source, slo=slo, router=router, flags=flags,
        warmup_s=warmup_s, horizon_s=horizon_s, model=model, seed=seed,
    )  # fmt: skip
    money = Money(_price(price, rests.profile), box, spare, task)
    with Runner(rests.scenario, scale, journal=journal, progress=progress) as runner:
        found = make_whatif(
            runner, replicas, variants, money, replications=replications, search=search,
            most_replicas=max_replicas,
        )  # fmt: skip
    rests = replace(rests, warnings=(*rests.warnings, *variant_warnings(rests, variants)))
    return WhatIfAnswer(found, rests, money)


def population(
    developers: int, active: float | None, day: tuple[float, ...] | None, people: Mapping[str, Any] | None
) -> tuple[Developers, str]:
    """Who works in the busiest hour, and where the active share comes from."""
    if active is not None:
        source = "given"
        share = active
    else:
        hour, share = busiest(day or OFFICE_DAY)
        source = f"busiest hour {hour}:00 of {'the given day' if day else DAY_SOURCE}"
    return Developers(developers, share, **dict(people or {})), source


def model_error_of(profile: Profile, step_time: StepTime) -> ModelError | None:
    """The covariance of the profile's step-time coefficients; None if it states none.

    What else was fitted with them (the harness's own lengths) is not part of a plan and drops out.
    """
    table = profile.tables.get("covariance", {})
    names, matrix = table.get("names", []), table.get("log_matrix", [])
    kept = [i for i, name in enumerate(names) if name.removesuffix("_s") in StepTime.__slots__]
    kept = [i for i in kept if getattr(step_time, names[i].removesuffix("_s")) > 0]
    if not kept or len(matrix) != len(names):
        return None
    values = [math.log(getattr(profile.step_time, names[i])) for i in kept]
    low, high = (table.get(side) for side in ("low", "high"))
    return ModelError(
        tuple(names[i].removesuffix("_s") for i in kept),
        tuple(tuple(float(matrix[i][j]) for j in kept) for i in kept),
        tuple(min(low[i] - x, 0.0) if low else -math.inf for i, x in zip(kept, values, strict=True)),
        tuple(max(high[i] - x, 0.0) if high else math.inf for i, x in zip(kept, values, strict=True)),
    )


def _trace(trace: Trace) -> LoadedTrace:
    return trace if isinstance(trace, LoadedTrace) else load_trace(trace)


def _profile(profile: Profile | str | Path) -> Profile:
    return profile if isinstance(profile, Profile) else load_profile(profile)


def _price(price: float | None, profile: Profile) -> float | None:
    return profile.price_usd_per_hour if price is None else price
