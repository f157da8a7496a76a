"""What `plan` and `whatif` share: who works how, what is promised and paid, where runs take place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from replicast.commands import ASKED
from replicast.commands.console import StatusLine, Warned, warn
from replicast.commands.options import (
    PATH,
    SECONDS,
    SEED,
    TASK_TOKENS,
    Number,
    engine_args,
    engine_flags,
    loading,
    loading_options,
)
from replicast.sim.fleet.config import RouterName

if TYPE_CHECKING:
    from replicast.library.reports import Answer
    from replicast.sim.planning.parallel import Scale

F = TypeVar("F", bound=Callable[..., Any])
JOURNAL = "runs.jsonl"
SHARE = Number(0, high=1)
SCALE = Number(0)

_AFTER = (
    click.option(
        "--slo",
        multiple=True,
        metavar="METRIC:QUANTILE<LIMIT",
        help='What is promised, repeatable: "ttft:p90<10s", "tpot:p50<80ms".  [default: ttft:p90<10s]',
    ),
    click.option(
        "--spare", type=click.IntRange(0), default=0, show_default=True, help="Replicas paid and idle."
    ),
    click.option(
        "--task-tokens",
        type=TASK_TOKENS,
        help="Prompt and generated tokens of a task, for $/task.  [default: the mean session]",
    ),
    click.option(
        "--router", type=click.Choice(get_args(RouterName)), default="session-affinity", show_default=True
    ),
    click.option("--active", type=Number(above=0, high=1), help="Share of developers with a live session."),
    click.option(
        "--day-curve",
        type=PATH,
        metavar="CSV",
        help="Active share by hour (hour,active_share).  [default: an assumed office day]",
    ),
    click.option(
        "--sessions-each",
        type=Number(above=0),
        default=1.0,
        show_default=True,
        help="Live sessions of an active developer.",
    ),
    click.option(
        "--subagents", type=SHARE, default=1.0, show_default=True, help="Share of sub-agents that is kept."
    ),
    click.option("--tool-gap-scale", type=SCALE, default=1.0, help="Times as long tool calls."),
    click.option("--human-gap-scale", type=SCALE, default=1.0, help="Times as long human gaps."),
    click.option(
        "--think-cap",
        type=SECONDS,
        default=600.0,
        show_default=True,
        help="Longest gap of somebody at work, seconds.",
    ),
    click.option(
        "--requests-per-hour",
        type=Number(above=0),
        help="Scale gaps so that a live session asks so often while nobody queues.",
    ),
    click.option("--model", metavar="NAME", help="Refuse a profile of another model."),
    click.option(
        "--max-replicas", type=click.IntRange(1), help="The most to look at.  [default: one a live session]"
    ),
    click.option("--warmup", type=SECONDS, help="Seconds before the measured hour.  [default: 1200]"),
    click.option(
        "--horizon",
        type=Number(above=0),
        help="Seconds of a replication, warm-up included.  [default: an hour after it]",
    ),
    SEED,
    click.option(
        "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes; same result."
    ),
    click.option(
        "--backend",
        type=click.Choice(["local", "dask", "ray"]),
        default="local",
        show_default=True,
        help="Where runs take place: here, or on a cluster that exists.",
    ),
    click.option("--scheduler", metavar="ADDRESS", help="Of the Dask scheduler or the Ray head."),
    click.option(
        "--out", type=PATH, metavar="DIR", help="Write report (HTML), figures, text, JSON, finished runs."
    ),
    click.option("--resume", is_flag=True, help="Take over the runs an interrupted call left in --out."),
    click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
    click.option("--quiet", is_flag=True, help="No progress, no assumptions; warnings stay."),
)


def planning_options(command: F) -> F:
    """All that is shared, after the subject and a command's own options."""
    command = engine_flags()(command)
    for option in reversed(_AFTER):
        command = option(command)
    return loading_options(command)


def subject(*, several: bool) -> Callable[[F], F]:
    """The trace, the server and its price; `several` allows a choice of servers."""
    choice = " Repeat it, each with its --price and --box, for a choice of hardware." if several else ""
    options = (
        click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=PATH),
        click.option(
            "--profile",
            required=True,
            metavar="NAME|FILE",
            help=f"Server profile: `replicast profile list`.{choice}",
            multiple=several,
        ),
        click.option(
            "--price",
            type=Number(0),
            metavar="USD",
            help="Per replica and hour.  [default: the profile's]",
            multiple=several,
        ),
        click.option(
            "--box",
            type=click.IntRange(1),
            help="Replicas that are paid together.  [default: 1]",
            multiple=several,
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def asked(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `library.plan` and `library.whatif`; traces are loaded, folders checked."""
    from replicast.calibration.profile import load_profile
    from replicast.sim.planning.slo import parse_slos
    from replicast.traces.day import read_day
    from replicast.traces.load import load_trace

    flags = engine_args(options)
    if options["resume"] and not options["out"]:
        raise click.UsageError("--resume needs --out, where the finished runs are.")
    if options["scheduler"] and options["backend"] == "local":
        raise click.UsageError("--scheduler needs --backend dask or ray.")
    known: dict[str, Any] = {}
    if options["slo"]:
        parse_slos(options["slo"])
        known["slo"] = options["slo"]
    return known | {
        "profile": load_profile(options["profile"]),
        "trace": load_trace(options["traces"], **loading(options)),
        "price": options["price"],
        "box": options["box"] or 1,
        "spare": options["spare"],
        "task": options["task_tokens"],
        "router": options["router"],
        "active": options["active"],
        "day": read_day(options["day_curve"], options["developers"] or 1) if options["day_curve"] else None,
        "people": {
            "sessions_each": options["sessions_each"],
            "subagents": options["subagents"],
            "tool_gap_scale": options["tool_gap_scale"],
            "human_gap_scale": options["human_gap_scale"],
            "longest_gap_s": options["think_cap"],
            "requests_per_hour": options["requests_per_hour"],
        },
        "flags": flags,
        "max_replicas": options["max_replicas"],
        "warmup_s": options["warmup"],
        "horizon_s": options["horizon"],
        "model": options["model"],
        "seed": options["seed"],
        "scale": scale(options),
    }


def scale(options: dict[str, Any]) -> Scale:
    """Where runs take place."""
    from replicast.sim.planning.parallel import Scale

    return Scale(options["jobs"], options["backend"], options["scheduler"])


def journal(options: dict[str, Any]) -> Path | None:
    """Where finished runs are written down as they come; without --resume an older file goes away."""
    out: Path | None = options["out"]
    if out is None:
        return None
    from replicast.sim.report.files import check_folder

    check_folder(out)
    path = out / JOURNAL
    if options["resume"]:
        return path
    path.unlink(missing_ok=True)
    return path


@contextmanager
def kept(options: dict[str, Any]) -> Iterator[None]:
    """Say after Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if options["out"]:
            click.echo("Finished runs are kept: the same command with --resume takes them over.", err=True)
        raise


def tell(answer: Answer, name: str, options: dict[str, Any], imported: float, line: StatusLine) -> int:
    """Print an answer and write its files; its exit code."""
    from replicast.library.reports import write_report
    from replicast.sim.report.files import write_text
    from replicast.sim.report.timing import since_process_start

    in_text = ("extrapolated",) if not (options["as_json"] or options["quiet"]) else ()
    warn(Warned(code, text) for code, text in answer.warnings if code not in in_text)
    out: Path | None = options["out"]
    written: list[Path] = []
    if out:
        repeat = click.get_current_context().meta[ASKED]
        out.mkdir(parents=True, exist_ok=True)
        written = write_report(
            answer, out, repeat, scale=scale(options), cliff=options.get("cliff", False), progress=line.runs
        )
    document = answer.document({"import_s": imported, "wall_s": since_process_start()})
    if out:
        write_text(out / f"{name}.json", document)
        written.append(out / f"{name}.json")
    line.clear()
    if options["as_json"]:
        click.echo(document, nl=False)
    else:
        click.echo(answer.text(quiet=options["quiet"]), nl=False)
        if out:
            click.echo(f"Written to {out}: {', '.join(path.name for path in written)}")
    return answer.exit_code
