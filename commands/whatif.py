"""`replicast whatif`: what changes if something is changed, in pairs of runs."""

from __future__ import annotations

from typing import Any

import click
from replicast.commands.console import StatusLine
from replicast.commands.planning_options import asked, journal, kept, planning_options, subject, tell


@click.command(short_help="What changes with another hit rate, budget, router, pool.")
@subject(several=False)
@click.option("--replicas", type=click.IntRange(1), required=True, help="Replicas of both arms.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="A change, repeatable, all together: router=prefix-aware, kv-pool=+50%, prefix-cache-hit-rate=0.14.",
)
@click.option("--vary", metavar="NAME=A,B,C", help="One arm for each value.")
@click.option(
    "--developers",
    type=click.IntRange(1),
    help="Developers.  [default: as many as keep 10 sessions a replica]",
)
@click.option("--replications", type=click.IntRange(2), default=10, show_default=True, help="Pairs of hours.")
@click.option(
    "--search/--no-search", default=True, show_default=True, help="Find the replicas needed before and after."
)
@planning_options
@click.pass_context
def whatif(ctx: click.Context, /, **options: Any) -> None:
    """Change something and see what becomes of waiting, hit rate and cost: paired differences.

    \b
    replicast whatif TRACE --profile qwen3.6-35b-h200 --replicas 4 --set router=prefix-aware
    replicast whatif TRACE --profile qwen3.6-35b-h200 --replicas 4 --vary prefix-cache-hit-rate=0.14,0.6

    A prefix-cache-hit-rate is pinned, and the answer says so; kv-pool, router, block-size, tools-prefix,
    broken-prefix and developers let it emerge. Every flag of vLLM can be set, too.
    """
    from replicast import library
    from replicast.sim.report.timing import since_process_start

    imported = since_process_start()
    if not options["sets"] and not options["vary"]:
        raise click.UsageError("Nothing is changed: give --set NAME=VALUE or --vary NAME=A,B,C.")
    if options["developers"] is None and (options["active"] is not None or options["day_curve"]):
        raise click.UsageError("--active and --day-curve are of --developers, which is not given.")
    question = asked(options) | {"replications": options["replications"], "journal": journal(options)}
    with StatusLine(options["quiet"]) as line, kept(options):
        answer = library.whatif(
            replicas=options["replicas"],
            changes=options["sets"],
            vary=options["vary"],
            developers=options["developers"],
            search=options["search"],
            progress=line.runs,
            **question,
        )
        code = tell(answer, "whatif", options, imported, line)
    ctx.exit(code)
