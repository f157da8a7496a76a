"""A sweep's levels as a profile, or the other levels of the sweep, predict them; held-out ones count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from replicast.calibration.agreement import Agreement, agreement_lines
from replicast.calibration.check import check_sweep, same_model
from replicast.calibration.engines import of_one_engine
from replicast.calibration.fit import fit
from replicast.calibration.harness import METRICS, MakeEngine
from replicast.calibration.held_out import leave_one_out, predicted_rows
from replicast.calibration.learned import facts_of, learned_of
from replicast.calibration.predict import Load
from replicast.calibration.profile import Profile
from replicast.calibration.rows import LABELS, LOADS, Row, Summary, summarise
from replicast.calibration.server import ServerFacts, physics_of
from replicast.calibration.sweep import Sweep, SweepLevel
from replicast.sim.engine.factory import make_engine
from replicast.sim.errors import InputError
from replicast.sim.planning.quantiles import Estimate, digits
from replicast.sim.report.numbers import fixed

SCHEMA = "replicast/validate/1"
LEAST_FOR_LOO = 3  # two others to fit


@dataclass(frozen=True, slots=True)
class Validation:
    """All rows, and what was left out."""

    sweep: str
    profile: str
    loo: bool
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    buckets: tuple[Agreement, ...] = ()

    def summary(self, rows: Sequence[Row] | None = None) -> list[Summary]:
        """One line a load and metric."""
        chosen = self.rows if rows is None else rows
        return [found for load in LOADS for name in METRICS if (found := summarise(chosen, load, name))]

    def to_document(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "sweep": self.sweep,
            "profile": self.profile,
            "leave_one_out": self.loo,
            "rows": [row._asdict() for row in self.rows],
            "summary": [line._asdict() for line in self.summary()],
            "buckets": [row._asdict() for row in self.buckets],
            "warnings": list(self.warnings),
        }

    def report_text(self) -> str:
        """Tables for a terminal: the summary first, then every level."""
        how = "each level predicted from the others" if self.loo else f"profile {self.profile}"
        lines = [f"{self.sweep}: {how}", ""]
        lines.append(
            f"{'load':12} {'metric':14} {'levels':>6} {'|error|':>8} {'signed':>8} {'in 90 %':>8} "
            f"{'interpolation':>14}"
        )
        for line in self.summary():
            rival = "-" if line.interpolation is None else f"{line.interpolation:.0%}"
            lines.append(
                f"{line.load:12} {LABELS[line.metric]:14} {line.rows:6d} {line.median_absolute:8.0%} "
                f"{line.median_signed:+8.0%} {line.coverage:8.0%} {rival:>14}"
            )
        lines += [
            "",
            f"{'level':>5} {'load':12} {'metric':14} {'measured':>10} {'predicted':>10}  90 % interval",
        ]
        for row in self.rows:
            error = "" if row.error is None else f"{row.error:+.0%}"
            places = digits(Estimate(row.predicted, row.low, row.high, 1))
            measured = f"{row.measured:,.0f}" if row.measured >= 1000 else f"{row.measured:.4g}"
            lines.append(
                f"{row.level:5d} {row.load:12} {LABELS[row.metric]:14} {measured:>10} "
                f"{fixed(row.predicted, places):>10}  "
                f"{fixed(row.low, places)} to {fixed(row.high, places)}  {error}"
            )
        lines += agreement_lines(self.buckets)
        lines += [f"Warning: {text}" for text in self.warnings]
        return "\n".join(lines) + "\n"


def validate(
    sweep: Sweep,
    profile: Profile,
    *,
    levels: Sequence[int] | None = None,
    loo: bool = False,
    loads: Sequence[Load] = LOADS,
    facts: ServerFacts | None = None,
    engines: MakeEngine = make_engine,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """The sweep's levels as `profile` predicts them, or with `loo` as the other levels do."""
    chosen, warnings = choose_levels(sweep, levels)
    if not same_model(sweep.model, profile.model):
        warnings.append(f"the sweep is of {sweep.model}, profile {profile.name} of {profile.model}")
    facts = facts or facts_of(profile)
    unlike = failed_levels(sweep, chosen)
    chosen, shared = of_one_engine(chosen, sweep.given.data_parallel_size)
    warnings += [*unlike, *shared]
    buckets: list[Agreement] = []
    if loo:
        if len(chosen) < LEAST_FOR_LOO:
            raise InputError(
                f"{len(chosen)} usable level{'s' * (len(chosen) != 1)}, and each cannot be predicted from "
                f"the others with fewer than {LEAST_FOR_LOO}",
                where=sweep.source,
                remedy="Give a sweep of more levels, or leave --loo out.",
            )
        # What the profile learnt of these levels must not come back as prior.
        facts = replace(facts, priors=physics_of(sweep, facts))
        fitted = fit(chosen, facts, engines=engines, progress=progress)
        rows = leave_one_out(fitted, facts, loads=loads, engines=engines, buckets=buckets, progress=progress)
    else:
        learned = learned_of(profile)
        if not learned.levels:
            warnings.append(
                f"profile {profile.name} holds no fitted levels: no correction, lengths are the level's"
            )
        rows = []
        for level in chosen:
            rows += predicted_rows(level, facts, learned, loads=loads, engines=engines, buckets=buckets)
            if progress is not None:
                progress(f"level {level.concurrency}")
    return Validation(sweep.source, profile.name, loo, tuple(rows), tuple(warnings), tuple(buckets))


def failed_levels(sweep: Sweep, levels: Sequence[SweepLevel]) -> list[str]:
    """What the checks say of levels that are used all the same."""
    result = check_sweep(sweep)
    if not result.ok:
        return [f"the checks call this sweep not usable ({result.of('fail')[0].text})"]
    failed = [sweep.levels[i] for i in result.left_out]
    told = [level.name or f"c={level.concurrency}" for level in levels if level in failed]
    return [f"the checks fail {', '.join(told)}"] if told else []


def choose_levels(sweep: Sweep, wanted: Sequence[int] | None) -> tuple[list[SweepLevel], list[str]]:
    """Usable levels with a concurrency, and warnings about those that are not there."""
    usable = [level for level in sweep.usable_levels(1) if level.concurrency is not None]
    warnings = [f"level {level.name} left out: {level.unusable}" for level in sweep.levels if level.unusable]
    if wanted is not None:
        present = {level.concurrency for level in usable}
        warnings += [f"level {c} is not in {sweep.source}" for c in wanted if c not in present]
        usable = [level for level in usable if level.concurrency in set(wanted)]
    if not usable:
        there = [str(level.concurrency) for level in sweep.levels if level.concurrency is not None]
        raise InputError(
            "none of the levels asked for can be used" if there else "no level has a number of sessions",
            where=sweep.source,
            remedy=f"levels in it: {', '.join(there)}"
            if there
            else "give levels at a concurrency; rates and single requests are read by `replicast check`",
        )
    return usable, warnings
