"""`--out DIR` of plan and what-if: figures, the printed text, and one self-contained `report.html`.

The JSON document is written by the command, last, because it tells how long everything took.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from replicast.library.answers import Context, DevelopersAnswer, PlanAnswer, WhatIfAnswer
from replicast.library.hardware import HardwareAnswer
from replicast.sim.fleet.result import RunResult
from replicast.sim.planning.cliff import CliffPoint, cache_cliff
from replicast.sim.planning.parallel import Progress, Runner, Scale
from replicast.sim.planning.replications import simulate_replication
from replicast.sim.report.files import write_text
from replicast.sim.report.plan_page import (
    hardware_page,
    hardware_pictures,
    operations_pictures,
    operations_sections,
    plan_page,
    plan_pictures,
    whatif_page,
    whatif_pictures,
    write_pictures,
)

Answer = PlanAnswer | DevelopersAnswer | WhatIfAnswer | HardwareAnswer


def write_report(
    answer: Answer,
    folder: Path,
    repeat: str,
    *,
    scale: Scale = Scale(),  # noqa: B008  (immutable)
    cliff: bool = True,
    progress: Callable[[Progress], None] | None = None,
) -> list[Path]:
    """Write figures, text and page into `folder`, which exists; `repeat` is the command that asked.

    A plan's page also shows the cliff of the cache (some twenty more runs) and an hour of one replica.
    """
    warnings = [text for _, text in answer.warnings]
    context = answer.plans[0][1].context if isinstance(answer, HardwareAnswer) else answer.context
    lines = context.lines()
    if isinstance(answer, HardwareAnswer):
        plans = [(name, plan.plan) for name, plan in answer.plans]
        pictures = hardware_pictures(answer.choices)
        html = hardware_page(answer.choices, answer.break_even, plans, lines[:-1], warnings, repeat, pictures)
        name = "plan"
    elif isinstance(answer, WhatIfAnswer):
        pictures = whatif_pictures(answer.whatif)
        html = whatif_page(answer.whatif, lines, warnings, repeat, pictures)
        name = "whatif"
    else:
        plan = answer.plan if isinstance(answer, PlanAnswer) else answer.most
        rows = answer.sensitivity if isinstance(answer, PlanAnswer) else ()
        replicas = plan.replicas or plan.rows[-1].replicas
        points: list[CliffPoint] = []
        if cliff and isinstance(answer, PlanAnswer):
            with Runner(context.scenario, scale, progress=progress) as runner:
                points = cache_cliff(runner, replicas)
        run = one_hour(context, replicas) if isinstance(answer, PlanAnswer) else None
        pictures = plan_pictures(plan, points, run)
        sections = []
        if isinstance(answer, PlanAnswer):
            pictures |= operations_pictures(answer.day, answer.failure)
            sections = operations_sections(answer.day, answer.failure)
        html = plan_page(plan, lines, rows, warnings, repeat, pictures, sections)
        name = "plan"
    written = write_pictures(pictures, folder)
    write_text(folder / f"{name}.txt", answer.text())
    write_text(folder / "report.html", html)
    return [*written, folder / f"{name}.txt", folder / "report.html"]


def one_hour(context: Context, replicas: int, replication: int = 0) -> RunResult:
    """The run of one replication with everything recorded, for a closer look."""
    study = context.scenario.study()
    return simulate_replication(study, study.load.draw(replication), replicas, replication)
