"""`replicast plan`: how many replicas N developers need; or how many developers k replicas carry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click
from replicast.commands.console import StatusLine
from replicast.commands.day_options import day_options, operations_of
from replicast.commands.hardware_kinds import NAMES, checked, kinds_of
from replicast.commands.options import COUNTS
from replicast.commands.planning_options import asked, journal, kept, planning_options, subject, tell

if TYPE_CHECKING:
    from replicast.library.reports import Answer


@click.command(short_help="How many replicas N developers need, and what they pay.")
@subject(several=True)
@click.option("--developers", type=click.IntRange(1), help="Developers, idle ones included.")
@click.option(
    "--max-developers", is_flag=True, help="Find the most developers that --replicas carry instead."
)
@click.option("--replicas", type=click.IntRange(1), help="Replicas of --max-developers.")
@click.option("--counts", type=COUNTS, help="Judge these replica counts only: 1,2,4.  [default: search]")
@click.option(
    "--replications", type=click.IntRange(3), default=20, show_default=True, help="The most hours a count."
)
@click.option(
    "--early-stop/--no-early-stop",
    default=True,
    show_default=True,
    help="Stop a count where its verdict is clear.",
)
@click.option("--sensitivity/--no-sensitivity", default=True, show_default=True, help="Move each assumption.")
@click.option(
    "--cliff/--no-cliff",
    default=True,
    show_default=True,
    help="With --out: also where the prefix cache stops to hold all sessions (some twenty more runs).",
)
@day_options
@planning_options
@click.pass_context
def plan(ctx: click.Context, /, **options: Any) -> None:
    """Find how many replicas N developers need in their busiest hour, with intervals.

    \b
    replicast plan ~/.claude/projects --profile qwen3.6-35b-h200 --developers 120 --slo "ttft:p90<10s"
    replicast plan TRACE --profile qwen3.6-35b-h200 --max-developers --replicas 4
    replicast plan TRACE --developers 120 --profile A.toml --price 3 --profile B.toml --price 7.9 --box 8

    Exit code 3 if no count meets what is promised, 4 if that is not clear.
    """
    from replicast.sim.report.timing import since_process_start

    imported = since_process_start()
    most = options["max_developers"]
    if most == (options["developers"] is not None) or most != (options["replicas"] is not None):
        raise click.UsageError("Give --developers N, or --max-developers with --replicas K.")
    for name in ("counts", "max_replicas", "horizon", "task_tokens"):
        if most and options[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} has no part in --max-developers.")
    if options["counts"] and max(options["counts"]) > (options["max_replicas"] or math.inf):
        raise click.UsageError("--counts goes past --max-replicas; drop one of them.")
    operations = operations_of(options)
    if most and operations:
        raise click.UsageError("--day and --fail have no part in --max-developers.")
    kinds = kinds_of(options)
    if most and len(kinds) > 1:
        raise click.UsageError("--max-developers takes one --profile.")
    options |= {"price": None, "box": None} | kinds[0]
    question = asked(options) | {"replications": options["replications"], "journal": journal(options)}
    with StatusLine(options["quiet"]) as line, kept(options):
        question["progress"] = line.runs
        code = tell(_answer(options, question, kinds), "plan", options, imported, line)
    ctx.exit(code)


def _answer(options: dict[str, Any], question: dict[str, Any], kinds: list[dict[str, Any]]) -> Answer:
    """One of the three questions: most developers, replicas, hardware."""
    from replicast import library

    if options["max_developers"]:
        known = {k: v for k, v in question.items() if k not in ("max_replicas", "horizon_s", "task")}
        return library.max_developers(replicas=options["replicas"], **known)
    question |= operations_of(options)
    question |= {
        "developers": options["developers"],
        "counts": options["counts"],
        "early": options["early_stop"],
        "with_sensitivity": options["sensitivity"],
    }
    if len(kinds) == 1:
        return library.plan(**question)
    shared = {name: value for name, value in question.items() if name not in (*NAMES, "trace")}
    return library.choose_hardware(question["trace"], checked(kinds), **shared)
