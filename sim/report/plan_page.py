"""The report of a plan and of a what-if: figures as files, and one page that holds everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replicast.sim.fleet.result import RunResult
from replicast.sim.planning.cliff import CliffPoint
from replicast.sim.planning.day import DayComparison
from replicast.sim.planning.failure import Failure
from replicast.sim.planning.hardware import BreakEven, Choice
from replicast.sim.planning.plan import MostDevelopers, Plan
from replicast.sim.planning.sensitivity import SensitivityRow
from replicast.sim.planning.whatif import WhatIf
from replicast.sim.report.day import (
    day_answer,
    day_cells,
    day_costs,
    day_lines,
    failure_answer,
    failure_cells,
    failure_line,
)
from replicast.sim.report.figures import write_figure
from replicast.sim.report.hardware import break_even_lines, hardware_answer, hardware_cells
from replicast.sim.report.html import Picture, Section, Table, page
from replicast.sim.report.plan import (
    answer,
    bound_line,
    cost_cells,
    developers_answer,
    plan_cells,
    rule_line,
    sensitivity_cells,
)
from replicast.sim.report.whatif import answer as whatif_answer
from replicast.sim.report.whatif import arm_text

SCOPE = (
    "A simulation of vLLM's scheduler and KV cache, with step times from the profile. Not modelled: LoRA, "
    "multimodal input, disaggregation, KV offload, data parallelism, client time-outs."
)


def plan_pictures(
    plan: Plan | MostDevelopers, cliff: Sequence[CliffPoint] = (), run: RunResult | None = None
) -> dict[str, Picture]:
    """Figures by file name."""
    from replicast.sim.report.figures_plan import cliff_figure, cost_figure, parts_figure, waiting_figure
    from replicast.sim.report.figures_timeline import timeline_figure

    by = "replicas" if isinstance(plan, Plan) else "developers"
    found = {
        "waiting": Picture(
            waiting_figure(plan.rows, plan.slos, by),
            f"Time to first token by {by}; bands are the intervals that verdicts rest on, dashed the limit.",
        ),
        "parts": Picture(parts_figure(plan.rows, by), "Mean time to first token by its parts."),
    }
    cost = cost_figure(plan.rows, plan.slos) if by == "replicas" else None
    if cost is not None:
        found["cost"] = Picture(cost, "What a developer-hour costs against what developers wait.")
    if cliff:
        replicas = (plan.replicas or plan.rows[-1].replicas) if isinstance(plan, Plan) else plan.replicas
        found["cliff"] = Picture(
            cliff_figure(cliff, replicas),
            "Hit rate by KV pool: where the pool no longer holds the live contexts, reuse falls off.",
        )
    if run is not None:
        found["timeline"] = Picture(
            timeline_figure(run), f"The busiest replica of {run.fleet.replicas} in the first replication."
        )
    return found


def plan_page(
    plan: Plan | MostDevelopers,
    assumptions: Sequence[str],
    sensitivity: Sequence[SensitivityRow],
    warnings: Sequence[str],
    repeat: str,
    pictures: dict[str, Picture],
    more: Sequence[Section] = (),
) -> str:
    """The page of a plan; `more` after the counts."""
    header, body, left = plan_cells(plan)
    marked = None
    if isinstance(plan, Plan):
        title = answer(plan)
        marked = next((i for i, row in enumerate(plan.rows) if row.replicas == plan.replicas), None)
    else:
        title = developers_answer(plan)
        marked = next((i for i, row in enumerate(plan.rows) if row.developers == plan.developers), None)
    tables = [Table(header, body, left, marked)]
    money = cost_cells(plan)
    if money:
        tables.append(Table(*money, marked))
    changes: list[Table] = []
    if sensitivity and isinstance(plan, Plan) and plan.replicas is not None:
        changes.append(Table(*sensitivity_cells(sensitivity, plan.replicas)))
    by_hand = [bound_line(plan)] if isinstance(plan, Plan) else []
    return page(
        title.removeprefix("Answer: "),
        [
            Section("Assumptions", items=[*assumptions, rule_line(plan)]),
            Section("By count", tables=tables),
            *more,
            Section("Figures", pictures=list(pictures.values())),
            Section("What would change the answer (a few hours a row, a rough count)", tables=changes),
            Section("By hand", items=by_hand),
            Section("Warnings", warnings=warnings),
            Section("Scope", items=[SCOPE]),
            Section("To repeat it", printed=repeat),
        ],
    )


def operations_pictures(day: DayComparison | None, failure: Failure | None) -> dict[str, Picture]:
    """The day and the loss of a replica."""
    from replicast.sim.report.day import day_figure, failure_figure

    found = {}
    if day is not None:
        found["day"] = Picture(
            day_figure(day), "Replicas paid, live sessions and waiting by hour of the day."
        )
    if failure is not None:
        found["failure"] = Picture(
            failure_figure(failure), "Waiting around the loss of a replica, in bins of two minutes."
        )
    return found


def operations_sections(day: DayComparison | None, failure: Failure | None) -> list[Section]:
    """Their tables."""
    sections = []
    if day is not None:
        tables = [Table(*day_costs(day)), Table(*day_cells(day))]
        sections.append(Section("A day", items=[day_answer(day), *day_lines(day)], tables=tables))
    if failure is not None:
        items = [failure_answer(failure), failure_line(failure)]
        tables = [Table(*failure_cells(failure))]
        sections.append(Section("A replica lost at the peak", items=items, tables=tables))
    return sections


def hardware_pictures(rows: Sequence[Choice]) -> dict[str, Picture]:
    """The front of cost and waiting."""
    from replicast.sim.report.hardware import front_figure

    return {
        "front": Picture(
            front_figure(rows), "Cost against waiting; what lies off the line costs and waits more."
        )
    }


def hardware_page(
    rows: Sequence[Choice],
    evens: Sequence[BreakEven],
    plans: Sequence[tuple[str, Plan]],
    assumptions: Sequence[str],
    warnings: Sequence[str],
    repeat: str,
    pictures: dict[str, Picture],
) -> str:
    """The page of a choice of hardware: the choice, then the counts of each kind."""
    developers = plans[0][1].rows[0].developers
    counts = [Section(f"{name}: by count", tables=[Table(*plan_cells(plan))]) for name, plan in plans]
    return page(
        hardware_answer(rows, developers).removeprefix("Answer: "),
        [
            Section("Assumptions", items=assumptions),
            Section("Hardware", tables=[Table(*hardware_cells(rows), 0)], items=break_even_lines(evens)),
            Section("Figures", pictures=list(pictures.values())),
            *counts,
            Section("Warnings", warnings=warnings),
            Section("Scope", items=[SCOPE]),
            Section("To repeat it", printed=repeat),
        ],
    )


def whatif_pictures(whatif: WhatIf) -> dict[str, Picture]:
    """TTFT and hit rate of each arm beside the case as it is."""
    from replicast.sim.report.figures_whatif import arms_figure

    return {
        "arms": Picture(
            arms_figure(whatif),
            f"Time to first token with {whatif.replicas} replicas, mean over {whatif.replications} hours.",
        )
    }


def whatif_page(
    whatif: WhatIf,
    assumptions: Sequence[str],
    warnings: Sequence[str],
    repeat: str,
    pictures: dict[str, Picture],
) -> str:
    """The page of a what-if."""
    title = whatif_answer(whatif)
    return page(
        title.partition("        ")[0],
        [
            Section("Assumptions", items=assumptions),
            Section(
                "Differences (~ changed, = no clear change)",
                printed="\n\n".join(arm_text(arm, whatif) for arm in whatif.arms),
            ),
            Section("Figures", pictures=list(pictures.values())),
            Section("Warnings", warnings=warnings),
            Section("Scope", items=[SCOPE]),
            Section("To repeat it", printed=repeat),
        ],
    )


def write_pictures(pictures: dict[str, Picture], folder: Path) -> list[Path]:
    """Each figure as SVG and PNG."""
    written = []
    for name, picture in pictures.items():
        for path in (folder / f"{name}.svg", folder / f"{name}.png"):
            write_figure(picture.figure, path)
            written.append(path)
    return written
