"""`replicast calibrate`: a profile learnt from a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from replicast import __version__
from replicast.commands.console import StatusLine, Warned, warn
from replicast.commands.model_facts import from_config, is_config, parameters_of_model
from replicast.commands.options import LEVELS, PATH, inputs_of_sweep, read_sweep_of, sweep_options, today
from replicast.sim.errors import InputError

CONVERT = "(--format, --models, --token-scale and --skip-bad-rows are options of `replicast trace convert`.)"


@click.command(short_help="Learn a server's profile from a sweep.")
@sweep_options
@parameters_of_model
@click.option("--levels", type=LEVELS, help="Learn from these levels only: 1,2,5,10.")
@click.option("--hardware", metavar="GPU", help="L40S, H100, H200, ...  [default: as the sweep tells]")
@click.option(
    "--trace",
    "traces",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="A trace of the same load: levels replay it, and the load is not fitted; repeatable.",
)
@click.option("--name", help="Name of the profile.  [default: of model, GPU and tensor parallelism]")
@click.option(
    "--loo/--no-loo", default=True, show_default=True, help="Held-out errors: leave one level out in turn."
)
@click.option("--force", is_flag=True, help="Learn from levels that the checks refuse, too; recorded.")
@click.option("--out", "-o", type=PATH, metavar="FILE", help="Where the profile goes: server.toml.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (replicast/calibrate/1).")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes; same result.")
@click.option("--quiet", is_flag=True, help="No progress.")
def calibrate(**options: Any) -> None:
    """Learn step times and load of a server from a concurrency sweep, with intervals and held-out errors.

    \b
    replicast calibrate sweep.duckdb --given boot.log --hardware H200 --out server.toml
    replicast calibrate performance-summary.json --levels 1,2,5,10 --out server.toml

    --model NAME chooses among several models in the sweep; --model config.json tells one that is not known.
    """
    from replicast.calibration.profile import SCHEMA, write_profile
    from replicast.calibration.synchronous import learn
    from replicast.calibration.trace_load import trace_load
    from replicast.sim.report.document import dumps
    from replicast.sim.report.files import check_folder, check_target
    from replicast.sim.report.timing import since_process_start
    from replicast.traces.load import load_trace

    imported = since_process_start()
    out: Path | None = options["out"]
    if out:
        check_folder(out.parent)
        check_target(out, [*inputs_of_sweep(options), *options["traces"]], SCHEMA)
    model = None
    if is_config(options["model"]):
        model = from_config(options["model"], options)
        options["model"] = None
    sweep = read_sweep_of(options)
    if model is not None:
        sweep = replace(sweep, model=sweep.model or model.name)
    trace = None
    if options["traces"]:
        try:
            trace = trace_load(load_trace(options["traces"]))
        except InputError as error:
            raise InputError(
                error.what, where=error.where, remedy=f"{error.remedy or ''} {CONVERT}".strip()
            ) from error
    with StatusLine(options["quiet"]) as line:
        found = learn(
            sweep,
            hardware=options["hardware"],
            model=model,
            trace=trace,
            levels=options["levels"],
            name=options["name"],
            date=today(),
            loo=options["loo"],
            force=options["force"],
            progress=line.say,
            jobs=options["jobs"],
        )
    if out:
        write_profile(found.profile, out)
    if options["as_json"]:
        warn(Warned("calibrate", text) for text in found.warnings)
        document = found.to_document()
        head = {
            "schema": document.pop("schema"),
            "tool": {"name": "replicast", "version": __version__},
            **document,
            "inputs": (*sweep.inputs, *(trace.inputs if trace else ())),
        }
        timing = {"import_s": imported, "wall_s": since_process_start()}
        click.echo(dumps({**head, "timing": timing}), nl=False)
        return
    click.echo(found.report_text(), nl=False)
    if out:
        click.echo(f"Written to {out}: {found.profile.name}")
        click.echo(f"Next: replicast plan TRACE --profile {out} --developers 50")
