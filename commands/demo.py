"""`replicast demo`: the tour, by running the very commands that a user would type."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from replicast.commands.options import PATH

PROFILE = "qwen3.6-35b-h200"
SYNTH = "--sessions 150 --seed 7 --human-gap-scale 0.5"
REPLAY = "--replicas 1,2,3,4 --sessions 50 --router session-affinity --seed 7"
LEVELS, LEFTOVER, SEED = (1, 2, 5, 10), 40, 8
NEXT = f"""Next, on your own data:
  replicast check SWEEP          a collector's database, Prometheus files, benchmark results
  replicast calibrate SWEEP --out server.toml
  replicast plan ~/.claude/projects --profile {PROFILE} --developers 50 --slo "ttft:p90<10s"
  replicast replay ~/.claude/projects --profile {PROFILE} --replicas 1,2,4,8 --sessions 40 --out result"""


@click.command(short_help="The whole tour on made-up data: no GPU, no network.")
@click.option(
    "--out", type=PATH, default="demo-out", show_default=True, metavar="DIR", help="Where the files go."
)
@click.pass_context
def demo(ctx: click.Context, /, out: Path) -> None:
    """The whole tour on made-up data: sweeps checked and learned from, sessions replayed, some seconds.

    \b
    replicast demo
    """
    replicast = ctx.find_root().command
    _make_sweeps(out)
    here = {name: shlex.quote(str(out / name)) for name in ("sweep.csv", "backlog.csv", "sessions.jsonl.gz")}
    folder = shlex.quote(str(out))
    tour = (
        (
            f"A (simulated) sweep of a server busy with {LEFTOVER} earlier requests. Can it be trusted?",
            f"replicast check {here['backlog.csv']} --parallel-per-session 1",
        ),
        (
            "The same server, drained before each level. What are its step times?",
            f"replicast calibrate {here['sweep.csv']} --no-loo --out {shlex.quote(str(out / 'server.toml'))}",
        ),
        (
            "Sessions of coding agents, made up after the statistics of real ones:",
            f"replicast trace synth {SYNTH} -o {here['sessions.jsonl.gz']}",
        ),
        (
            "How many servers do 50 developers need who work like that at the same time?",
            f"replicast replay {here['sessions.jsonl.gz']} --profile {PROFILE} {REPLAY} --out {folder}",
        ),
    )
    for why, command in tour:
        click.echo(f"{why}\n$ {command}\n")
        replicast.main(shlex.split(command)[1:], prog_name="replicast", standalone_mode=False)
        click.echo()
    click.echo(f"Figure: {out / 'replay.png'}")
    click.echo(NEXT)


def _make_sweeps(out: Path) -> None:
    from replicast.calibration.profile import load_profile
    from replicast.calibration.sample import made_levels, write_sweep_csv
    from replicast.sim.report.files import check_folder

    check_folder(out)
    profile = load_profile(PROFILE)
    write_sweep_csv(made_levels(profile, LEVELS, SEED), profile, out / "sweep.csv")
    backlog = made_levels(profile, LEVELS[1:], SEED, leftover=LEFTOVER)
    write_sweep_csv(backlog, profile, out / "backlog.csv")
