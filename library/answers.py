"""What the library's functions return: results, what they rest on, and how they are shown and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from replicast import __version__
from replicast.calibration.profile import Profile
from replicast.sim.defaults import ResolvedConfig
from replicast.sim.fleet.result import RunResult
from replicast.sim.planning.cost import Task
from replicast.sim.planning.day import DayComparison
from replicast.sim.planning.failure import Failure
from replicast.sim.planning.plan import MostDevelopers, Plan
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.rows import Money, PlanRow
from replicast.sim.planning.scenario import Scenario
from replicast.sim.planning.sensitivity import SensitivityRow
from replicast.sim.planning.summary import ReplayRow
from replicast.sim.planning.whatif import WhatIf
from replicast.sim.report.document import dumps
from replicast.sim.report.text import plural
from replicast.traces.developers import DeveloperLoad
from replicast.traces.load import LoadedTrace

if TYPE_CHECKING:
    import pandas as pd

Warned = tuple[str, str]  # code, sentence


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run: its row and everything recorded."""

    row: ReplayRow
    result: RunResult

    def to_frame(self) -> pd.DataFrame:
        """One row a request."""
        return self.result.records.to_frame()

    def _repr_html_(self) -> str:
        from replicast.sim.report.replay import answer, serving_table, waiting_table

        return pre("\n\n".join([answer([self.row]), waiting_table([self.row]), serving_table([self.row])]))


@dataclass(frozen=True, slots=True)
class Context:
    """What an answer rests on: inputs, population, engine, and what must be known of them."""

    trace: LoadedTrace
    profile: Profile
    resolved: ResolvedConfig
    scenario: Scenario
    load: DeveloperLoad
    active_source: str
    warnings: tuple[Warned, ...]
    seed: int

    def lines(self) -> list[str]:
        """The assumptions, first what is least known."""
        people, fleet, engine = self.load.people, self.scenario.fleet, self.resolved.config
        report = self.trace.report
        turns = sum(len(session.turns) for session in self.trace.sessions)
        asks = self.load.requests_per_hour
        measured_s = (fleet.horizon_s or 0.0) - (fleet.warmup_s or 0.0)
        lines = [
            f"{plural(people.developers, 'developer')}, {people.active_share:g} active "
            f"({self.active_source})",
            f"{people.sessions_each:g} session{'s' if people.sessions_each != 1 else ''} each: "
            f"{plural(self.load.live_sessions, 'live session')}, "
            f"each asks {asks:.0f} times an hour when nobody queues",
            f"closed loop, router {fleet.router}; sessions resampled from "
            f"{plural(len(self.trace.sessions), 'session')} with {plural(turns, 'request')} "
            f"({report.format}), entered in their midst; gaps over {people.longest_gap_s:g} s cut to that",
            f"a replication is {measured_s / 60:.0f} min after {(fleet.warmup_s or 0) / 60:.0f} min of "
            f"warm-up; seed {self.seed}",
            f"{self.profile.name} ({self.profile.status}), vLLM {self.resolved.vllm_version}, "
            f"{engine.num_gpu_blocks:,} blocks of {engine.block_size}, budget "
            f"{engine.max_num_batched_tokens:,}, seats {engine.max_num_seqs:,}, "
            f"longest {engine.max_model_len:,}",
        ]
        if self.load.left_out:
            lines.append(
                f"{plural(self.load.left_out, 'request')} left out: sessions end before a prompt of "
                f"{engine.max_model_len:,} tokens"
            )
        return lines

    def config(self, money: Money) -> dict[str, object]:
        """The `config` part of a document."""
        profile, fleet = self.profile, self.scenario.fleet
        clock = ("stagger_s", "warmup_s", "horizon_s", "cooldown_s")
        return {
            "profile": {
                "name": profile.name,
                "status": profile.status,
                "source": profile.source,
                "model": profile.model,
                "gpu": profile.gpu,
                "step_time": profile.step_time._asdict(),
            },
            "vllm_version": self.resolved.vllm_version,
            "engine": self.resolved.config,
            "origins": self.resolved.origins,
            "population": {
                **asdict(self.load.people),
                "active_share_source": self.active_source,
                "live_sessions": self.load.live_sessions,
                "requests_per_hour_unloaded": self.load.requests_per_hour,
                "requests_left_out": self.load.left_out,
            },
            "clock": {name: getattr(fleet, name) for name in clock},
            "router": fleet.router,
            "front_end": asdict(fleet.front_end),
            "money": {
                "price_usd_per_hour_per_replica": money.usd_per_hour,
                "replicas_per_box": money.box,
                "spare_replicas": money.spare,
                "task_tokens": (money.for_sessions(self.load.sessions).task or Task(0, 0))._asdict(),
                "task_of": "flag" if money.task else "mean session of the trace",
            },
            "model_error": self.scenario.model_error,
        }

    def head(self, schema: str) -> dict[str, object]:
        """The first keys of every document."""
        report = self.trace.report
        return {
            "schema": schema,
            "tool": {"name": "replicast", "version": __version__},
            "inputs": report.inputs,
            "import": {
                "format": report.format,
                "rows_read": report.rows_read,
                "rows_emitted": report.rows_emitted,
                "dropped": dict(sorted(report.dropped.items())),
                "estimated_outputs": report.estimated_outputs,
                "notes": report.notes,
            },
        }


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """A plan and what it rests on."""

    plan: Plan
    sensitivity: tuple[SensitivityRow, ...]
    context: Context
    money: Money
    day: DayComparison | None = None
    failure: Failure | None = None
    notes: tuple[Warned, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 some count meets, 3 none does, 4 that is not clear."""
        return self.plan.exit_code

    @property
    def replicas(self) -> int | None:
        """The smallest count that meets."""
        return self.plan.replicas

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """(code, sentence) of all that must be known."""
        return (*self.context.warnings, *self.plan.warnings, *self.notes)

    def text(self, *, quiet: bool = False) -> str:
        """As printed."""
        from replicast.sim.report.day import headlines, operations_text
        from replicast.sim.report.plan import plan_text

        text = plan_text(
            self.plan,
            self.context.lines(),
            self.sensitivity,
            quiet=quiet,
            headlines=headlines(self.day, self.failure),
        )
        more = operations_text(self.day, self.failure, quiet=quiet)
        return f"{text}\n{more}" if more else text

    def document(self, timing: Mapping[str, float] | None = None) -> str:
        """As `--json` writes it."""
        from replicast.sim.report.day import day_object, failure_object
        from replicast.sim.report.plan import PLAN_SCHEMA, plan_object

        more: dict[str, object] = {}
        if self.day is not None:
            more["day"] = day_object(self.day)
        if self.failure is not None:
            more["failure"] = failure_object(self.failure)
        return dumps(
            {
                **self.context.head(PLAN_SCHEMA),
                "config": self.context.config(self.money),
                "seed": self.context.seed,
                **plan_object(self.plan, self.sensitivity),
                **more,
                "warnings": warned(self.warnings),
                "timing": dict(timing or {}),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a replica count."""
        return _plan_frame(self.plan.rows)

    def _repr_html_(self) -> str:
        return pre(self.text())


@dataclass(frozen=True, slots=True)
class DevelopersAnswer:
    """The most developers that some replicas carry."""

    most: MostDevelopers
    context: Context
    money: Money

    @property
    def exit_code(self) -> int:
        """0 some are carried, 3 none, 4 not clear."""
        return self.most.exit_code

    @property
    def developers(self) -> int:
        """The largest number that meets, 0 if none does."""
        return self.most.developers

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """(code, sentence) of all that must be known."""
        return self.context.warnings

    def text(self, *, quiet: bool = False) -> str:
        """As printed."""
        from replicast.sim.report.plan import developers_text

        people = self.context.load.people
        who = (
            f"{people.active_share:g} active ({self.context.active_source}), {people.sessions_each:g} "
            f"session{'s' if people.sessions_each != 1 else ''} each; a live session asks "
            f"{self.context.load.requests_per_hour:.0f} times an hour when nobody queues"
        )
        return developers_text(self.most, [who, *self.context.lines()[2:]], quiet=quiet)

    def document(self, timing: Mapping[str, float] | None = None) -> str:
        """As `--json` writes it."""
        from replicast.sim.report.plan import PLAN_SCHEMA, developers_object

        return dumps(
            {
                **self.context.head(PLAN_SCHEMA),
                "config": self.context.config(self.money),
                "seed": self.context.seed,
                **developers_object(self.most),
                "warnings": warned(self.warnings),
                "timing": dict(timing or {}),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a number of developers."""
        return _plan_frame(self.most.rows)

    def _repr_html_(self) -> str:
        return pre(self.text())


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """A what-if and what it rests on."""

    whatif: WhatIf
    context: Context
    money: Money

    @property
    def exit_code(self) -> int:
        """0."""
        return self.whatif.exit_code

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """(code, sentence) of all that must be known."""
        return self.context.warnings

    def text(self, *, quiet: bool = False) -> str:
        """As printed."""
        from replicast.sim.report.whatif import whatif_text

        return whatif_text(self.whatif, self.context.lines(), quiet=quiet)

    def document(self, timing: Mapping[str, float] | None = None) -> str:
        """As `--json` writes it."""
        from replicast.sim.report.whatif import WHATIF_SCHEMA, whatif_object

        return dumps(
            {
                **self.context.head(WHATIF_SCHEMA),
                "config": self.context.config(self.money),
                "seed": self.context.seed,
                **whatif_object(self.whatif),
                "warnings": warned(self.warnings),
                "timing": dict(timing or {}),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One row an arm and figure."""
        import pandas as pd

        return pd.DataFrame(
            {
                "arm": arm.name,
                "figure": d.name,
                "before": d.before,
                "after": d.after,
                "difference": d.difference.value,
                "low": d.difference.low,
                "high": d.difference.high,
                "clear": d.is_clear,
            }
            for arm in self.whatif.arms
            for d in arm.differences
        )

    def _repr_html_(self) -> str:
        return pre(self.text())


def warned(warnings: Sequence[Warned]) -> list[dict[str, str]]:
    """Warnings as documents hold them."""
    return [{"code": code, "text": text} for code, text in warnings]


def _plan_frame(rows: Sequence[PlanRow]) -> pd.DataFrame:
    import pandas as pd

    out = []
    for row in rows:
        flat: dict[str, object] = {}
        for name in PlanRow.__slots__:
            value = getattr(row, name)
            if isinstance(value, Estimate):
                flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            elif isinstance(value, int | float | str) or value is None:
                flat[name] = value
        out.append(flat)
    return pd.DataFrame(out)


def pre(text: str) -> str:
    """Text as a notebook shows it."""
    from html import escape

    return f"<pre>{escape(text)}</pre>"
