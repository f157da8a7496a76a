"""`replicast profile`: descriptions of servers."""

from __future__ import annotations

import click


@click.group(short_help="Descriptions of servers: how long their steps take.")
def profile() -> None:
    """Server profiles: how long the steps of one server take, and how it is configured.

    \b
    replicast profile list
    """


@profile.command("list")
def list_profiles() -> None:
    """The profiles that come with replicast.

    \b
    replicast profile list
    """
    from replicast.calibration.profile import load_profile, shipped_profiles
    from replicast.sim.report.numbers import dollars
    from replicast.sim.report.text import table

    shipped = [load_profile(name) for name in shipped_profiles()]
    rows = [
        [p.name, p.status, p.model, p.gpu, p.vllm_version, dollars(p.price_usd_per_hour)] for p in shipped
    ]
    click.echo(table(["name", "status", "model", "GPU", "vLLM", "$/h"], rows, left=[0, 1, 2, 3]))


@profile.command("show")
@click.argument("name", metavar="NAME|FILE")
def show_profile(name: str) -> None:
    """One profile as TOML, to look at or to start your own from.

    \b
    replicast profile show qwen3.6-35b-h200 > my-server.toml
    """
    from replicast.calibration.profile import SHIPPED, load_profile, profile_text, shipped_profiles

    loaded = load_profile(name)
    if name in shipped_profiles():  # as it lies there, its comments included
        click.echo((SHIPPED / f"{name}.toml").read_text(encoding="utf-8"), nl=False)
    else:
        click.echo(profile_text(loaded), nl=False)
