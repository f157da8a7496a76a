"""`replicast validate`: what a profile predicts of a sweep, against what was measured."""

from __future__ import annotations

from typing import Any

import click
from replicast import __version__
from replicast.commands.console import StatusLine, Warned, warn
from replicast.commands.options import LEVELS, read_sweep_of, sweep_options


@click.command(short_help="A profile's predictions against a sweep.")
@sweep_options
@click.option("--profile", required=True, metavar="NAME|FILE", help="The server: `replicast profile list`.")
@click.option("--levels", type=LEVELS, help="These levels only: 7,15,20.")
@click.option("--loo", is_flag=True, help="Predict each level from a fit to the others instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/validate/1).")
@click.option("--quiet", is_flag=True, help="No progress.")
def validate(**options: Any) -> None:
    """Predict the levels of a sweep and set them beside what was measured, with signed errors.

    \b
    replicast validate sweep.duckdb --profile server.toml --levels 15,20

    Load given: concurrency, window and lengths are the level's. Load concurrency: only c is known.
    """
    from replicast.calibration.profile import load_profile
    from replicast.calibration.validate import validate
    from replicast.sim.report.document import dumps
    from replicast.sim.report.timing import since_process_start

    imported = since_process_start()
    profile = load_profile(options["profile"])
    sweep = read_sweep_of(options)
    with StatusLine(options["quiet"]) as line:
        found = validate(sweep, profile, levels=options["levels"], loo=options["loo"], progress=line.say)
    if options["as_json"]:
        document = found.to_document()
        warn(Warned("validate", text) for text in found.warnings)
        head = {
            "schema": document.pop("schema"),
            "tool": {"name": "replicast", "version": __version__},
            "inputs": sweep.inputs,
            **document,
        }
        timing = {"import_s": imported, "wall_s": since_process_start()}
        click.echo(dumps({**head, "timing": timing}), nl=False)
        return
    click.echo(found.report_text(), nl=False)
