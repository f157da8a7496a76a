"""`replicast replay`: recorded sessions against several replica counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from replicast.commands.console import Bar, warn, watched
from replicast.commands.options import (
    COUNTS,
    PATH,
    SECONDS,
    SEED,
    TASK_TOKENS,
    Number,
    engine_args,
    engine_flags,
    loading,
    loading_options,
    origins,
)
from replicast.sim.fleet.config import FleetConfig, Loop, OverLength, RouterName

if TYPE_CHECKING:
    from replicast.commands.replay_answer import Ask
    from replicast.sim.config import EngineArgs

DEFAULTS = FleetConfig()


@click.command(short_help="Recorded sessions against several replica counts.")
@click.argument("traces", metavar="TRACE...", nargs=-1, type=PATH)
@click.option(
    "--profile", required=True, metavar="NAME|FILE", help="Server profile: `replicast profile list`."
)
@click.option(
    "--replicas", type=COUNTS, default="1", show_default=True, help="Replica counts to compare: 1,2,4,8."
)
@click.option(
    "--sessions", type=click.IntRange(1), help="Live sessions.  [default: 10 a replica; none for open loop]"
)
@click.option("--router", type=click.Choice(get_args(RouterName)), default=DEFAULTS.router, show_default=True)
@click.option(
    "--price", type=Number(0), metavar="USD", help="Per replica and hour.  [default: the profile's]"
)
@click.option(
    "--task-tokens",
    type=TASK_TOKENS,
    help="Prompt and generated tokens of a task, for $/task.  [default: the mean session]",
)
@SEED
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/replay/1).")
@click.option(
    "--out", type=PATH, metavar="DIR", help="Write records (CSV, Parquet), figure (SVG, PNG), text and JSON."
)
@loading_options
@click.option(
    "--reply-reuse",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Whether a prompt can hit the KV blocks of the reply before it.",
)
@click.option(
    "--loop",
    type=click.Choice(get_args(Loop)),
    help="Who sets the pace.  [default: open for traces of unrelated timed requests, else closed]",
)
@click.option(
    "--open-loop", is_flag=True, help="Short for --loop open: recorded arrivals, reply or no reply."
)
@click.option(
    "--think-cap",
    type=SECONDS,
    default=DEFAULTS.think_cap_s,
    show_default=True,
    help="Longest human gap, seconds.",
)
@click.option(
    "--stagger",
    type=SECONDS,
    help="The first live sessions start within this time, seconds.  [default: 60, or a session's delays]",
)
@click.option(
    "--warmup", type=SECONDS, help="Seconds left out of the measurement.  [default: chosen and shown]"
)
@click.option(
    "--horizon",
    type=Number(above=0),
    help="Stop sending after these seconds.  [default: when the trace is exhausted]",
)
@click.option(
    "--cooldown",
    type=SECONDS,
    default=DEFAULTS.cooldown_s,
    show_default=True,
    help="Seconds after the horizon in which requests in flight may finish.",
)
@click.option(
    "--over-length",
    type=click.Choice(get_args(OverLength)),
    default=DEFAULTS.over_length,
    show_default=True,
    help="Requests longer than max_model_len: fail as HTTP 400 does, end their session, or stop.",
)
@engine_flags()
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Replica counts run in parallel processes; same result.",
)
@click.option("--show-config", is_flag=True, help="Print every value with its origin, and stop.")
@click.option("--quiet", is_flag=True, help="No progress, no assumptions; warnings stay.")
@click.pass_context
def replay(ctx: click.Context, /, traces: tuple[Path, ...], **options: Any) -> None:
    """Replay recorded sessions against several replica counts: what is waited and paid.

    \b
    replicast replay sessions.jsonl.gz --profile qwen3.6-35b-h200 --replicas 1,2,4,8 --sessions 40
    replicast replay ~/.claude/projects --profile my-server.toml --price 10.49 --out result

    TRACE is a file or a folder: canonical, kv-cache-tester (weka), Claude Code transcripts or Mooncake.
    """
    from replicast.commands import replay_answer
    from replicast.sim.report.files import check_folder, write_text

    flags = engine_args(options)
    out: Path | None = options["out"]
    ask = _ask(traces, flags, options)
    if options["show_config"]:
        _show_config(ctx, ask, flags, as_json=options["as_json"])
        return
    if not traces:
        raise click.UsageError("Missing argument 'TRACE...'.", ctx)
    if out:
        check_folder(out)
    bar = Bar(len(ask.replica_counts)) if watched(options["quiet"]) else None
    try:
        reply = replay_answer.run(ask, keep=out is not None, progress=bar.start if bar else None)
    finally:
        if bar:
            bar.end()
    warn(reply.warnings)
    written = replay_answer.write_files(reply, out) if out else []
    document = replay_answer.document(reply)
    if out:
        write_text(out / "replay.json", document)
        written.append(out / "replay.json")
    if options["as_json"]:
        click.echo(document, nl=False)
        return
    click.echo(replay_answer.text(reply, quiet=options["quiet"]), nl=False)
    if written:
        click.echo(f"Written to {out}: {', '.join(path.name for path in written)}")
    elif not options["quiet"]:
        click.echo("Next: the same with --out DIR, for per-request records and the figure")


def _ask(traces: tuple[Path, ...], flags: EngineArgs, options: dict[str, Any]) -> Ask:
    from replicast.commands import replay_answer

    if options["open_loop"] and options["loop"] not in (None, "open"):
        raise click.UsageError(f"--open-loop and --loop {options['loop']} contradict each other.")
    loop: Loop | None = "open" if options["open_loop"] else options["loop"]
    if options["sessions"] and loop in ("open", "partly-open"):
        raise click.UsageError(f"--sessions is of the closed loop; the {loop} loop takes recorded starts.")
    fleet = FleetConfig(
        router=options["router"],
        loop=loop,
        sessions=options["sessions"],
        stagger_s=options["stagger"],
        think_cap_s=options["think_cap"],
        warmup_s=options["warmup"],
        horizon_s=options["horizon"],
        cooldown_s=options["cooldown"],
        over_length=options["over_length"],
    )
    return replay_answer.Ask(
        traces=traces,
        profile=options["profile"],
        replica_counts=options["replicas"],
        flags=flags,
        fleet=fleet,
        seed=options["seed"],
        price_usd_per_hour=options["price"],
        task=options["task_tokens"],
        loading=loading(options | {"reply_reuse": options["reply_reuse"] == "on"}),
        jobs=options["jobs"],
    )


def _show_config(ctx: click.Context, ask: Ask, flags: EngineArgs, *, as_json: bool) -> None:
    from replicast.commands import replay_answer
    from replicast.sim.report.document import dumps
    from replicast.sim.report.text import table

    _, resolved = replay_answer.configure(ask)
    said = origins(ctx)
    rows = [
        (name, value, said[name] if origin == "flag" and name in said else origin)
        for name, value, origin in resolved.rows()
    ]
    engine = {name for name, _, _ in rows} | set(type(flags).__dataclass_fields__)
    rows += [
        (n, v, said[n])
        for n, v in ctx.params.items()
        if n not in engine and n not in ("show_config", "as_json")
    ]
    warn([replay_answer.Warned("config", text) for text in resolved.warnings])
    if as_json:
        values = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        click.echo(dumps({"schema": "replicast/config/1", "values": values}), nl=False)
        return
    shown = [(name, "-" if value is None else str(value), origin) for name, value, origin in rows]
    click.echo(table(["name", "value", "origin"], shown, left=[0, 1, 2]))
