"""`replicast demo`: the tour, by running the very commands that a user would type."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from replicast.commands.options import PATH

PROFILE = "qwen3.6-35b-h200"
SYNTH = "--sessions 150 --seed 7 --human-gap-scale 0.5"
REPLAY = "--replicas 1,2,3,4 --sessions 50 --router session-affinity --seed 7"
NEXT = (
    f"replicast replay ~/.claude/projects --profile {PROFILE} --replicas 1,2,4,8 --sessions 40 --out result"
)


@click.command(short_help="The whole tour on made-up sessions: no GPU, no network.")
@click.option(
    "--out", type=PATH, default="demo-out", show_default=True, metavar="DIR", help="Where the files go."
)
@click.pass_context
def demo(ctx: click.Context, /, out: Path) -> None:
    """The whole tour on made-up sessions: no GPU, no network, some seconds.

    \b
    replicast demo
    """
    replicast = ctx.find_root().command
    sessions = out / "sessions.jsonl.gz"
    tour = (
        (
            "Sessions of coding agents, made up after the statistics of real ones (no GPU, no network):",
            f"replicast trace synth {SYNTH} -o {shlex.quote(str(sessions))}",
        ),
        (
            "How many servers do 50 developers need who work like that at the same time?",
            f"replicast replay {shlex.quote(str(sessions))} --profile {PROFILE} {REPLAY} "
            f"--out {shlex.quote(str(out))}",
        ),
    )
    for why, command in tour:
        click.echo(f"{why}\n$ {command}\n")
        replicast.main(shlex.split(command)[1:], prog_name="replicast", standalone_mode=False)
        click.echo()
    click.echo(f"Figure: {out / 'replay.png'}")
    click.echo(f"Next, on your own sessions: {NEXT}")
