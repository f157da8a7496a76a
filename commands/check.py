"""`replicast check`: can this sweep be trusted?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from replicast import __version__
from replicast.commands.options import PATH, Integers, inputs_of_sweep, read_sweep_of, sweep_options, today


@click.command(short_help="Whether a sweep is fit to learn from.")
@sweep_options
@click.option(
    "--parallel-per-session",
    type=click.IntRange(1),
    help="Requests one session can have at once (1: no sub-agents).  [default: inferred from c=1]",
)
@click.option("--profile", metavar="NAME|FILE", help="Also: does this server's model agree with the sweep?")
@click.option("--against", type=PATH, metavar="SWEEP", help="Other runs of the same levels to compare with.")
@click.option("--without", type=Integers(), default=(), help="Laws to leave out, by number: 1,11.")
@click.option("--log", type=PATH, metavar="FILE", help="Put a dated entry on top of a Markdown file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/check/1).")
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:
    """Say whether a concurrency sweep is fit to learn from: which law fails where, and what to do.

    \b
    replicast check sweep.duckdb
    replicast check performance-summary.json --given max_num_seqs=64 --parallel-per-session 1

    Exit code 3 if it is not usable. SWEEP is a collector's database, Prometheus files, results of a
    benchmark tool or a table: docs/sweep-formats.md.
    """
    from replicast.calibration.check import LAWS, check_sweep
    from replicast.calibration.profile import load_profile
    from replicast.calibration.readers.detect import read_sweep
    from replicast.sim.report.check import add_to_log, check_document, check_text, log_entry
    from replicast.sim.report.document import dumps
    from replicast.sim.report.files import check_target
    from replicast.sim.report.timing import since_process_start

    imported = since_process_start()
    log: Path | None = options["log"]
    if log:
        check_target(log, inputs_of_sweep(options), "# ")
    profile = load_profile(options["profile"]) if options["profile"] else None
    unknown = [number for number in options["without"] if number not in LAWS]
    if unknown:
        raise click.BadParameter(f"no law {unknown[0]}; there are 1 to {len(LAWS)}.", param_hint="--without")
    sweep = read_sweep_of(options)
    result = check_sweep(
        sweep,
        parallel_per_session=options["parallel_per_session"],
        profile=profile,
        against=read_sweep(options["against"], model=options["model"]) if options["against"] else None,
        without=options["without"],
    )
    if log:
        add_to_log(log, log_entry(result, today()))
    if options["as_json"]:
        found = check_document(result)
        document = {
            "schema": found.pop("schema"),
            "tool": {"name": "replicast", "version": __version__},
            "inputs": sweep.inputs,
            "format": sweep.format,
            "dropped": dict(sweep.dropped),
            **found,
            "timing": {"import_s": imported, "wall_s": since_process_start()},
        }
        click.echo(dumps(document), nl=False)
    else:
        click.echo(check_text(result))
        if log:
            click.echo(f"Logged in {log}")
    if not result.ok:
        ctx.exit(3)
