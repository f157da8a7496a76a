"""Options of `plan --day` and `plan --fail`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from replicast.commands.options import SECONDS, Number

F = TypeVar("F", bound=Callable[..., Any])
METRICS = ("requests", "waiting", "kv-usage")
_NAMES = (
    "scale_metric",
    "scale_up",
    "scale_down",
    "scale_every",
    "scale_hold",
    "scale_min",
    "scale_max",
    "days",
)

_OPTIONS = (
    click.option(
        "--day", "whole_day", is_flag=True,
        help="Also 24 hours of the day curve: the planned fleet beside one that scales.",
    ),
    click.option("--fail", is_flag=True, help="Also the loss of one replica in the busiest hour."),
    click.option("--days", type=click.IntRange(1), help="Days of --day.  [default: 3]"),
    click.option(
        "--scale-metric", type=click.Choice(METRICS),
        help="What autoscaling looks at, per live replica.  [default: requests, running and waiting]",
    ),
    click.option(
        "--scale-up", type=Number(above=0),
        help="Start replicas above this.  [default: the planned busiest hour's mean; waiting 1]",
    ),
    click.option(
        "--scale-down", type=Number(0),
        help="Drain one where one fewer would stay below this.  [default: 0.8 of --scale-up; waiting 0.25]",
    ),
    click.option("--scale-every", type=Number(1), help="Seconds between looks.  [default: 60]"),
    click.option("--scale-hold", type=SECONDS, help="Seconds of calm before one is drained.  [default: 600]"),
    click.option("--scale-min", type=click.IntRange(1), help="The fewest replicas.  [default: 1]"),
    click.option("--scale-max", type=click.IntRange(1), help="The most.  [default: the planned number]"),
    click.option(
        "--start-up", type=SECONDS,
        help="Seconds until a started replica takes requests, of --day and --fail.  [default: 300]",
    ),
)  # fmt: skip


def day_options(command: F) -> F:
    """All of them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def operations_of(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `library.plan`; options without their question are refused."""
    from replicast.sim.planning.day import DEFAULT_DAYS, ScalingRule

    given = [name for name in _NAMES if options[name] is not None]
    if given and not options["whole_day"]:
        raise click.UsageError(f"--{given[0].replace('_', '-')} needs --day.")
    if options["start_up"] is not None and not (options["whole_day"] or options["fail"]):
        raise click.UsageError("--start-up needs --day or --fail.")
    start_up_s = 300.0 if options["start_up"] is None else options["start_up"]
    asked: dict[str, Any] = {}
    if options["whole_day"]:
        names = {"scale_metric": "metric", "scale_up": "up", "scale_down": "down", "scale_every": "every_s"}
        names |= {"scale_hold": "hold_s", "scale_min": "min_replicas", "scale_max": "max_replicas"}
        known = {field: options[name] for name, field in names.items() if options[name] is not None}
        asked["whole_day"] = ScalingRule(start_up_s=start_up_s, **known)
        asked["days"] = options["days"] or DEFAULT_DAYS
    if options["fail"]:
        asked["replaced_after_s"] = start_up_s
    return asked
