"""`replicast trace`: recorded sessions looked at, converted and made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from replicast.commands.options import FORMATS, PATH, SEED, Number, loading, loading_options

SCALE = Number(above=0)


@click.group(short_help="Describe, convert and make traces.")
def trace() -> None:
    """Describe, convert and make traces.

    \b
    replicast trace show ~/.claude/projects
    """


@trace.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=PATH)
@loading_options
@click.option(
    "--block-size", type=click.IntRange(1), default=16, show_default=True, help="Granularity of hits."
)
@SEED
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/trace/1).")
def show(traces: tuple[Path, ...], as_json: bool, block_size: int, **options: Any) -> None:
    """What a trace asks for: sessions, lengths, what could be hit with an endless cache, gaps, sub-agents.

    \b
    replicast trace show sessions.jsonl.gz
    """
    from replicast.sim.report.document import dumps
    from replicast.sim.report.trace import import_lines, stats_lines
    from replicast.traces.load import load_trace
    from replicast.traces.stats import describe

    loaded = load_trace(traces, **loading(options))
    stats = describe(loaded.sessions, block_size=block_size).to_dict()
    if as_json:
        body = {
            "schema": "replicast/trace/1",
            "import": loaded.report,
            "open_loop": loaded.open_loop,
            "stats": stats,
        }
        click.echo(dumps(body), nl=False)
        return
    click.echo("\n".join([*import_lines(loaded.report), "", stats_lines(stats)]))


@trace.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=PATH)
@click.option("--out", "-o", required=True, type=PATH, metavar="FILE", help="Where to: .jsonl or .jsonl.gz.")
@click.option("--format", type=click.Choice(FORMATS), help="Force a format; else told by content.")
@click.option("--skip-bad-rows", is_flag=True, help="Drop rows that cannot be used, and count them.")
def convert(traces: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Any readable trace as a canonical one, which later loads faster and holds no text.

    \b
    replicast trace convert ~/.claude/projects -o mine.jsonl.gz
    """
    from replicast.sim.report.files import check_target
    from replicast.sim.report.trace import import_lines
    from replicast.traces.load import convert

    check_target(out, traces)
    report = convert(traces, out, **options)
    click.echo("\n".join([*import_lines(report), f"Written to {out}"]))


@trace.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=PATH)
@loading_options
@click.option(
    "--block-size", type=click.IntRange(1), default=16, show_default=True, help="Granularity of hits."
)
@SEED
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/developers/1).")
def developers(traces: tuple[Path, ...], as_json: bool, block_size: int, **options: Any) -> None:
    """What one live session asks of a server: requests, prompt and computed tokens, contexts.

    \b
    replicast trace developers ~/.claude/projects
    """
    from replicast.sim.report.document import dumps
    from replicast.sim.report.trace import developers_table, import_lines
    from replicast.traces.load import load_trace
    from replicast.traces.spells import load_per_developer

    loaded = load_trace(traces, **loading(options))
    load = load_per_developer(loaded.sessions, block_size=block_size).to_dict()
    if as_json:
        body = {"schema": "replicast/developers/1", "import": loaded.report, "load": load}
        click.echo(dumps(body), nl=False)
        return
    click.echo("\n".join([*import_lines(loaded.report), "", developers_table(load)]))


@trace.command()
@click.option(
    "--out", "-o", type=PATH, metavar="FILE", help="Where to: .jsonl or .jsonl.gz; only compare if not given."
)
@click.option("--sessions", type=click.IntRange(1), default=500, show_default=True)
@SEED
@click.option(
    "--preset",
    type=click.Choice(["weka", "fresh"]),
    default="weka",
    show_default=True,
    help="All recorded sessions, or those that start a conversation.",
)
@click.option("--turns-scale", type=SCALE, default=1.0, help="Times as many turns a session.")
@click.option("--prompt-scale", type=SCALE, default=1.0, help="Times as long prompts and context windows.")
@click.option("--growth-scale", type=SCALE, default=1.0, help="Times as much growth a turn.")
@click.option("--output-scale", type=SCALE, default=1.0, help="Times as long replies.")
@click.option("--tool-gap-scale", type=SCALE, default=1.0, help="Times as long tool calls.")
@click.option("--human-gap-scale", type=SCALE, default=1.0, help="Times as long human gaps.")
def synth(out: Path | None, sessions: int, seed: int, preset: str, **knobs: float) -> None:
    """Made-up sessions with the statistics of real ones, and how well they meet them.

    \b
    replicast trace synth --sessions 500 --seed 7 -o made.jsonl.gz
    """
    import tempfile
    from dataclasses import replace

    from replicast.sim.report.text import plural
    from replicast.sim.report.trace import compare_table
    from replicast.traces.canonical_io import write_canonical
    from replicast.traces.load import load_trace
    from replicast.traces.stats import describe
    from replicast.traces.synth import compare, generate
    from replicast.traces.synth_fit import PRESETS

    spec = replace(PRESETS[preset], **knobs)  # type: ignore[arg-type]
    made = generate(spec, sessions, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = out or Path(folder) / "made.jsonl"
        write_canonical(made, path)
        stats = describe(load_trace([path]).sessions)
    compared = compare(spec, stats)
    click.echo(
        compare_table(compared)
        if compared
        else "Nothing to compare: the scales change every figure of the preset."
    )
    if out:
        click.echo(f"Written to {out}: {plural(sessions, 'session')}, seed {seed}")
